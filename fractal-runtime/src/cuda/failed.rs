//! Keeps a source that did not compile, with its headers, the command line and the log, for a person to read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::cache::{self, digest, hex};
use super::nvrtc::Source;

/// Writes `<folder>/failed/<name>-<hash>/` and returns the path of the source in it. The kernel cache's folder is tried
/// first, then the system's folder for temporary files.
pub(crate) fn keep(source: &Source, arguments: &[String], log: &str) -> Option<PathBuf> {
    let folders = cache::default_folder().into_iter().chain([std::env::temp_dir().join("fractal")]);
    folders.into_iter().find_map(|folder| keep_in(&folder, source, arguments, log).ok())
}

fn keep_in(folder: &Path, source: &Source, arguments: &[String], log: &str) -> io::Result<PathBuf> {
    let hash = hex(&digest(&[source.text.as_bytes(), arguments.join("\n").as_bytes()]));
    let name = file_name(&source.name);
    let folder = folder.join("failed").join(format!("{name}-{}", &hash[..12]));
    fs::create_dir_all(&folder)?;
    for (name, text) in &source.headers {
        fs::write(folder.join(file_name(name)), text)?;
    }
    fs::write(folder.join("nvrtc.log"), format!("{}\n\n{log}\n", arguments.join(" ")))?;
    let path = folder.join(format!("{name}.cu"));
    fs::write(&path, &source.text)?;
    Ok(path)
}

/// A name that is safe as one part of a path.
fn file_name(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = name.chars().map(safe).take(80).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "kernel".into() } else { name.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside_the_folder() {
        assert_eq!(file_name("../../etc/passwd"), "_.._etc_passwd");
        assert_eq!(file_name(""), "kernel");
        assert_eq!(file_name("gemm<f16>"), "gemm_f16_");
    }

    #[test]
    fn source_headers_command_and_log_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let source = Source::new("bad", "no code").header("a/b.cuh", "header");
        let path = keep_in(folder.path(), &source, &["--std=c++17".into()], "an error").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "no code");
        let beside = |name: &str| fs::read_to_string(path.with_file_name(name)).unwrap();
        assert_eq!(beside("a_b.cuh"), "header");
        assert_eq!(beside("nvrtc.log"), "--std=c++17\n\nan error\n");
    }
}
