//! JSON files of results: whole or not at all, and refused before anything is measured where they cannot be written.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use fractal_runtime::whole_file;
use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Writes beside the file first, so that no reader finds half of it. A link stays one: what it leads to is written. Devices
/// and pipes are written as they are.
pub fn write(path: &Path, value: &Value) -> Result<()> {
    write_text(path, &(serde_json::to_string_pretty(value)? + "\n"))
}

/// Any text, in the same way.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    let written = if is_special(path) {
        std::fs::write(path, text)
    } else {
        whole_file::replace(path, |out| out.write_all(text.as_bytes()))
    };
    written.map_err(|e| format!("cannot write {}: {e}", path.display()).into())
}

/// Fails now where [`write`] would fail after the run.
pub fn check_writable(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Err(format!("cannot write {}: it is a directory; pass a file", path.display()).into());
    }
    if is_special(path) {
        return Ok(());
    }
    if std::fs::metadata(path).is_ok_and(|old| old.permissions().readonly()) {
        return Err(format!("cannot write {}: it is read-only; pass another file", path.display()).into());
    }
    let there = whole_file::check(path);
    there
        .map_err(|e| format!("cannot write {} into {}: {e}", path.display(), whole_file::folder(path).display()).into())
}

/// The same for what is written as a file only.
#[allow(dead_code, reason = "some examples write text alone")]
pub fn check_file(path: &Path) -> Result<()> {
    if is_special(path) {
        return Err(format!("cannot write {}: it is neither a file nor free; pass another path", path.display()).into());
    }
    check_writable(path)
}

/// One path for all that lead to the same file, be it there or not.
#[allow(dead_code, reason = "some examples have one output")]
pub fn place(path: &Path) -> PathBuf {
    let path = whole_file::destination(path).unwrap_or_else(|_| path.to_owned());
    let there = || Some(whole_file::folder(&path).canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(there).unwrap_or(path)
}

/// Whether it is there and neither a file nor a directory.
fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}
