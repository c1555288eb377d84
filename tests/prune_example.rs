//! The example prune: its modules' unit tests, and runs on a small random model.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fractal::PrunedFile;
use fractal::model::BertModel;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

#[allow(dead_code)]
#[path = "../examples/prune/picture.rs"]
mod picture;
#[allow(dead_code)]
#[path = "../examples/prune/recipe.rs"]
mod recipe;
#[allow(dead_code)]
#[path = "../examples/prune/retrieval.rs"]
mod retrieval;
#[allow(dead_code)]
#[path = "../examples/prune/times.rs"]
mod times;
#[allow(dead_code)]
#[path = "../examples/common/tokens.rs"]
mod tokens;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const HIDDEN: usize = 32;
const WIDE: usize = 64;
const WORDS: usize = 60;
const LAYERS: usize = 2;

fn prune(arguments: &[&str]) -> Output {
    let test = std::env::current_exe().expect("a running test has a path");
    let profile = test.parent().and_then(Path::parent).expect("cargo puts tests into target/<profile>/deps");
    let path = profile.join("examples").join("prune").with_extension(std::env::consts::EXE_EXTENSION);
    assert!(path.is_file(), "no {}: with --test, run `cargo build --examples` first", path.display());
    Command::new(path).args(arguments).output().expect("the example starts")
}

/// With the model and the packages of a folder, a command of the example before them.
fn prune_in(folder: &Path, command: &[&str], arguments: &[&str]) -> Output {
    let inputs = ["--weights", text(folder), "--packages", text(folder), "--threads", "1"];
    prune(&[command, &inputs, arguments].concat())
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn values(len: usize, state: &mut u32) -> Vec<f32> {
    let mut next = || {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (*state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next() * 0.3).collect()
}

/// A model with its tokenizer, texts and packages in a folder.
fn folder() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let config = json!({
        "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_attention_heads": 2, "num_hidden_layers": LAYERS,
        "vocab_size": WORDS, "max_position_embeddings": 64, "type_vocab_size": 2,
    });
    std::fs::write(at("config.json"), config.to_string())?;
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)> = BTreeMap::new();
    let mut state = 3;
    let mut add = |name: String, shape: &[usize], one: bool| {
        let mut data = values(shape.iter().product(), &mut state);
        data.iter_mut().for_each(|v| *v += if one { 1.0 } else { 0.0 });
        tensors.insert(name, (shape.to_vec(), data));
    };
    add("embeddings.word_embeddings.weight".into(), &[WORDS, HIDDEN], false);
    add("embeddings.position_embeddings.weight".into(), &[64, HIDDEN], false);
    add("embeddings.token_type_embeddings.weight".into(), &[2, HIDDEN], false);
    let mut norms = vec!["embeddings.LayerNorm".to_string()];
    for layer in 0..LAYERS {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        for (part, n, k) in [
            ("attention.self.query", HIDDEN, HIDDEN),
            ("attention.self.key", HIDDEN, HIDDEN),
            ("attention.self.value", HIDDEN, HIDDEN),
            ("attention.output.dense", HIDDEN, HIDDEN),
            ("intermediate.dense", WIDE, HIDDEN),
            ("output.dense", HIDDEN, WIDE),
        ] {
            add(name(part) + ".weight", &[n, k], false);
            add(name(part) + ".bias", &[n], false);
        }
        norms.extend([name("attention.output.LayerNorm"), name("output.LayerNorm")]);
    }
    for norm in norms {
        add(norm.clone() + ".weight", &[HIDDEN], true);
        add(norm + ".bias", &[HIDDEN], false);
    }
    let bytes: BTreeMap<&String, (Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, (shape, data))| (name, (shape.clone(), data.iter().flat_map(|v| v.to_le_bytes()).collect())))
        .collect();
    let views = bytes
        .iter()
        .map(|(name, (shape, data))| Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), data)?)))
        .collect::<Result<Vec<_>>>()?;
    safetensors::serialize_to_file(views, None, &at("model.safetensors"))?;
    let mut vocabulary = serde_json::Map::new();
    for (id, word) in ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].into_iter().map(String::from).enumerate() {
        vocabulary.insert(word, json!(id));
    }
    (4..WORDS).for_each(|id| drop(vocabulary.insert(format!("word{id}"), json!(id))));
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]" },
    });
    std::fs::write(at("tokenizer.json"), tokenizer.to_string())?;
    let text = |seed: usize, len: usize| -> String {
        (0..len).map(|at| format!("word{} ", 4 + (seed * 31 + at * at * 7 + at * seed) % (WORDS - 4))).collect()
    };
    let lines: Vec<String> = (0..40).map(|at| text(at, 5 + at % 9)).collect();
    std::fs::write(at("texts.txt"), lines.join("\n"))?;
    for (part, begin) in [("calibration", 0), ("test", 0), ("training", 20)] {
        let line =
            |at: usize| json!({ "package": at.to_string(), "short": text(at, 4), "long": text(at, 16) }).to_string();
        std::fs::write(at(part).with_extension("jsonl"), (begin..begin + 20).map(line).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(folder)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is text")
}

#[test]
fn a_recipe_makes_a_model_files_and_a_picture() {
    let folder = folder().expect("a small model can be written");
    let at = |name: &str| -> PathBuf { folder.path().join(name) };
    let recipe = "pattern = \"tw:16\"\nsparsity = 0.5\nbudget = \"error\"\nsteps = 2\ndistill = 1\ndtype = \"f16\"\n\n\
                  [[layer]]\nname = \"*.attention.self.*\"\npattern = \"2:4\"\nsparsity = 0.5\n\n\
                  [[layer]]\nname = \"encoder.layer.0.output.dense\"\npattern = \"dense\"\n";
    std::fs::write(at("recipe.toml"), recipe).expect("it can be written");
    let paths =
        ["recipe.toml", "texts.txt", "out.safetensors", "packed.safetensors", "state", "report.json", "masks.svg"];
    let [recipe, texts, out, packed, state, report, picture] = paths.map(&at);
    let arguments = [
        "--recipe",
        text(&recipe),
        "--sentences",
        text(&texts),
        "--out",
        text(&out),
        "--packed",
        text(&packed),
        "--state",
        text(&state),
        "--json",
        text(&report),
        "--picture",
        text(&picture),
        "--evaluate",
        "test",
    ];
    let run = || prune_in(folder.path(), &[], &arguments);
    let output = run();
    assert!(output.status.success(), "{}", stderr(&output));
    let told = stdout(&output);
    assert!(told.contains("11 layers") && told.contains("20 packages: recall@1"), "{told}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&report).expect("it is there")).expect("JSON");
    assert_eq!(report["layers"].as_array().expect("a list").len(), 11);
    // The checkpoint loads where the dense one does, and computes what the packed layers do.
    std::fs::create_dir(at("pruned")).expect("a folder");
    std::fs::copy(at("config.json"), at("pruned").join("config.json")).expect("a copy");
    std::fs::copy(&out, at("pruned").join("model.safetensors")).expect("a copy");
    let whole = BertModel::load(&at("pruned")).expect("the checkpoint loads");
    let mut parts = BertModel::load(folder.path()).expect("the dense model loads");
    parts.set_pruned(&PrunedFile::read(&packed).expect("the packed file loads")).expect("it fits the model");
    let name = "encoder.layer.1.attention.self.key";
    assert_eq!(whole.weight(name).expect("a layer").data, parts.weight(name).expect("a layer").data);
    let zeros = whole.weight(name).expect("a layer").data.iter().filter(|w| **w == 0.0).count();
    assert_eq!(zeros, HIDDEN * HIDDEN / 2);
    assert!(std::fs::read_to_string(&picture).expect("it is there").ends_with("</svg>\n"));
    // A state of the last step goes on from there, to the same end; one of another recipe is refused, and one with a changed bit.
    let (made, reported) = (std::fs::read(&out).expect("it is there"), report["layers"].clone());
    let again = run();
    assert!(again.status.success(), "{}", stderr(&again));
    assert!(std::fs::read(&out).expect("it is there") == made, "the model is another one after going on");
    let report = || -> Value {
        serde_json::from_str(&std::fs::read_to_string(at("report.json")).expect("it is there")).expect("JSON")
    };
    assert_eq!(report()["layers"], reported);
    let kept = std::fs::read(&state).expect("it is there");
    let mut refused = 0;
    for back in [1, 3, 200, 1001, 4003, kept.len() / 2] {
        let mut changed = kept.clone();
        changed[kept.len() - back] ^= 4;
        std::fs::write(&state, changed).expect("it can be written");
        let output = run();
        refused += usize::from(!output.status.success());
        // A bit may be one that nothing reads.
        assert!(
            !output.status.success() || std::fs::read(&out).expect("it is there") == made,
            "{back} bytes from the end"
        );
    }
    assert!(refused >= 4, "{refused} of 6 changed bits were seen");
    std::fs::write(&state, kept).expect("it can be written");
    // What is read is not written over, nor does a state go on with other texts.
    for (option, path) in [("--out", "model.safetensors"), ("--json", "recipe.toml"), ("--packed", "test.jsonl")] {
        let before = std::fs::read(at(path)).expect("it is there");
        let path = at(path);
        let refused = prune_in(folder.path(), &[], &["--recipe", text(&recipe), option, text(&path)]);
        assert!(stderr(&refused).contains("this is also what is read"), "{}", stderr(&refused));
        assert_eq!(std::fs::read(&path).expect("it is there"), before);
    }
    let lines = std::fs::read_to_string(&texts).expect("it is there");
    std::fs::write(&texts, lines.replacen("word5", "word6", 1)).expect("it can be written");
    assert_ne!(std::fs::read_to_string(&texts).expect("it is there"), lines);
    let other = run();
    assert!(stderr(&other).contains("is the state of another run"), "{}", stderr(&other));
    std::fs::write(&texts, lines).expect("it can be written");
    std::fs::write(at("recipe.toml"), "pattern = \"tw:8\"").expect("it can be written");
    let other = run();
    assert!(stderr(&other).contains("is the state of another run"), "{}", stderr(&other));
}

#[test]
fn what_is_said_of_distillation_is_done() {
    let folder = folder().expect("a small model can be written");
    let at = |name: &str| -> PathBuf { folder.path().join(name) };
    let pruned = |more: &str, arguments: &[&str]| -> Vec<u8> {
        let (recipe, out) = (at("recipe.toml"), at("packed.safetensors"));
        std::fs::write(&recipe, format!("pattern = \"tw:16\"\n{more}\n")).expect("it can be written");
        let files = ["--recipe", text(&recipe), "--packed", text(&out)];
        let output = prune_in(folder.path(), &[], &[&files[..], arguments].concat());
        assert!(output.status.success(), "{more} {arguments:?}: {}", stderr(&output));
        std::fs::read(&out).expect("it is there")
    };
    let usual = pruned("distill = 1", &[]);
    assert!(usual == pruned("distill = 1", &[]), "the same run gives the same weights");
    for (more, arguments) in [
        ("", &[][..]),
        ("distill = 2", &[]),
        ("distill = 1\nrate = 1e-4", &[]),
        ("distill = 1\nrelation = 0.1", &[]),
        ("distill = 1", &["--training", "10"]),
    ] {
        assert!(usual != pruned(more, arguments), "{more} {arguments:?}");
    }
}

#[test]
fn a_study_tells_every_method() {
    let folder = folder().expect("a small model can be written");
    let rows = folder.path().join("rows.json");
    let methods =
        "magnitude,magnitude+lamp,magnitude+erk,taylor,activation-aware,second-order,second-order+budget,distilled";
    let patterns = "tw:16@0.5,tvw:16@0.75,2:4@0.5,2:4@0.75";
    let asked = ["--calibration", "20", "--pattern", patterns, "--method", methods, "--epochs", "1"];
    let output = prune_in(folder.path(), &["study"], &[&asked[..], &["--json", text(&rows)]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let told = stdout(&output);
    assert!(told.contains("not run: ") && told.contains("which its name fixes"), "{told}");
    let rows: Value = serde_json::from_str(&std::fs::read_to_string(&rows).expect("it is there")).expect("JSON");
    let rows = rows.as_array().expect("a list");
    // The dense row; two patterns by eight methods; 2:4 without the three budgets.
    assert_eq!(rows.len(), 1 + 2 * 8 + 5, "{told}");
    for row in &rows[1..] {
        for (field, range) in
            [("recall", 0.0..=1.0), ("mrr", 0.0..=1.0), ("cosine", -1.0..=1.0), ("density", 0.2..=0.55)]
        {
            assert!(row[field].as_f64().is_some_and(|v| range.contains(&v)), "{field} of {row}");
        }
    }
}

/// Rows of `bench --json` for the model's shapes, twice as wide: (pattern, sparsity, part of the dense time).
fn timed(options: &[(&str, f64, f64)]) -> Vec<Value> {
    let mut rows = Vec::new();
    for (n, k) in [(HIDDEN, HIDDEN), (WIDE, HIDDEN), (HIDDEN, WIDE)] {
        let dense = (n * k) as f64 / 10.0;
        rows.extend(options.iter().map(|(pattern, sparsity, part)| {
            json!({
                "n": 2 * n, "k": 2 * k, "m": 64, "pattern": pattern, "sparsity": sparsity, "dtype": "f16", "time_us": part * dense,
                "dense_us": dense, "machine": "a bench\n[[layer]]", "date": "2026-01-01", "speedup": 1.0 / part,
            })
        }));
    }
    rows
}

#[test]
fn patterns_and_ratios_are_chosen_together() {
    let folder = folder().expect("a small model can be written");
    let at = |name: &str| -> PathBuf { folder.path().join(name) };
    let read = |path: &Path| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).expect("it is there")).expect("JSON")
    };
    let [times, errors, recipe, chosen] = ["times.json", "errors.json", "joint.toml", "chosen.json"].map(&at);
    let write = |rows: &[Value]| std::fs::write(&times, json!(rows).to_string()).expect("it can be written");
    let joint = |arguments: &[&str]| {
        let files = ["--times", text(&times), "--errors", text(&errors), "--recipe", text(&recipe)];
        prune_in(
            folder.path(),
            &["joint"],
            &[&files[..], &["--json", text(&chosen), "--wider", "2"], arguments].concat(),
        )
    };
    // As fast as each other: the one that harms less is taken.
    let few = [("tw:16", 0.5, 0.5), ("tw:16", 0.875, 0.5), ("cublas", 0.5, 0.1), ("bw:128x128", 0.75, 0.1)];
    write(&timed(&few));
    let output = joint(&["--speedup", "1.9", "--distill", "1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let told = stdout(&output);
    assert!(told.contains("24 of 24 errors to measure") && told.contains("it is no named pattern"), "{told}");
    // One block is all of a layer: nothing would be dropped.
    assert!(
        told.contains("bw:128x128 at 0.75 of 32 x 32 is left out: it keeps 100.0 % of this layer, and not 25.0"),
        "{told}"
    );
    let found = read(&chosen);
    let patterns: Vec<&Value> = found["layers"].as_array().expect("a list").iter().map(|row| &row["pattern"]).collect();
    assert_eq!(patterns.len(), 6 * LAYERS);
    assert!(patterns.iter().filter(|pattern| ***pattern == "dense").count() <= 2, "{told}");
    assert!(found["layers"].as_array().expect("a list").iter().all(|row| row["sparsity"] != 0.875), "{told}");
    assert!(found["speedup"].as_f64().is_some_and(|speedup| (1.9..=2.0 + 1e-9).contains(&speedup)), "{found}");
    // The recipe runs as it is.
    let made = recipe::Recipe::read(&recipe).expect("a recipe");
    assert_eq!((made.layer.len(), made.distill), (6 * LAYERS, 1));
    let output = prune_in(folder.path(), &[], &["--recipe", text(&recipe), "--evaluate", "test"]);
    assert!(output.status.success(), "{}", stderr(&output));

    let study = format!("recipe={}", text(&recipe));
    let output = prune_in(folder.path(), &["study"], &["--pattern", &study]);
    assert!(
        output.status.success() && stdout(&output).contains("joint.toml"),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );

    // Another speedup measures nothing; another pattern only itself; and what is kept is what counts.
    let output = joint(&["--speedup", "1.2"]);
    assert!(stdout(&output).contains("0 of 24 errors to measure"), "{}{}", stdout(&output), stderr(&output));
    assert!(read(&chosen)["layers"].as_array().expect("a list").iter().any(|row| row["pattern"] == "dense"));
    write(&timed(&[&few[..], &[("2:4", 0.5, 0.5)]].concat()));
    let output = joint(&["--speedup", "2"]);
    assert!(stdout(&output).contains("12 of 36 errors to measure"), "{}{}", stdout(&output), stderr(&output));
    let layers = |value: &Value| value["layers"].as_array().expect("a list").clone();
    let fine = layers(&read(&chosen)).iter().filter(|row| row["pattern"] == "2:4").count();
    assert!(fine >= 5 * LAYERS, "{}", stdout(&output));
    let mut kept = read(&errors);
    kept["layers"]["encoder.layer.1.output.dense"]["tw:16@0.875"] = json!(0.0);
    std::fs::write(&errors, kept.to_string()).expect("it can be written");
    assert!(joint(&["--speedup", "2"]).status.success());
    assert_eq!(layers(&read(&chosen)).last().expect("a layer")["sparsity"], 0.875);

    // What cannot be is told, and nothing is written.
    let before = std::fs::read(&recipe).expect("it is there");
    let refused = |arguments: &[&str], expected: &str| {
        let output = joint(arguments);
        let told = stderr(&output);
        assert!(!output.status.success() && told.contains(expected), "{arguments:?}: {told}");
        assert_eq!(std::fs::read(&recipe).expect("it is there"), before);
    };
    refused(&["--speedup", "2.1"], "--speedup: expected at most 2, what the fastest options give, found 2.1");
    refused(&["--speedup", "2", "--training", "5"], "--training: nothing is distilled here");
    refused(&["--speedup", "2", "--calibration", "5"], "is of other weights or calibration texts");
    refused(&["--speedup", "2", "--times", text(&at("config.json"))], "expected rows of `bench --json`");
    kept["layers"]["encoder.layer.1.output.dense"]["2:4@0.5"] = json!(-1.0);
    std::fs::write(&errors, kept.to_string()).expect("it can be written");
    refused(&["--speedup", "2"], "-1 is no error");
    std::fs::write(&errors, "[").expect("it can be written");
    refused(&["--speedup", "2"], "expected errors that `prune joint` wrote");
    std::fs::remove_file(&errors).expect("it is there");
    let mut rows = timed(&few);
    rows[0]["m"] = json!(128);
    write(&rows);
    refused(&["--speedup", "2"], "expected rows of one m, found 128");
    write(&timed(&few)[..6]);
    refused(&["--speedup", "2"], "found none of 64 x 128; make them by");
    let output =
        prune_in(folder.path(), &["joint"], &["--times", text(&times), "--speedup", "2", "--recipe", text(&times)]);
    assert!(stderr(&output).contains("this is also what is read"), "{}", stderr(&output));
}

#[test]
fn bad_input_is_refused_before_a_model_is_loaded() {
    let cases: &[(&[&str], &str)] = &[
        (&["--recipe", "/no/such/recipe.toml"], "cannot read /no/such/recipe.toml"),
        (&["--out", "/no/such/directory/model.safetensors"], "cannot write"),
        (&["--weights", "/no/such/model"], "no model at /no/such/model"),
        (&["study", "--pattern", "tw:64@0.5", "--rate", "0"], "rate: expected a number above 0"),
        (&["study", "--pattern", "tw:64@0.5", "--relation", "nan"], "relation: expected a number of at least 0"),
        (&["--evaluate", "../test"], "possible values: test, final"),
        (&["--training", "5"], "the recipe distils nothing"),
        (&["study", "--pattern", "tw:64@0.5", "--method", "magnitude", "--training", "5"], "nothing asked for distils"),
        (&["--out", "/dev/null"], "neither a file nor free"),
        (&["--out", "twice.safetensors", "--packed", "./twice.safetensors"], "this is also --out"),
        (&["study", "--pattern", "2:4@0.5", "--method", "second-order+budget"], "nothing to study"),
        (&["study", "--pattern", "dense@0.5"], "`dense` is the first row"),
        (&["study", "--pattern", "tw:64"], "expected a pattern and a sparsity"),
        (&["study", "--pattern", "tww:64@0.5"], "tww:64"),
        (&["study", "--pattern", "tw:64+1%@0.5"], "found one with a residue"),
        (&["study", "--pattern", "tuned=tuned.json@0.5,2:4@0.5", "--json", "tuned.json"], "this is also what is read"),
        (&["study", "--pattern", "recipe=/no/such/recipe.toml"], "cannot read /no/such/recipe.toml"),
        (&["study", "--pattern", "tw:64@1.5"], "from 0 to below 1"),
        (&["study", "--pattern", "tw:64@0.5", "--method", "wanda"], "method `wanda`: expected magnitude"),
        (
            &["joint", "--times", "/no/such/times.json", "--speedup", "2", "--recipe", "r.toml"],
            "cannot read /no/such/times.json",
        ),
        (
            &["joint", "--times", "/dev/null", "--speedup", "0.5", "--recipe", "r.toml"],
            "--speedup: expected a number from 1 to 1000000",
        ),
        (&["joint", "--times", "/dev/null", "--speedup", "2", "--recipe", "r.toml"], "expected rows of `bench --json`"),
        (&["joint", "--times", "/dev/null", "--speedup", "2", "--recipe", "/no/such/directory/r.toml"], "cannot write"),
        (&["study", "--pattern", "tw:64@0.5", "--weights", "/no/such/model"], "no model at /no/such/model"),
    ];
    for (arguments, expected) in cases {
        let output = prune(arguments);
        let text = stderr(&output);
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    }
}
