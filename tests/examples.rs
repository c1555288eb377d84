//! The examples as a user runs them, and the unit tests of their modules.

use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

#[allow(dead_code)]
#[path = "../examples/bench/args.rs"]
mod args;
#[allow(dead_code)]
#[path = "../examples/bench/cuda.rs"]
mod cuda;
#[allow(dead_code)]
#[path = "../examples/bench/device.rs"]
mod device;
#[allow(dead_code)]
#[path = "../examples/common/json_file.rs"]
mod json_file;
#[allow(dead_code)]
#[path = "../examples/bench/measure.rs"]
mod measure;
#[allow(dead_code)]
#[path = "../examples/bench/profile.rs"]
mod profile;
#[path = "../examples/common/progress.rs"]
mod progress;
#[allow(dead_code)]
#[path = "../examples/bench/report.rs"]
mod report;
#[allow(dead_code)]
#[path = "../examples/common/shapes.rs"]
mod shapes;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// `target/<profile>/examples/<name>`, beside this test's own `target/<profile>/deps`.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("cargo puts tests into target/<profile>/deps");
    let path = profile.join("examples").join(name).with_extension(std::env::consts::EXE_EXTENSION);
    assert!(
        path.is_file(),
        "no {}: `cargo test` builds it; with --test, run `cargo build --examples` first",
        path.display()
    );
    path
}

fn bench(arguments: &[&str]) -> Output {
    Command::new(example("bench")).args(arguments).output().expect("the example starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A path in a directory that does not outlive the test run's temporary files.
fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

#[test]
fn bench_writes_a_row_for_every_pattern_and_type() {
    let path = scratch("rows.json");
    let file = path.to_str().expect("a temporary path is text");
    let text = "let (no, ni) = split(n, 8); skip(k, per = no, keep = 25%)";
    let mut arguments = vec!["--shape", "70,96,33", "--shape", "1,1,1", "--dtype", "f32,f16,bf16", "--device", "cpu"];
    arguments.extend(["--pattern", "all", "--pattern", "tw:8,bw:8x16", "--pattern", text, "--sparsity", "0.5"]);
    arguments.extend(["--rounds", "1", "--min-time", "0", "--threads", "1", "--json", file]);
    let output = bench(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("not run: the name fixes 75 % sparsity; pass --sparsity 0.75"), "{table}");
    assert!(table.contains("geometric means of the speedups"), "{table}");

    let rows: Value = serde_json::from_str(&std::fs::read_to_string(&path).expect("the file is there")).expect("JSON");
    std::fs::remove_file(&path).expect("the file can be removed");
    let rows = rows.as_array().expect("a list");
    // All but 1:4, then two names and one text: two shapes in three types.
    assert_eq!(rows.len(), (args::ALL.len() - 1 + 3) * 6);
    for row in rows {
        for field in ["n", "k", "m", "packed_bytes", "dense_bytes", "rounds", "threads", "cores"] {
            assert!(row[field].as_u64().is_some_and(|v| v > 0), "{field} of {row}");
        }
        for field in ["time_us", "dense_us", "speedup"] {
            assert!(row[field].as_f64().is_some_and(|v| v > 0.0), "{field} of {row}");
        }
        for field in ["sparsity", "actual_sparsity", "rel_err", "retained"] {
            assert!(row[field].as_f64().is_some_and(|v| (0.0..=1.0).contains(&v)), "{field} of {row}");
        }
        for field in ["dtype", "pattern", "kernel", "machine", "baseline", "date", "fractal"] {
            assert!(row[field].as_str().is_some_and(|v| !v.is_empty()), "{field} of {row}");
        }
        assert_eq!(row["device"], "cpu");
        let expected = row["dense_us"].as_f64().unwrap_or(0.0) / row["time_us"].as_f64().unwrap_or(0.0);
        assert!((row["speedup"].as_f64().unwrap_or(0.0) / expected - 1.0).abs() < 1e-9, "{row}");
    }
    let own = rows.iter().find(|row| row["pattern"] == text && row["n"] == 70).expect("the text has a row");
    assert_eq!(own["sparsity"], 0.75);
}

#[test]
fn bench_times_and_checks_an_epilogue() {
    let path = scratch("epilogue.json");
    let file = path.to_str().expect("a temporary path is text");
    let mut arguments =
        vec!["--shape", "70,96,33", "--dtype", "f32,f16,bf16", "--device", "cpu", "--pattern", "tw:8,ew"];
    arguments.extend(["--epilogue", "bias-gelu", "--rounds", "1", "--min-time", "0", "--json", file]);
    let output = bench(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let rows: Value = serde_json::from_str(&std::fs::read_to_string(&path).expect("the file is there")).expect("JSON");
    std::fs::remove_file(&path).expect("the file can be removed");
    let rows = rows.as_array().expect("a list");
    assert!(rows.len() == 6 && rows.iter().all(|row| row["epilogue"] == "bias-gelu"), "{rows:?}");
}

#[test]
fn bench_refuses_bad_input_before_it_measures() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "no shape: pass --shape n,k,m or --shapes paper"),
        (&["--shape", "0,1,2"], "n is 0; expected three whole numbers n,k,m of at least 1"),
        (&["--shape", "1,2"], "found 2 numbers"),
        (&["--shape", "-1,2,3"], "n is `-1`"),
        (&["--shape", "1000000,1000000,1"], "the weight has 1000000 x 1000000 elements; expected at most 2^30"),
        (&["--shapes", "tiny"], "expected `paper`, `large`, `mid` or `decode`"),
        (&["--shape", "8,8,8", "--dtype", "f64"], "expected f32, f16 or bf16"),
        (&["--shape", "8,8,8", "--sparsity", "75"], "for 75 % give 0.75"),
        (&["--shape", "8,8,8", "--pattern", "tww:3"], "`tww:3` is no pattern"),
        (&["--shape", "8,8,8", "--pattern", "skip(q, keep = 50%)"], "q"),
        (&["--shape", "8,8,8", "--pattern", "2:4", "--sparsity", "0.75"], "the name fixes 50 % sparsity"),
        (&["--shape", "8,8,8", "--device", "tpu"], "expected `cpu`, `auto`, `cuda`"),
        (&["--shape", "8,8,8", "--device", "cpu", "--json", "/no/such/directory/rows.json"], "cannot write"),
        (&["--shape", "8,8,8", "--epilogue", "gelu"], "expected none or bias-gelu"),
        (&["--shape", "8,8,8", "--rounds", "0"], "--rounds"),
        (&["--shape", "8,8,8", "--threads", "0"], "expected a number from 1 to"),
    ];
    for (arguments, expected) in cases {
        let output = bench(arguments);
        let text = stderr(&output);
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    }
}

fn minilm(arguments: &[&str]) -> Output {
    Command::new(example("minilm")).args(arguments).output().expect("the example starts")
}

#[test]
fn minilm_refuses_bad_input_before_it_loads_a_model() {
    let cases: &[(&[&str], &str)] = &[
        (&["--pattern", "tww:3"], "`tww:3` is no pattern"),
        (&["--json", "/no/such/directory/rows.json"], "cannot write"),
        (&["--sparsity", "1"], "expected a number from 0 to below 1"),
        (&[], "no model at /no/such/model"),
    ];
    for (arguments, expected) in cases {
        let output = minilm(&[&["--weights", "/no/such/model"], *arguments].concat());
        let text = stderr(&output);
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    }
}

fn tune(arguments: &[&str]) -> Output {
    Command::new(example("tune")).args(arguments).output().expect("the example starts")
}

#[test]
fn tune_finds_a_front_and_goes_on_from_its_database() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a temporary path is text").to_owned();
    let (database, json, report) = (at("tuned.jsonl"), at("tuned.json"), at("tuned.html"));
    let arguments = ["--shape", "70,96,33", "--device", "cpu", "--threads", "1", "--patterns", "12"];
    let files = ["--database", &database, "--json", &json, "--report", &report];
    let run = || {
        let output = tune(&[&arguments[..], &files[..]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let text = std::fs::read_to_string(&json).expect("the file is there");
        (String::from_utf8_lossy(&output.stdout).into_owned(), serde_json::from_str::<Value>(&text).expect("JSON"))
    };
    let (told, first) = run();
    assert!(told.contains("chosen: ") && told.contains("12 measured (0 from the database)"), "{told}");
    let page = std::fs::read_to_string(&report).expect("the page is there");
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    let lines = std::fs::read_to_string(&database).expect("the database is there");
    assert!(lines.lines().count() >= 12 && lines.ends_with('\n'));
    let front = first[0]["tuned"]["front"].as_array().expect("a list");
    assert!(!front.is_empty());
    // A line that is none is passed over, and told.
    std::fs::write(&database, format!("{lines}no line\n")).expect("it can be written");
    let output = tune(&[&arguments[..], &files[..]].concat());
    assert!(stderr(&output).contains("passed over"), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("12 measured (12 from the database)"));
}

#[test]
fn tune_refuses_bad_input_before_it_searches() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "no layer: pass --shape n,k,m"),
        (
            &["--shape", "8,8,8", "--sparsity", "1", "--device", "cpu", "--no-database"],
            "expected a sparsity from 0 to below 1",
        ),
        (&["--shape", "8,8,8", "--retained", "2", "--device", "cpu", "--no-database"], "expected retained importance"),
        (&["--shape", "8,8,8", "--sparsity", "0.5", "--retained", "0.5"], "cannot be used with"),
        (&["--shape", "8,8,8", "--time", "0"], "--time: expected seconds above 0"),
        (&["--shape", "8,8,8", "--device", "tpu", "--no-database"], "expected cpu, cuda, cuda:1 or auto"),
        (&["--shape", "8,8,8", "--json", "/no/such/directory/rows.json"], "cannot write"),
        (&["--weights", "/no/such/file", "--tensor", "w", "--device", "cpu", "--no-database"], "/no/such/file"),
        (&["calibrate", "--fit", "/no/such/file", "--out", "/tmp/unused.json"], "/no/such/file"),
        (&["model", "--sparsity", "0"], "expected a share above 0 and below 1"),
        (&["model", "--weights", "/no/such/model", "--device", "cpu"], "/no/such/model"),
    ];
    for (arguments, expected) in cases {
        let output = tune(arguments);
        let text = stderr(&output);
        assert!(!output.status.success(), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    }
}
