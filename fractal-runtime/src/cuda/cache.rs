//! The cache of compiled kernels: key -> an entry on disk that was checked, or a reason why there is none.
//!
//! One folder serves any number of processes. An entry is written to a temporary file of its own and published by a
//! rename, so a reader sees a whole entry or none; two processes that compile the same source publish the same content,
//! and either wins. An entry holds its own key and a checksum over everything, so one that was damaged or cut off is
//! compiled again and replaced, never loaded. A folder that cannot be read or written costs speed, not correctness: the
//! reason is kept for [`CubinCache::trouble`].

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::cubin::Cubin;
use super::error::CudaError;
use super::nvrtc::{Compiler, Options, Source};
use super::target::{Arch, Version};

/// What a compiled kernel depends on, hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of a source, its headers, the options, the architecture and the compiler. The version of this crate counts
    /// too. Comments before the first line of code do not, unless line numbers are kept: kernels that differ in the
    /// pattern they name there are one.
    pub fn new(source: &Source, arch: Arch, options: &Options, nvrtc: Version, include: Option<&Path>) -> Key {
        let mut parts = vec![env!("CARGO_PKG_VERSION").to_owned(), nvrtc.to_string()];
        parts.push(include.map(|folder| folder.display().to_string()).unwrap_or_default());
        parts.push(source.name.clone());
        parts.push(if options.line_info { &source.text } else { without_heading(&source.text) }.to_owned());
        parts.push(source.headers.len().to_string());
        for (name, text) in &source.headers {
            parts.extend([name.clone(), text.clone()]);
        }
        parts.extend(options.arguments(arch));
        Key(digest(&parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>()))
    }

    fn file_name(self) -> String {
        format!("{}.fcubin", hex(&self.0))
    }
}

/// The text from its first line that is more than a comment on.
fn without_heading(text: &str) -> &str {
    let mut rest = text;
    while let Some((line, after)) = rest.split_once('\n') {
        // A backslash continues the comment on the next line.
        if !line.starts_with("//") || line.trim_end().ends_with('\\') {
            break;
        }
        rest = after;
    }
    rest
}

/// SHA-256 of parts, each preceded by its length, so that no two lists of parts collide by concatenation.
pub(crate) fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where a kernel's machine code came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Read from the cache.
    Cached,
    /// Compiled, since the cache had none.
    Compiled,
    /// Compiled, since the cache's entry could not be used.
    Recompiled {
        /// What is wrong with the entry.
        reason: String,
    },
}

/// What a look into the cache found.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup {
    /// An entry that passed its checks.
    Hit(Box<Cubin>),
    /// No entry.
    Miss,
    /// An entry that must not be loaded.
    Damaged {
        /// What is wrong with it.
        reason: String,
    },
}

/// A folder of compiled kernels, or the reason why there is none.
#[derive(Debug)]
pub struct CubinCache {
    folder: Option<PathBuf>,
    trouble: Mutex<Option<String>>,
    /// What threads of this process are compiling, so that others wait for it.
    compiling: Mutex<HashSet<Key>>,
    compiled: Condvar,
}

/// `FRACTAL_CACHE_DIR`, or `fractal/kernels` in the user's folder for caches.
pub(crate) fn default_folder() -> Option<PathBuf> {
    use etcetera::BaseStrategy;
    match std::env::var_os("FRACTAL_CACHE_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => Some(folder.into()),
        None => Some(etcetera::choose_base_strategy().ok()?.cache_dir().join("fractal").join("kernels")),
    }
}

const MAGIC: &[u8; 8] = b"FRACTAL\x01";
/// Magic, key, length of the code, length of the log.
const HEADER: usize = 8 + 32 + 8 + 8;
const TEMPORARY: &str = ".publishing-";
/// A temporary file this old was left by a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

impl CubinCache {
    /// The user's cache: `FRACTAL_CACHE_DIR`, or `fractal/kernels` in the user's folder for caches.
    pub fn open() -> CubinCache {
        match default_folder() {
            Some(folder) => CubinCache::at(folder),
            None => CubinCache::off("there is no home folder, and FRACTAL_CACHE_DIR is not set"),
        }
    }

    /// A cache in this folder, which is made if needed. If that fails the cache stays off and says why.
    pub fn at(folder: impl Into<PathBuf>) -> CubinCache {
        let folder = folder.into();
        match make_folder(&folder) {
            Ok(()) => {
                remove_abandoned(&folder);
                CubinCache::new(Some(folder), None)
            }
            Err(error) => CubinCache::off(format!("cannot use the folder {}: {error}", folder.display())),
        }
    }

    /// No cache: every kernel is compiled.
    pub fn off(reason: impl Into<String>) -> CubinCache {
        CubinCache::new(None, Some(reason.into()))
    }

    fn new(folder: Option<PathBuf>, trouble: Option<String>) -> CubinCache {
        CubinCache { folder, trouble: Mutex::new(trouble), compiling: Mutex::default(), compiled: Condvar::new() }
    }

    /// The folder, if the cache is on.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Why the cache is off, or the last thing that went wrong with it.
    pub fn trouble(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The entry of a key, after its checks.
    pub fn get(&self, key: Key) -> Lookup {
        let Some(folder) = &self.folder else { return Lookup::Miss };
        let path = folder.join(key.file_name());
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Lookup::Miss,
            Err(error) => return Lookup::Damaged { reason: format!("cannot read {}: {error}", path.display()) },
        };
        match decode(&bytes, key) {
            Ok(cubin) => Lookup::Hit(Box::new(cubin)),
            Err(reason) => Lookup::Damaged { reason: format!("{}: {reason}", path.display()) },
        }
    }

    /// Publishes an entry. Whether it could: if not, [`CubinCache::trouble`] says why.
    pub fn put(&self, key: Key, cubin: &Cubin) -> bool {
        let Some(folder) = &self.folder else { return false };
        let path = folder.join(key.file_name());
        match publish(folder, &path, &encode(key, cubin)) {
            Ok(()) => true,
            Err(error) => {
                *self.lock() = Some(format!("cannot write {}: {error}", path.display()));
                false
            }
        }
    }

    /// The machine code of a source: from the cache, or compiled and published.
    ///
    /// # Errors
    /// Those of [`Compiler::compile`]; never one of the cache.
    pub fn get_or_compile(
        &self,
        compiler: &Compiler,
        source: &Source,
        arch: Arch,
        options: &Options,
    ) -> Result<(Cubin, Origin), CudaError> {
        let key = Key::new(source, arch, options, compiler.version(), compiler.include());
        let _turn = self.turn(key);
        let origin = match self.get(key) {
            Lookup::Hit(cubin) => return Ok((*cubin, Origin::Cached)),
            Lookup::Miss => Origin::Compiled,
            Lookup::Damaged { reason } => Origin::Recompiled { reason },
        };
        let cubin = compiler.compile(source, arch, options)?;
        self.put(key, &cubin);
        Ok((cubin, origin))
    }

    /// Waits while another thread of this process compiles the same.
    fn turn(&self, key: Key) -> Turn<'_> {
        let mut compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        while !compiling.insert(key) {
            compiling = self.compiled.wait(compiling).unwrap_or_else(PoisonError::into_inner);
        }
        Turn { cache: self, key }
    }
}

/// The right to compile a key; given back even if the compiler panics.
struct Turn<'a> {
    cache: &'a CubinCache,
    key: Key,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.cache.compiling.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        self.cache.compiled.notify_all();
    }
}

/// Makes the folder, for this user alone: what lies in it is loaded as code.
fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn remove_abandoned(folder: &Path) {
    let Ok(entries) = folder.read_dir() else { return };
    for entry in entries.flatten() {
        let temporary = entry.file_name().to_string_lossy().starts_with(TEMPORARY);
        let age = || SystemTime::now().duration_since(entry.metadata().ok()?.modified().ok()?).ok();
        if temporary && age().is_some_and(|age| age > ABANDONED) {
            // Another process may have removed it first.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Writes a temporary file and renames it to `path`. What is in the way of the rename is removed once: an entry that was
/// replaced by a folder is damaged too.
fn publish(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    make_folder(folder)?;
    let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.flush()?;
    match file.persist(path) {
        Ok(_) => Ok(()),
        Err(error) if path.is_dir() => {
            fs::remove_dir_all(path)?;
            error.file.persist(path).map(drop).map_err(|error| error.error)
        }
        Err(error) => Err(error.error),
    }
}

fn encode(key: Key, cubin: &Cubin) -> Vec<u8> {
    let (code, log) = (cubin.bytes(), cubin.log().as_bytes());
    let mut bytes = Vec::with_capacity(HEADER + code.len() + log.len() + 32);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&key.0);
    bytes.extend_from_slice(&(code.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(log.len() as u64).to_le_bytes());
    bytes.extend_from_slice(code);
    bytes.extend_from_slice(log);
    let checksum = digest(&[&bytes]);
    bytes.extend_from_slice(&checksum);
    bytes
}

fn decode(bytes: &[u8], key: Key) -> Result<Cubin, String> {
    let (content, checksum) = bytes.split_last_chunk::<32>().ok_or("it is cut off")?;
    if content.len() < HEADER || !content.starts_with(MAGIC) {
        return Err("it has no header of this cache".into());
    }
    if digest(&[content]) != *checksum {
        return Err("its checksum is wrong".into());
    }
    if content[8..40] != key.0 {
        return Err("it is the entry of another key".into());
    }
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| content[at + i]));
    let body = &content[HEADER..];
    let code = usize::try_from(number(40)).ok().filter(|&code| code <= body.len()).ok_or("its lengths are wrong")?;
    let (code, log) = body.split_at(code);
    if log.len() as u64 != number(48) {
        return Err("its lengths are wrong".into());
    }
    let log = String::from_utf8(log.to_vec()).map_err(|_| "its log is no text")?;
    Cubin::new(code.to_vec(), log).map_err(|error| error.to_string())
}
