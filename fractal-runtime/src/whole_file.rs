//! Files that are there whole or not at all.

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Links that are followed at most, as on Linux.
const MOST_LINKS: usize = 40;

/// Puts a new file in the place of `path`: it is written beside it under a name of its own, then renamed. A link stays one;
/// what it leads to is written, be it there or not. An old file's permissions stay.
///
/// # Errors
/// Whatever keeps the file from being written, or an error of `write`; [`ErrorKind::InvalidInput`] where something else than a
/// file is in its place, or the name is a folder's. Then the old file is as it was, and no other is left behind.
pub fn replace(path: &Path, write: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>) -> io::Result<()> {
    let (target, old) = place(path)?;
    let mut file = beside(&target)?;
    let mut out = BufWriter::with_capacity(1 << 20, file.as_file_mut());
    write(&mut out)?;
    out.flush()?;
    drop(out);
    if let Some(old) = old {
        file.as_file().set_permissions(old.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(&target).map_err(|error| error.error)?;
    Ok(())
}

/// Fails where [`replace`] would before it writes.
///
/// # Errors
/// Those of [`replace`] but for what `write` does.
pub fn check(path: &Path) -> io::Result<()> {
    beside(&place(path)?.0)?.close()
}

/// Where links lead, even to what is not there.
///
/// # Errors
/// Links that lead to each other.
pub fn destination(path: &Path) -> io::Result<PathBuf> {
    if let Ok(found) = path.canonicalize() {
        return Ok(found);
    }
    // What is there and has no path: a pipe behind a link of the system's.
    if path.exists() {
        return Ok(path.to_owned());
    }
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(next) = std::fs::read_link(&path) else { return Ok(path) };
        // From the folder of the link; an absolute path replaces it.
        path = folder(&path).join(next);
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "expected a link to a file, found links that lead to each other"))
}

/// The folder that a path lies in.
pub fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Where a file is to be, and the file that is there.
fn place(path: &Path) -> io::Result<(PathBuf, Option<Metadata>)> {
    if path.as_os_str().as_encoded_bytes().last().is_some_and(|&last| std::path::is_separator(last.into())) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "expected a file's name, found a folder's"));
    }
    let target = destination(path)?;
    match std::fs::metadata(&target) {
        // A device or a folder is not to be replaced.
        Ok(old) if !old.is_file() => {
            Err(io::Error::new(ErrorKind::InvalidInput, "expected a file or nothing there, found something else"))
        }
        Ok(old) => Ok((target, Some(old))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok((target, None)),
        Err(error) => Err(error),
    }
}

/// A file in the same folder, which goes away unless it is renamed.
fn beside(target: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".fractal-").suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As a file that is simply made; the process' mask applies.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    // Without the name of a file that nobody has asked for.
    builder.tempfile_in(folder(target)).map_err(|error| {
        let text = error.to_string();
        io::Error::new(error.kind(), text.split(" at path ").next().unwrap_or_default())
    })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_stay_and_what_they_lead_to_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("in")).unwrap();
        // To what is not there; from one folder into another; by way of a second link.
        symlink("in/file", at("link")).unwrap();
        symlink(at("link"), at("in/second")).unwrap();
        replace(&at("in/second"), |out| out.write_all(b"one")).unwrap();
        assert_eq!(std::fs::read(at("in/file")).unwrap(), b"one");
        replace(&at("link"), |out| out.write_all(b"two")).unwrap();
        assert_eq!(std::fs::read(at("in/file")).unwrap(), b"two");
        assert!(at("link").is_symlink() && at("in/second").is_symlink());
        // A ring leads nowhere, and stays.
        symlink(at("ring"), at("ring")).unwrap();
        let error = replace(&at("ring"), |out| out.write_all(b"three")).unwrap_err();
        assert!(error.to_string().contains("lead to each other"), "{error}");
        assert!(at("ring").is_symlink());
        // What is there without a path of its own, as a pipe behind /dev/stdout.
        let (reader, _writer) = io::pipe().unwrap();
        let pipe = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader)));
        if pipe.exists() {
            assert_eq!(destination(&pipe).unwrap(), pipe);
        }
    }

    #[test]
    fn what_fails_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "old").unwrap();
        let error = replace(&path, |out| {
            out.write_all(b"half of it")?;
            Err(io::Error::other("no more"))
        });
        assert_eq!(error.unwrap_err().to_string(), "no more");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        check(&path).unwrap();
        let missing = check(&folder.path().join("no folder/file")).unwrap_err().to_string();
        assert!(!missing.contains(".tmp"), "{missing}");
        assert!(check(&folder.path().join("folder/")).unwrap_err().to_string().contains("found a folder's"));
        assert!(check(&folder.path().join("long".repeat(100))).is_err());
        assert!(check(folder.path()).is_err());
        assert!(replace(folder.path(), |_| Ok(())).unwrap_err().to_string().contains("found something else"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
