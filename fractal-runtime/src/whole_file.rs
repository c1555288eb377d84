//! Files that are there whole or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Links that are followed at most, as on Linux.
const MOST_LINKS: usize = 40;

/// Puts a new file in the place of `path`: it is written beside it under a name of its own, then renamed. A link stays one;
/// what it leads to is written, be it there or not. An old file's permissions stay.
///
/// # Errors
/// Whatever keeps the file from being written, or an error of `write`; [`io::ErrorKind::InvalidInput`] where something else
/// than a file is in its place. Then the old file is as it was, and no other is left behind.
pub fn replace(path: &Path, write: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>) -> io::Result<()> {
    let target = destination(path);
    let old = std::fs::metadata(&target).ok();
    // A device or a folder is not to be replaced.
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "expected a file or nothing there, found something else",
        ));
    }
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

/// Where links lead, even to what is not there.
pub fn destination(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(next) = std::fs::read_link(&path) else { break };
        // From the folder of the link; an absolute path replaces it.
        path = path.parent().unwrap_or(Path::new("")).join(next);
    }
    path.canonicalize().unwrap_or(path)
}

/// Fails where [`replace`] would: in a folder that takes no files.
///
/// # Errors
/// What keeps a file from being made beside `path`'s destination.
pub fn check(path: &Path) -> io::Result<()> {
    beside(&destination(path))?.close()
}

/// A file in the same folder, which goes away unless it is renamed.
fn beside(target: &Path) -> io::Result<tempfile::NamedTempFile> {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".fractal-").suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As a file that is simply made; the process' mask applies.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
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
        // A ring leads nowhere.
        symlink(at("ring"), at("ring")).unwrap();
        let before = std::fs::read_dir(folder.path()).unwrap().count();
        let _ = replace(&at("ring"), |out| out.write_all(b"three"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), before);
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
        assert!(check(&folder.path().join("no folder/file")).is_err());
        assert!(replace(folder.path(), |_| Ok(())).unwrap_err().to_string().contains("found something else"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
