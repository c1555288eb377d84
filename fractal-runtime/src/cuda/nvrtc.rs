//! CUDA C++ text -> machine code, by NVRTC. Needs neither a GPU nor a driver.
//!
//! The few functions needed are called through their addresses: cudarc's own bindings look for the library under short
//! names only and panic when it is missing.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use libloading::Library;

use super::cubin::Cubin;
use super::error::CudaError;
use super::failed;
use super::library::{self, Places};
use super::target::{Arch, Version};

/// A source text and the headers it includes by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    /// A name for messages, `ffn_up`.
    pub name: String,
    /// CUDA C++. Kernels are declared `extern "C"`.
    pub text: String,
    /// Headers: (the name in the `#include`, the text).
    pub headers: Vec<(String, String)>,
}

impl Source {
    /// A source without headers.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Source {
        Source { name: name.into(), text: text.into(), headers: Vec::new() }
    }

    /// With one more header.
    pub fn header(mut self, name: impl Into<String>, text: impl Into<String>) -> Source {
        self.headers.push((name.into(), text.into()));
        self
    }
}

/// What NVRTC is asked besides the architecture.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Macros: (name, value).
    pub defines: Vec<(String, String)>,
    /// Keep line numbers for profilers.
    pub line_info: bool,
    /// Approximate division, square root and functions; denormals become zero.
    pub fast_math: bool,
    /// Any other options, as NVRTC spells them.
    pub flags: Vec<String>,
}

impl Options {
    /// NVRTC's command line. It is part of the cache's key.
    pub fn arguments(&self, arch: Arch) -> Vec<String> {
        let mut arguments =
            vec![format!("--gpu-architecture={arch}"), "--std=c++17".into(), "--ptxas-options=-v".into()];
        arguments.extend(self.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        if self.line_info {
            arguments.push("-lineinfo".into());
        }
        if self.fast_math {
            arguments.push("--use_fast_math".into());
        }
        arguments.extend(self.flags.iter().cloned());
        arguments
    }
}

/// A loaded NVRTC. Cheap to clone, and usable from many threads.
#[derive(Debug, Clone)]
pub struct Compiler {
    loaded: Arc<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    functions: Functions,
    library: PathBuf,
    include: Option<PathBuf>,
    version: Version,
    known: Vec<u32>,
}

impl Compiler {
    /// Loads the first NVRTC found: `FRACTAL_NVRTC` (a library, or a folder such as `site-packages`) if set; else
    /// `LD_LIBRARY_PATH`, the loader's own search, `CUDA_HOME`, `/usr/local/cuda*`, and Python's packages: of `PYTHONPATH`,
    /// `VIRTUAL_ENV`, `CONDA_PREFIX`, the first `python3` of `PATH`, and the user's own.
    ///
    /// # Errors
    /// [`CudaError::NoNvrtc`] lists where it was looked for; [`CudaError::NvrtcUnusable`] if only broken ones were found.
    pub fn new() -> Result<Compiler, CudaError> {
        Compiler::find(&Places::from_env(), |_| true)
    }

    /// Loads the first NVRTC whose code a driver of this CUDA version can load.
    ///
    /// # Errors
    /// As [`Compiler::new`], and [`CudaError::DriverTooOld`] if every NVRTC found is of a newer major version.
    pub fn for_driver(driver: Version) -> Result<Compiler, CudaError> {
        let places = Places::from_env();
        match Compiler::find(&places, |nvrtc| nvrtc.major <= driver.major) {
            Err(error) => match Compiler::find(&places, |_| true) {
                Ok(newer) => Err(CudaError::DriverTooOld {
                    driver,
                    nvrtc: newer.version(),
                    nvrtc_library: newer.library().to_path_buf(),
                }),
                Err(_) => Err(error),
            },
            found => found,
        }
    }

    fn find(places: &Places, fits: impl Fn(Version) -> bool) -> Result<Compiler, CudaError> {
        let (candidates, looked) = library::nvrtc_candidates(places);
        let mut broken = None;
        for candidate in candidates {
            match Compiler::open(&candidate, places) {
                Ok(compiler) if fits(compiler.version()) => return Ok(compiler),
                Ok(_) => {}
                // A short name that the loader does not know is no broken library.
                Err(reason) if candidate.is_absolute() && candidate.exists() => {
                    broken.get_or_insert(CudaError::NvrtcUnusable { library: candidate, reason });
                }
                Err(_) => {}
            }
        }
        Err(broken.unwrap_or(CudaError::NoNvrtc { looked }))
    }

    fn open(path: &Path, places: &Places) -> Result<Compiler, String> {
        let functions = Functions::of(library::load_nvrtc(path)?)?;
        let version = functions.version()?;
        let known = functions.known_archs()?;
        let library = if path.is_absolute() { Some(path.to_path_buf()) } else { library::path_of_loaded(path) };
        let library = library.unwrap_or_else(|| path.to_path_buf());
        let include = library::include_folder(places, &library);
        Ok(Compiler { loaded: Arc::new(Loaded { functions, library, include, version, known }) })
    }

    /// NVRTC's version.
    pub fn version(&self) -> Version {
        self.loaded.version
    }

    /// Where it was loaded from.
    pub fn library(&self) -> &Path {
        &self.loaded.library
    }

    /// The folder of CUDA's headers, if one was found. Sources may include `cuda_fp16.h` only then.
    pub fn include(&self) -> Option<&Path> {
        self.loaded.include.as_deref()
    }

    /// Architecture numbers it can compile for: 90 is sm_90 and sm_90a.
    pub fn known_archs(&self) -> &[u32] {
        &self.loaded.known
    }

    /// Compiles a source to machine code for one architecture.
    ///
    /// # Errors
    /// [`CudaError::Compile`] with NVRTC's messages, after the source and the log were kept in a file;
    /// [`CudaError::NvrtcLacksArch`].
    pub fn compile(&self, source: &Source, arch: Arch, options: &Options) -> Result<Cubin, CudaError> {
        let loaded = &*self.loaded;
        if !loaded.known.contains(&arch.number()) {
            return Err(CudaError::NvrtcLacksArch { arch, nvrtc: loaded.version, known: loaded.known.clone() });
        }
        let mut arguments = options.arguments(arch);
        arguments.extend(loaded.include.as_ref().map(|folder| format!("-I{}", folder.display())));
        let (code, log) = loaded.functions.run(source, &arguments);
        match code {
            Ok(bytes) => Cubin::new(bytes, log),
            Err(reason) => {
                let log = if log.trim().is_empty() { reason } else { log };
                let source_path = failed::keep(source, &arguments, &log);
                Err(CudaError::Compile { name: source.name.clone(), arch, log, source_path })
            }
        }
    }
}

/// `nvrtcProgram`.
type Program = *mut std::ffi::c_void;
/// `nvrtcResult`; 0 is success.
type Status = c_int;

/// The addresses of the functions used; the library they are in is never unloaded.
#[derive(Debug, Clone, Copy)]
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    arch_count: unsafe extern "C" fn(*mut c_int) -> Status,
    archs: unsafe extern "C" fn(*mut c_int) -> Status,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Status,
}

impl Functions {
    fn of(library: &'static Library) -> Result<Functions, String> {
        /// A function's address, by name.
        fn get<F: Copy>(library: &'static Library, name: &str) -> Result<F, String> {
            // SAFETY: `F` is the signature that nvrtc.h declares for the name (the fields above), and it has not changed
            // since CUDA 11.2. The library is 'static, so the address stays valid.
            let symbol = unsafe { library.get::<F>(name.as_bytes()) };
            symbol.map(|symbol| *symbol).map_err(|error| format!("it lacks {name}: {error}"))
        }
        Ok(Functions {
            version: get(library, "nvrtcVersion")?,
            error_string: get(library, "nvrtcGetErrorString")?,
            arch_count: get(library, "nvrtcGetNumSupportedArchs")?,
            archs: get(library, "nvrtcGetSupportedArchs")?,
            create: get(library, "nvrtcCreateProgram")?,
            destroy: get(library, "nvrtcDestroyProgram")?,
            compile: get(library, "nvrtcCompileProgram")?,
            log_size: get(library, "nvrtcGetProgramLogSize")?,
            log: get(library, "nvrtcGetProgramLog")?,
            cubin_size: get(library, "nvrtcGetCUBINSize")?,
            cubin: get(library, "nvrtcGetCUBIN")?,
        })
    }

    fn check(&self, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: nvrtcGetErrorString takes any number and returns a static string.
        let text = unsafe { CStr::from_ptr((self.error_string)(status)) };
        Err(text.to_string_lossy().into_owned())
    }

    fn version(&self) -> Result<Version, String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are to live integers.
        self.check(unsafe { (self.version)(&mut major, &mut minor) })?;
        Ok(Version { major: major.unsigned_abs(), minor: minor.unsigned_abs() })
    }

    fn known_archs(&self) -> Result<Vec<u32>, String> {
        let mut count = 0;
        // SAFETY: the pointer is to a live integer.
        self.check(unsafe { (self.arch_count)(&mut count) })?;
        let mut archs = vec![0 as c_int; count.unsigned_abs() as usize];
        // SAFETY: NVRTC writes as many integers as it has just counted.
        self.check(unsafe { (self.archs)(archs.as_mut_ptr()) })?;
        Ok(archs.into_iter().map(|arch| arch.unsigned_abs()).collect())
    }

    /// Compiles: the machine code or the reason why not, and the log, which is there either way.
    fn run(&self, source: &Source, arguments: &[String]) -> (Result<Vec<u8>, String>, String) {
        let program = match self.create_program(source) {
            Ok(program) => program,
            Err(reason) => return (Err(reason), String::new()),
        };
        let status = c_strings(arguments.iter().map(String::as_str)).and_then(|arguments| {
            let pointers = pointers(&arguments);
            // SAFETY: the program is live, and `pointers` holds as many zero-terminated strings as it says.
            self.check(unsafe { (self.compile)(program.0, pointers.len() as c_int, pointers.as_ptr()) })
        });
        let log = self.read(&program, self.log_size, self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        (status.and_then(|()| self.read(&program, self.cubin_size, self.cubin)), log)
    }

    fn create_program(&self, source: &Source) -> Result<OwnedProgram, String> {
        let file = format!("{}.cu", source.name);
        let main = c_strings([source.text.as_str(), file.as_str()])?;
        let names = c_strings(source.headers.iter().map(|(name, _)| name.as_str()))?;
        let texts = c_strings(source.headers.iter().map(|(_, text)| text.as_str()))?;
        let mut program = ptr::null_mut();
        // SAFETY: all strings are zero-terminated and outlive the call, which copies them; the two arrays of headers have
        // the length that is passed.
        self.check(unsafe {
            (self.create)(
                &mut program,
                main[0].as_ptr(),
                main[1].as_ptr(),
                names.len() as c_int,
                pointers(&texts).as_ptr(),
                pointers(&names).as_ptr(),
            )
        })?;
        Ok(OwnedProgram(program, self.destroy))
    }

    /// One of the program's outputs: its size, then its bytes.
    fn read(
        &self,
        program: &OwnedProgram,
        size: unsafe extern "C" fn(Program, *mut usize) -> Status,
        bytes: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: the program is live, and the pointer is to a live integer.
        self.check(unsafe { size(program.0, &mut len) })?;
        let mut buffer = vec![0u8; len];
        // SAFETY: NVRTC writes as many bytes as it has just told.
        self.check(unsafe { bytes(program.0, buffer.as_mut_ptr().cast()) })?;
        Ok(buffer)
    }
}

struct OwnedProgram(Program, unsafe extern "C" fn(*mut Program) -> Status);

impl Drop for OwnedProgram {
    fn drop(&mut self) {
        // SAFETY: the program was created by this NVRTC and is destroyed once.
        unsafe { (self.1)(&mut self.0) };
    }
}

fn c_strings<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<CString>, String> {
    let convert = |text: &str| CString::new(text).map_err(|_| "a source, name or option holds a zero byte".to_owned());
    texts.into_iter().map(convert).collect()
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}
