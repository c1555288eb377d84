//! Files that hold something else, or that cannot be used.

use super::*;
use fractal_runtime::tune::Skipped;

#[test]
fn a_torn_last_line_is_told_and_the_next_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    open(&path).append(record("first", 1)).unwrap();
    let first = fs::read(&path).unwrap();
    let torn = line(&path, record("torn", 2));
    let lengths = (0..60).chain((60..torn.len()).step_by(31)).chain([torn.len() - 2, torn.len() - 1]);
    for length in lengths {
        fs::write(&path, [&first, &torn[..length]].concat()).unwrap();
        let (database, skipped) = Database::open(&path).unwrap();
        // Without the newline alone it is whole.
        let whole = length == torn.len() - 1;
        let expected = (length > 0 && !whole).then(|| Skipped {
            line: 2,
            reason: format!("expected a whole record, found one that is cut off after {length} bytes"),
        });
        assert_eq!(skipped, expected.as_slice());
        database.append(record("next", 3)).unwrap();
        database.append(record("next", 4)).unwrap();
        let mut records = vec![record("first", 1), record("next", 3), record("next", 4)];
        if whole {
            records.insert(1, record("torn", 2));
        }
        assert_eq!(database.records(&context()), records);
        let (again, skipped) = Database::open(&path).unwrap();
        assert_eq!(again.records(&context()), records);
        assert_eq!(skipped, expected.as_slice());
        add(&path, b"x\n");
        let mut database = database;
        let line = if length > 0 { 5 } else { 4 };
        assert_eq!(database.refresh().unwrap()[0].line, line);
    }
}

#[test]
fn a_line_that_is_no_record_is_skipped_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let good = String::from_utf8(line(&path, record("k", 1))).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(good.contains(from), "{good}");
        good.trim_end().replace(from, to).into_bytes()
    };
    let long = [vec![b'x'; 10 << 20], b"\n".to_vec()].concat();
    let foreign: Vec<(Vec<u8>, &str)> = vec![
        (b"hello".into(), "expected a JSON object, found `hello`"),
        (b"[1, 2]".into(), "expected a JSON object, found `[1, 2]`"),
        (changed("{\"format\":1,\"record\":{", "[1,{"), "expected a JSON object, found `[1,{\\\"context"),
        (b"{\"a\": 1}".into(), "expected a field `format`, found `{\\\"a\\\": 1}`"),
        (b"{\"format\": 1}".into(), "expected a record of format 1, found: missing field `record`"),
        (b"{\"format\": 1, \"record\": 7}".into(), "expected a record of format 1, found: invalid type: integer `7`"),
        (b"{\"format\": \"1\", \"record\": 7}".into(), "expected format 1, found \\\"1\\\": written by another"),
        (b"{\"format\": 1, }".into(), "expected a JSON object, found: trailing comma"),
        (changed("\"format\":1", "\"format\":2"), "expected format 1, found 2: written by another version of Fractal"),
        (changed("\"retained\":0.9", "\"more\":1,\"retained\":0.9"), "unknown field `more`"),
        (changed("\"retained\":0.9,", ""), "missing field `retained`"),
        (changed("}}}}", "}}}} {}"), "trailing characters"),
        (changed("0.9", "-0.9"), "expected a finite `retained` of at least 0, found -0.9"),
        (changed("\"density\":0.5", "\"density\":-1"), "expected a finite `density` of at least 0, found -1"),
        (changed("\"expected\":0.", "\"expected\":-0."), "expected a finite `expected` of at least 0, found -0.3333"),
        (changed("12.1", "-12.1"), "expected a finite `microseconds` of at least 0, found -12.1"),
        (changed("12.1", "1e999"), "number out of range"),
        (changed("12.1", "NaN"), "expected a JSON object, found: expected"),
        (changed("12.1", "null"), "invalid type: null, expected f64"),
        (changed("\"f16\"", "\"f17\""), "unknown variant `f17`"),
        (b"{\"\xff\": 1}".into(), "expected UTF-8, found another byte after 2 of the line"),
        (b"\0\0\0\0".into(), "expected a JSON object, found `\\0\\0\\0\\0`"),
        (b"{\"a\0\": 1}".into(), "expected a JSON object, found: control character"),
        (b"\xef\xbb\xbf{}".into(), "expected a JSON object, found `\\u{feff}{}`"),
        (b"{\"a\":".repeat(10_000), "expected a JSON object, found: recursion limit exceeded"),
        (long, "expected a line of at most 1048576 bytes, found one of 10485760"),
    ];
    for (bytes, _) in &foreign {
        // Blank lines are nothing.
        add(&path, &[bytes, &b"\n \t\r\n\n"[..]].concat());
    }
    add(&path, good.as_bytes());
    let (database, skipped) = Database::open(&path).unwrap();
    assert_eq!(database.records(&context()), [record("k", 1), record("k", 1)]);
    assert_eq!(skipped.len(), foreign.len(), "{skipped:?}");
    // The long one has a newline more.
    for (index, (skipped, (_, reason))) in skipped.iter().zip(&foreign).enumerate() {
        assert_eq!(skipped.line, 2 + 3 * index, "{skipped:?}");
        assert!(skipped.reason.contains(reason), "{reason}: {skipped:?}");
        assert!(skipped.reason.len() < 400, "{skipped:?}");
    }
}

#[test]
fn a_record_that_could_not_be_read_again_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut context = context();
    context.epilogue = vec![EpilogueOp::Scale(Factor(f32::NAN))];
    let records = [
        (timed(f64::NAN, 1.0, 1), "expected a finite `retained` of at least 0, found NaN"),
        (timed(1.0, f64::INFINITY, 1), "expected a finite `microseconds` of at least 0, found inf"),
        (Record { density: -1.0, ..record("k", 1) }, "expected a finite `density` of at least 0, found -1"),
        (Record { expected: f64::NEG_INFINITY, ..record("k", 1) }, "expected a finite `expected` of at least 0"),
        (Record { context, ..record("k", 1) }, "invalid type: null, expected f64"),
        (record(&"x".repeat(1 << 20), 1), "expected a line of at most 1048576 bytes, found one of 1049"),
    ];
    for database in [open(&path), Database::in_memory()] {
        for (record, reason) in &records {
            let error = message(database.append(record.clone()));
            assert!(error.contains(reason), "{error}");
            assert_eq!(database.records(&record.context), []);
        }
    }
    assert!(!path.exists());
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let error = message(Database::open(folder.path()));
    let expected = "expected a file of records, or none yet, found a folder; pass another path";
    assert_eq!(error, format!("database `{}`: {expected}", folder.path().display()));
    assert!(
        message(Database::open(Path::new("")))
            .contains("expected a file of records, or none yet, found no name of a file")
    );
    fs::write(&path, "").unwrap();
    let error = message(Database::open(&path.join("below")));
    assert!(error.contains("cannot open it") && error.ends_with("; pass another path"), "{error}");
    #[cfg(unix)]
    {
        let error = message(Database::open(Path::new("/dev/zero")));
        assert!(error.contains("expected a file of records, or none yet, found a device or pipe"), "{error}");
    }
    // A file of another kind is not added to.
    let other = folder.path().join("weights.safetensors");
    fs::write(&other, "other bytes\nthan records\n").unwrap();
    assert!(message(Database::open(&other)).contains("found a file of another kind, to which nothing will be added"));
    assert_eq!(fs::read_to_string(&other).unwrap(), "other bytes\nthan records\n");
    // One that comes after the opening.
    let mut database = open(&path);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(message(database.append(record("k", 1))).contains("found a folder"));
    assert!(message(database.refresh()).contains("found a folder"));
    assert_eq!(database.records(&context()), []);
}

/// Root may write anyway.
#[cfg(unix)]
#[test]
fn what_may_not_be_written_is_refused_at_once() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let permit = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let path = folder.path().join("file");
    open(&path).append(record("k", 1)).unwrap();
    permit(&path, 0o400);
    if OpenOptions::new().append(true).open(&path).is_err() {
        let error = message(Database::open(&path));
        let start = "cannot open it: expected a file that may be read and written, found: ";
        assert!(error.contains(start) && error.ends_with("; permit it, or pass another path"), "{error}");
    }
    permit(&path, 0o200);
    if fs::read(&path).is_err() {
        assert!(message(Database::open(&path)).contains("cannot open it"));
    }
    permit(folder.path(), 0o500);
    if tempfile::tempfile_in(folder.path()).is_err() {
        for path in [folder.path().join("other"), folder.path().join("a/b/other")] {
            let error = message(Database::open(&path));
            assert!(error.contains("cannot make it: expected a folder that may be written"), "{error}");
        }
    }
    permit(folder.path(), 0o700);
}
