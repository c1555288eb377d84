//! The database of measurements: a file of JSON lines that any number of tuners append to -> the records of a context.
//!
//! A line is written as a whole, at the end, while the writer alone holds the file's lock; a reader holds it with other
//! readers. So a line without its newline was left by a writer that was killed: the next one puts the newline. What is
//! no record is told and passed over; it stays in the file. What is in memory is always the beginning of the file.

use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Read as _, Seek, SeekFrom, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fractal_dsl::Directive;
use fractal_sched::KernelRequest;
use thiserror::Error;

use super::front::front;
use super::line::{RawLine, encode};
use super::record::{Context, Record};

/// An error of the database.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// There is something else in the file's place.
    #[error("database `{}`: expected a file of records, or none yet, found {found}; pass another path", .path.display())]
    NotAFile {
        /// The path that was given.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// The file system refused.
    #[error("database `{}`: cannot {operation}: expected {expected}, found: {found}; {mend}", .path.display())]
    Io {
        /// The path that was given.
        path: PathBuf,
        /// What was to be done.
        operation: &'static str,
        /// What that needs.
        expected: &'static str,
        /// What the system said.
        found: io::Error,
        /// What to do.
        mend: &'static str,
    },
    /// A record that could not be read again.
    #[error("database: the record was not written: {reason}")]
    Record {
        /// What was expected of it, and what was found.
        reason: String,
    },
}

/// A line that is no record of this version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its number, from 1.
    pub line: usize,
    /// What was expected, and what was found.
    pub reason: String,
}

/// Measurements of this and of earlier runs. Threads share one; processes share its file.
#[derive(Debug)]
pub struct Database {
    /// None: in memory alone.
    path: Option<PathBuf>,
    state: Mutex<State>,
}

/// What was read of the file, from its beginning.
#[derive(Debug, Default)]
struct State {
    /// Of each context, in the order of lines.
    records: HashMap<Context, Vec<Record>>,
    /// Skipped and not told yet.
    skipped: Vec<Skipped>,
    /// Bytes read.
    position: u64,
    /// Newlines read.
    lines: usize,
    /// Whether the last byte read is not a newline.
    torn: bool,
    /// Which file it was.
    identity: Option<(u64, u64)>,
}

impl Database {
    /// Reads the file; of one that is not there yet, nothing is made before the first record. Lines that are no records
    /// are skipped and told.
    ///
    /// # Errors
    /// Something else than a file at `path`; a file that cannot be read, written or locked; no file, and a folder that
    /// none can be made in.
    pub fn open(path: &Path) -> Result<(Database, Vec<Skipped>), DatabaseError> {
        let mut database = Database { path: Some(path.to_owned()), state: Mutex::default() };
        if open_existing(path)?.is_none() {
            check_folder(path)?;
        }
        let skipped = database.refresh()?;
        let state = database.lock();
        if state.records.is_empty() && state.position > 0 && !begins_as_ours(path) {
            let (path, found) = (path.to_owned(), "a file of another kind, to which nothing will be added");
            return Err(DatabaseError::NotAFile { path, found });
        }
        drop(state);
        Ok((database, skipped))
    }

    /// A database without a file.
    pub fn in_memory() -> Database {
        Database { path: None, state: Mutex::default() }
    }

    /// Adds a record, after those that others have added since; the file and its folder are made if needed. When this
    /// returns, the line is on the disk. If it fails, no part of the line stays.
    ///
    /// # Errors
    /// A record with a number that is negative or not finite, or longer than 1 MiB; a file that cannot be made, read,
    /// locked or written.
    pub fn append(&self, record: Record) -> Result<(), DatabaseError> {
        let mut line = encode(&record).map_err(|reason| DatabaseError::Record { reason })?;
        let mut state = self.lock();
        if let Some(path) = &self.path {
            let mut file = open_or_make(path)?;
            uninterrupted(|| file.lock()).map_err(|found| refused(path, LOCK, found))?;
            state.catch_up(&file).map_err(|found| refused(path, READ, found))?;
            if state.torn {
                line.insert(0, b'\n');
            }
            if let Err(found) = file.write_all(&line).and_then(|()| file.sync_data()) {
                // Best effort: if a part stays, the next line starts after a newline.
                let _ = file.set_len(state.position);
                return Err(refused(path, APPEND, found));
            }
            state.position += line.len() as u64;
            state.lines += 1 + usize::from(state.torn);
            state.torn = false;
        }
        state.add(record);
        Ok(())
    }

    /// Reads what others have appended since. A file that was cut, replaced or removed is read anew, and what was known
    /// of it is forgotten.
    ///
    /// # Errors
    /// As [`Database::open`], but no file is well.
    pub fn refresh(&mut self) -> Result<Vec<Skipped>, DatabaseError> {
        let mut state = self.lock();
        if let Some(path) = &self.path {
            match open_existing(path)? {
                Some(file) => {
                    uninterrupted(|| file.lock_shared()).map_err(|found| refused(path, LOCK, found))?;
                    state.catch_up(&file).map_err(|found| refused(path, READ, found))?;
                }
                None => *state = State::default(),
            }
        }
        Ok(mem::take(&mut state.skipped))
    }

    /// The records of exactly this context, in the order of lines.
    pub fn records(&self, context: &Context) -> Vec<Record> {
        self.lock().records.get(context).cloned().unwrap_or_default()
    }

    /// The last record of this context, pattern and request.
    pub fn find(&self, context: &Context, pattern: &[Directive], request: &KernelRequest) -> Option<Record> {
        let state = self.lock();
        let mut records = state.records.get(context)?.iter().rev();
        records.find(|record| record.pattern == pattern && record.request == *request).cloned()
    }

    /// How many records are of the same problem, but of another device, other versions or another Fractal.
    pub fn stale(&self, context: &Context) -> usize {
        let state = self.lock();
        let stale = state.records.iter().filter(|(other, _)| *other != context && same_problem(other, context));
        stale.map(|(_, records)| records.len()).sum()
    }

    /// The fastest record of [`Database::front`].
    pub fn best(&self, context: &Context) -> Option<Record> {
        self.front(context).pop()
    }

    /// The Pareto front of a context, by [`front()`]; of each pattern and request, the last record alone counts.
    pub fn front(&self, context: &Context) -> Vec<Record> {
        let state = self.lock();
        let mut last = HashMap::new();
        for (index, record) in state.records.get(context).into_iter().flatten().enumerate() {
            last.insert((&record.pattern, &record.request), (index, record));
        }
        let mut last: Vec<_> = last.into_values().collect();
        last.sort_unstable_by_key(|(index, _)| *index);
        front(last.into_iter().map(|(_, record)| record.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn same_problem(a: &Context, b: &Context) -> bool {
    let Context { fractal: _, device: _, versions: _, dtype, n, k, m, epilogue, layouts, weights } = a;
    (dtype, n, k, m, epilogue, layouts, weights) == (&b.dtype, &b.n, &b.k, &b.m, &b.epilogue, &b.layouts, &b.weights)
}

impl State {
    /// Reads on to the end of the file, which is locked.
    fn catch_up(&mut self, file: &File) -> io::Result<()> {
        let metadata = file.metadata()?;
        let identity = identity(&metadata);
        if metadata.len() < self.position || self.position > 0 && identity != self.identity {
            *self = State::default();
        }
        self.identity = identity;
        if metadata.len() == self.position {
            return Ok(());
        }
        let mut reader = BufReader::new(file);
        reader.seek(SeekFrom::Start(self.position))?;
        while let Some(line) = RawLine::read(&mut reader)? {
            match line.decode() {
                Ok(Some(record)) => self.add(record),
                Ok(None) => {}
                Err(reason) => self.skipped.push(Skipped { line: self.lines + 1, reason }),
            }
            self.position += line.length;
            self.lines += usize::from(line.ended);
            self.torn = !line.ended;
        }
        Ok(())
    }

    fn add(&mut self, record: Record) {
        match self.records.get_mut(&record.context) {
            Some(records) => records.push(record),
            None => drop(self.records.insert(record.context.clone(), vec![record])),
        }
    }
}

/// Device and number of the file, where the system has them.
fn identity(metadata: &Metadata) -> Option<(u64, u64)> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        Some((metadata.dev(), metadata.ino()))
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        None
    }
}

/// The file for reading and appending, if it is there.
fn open_existing(path: &Path) -> Result<Option<File>, DatabaseError> {
    match fs::metadata(path) {
        Ok(metadata) => check_is_file(path, &metadata)?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(found) => return Err(refused(path, OPEN, found)),
    }
    match OpenOptions::new().read(true).append(true).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(found) => Err(refused(path, OPEN, found)),
    }
}

fn open_or_make(path: &Path) -> Result<File, DatabaseError> {
    if let Some(file) = open_existing(path)? {
        return Ok(file);
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|found| refused(path, FOLDER, found))?;
    }
    let made = OpenOptions::new().read(true).append(true).create(true).open(path);
    made.map_err(|found| refused(path, FOLDER, found))
}

/// A pipe would be waited for, and a folder has no lines.
fn check_is_file(path: &Path, metadata: &Metadata) -> Result<(), DatabaseError> {
    let found = match metadata.file_type() {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "a folder",
        _ => "a device or pipe",
    };
    Err(DatabaseError::NotAFile { path: path.to_owned(), found })
}

/// Whether the file begins as a database does, or as one whose first line was torn.
fn begins_as_ours(path: &Path) -> bool {
    const BEGIN: &[u8] = b"{\"format\"";
    let mut begin = [0; BEGIN.len()];
    let read = std::fs::File::open(path).and_then(|mut file| file.read(&mut begin)).unwrap_or(0);
    BEGIN.starts_with(&begin[..read])
}

/// Fails now where the first append would fail after a measurement: tries to write into the folder, or into the nearest
/// that is there.
fn check_folder(path: &Path) -> Result<(), DatabaseError> {
    if path.file_name().is_none() {
        return Err(DatabaseError::NotAFile { path: path.to_owned(), found: "no name of a file" });
    }
    for folder in path.ancestors().skip(1) {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        match tempfile::tempfile_in(folder) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(found) => return Err(refused(path, FOLDER, found)),
        }
    }
    Ok(())
}

fn uninterrupted(mut operation: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match operation() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// What was to be done, and what that needs.
type Operation = (&'static str, &'static str);
const OPEN: Operation = ("open it", "a file that may be read and written");
const FOLDER: Operation = ("make it", "a folder that may be written");
const LOCK: Operation = ("lock it", "a file system with locks");
const READ: Operation = ("read it", "lines");
const APPEND: Operation = ("append to it", "room for a line");

fn refused(path: &Path, (operation, expected): Operation, found: io::Error) -> DatabaseError {
    let mend = match found.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => "permit it, or pass another path",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            "make room, or pass another path"
        }
        _ => "pass another path",
    };
    DatabaseError::Io { path: path.to_owned(), operation, expected, found, mend }
}
