//! The tuner's database: what was appended is found, by every process; what is no record is told and harms nothing.

mod damage;
mod processes;
mod random;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use fractal_dsl::pattern::Keep;
use fractal_dsl::{DType, Directive, EpilogueOp, Factor, Layout};
use fractal_runtime::tune::{Context, Database, DatabaseError, Outcome, Record};
use fractal_sched::KernelRequest;

fn context() -> Context {
    Context {
        fractal: "0.1.0".into(),
        device: "NVIDIA H200".into(),
        versions: "driver 580, NVRTC 13.0".into(),
        dtype: DType::F16,
        n: 1024,
        k: 4096,
        m: 16,
        epilogue: vec![EpilogueOp::Bias("b".into()), EpilogueOp::Scale(Factor(0.1))],
        layouts: (Layout::FeatureMajor, Layout::TokenMajor),
        weights: "5a".repeat(32),
    }
}

fn pattern(count: usize) -> Vec<Directive> {
    let skip = Directive::Skip { axis: "k".into(), per: None, keep: Keep::Count(count) };
    vec![Directive::Reorder { loops: vec!["n".into(), "k".into()] }, skip]
}

/// The `count`th record of the writer with this name.
fn record(name: &str, count: usize) -> Record {
    Record {
        context: context(),
        pattern: pattern(count),
        request: KernelRequest { rows: Some(count), ..KernelRequest::default() },
        retained: 0.9,
        density: 0.5,
        expected: 1.0 / 3.0,
        outcome: Outcome::Timed { microseconds: 12.1, kernel: name.into(), error: 1e-3 },
    }
}

fn timed(retained: f64, microseconds: f64, count: usize) -> Record {
    let outcome = Outcome::Timed { microseconds, kernel: "k".into(), error: 0.0 };
    Record { retained, outcome, ..record("", count) }
}

/// Opens a database of which every line is a record.
fn open(path: &Path) -> Database {
    let (database, skipped) = Database::open(path).unwrap();
    assert_eq!(skipped, []);
    database
}

fn line(path: &Path, record: Record) -> Vec<u8> {
    let before = fs::read(path).unwrap_or_default().len();
    Database::open(path).unwrap().0.append(record).unwrap();
    fs::read(path).unwrap().split_off(before)
}

fn add(path: &Path, bytes: &[u8]) {
    OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn message(result: Result<impl Sized, DatabaseError>) -> String {
    result.err().expect("an error").to_string()
}

/// The counts of a writer's records, in the order of lines.
fn of_writer(database: &Database, name: &str) -> Vec<usize> {
    let counts = database.records(&context()).into_iter().filter_map(|found| {
        let count = found.request.rows?;
        let Outcome::Timed { kernel, .. } = &found.outcome else { return None };
        (kernel == name).then(|| assert_eq!(found, record(name, count)))?;
        Some(count)
    });
    counts.collect()
}

#[test]
fn nothing_is_made_before_the_first_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b/measured.jsonl");
    let mut database = open(&path);
    assert_eq!(database.refresh().unwrap(), []);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    database.append(record("one", 1)).unwrap();
    assert_eq!(open(&path).records(&context()), [record("one", 1)]);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("{\"format\":1,\"record\":{\"context\":{\"fractal\":\"0.1.0\"") && text.ends_with("}\n"));
    assert_eq!(text.lines().count(), 1);
}

#[test]
fn the_last_line_of_a_pattern_and_request_is_found() {
    let database = Database::in_memory();
    let records = [timed(0.9, 5.0, 1), timed(0.9, 3.0, 2), timed(0.9, 7.0, 1)];
    for record in &records {
        database.append(record.clone()).unwrap();
    }
    let find = |context: &Context, count, rows| {
        let request = KernelRequest { rows: Some(rows), ..KernelRequest::default() };
        database.find(context, &pattern(count), &request)
    };
    assert_eq!(find(&context(), 1, 1).as_ref(), Some(&records[2]));
    assert_eq!(find(&context(), 2, 2).as_ref(), Some(&records[1]));
    assert_eq!(find(&context(), 1, 2), None);
    assert_eq!(find(&Context { m: 17, ..context() }, 1, 1), None);
    assert_eq!(database.records(&context()), records);
}

#[test]
fn the_front_is_of_the_last_measurements_and_the_best_is_its_fastest() {
    let database = Database::in_memory();
    assert_eq!(database.best(&context()), None);
    // The second is faster at first, and fails in the end.
    let failed = Record { outcome: Outcome::Failed { reason: "wrong".into() }, ..timed(0.9, 0.0, 2) };
    for record in [timed(0.9, 5.0, 1), timed(0.9, 3.0, 2), timed(1.0, 9.0, 3), timed(0.8, 6.0, 4), failed] {
        database.append(record).unwrap();
    }
    assert_eq!(database.front(&context()), [timed(1.0, 9.0, 3), timed(0.9, 5.0, 1)]);
    assert_eq!(database.best(&context()), Some(timed(0.9, 5.0, 1)));
    assert_eq!(database.front(&Context { m: 17, ..context() }), []);
}

#[test]
fn a_record_of_another_context_is_not_returned() {
    let database = Database::in_memory();
    let stale = [
        Context { device: "NVIDIA A100".into(), ..context() },
        Context { versions: "driver 590, NVRTC 13.0".into(), ..context() },
        Context { fractal: "0.2.0".into(), ..context() },
    ];
    let others = [
        Context { weights: "5b".repeat(32), ..context() },
        Context { dtype: DType::BF16, ..context() },
        Context { n: 1025, ..context() },
        Context { k: 1025, ..context() },
        Context { m: 1025, ..context() },
        Context { epilogue: vec![EpilogueOp::Bias("b".into())], ..context() },
        Context { layouts: (Layout::FeatureMajor, Layout::FeatureMajor), ..context() },
        Context { weights: "5b".repeat(32), device: "NVIDIA A100".into(), ..context() },
    ];
    for other in stale.iter().chain(&others) {
        database.append(Record { context: other.clone(), ..record("other", 1) }).unwrap();
        database.append(Record { context: other.clone(), ..record("other", 2) }).unwrap();
        assert_eq!(database.records(other).len(), 2);
    }
    assert_eq!(database.records(&context()), []);
    assert_eq!(database.find(&context(), &record("", 1).pattern, &record("", 1).request), None);
    assert_eq!((database.front(&context()), database.best(&context())), (vec![], None));
    assert_eq!(database.stale(&context()), 6);
    assert_eq!(database.stale(&stale[0]), 4);
    database.append(record("own", 1)).unwrap();
    assert_eq!((database.stale(&context()), database.records(&context())), (6, vec![record("own", 1)]));
}

#[test]
fn what_others_append_is_read_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let (mut a, b) = (open(&path), open(&path));
    b.append(record("b", 1)).unwrap();
    assert_eq!(a.records(&context()), []);
    assert_eq!(a.refresh().unwrap(), []);
    assert_eq!(a.records(&context()), [record("b", 1)]);
    add(&path, b"nothing\n");
    b.append(record("b", 2)).unwrap();
    // An append reads on too; what it skips is told by the next refresh, once.
    a.append(record("a", 1)).unwrap();
    assert_eq!(a.records(&context()), [record("b", 1), record("b", 2), record("a", 1)]);
    let skipped = a.refresh().unwrap();
    assert_eq!(skipped.iter().map(|skipped| skipped.line).collect::<Vec<_>>(), [2]);
    assert_eq!(a.refresh().unwrap(), []);
}

#[test]
fn a_file_that_was_replaced_is_read_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("file"), folder.path().join("other"));
    let mut database = open(&path);
    database.append(record("old", 1)).unwrap();
    for count in 0..3 {
        open(&other).append(record("new", count)).unwrap();
    }
    // A longer one.
    fs::rename(&other, &path).unwrap();
    assert_eq!(database.refresh().unwrap(), []);
    assert_eq!(database.records(&context()), [0, 1, 2].map(|count| record("new", count)));
    // A shorter one.
    fs::write(&path, "").unwrap();
    database.append(record("short", 1)).unwrap();
    assert_eq!(database.records(&context()), [record("short", 1)]);
    fs::remove_file(&path).unwrap();
    assert_eq!(database.refresh().unwrap(), []);
    assert_eq!(database.records(&context()), []);
}
