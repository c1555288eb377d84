//! Writers that share a file, are killed, or find the disk full.

use super::*;
use std::process::{Child, Command, Stdio};

/// Names the file in a child process of this test binary; the children's tests return at once without it.
const CHILD: &str = "FRACTAL_TEST_DATABASE_CHILD";
/// What the child signs its records with.
const NAME: &str = "FRACTAL_TEST_DATABASE_NAME";

fn child(test: &str, path: &Path, name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, path).env(NAME, name).stdout(Stdio::null());
    command
}

const LINES: usize = 200;

fn append_all(path: &Path, name: &str) {
    let (database, _) = Database::open(path).unwrap();
    for count in 0..LINES {
        database.append(record(name, count)).unwrap();
    }
    assert_eq!(of_writer(&database, name), (0..LINES).collect::<Vec<_>>());
}

#[test]
fn threads_and_processes_that_append_to_one_file_lose_and_tear_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // Making the folders is a part of the race.
    let path = folder.path().join("a/b/file");
    let test = "processes::child_that_appends";
    let children: Vec<Child> = ["p", "q"].map(|name| child(test, &path, name).spawn().unwrap()).into();
    std::thread::scope(|scope| {
        for name in ["s", "t"] {
            scope.spawn(|| append_all(&path, name));
        }
    });
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let database = open(&path);
    for name in ["p", "q", "s", "t"] {
        assert_eq!(of_writer(&database, name), (0..LINES).collect::<Vec<_>>(), "{name}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 4 * LINES);
}

#[test]
fn threads_share_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let database = &open(&folder.path().join("file"));
    std::thread::scope(|scope| {
        for name in ["s", "t"] {
            scope.spawn(move || (0..LINES).for_each(|count| database.append(record(name, count)).unwrap()));
        }
    });
    assert_eq!(open(&folder.path().join("file")).records(&context()), database.records(&context()));
    assert_eq!(database.records(&context()).len(), 2 * LINES);
}

#[test]
fn child_that_appends() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    append_all(Path::new(&path), &std::env::var(NAME).unwrap());
}

#[test]
fn child_that_appends_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let (database, _) = Database::open(Path::new(&path)).unwrap();
    let name = std::env::var(NAME).unwrap().repeat(100_000);
    // Bounded, should nobody be left to kill it.
    (0..2000).for_each(|count| database.append(record(&name, count)).unwrap());
}

#[test]
fn a_process_killed_while_it_appends_leaves_a_file_that_continues() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut torn = 0;
    for (round, name) in ["v", "w", "x", "y", "z"].into_iter().enumerate() {
        let before = fs::read(&path).map_or(0, |bytes| bytes.len());
        let mut writer = child("processes::child_that_appends_until_it_is_killed", &path, name).spawn().unwrap();
        while fs::metadata(&path).map_or(0, |metadata| metadata.len()) < before as u64 + 300_000 {
            assert!(writer.try_wait().unwrap().is_none(), "the writer failed");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(3 * round as u64));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let (database, skipped) = Database::open(&path).unwrap();
        assert!(skipped.len() - torn <= 1, "{skipped:?}");
        torn = skipped.len();
        let found = of_writer(&database, &name.repeat(100_000));
        assert!(found.len() > 1 && found.iter().copied().eq(0..found.len()), "{found:?}");
        database.append(record("after", round)).unwrap();
    }
    let (database, skipped) = Database::open(&path).unwrap();
    assert_eq!(of_writer(&database, "after"), [0, 1, 2, 3, 4]);
    assert_eq!(skipped.len(), torn);
}

#[test]
fn a_reader_never_sees_a_part_of_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut database = open(&path);
    let mut writer = child("processes::child_that_appends_until_it_is_killed", &path, "w").spawn().unwrap();
    let mut skipped = Vec::new();
    while database.records(&context()).len() < 100 && writer.try_wait().unwrap().is_none() {
        skipped.extend(database.refresh().unwrap());
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert_eq!(skipped, []);
    assert!(database.records(&context()).len() >= 100);
}

/// A disk without room, by a limit on the size of files: the write fails half way. Root is bound by it too.
#[cfg(unix)]
#[test]
fn on_a_full_disk_no_part_of_a_line_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let status = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" --exact processes::child_with_a_full_disk --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, &path)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let database = open(&path);
    assert!(fs::read(&path).unwrap().ends_with(b"\n"));
    database.append(record("after", 0)).unwrap();
    assert_eq!(of_writer(&open(&path), "after"), [0]);
}

#[test]
fn child_with_a_full_disk() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let database = open(Path::new(&path));
    let (count, error) = (0..100)
        .find_map(|count| Some((count, message(Err::<(), _>(database.append(record("k", count)).err()?)))))
        .expect("a full disk");
    assert!(
        error.contains("cannot append to it: expected room for a line") && error.contains("; make room"),
        "{error}"
    );
    assert!(count > 0);
    assert_eq!(of_writer(&database, "k"), (0..count).collect::<Vec<_>>());
}
