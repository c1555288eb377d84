//! Recipe, model and texts -> pruned model, files, report.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use fractal::pattern::Mask;
use fractal::runtime::{RawType, Reconstructed, SecondOrder};
use fractal::{PrunedFile, PrunedMask, RawTensor, StoredWeight, Tensor};
use fractal_runtime::model::{BertModel, DistillSettings, LayerPlan, PrunedModel, Weights, distill};
use serde_json::{Value, json};

use crate::args::{Inputs, Run};
use crate::progress::Progress;
use crate::recipe::{MethodName, Recipe};
use crate::retrieval::Task;
use crate::{Result, json_file, picture, tokens};

/// What is loaded before anything is pruned.
pub struct Loaded {
    pub model: BertModel,
    pub tokenizer: tokenizers::Tokenizer,
    /// Of the calibration: short and long texts in turns, where they are packages.
    pub sentences: Vec<Vec<u32>>,
    /// What distillation sees beside those.
    pub training: Vec<Vec<u32>>,
}

/// Model, tokenizer and calibration texts.
///
/// # Errors
/// What is not there.
pub fn load(inputs: &Inputs, sentences: Option<&Path>) -> Result<Loaded> {
    if !inputs.weights.exists() {
        let weights = inputs.weights.display();
        return Err(format!("no model at {weights}: run `python3 examples/fetch_minilm.py`, or pass --weights").into());
    }
    let tokenizer = tokens::load(None, &inputs.weights)?;
    let sentences = match sentences {
        None => Task::read(&inputs.packages, "calibration", &tokenizer, inputs.calibration as usize)?.sentences(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            let lines: Vec<String> = text.lines().filter(|line| !line.trim().is_empty()).map(String::from).collect();
            if lines.is_empty() {
                return Err(format!("{}: expected a text of one sentence a line, found none", path.display()).into());
            }
            tokens::encode(&tokenizer, &lines)?
        }
    };
    let training = match inputs.training {
        0 => Vec::new(),
        most => Task::read(&inputs.packages, "training", &tokenizer, most as usize)?.sentences(),
    };
    Ok(Loaded { model: BertModel::load(&inputs.weights)?, tokenizer, sentences, training })
}

/// The note under which a state tells what it belongs to.
const NOTE: &str = "fractal-prune";
/// In a state: of each layer what the report tells of it, and a hash of the weights.
const TOLD: &str = "fractal-prune-layers";
const HASH: &str = "fractal-prune-weights";

/// The command.
///
/// # Errors
/// Whatever keeps it from its end.
pub fn run(args: &Run) -> Result<()> {
    if let Some(path) = &args.scores {
        return scores(args, path);
    }
    let recipe = match &args.recipe {
        Some(path) => Recipe::read(path)?,
        None => Recipe { pattern: Some("2:4".into()), ..Recipe::default() },
    };
    if args.inputs.training > 0 && recipe.distill == 0 {
        return Err("--training: the recipe distils nothing; add `distill = 1` to it".into());
    }
    for path in [&args.json, &args.picture].into_iter().flatten() {
        json_file::check_writable(path)?;
    }
    for path in [&args.out, &args.packed, &args.state].into_iter().flatten() {
        json_file::check_file(path)?;
    }
    let outputs = [
        ("--out", &args.out),
        ("--packed", &args.packed),
        ("--state", &args.state),
        ("--json", &args.json),
        ("--picture", &args.picture),
    ];
    let read = [&args.recipe, &args.sentences, &recipe.tuned];
    check_apart(&outputs, &args.inputs, &read)?;
    if args.sentences.is_some() && recipe.asks_for(MethodName::Taylor) {
        println!(
            "note: taylor takes the lines of --sentences in turn for a short and a long text that belong together"
        );
    }
    let loaded = load(&args.inputs, args.sentences.as_deref())?;
    let task = match &args.evaluate {
        Some(part) => Some(Task::read(&args.inputs.packages, part, &loaded.tokenizer, usize::MAX)?),
        None => None,
    };
    let tokens: usize = loaded.sentences.iter().map(Vec::len).sum();
    let training: usize = loaded.training.iter().map(Vec::len).sum();
    println!("calibration: {} texts, {tokens} tokens", loaded.sentences.len());
    if training > 0 {
        println!("training: {} texts, {training} tokens", loaded.training.len());
    }
    let begin = Instant::now();
    let (pruned, plan) = prune(&recipe, &loaded, args.state.as_deref())?;
    let seconds = begin.elapsed().as_secs_f64();
    let report = report(&pruned, &plan, seconds);
    let found = task.map(|task| evaluate(&task, &loaded.model, &pruned.model)).transpose()?;
    if let Some(path) = &args.out {
        let directory = if args.inputs.weights.is_dir() {
            args.inputs.weights.join("model.safetensors")
        } else {
            args.inputs.weights.clone()
        };
        let mut original = Weights::open(&directory)?;
        original.strip_prefix_before("embeddings.word_embeddings.weight");
        let mut file = pruned.checkpoint(&original)?;
        file.notes.insert("format".into(), "pt".into());
        file.write(path)?;
        println!("wrote {}", path.display());
    }
    if let Some(path) = &args.packed {
        pruned.file(StoredWeight::Packed)?.write(path)?;
        println!("wrote {}", path.display());
    }
    if let Some(path) = &args.picture {
        let names = loaded.model.linear_names();
        let layers: Vec<_> =
            names.iter().filter_map(|name| Some((name.as_str(), &pruned.layers.get(name)?.pruned))).collect();
        json_file::write_text(path, &picture::draw(&layers))?;
        println!("wrote {}", path.display());
    }
    if let Some(path) = &args.json {
        let mut report = report;
        report["retrieval"] = found.unwrap_or(Value::Null);
        json_file::write(path, &report)?;
    }
    Ok(())
}

/// That no output is another one or what is read: `read`, the model or the packages.
///
/// # Errors
/// The two that are one.
pub fn check_apart(outputs: &[(&str, &Option<PathBuf>)], inputs: &Inputs, read: &[&Option<PathBuf>]) -> Result<()> {
    let mut taken: Vec<(String, PathBuf)> = read.iter().filter_map(|path| path.as_ref()).map(input).collect();
    taken.push(input(&inputs.weights));
    taken.extend(["model.safetensors", "config.json", "tokenizer.json"].map(|name| input(inputs.weights.join(name))));
    let parts = ["calibration", "training", "test", "final"];
    taken.extend(parts.map(|part| input(inputs.packages.join(part).with_extension("jsonl"))));
    for (option, path) in outputs {
        let Some(path) = path else { continue };
        let place = json_file::place(path);
        // Devices and pipes take what several write.
        let special = place.exists() && !place.is_file();
        if let Some((other, _)) = taken.iter().find(|(_, other)| *other == place && !special) {
            return Err(format!("{option} {}: this is also {other}; pass another file", path.display()).into());
        }
        taken.push(((*option).to_owned(), place));
    }
    Ok(())
}

fn input(path: impl AsRef<Path>) -> (String, PathBuf) {
    ("what is read".into(), json_file::place(path.as_ref()))
}

/// A number that tells apart what a file of results may come from: weights, calibration texts, a tuned recipe.
///
/// # Errors
/// A recipe that cannot be read.
pub fn origin(loaded: &Loaded, tuned: Option<&Path>) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    loaded.sentences.hash(&mut hasher);
    hash_weights(&loaded.model, &mut hasher)?;
    if let Some(tuned) = tuned {
        let text = std::fs::read(tuned).map_err(|e| format!("cannot read {}: {e}", tuned.display()))?;
        text.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The bits of all linear layers.
fn hash_weights(model: &BertModel, hasher: &mut DefaultHasher) -> Result<()> {
    for name in model.linear_names() {
        model.weight(&name)?.data.iter().for_each(|w| hasher.write_u32(w.to_bits()));
        model.bias(&name)?.iter().for_each(|b| hasher.write_u32(b.to_bits()));
    }
    Ok(())
}

/// A number that tells whether the weights are those that were written.
fn hash_of(model: &BertModel) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    hash_weights(model, &mut hasher)?;
    Ok(format!("{:016x}", hasher.finish()))
}

/// What a state holds of the last step; `model` has its weights.
fn restored(file: &PrunedFile, model: BertModel) -> Result<PrunedModel> {
    let told: BTreeMap<String, [f64; 3]> = serde_json::from_str(file.notes.get(TOLD).map_or("{}", String::as_str))?;
    let mut layers = BTreeMap::new();
    for (name, stored) in file.layers.iter().filter_map(|(name, stored)| Some((name, stored.pruned()?))) {
        let &[retained, error, least] = told.get(name).ok_or("what the report tells of a layer is missing")?;
        let pruned = stored.clone().with_retained(retained);
        layers.insert(name.clone(), Reconstructed { pruned, bias: Some(model.bias(name)?.to_vec()), error, least });
    }
    Ok(PrunedModel { model, layers })
}

/// Second-order factors of every layer's inputs: tensors `<layer>.curvature`, \[1, k\].
fn scores(args: &Run, path: &Path) -> Result<()> {
    json_file::check_file(path)?;
    check_apart(&[("--scores", &args.scores)], &args.inputs, &[&args.sentences])?;
    let loaded = load(&args.inputs, args.sentences.as_deref())?;
    let bar = Progress::new(loaded.model.linear_names().len() as u64);
    let mut file = PrunedFile::default();
    loaded.model.calibrate(&loaded.sentences, |name, weight, statistics| {
        let curvature = SecondOrder::default().curvature(statistics)?;
        let bytes = curvature.factors().iter().flat_map(|v| v.to_le_bytes()).collect();
        file.others.insert(format!("{name}.curvature"), RawTensor::new(RawType::F32, vec![1, weight.k], bytes)?);
        bar.set_message(name.to_owned());
        bar.inc(1);
        Ok(None)
    })?;
    bar.finish_and_clear();
    file.write(path)?;
    println!("wrote {}", path.display());
    Ok(())
}

/// Prunes in the recipe's steps, from where the state has come to; then distils.
///
/// # Errors
/// Whatever keeps a layer from being pruned; a state of another run.
pub fn prune(
    recipe: &Recipe,
    loaded: &Loaded,
    state: Option<&Path>,
) -> Result<(PrunedModel, BTreeMap<String, LayerPlan>)> {
    let bar = Progress::new(0);
    let (dense, sentences) = (&loaded.model, &loaded.sentences);
    let origin = state.map(|_| origin(loaded, recipe.tuned.as_deref())).transpose()?.unwrap_or_default();
    let belongs = |step: usize| json!({ "step": step, "of": format!("{recipe:?}"), "from": origin }).to_string();
    let mut before: Option<BertModel> = None;
    let mut pruned = None;
    let mut first = 1;
    if let Some(path) = state.filter(|path| path.exists()) {
        let file = PrunedFile::read(path)?;
        let found = (1..=recipe.steps).find(|&step| file.notes.get(NOTE) == Some(&belongs(step)));
        let Some(step) = found else {
            return Err(
                format!("{} is the state of another run: remove it, or pass another --state", path.display()).into()
            );
        };
        let mut model = dense.clone();
        model.set_pruned(&file)?;
        let damaged = |what: String| {
            format!("{}: expected the state as it was written: {what}; remove it, or take a copy", path.display())
        };
        if file.notes.get(HASH) != Some(&hash_of(&model)?) {
            return Err(damaged("its weights are others".into()).into());
        }
        first = step + 1;
        bar.println(&format!("going on after step {step} of {} in {}", recipe.steps, path.display()));
        if step == recipe.steps {
            pruned = Some(restored(&file, model.clone()).map_err(|e| damaged(e.to_string()))?);
        }
        before = Some(model);
    }
    let plan = recipe.plan(dense, sentences, |what| bar.set_message(what))?;
    if plan.is_empty() {
        return Err("nothing to prune: the recipe leaves every layer dense; give one of them a pattern".into());
    }
    bar.set_length(((recipe.steps + 1 - first) * plan.len()) as u64);
    for step in first..=recipe.steps {
        let progress = |name: &str, made: &Reconstructed| {
            bar.set_message(format!("step {step} of {}, {name}: error {:.4}", recipe.steps, made.error));
            bar.inc(1);
        };
        let made =
            dense.prune_step(sentences, &plan, recipe.dtype()?, (step, recipe.steps), before.as_ref(), progress)?;
        if let Some(path) = state {
            let mut file = made.file(StoredWeight::Packed)?;
            let told = |layer: &Reconstructed| [layer.pruned.retained(), layer.error, layer.least];
            let told: BTreeMap<_, _> = made.layers.iter().map(|(name, layer)| (name, told(layer))).collect();
            file.notes.insert(NOTE.into(), belongs(step));
            file.notes.insert(TOLD.into(), serde_json::to_string(&told)?);
            file.notes.insert(HASH.into(), hash_of(&made.model)?);
            file.write(path)?;
        }
        before = Some(made.model.clone());
        pruned = Some(made);
    }
    let mut pruned = pruned.ok_or("no step was taken")?;
    if recipe.distill > 0 {
        distil(recipe, loaded, &mut pruned, &bar)?;
    }
    bar.finish_and_clear();
    Ok((pruned, plan))
}

/// Trains what is kept towards the dense embeddings, and packs it again.
fn distil(recipe: &Recipe, loaded: &Loaded, pruned: &mut PrunedModel, bar: &Progress) -> Result<()> {
    // Pairs of texts first: other sentences may be odd in number.
    let sentences: Vec<Vec<u32>> = loaded.training.iter().chain(&loaded.sentences).cloned().collect();
    let targets = loaded.model.embed(&sentences)?;
    let masks: BTreeMap<String, Mask> =
        pruned.layers.iter().map(|(name, layer)| (name.clone(), PrunedMask::from(&layer.pruned).mask())).collect();
    let settings = DistillSettings {
        epochs: recipe.distill,
        learning_rate: recipe.rate,
        relation: recipe.relation,
        // A package's two texts.
        together: 2,
        ..DistillSettings::default()
    };
    bar.set_length((recipe.distill * sentences.len()) as u64);
    distill(&mut pruned.model, &masks, &sentences, &targets, &settings, &mut |epoch| {
        let told = format!("epoch {} of {}: 1 - cosine {:.4}", epoch.epoch, epoch.epochs, epoch.cosine);
        bar.set_position(((epoch.epoch - 1) * epoch.sentences + epoch.seen) as u64);
        if epoch.ended() {
            bar.println(&told);
        }
        bar.set_message(told);
        ControlFlow::Continue(())
    })?;
    for (name, layer) in &mut pruned.layers {
        let weight = pruned.model.weight(name)?;
        let tensor = Tensor::from_f32(recipe.dtype()?, weight.n, weight.k, weight.data)?;
        let (retained, mask) = (layer.pruned.retained(), PrunedMask::from(&layer.pruned));
        layer.pruned = mask.prune(&tensor)?.with_retained(retained);
        layer.bias = Some(pruned.model.bias(name)?.to_vec());
    }
    let fitted: Vec<_> =
        pruned.layers.iter().map(|(name, layer)| (name.clone(), layer.pruned.dense().to_f32())).collect();
    for (name, weights) in fitted {
        let bias = pruned.model.bias(&name)?.to_vec();
        pruned.model.set_weight(&name, weights, Some(bias))?;
    }
    Ok(())
}

/// Prints the table of layers; the same as JSON.
fn report(pruned: &PrunedModel, plan: &BTreeMap<String, LayerPlan>, seconds: f64) -> Value {
    println!("{:44} {:>11}  density  retained   error  of dense  packed MB", "layer", "n x k");
    let (mut kept, mut all, mut packed, mut dense) = (0, 0, 0, 0);
    let mut rows = Vec::new();
    for (name, layer) in &pruned.layers {
        let weight = &layer.pruned;
        let (n, k) = (weight.pattern().n(), weight.pattern().k());
        println!(
            "{name:44} {:>11}  {:6.2}%  {:7.2}%  {:.4}    {:.4}  {:9.3}",
            format!("{n} x {k}"),
            100.0 * (1.0 - weight.sparsity()),
            100.0 * weight.retained(),
            layer.error,
            layer.least,
            weight.packed_bytes() as f64 / 1e6
        );
        kept += weight.kept();
        all += n * k;
        packed += weight.packed_bytes();
        dense += weight.dense_bytes();
        rows.push(json!({
            "layer": name, "n": n, "k": k, "density": 1.0 - weight.sparsity(), "retained": weight.retained(),
            "error": layer.error, "least_error": layer.least, "packed_bytes": weight.packed_bytes(),
        }));
    }
    println!(
        "{} layers, {:.2} % of the weights kept, {:.2} MB of {:.2} MB; {seconds:.1} s",
        plan.len(),
        100.0 * kept as f64 / all.max(1) as f64,
        packed as f64 / 1e6,
        dense as f64 / 1e6
    );
    println!(
        "retained: share of the method's scores; error: of the layer's results on the calibration, over their spread; of dense: the same of the best dense weights"
    );
    json!({ "layers": rows, "kept": kept, "weights": all, "packed_bytes": packed, "dense_bytes": dense, "seconds": seconds })
}

fn evaluate(task: &Task, dense: &BertModel, pruned: &BertModel) -> Result<Value> {
    let embeddings = task.run(dense)?;
    let (before, after) = (embeddings.find(&embeddings), task.run(pruned)?.find(&embeddings));
    let (loss, half) = after.loss(&before);
    println!(
        "{} packages: recall@1 {:.2} % ({:.2} % dense, {:+.2} +- {:.2} points), MRR {:.4} ({:.4}), cosine {:.4}",
        task.len(),
        100.0 * after.recall(),
        100.0 * before.recall(),
        -100.0 * loss,
        100.0 * half,
        after.mrr(),
        before.mrr(),
        after.cosine
    );
    Ok(json!({
        "packages": task.len(), "recall": after.recall(), "dense_recall": before.recall(), "loss": loss, "loss_half_width": half,
        "mrr": after.mrr(), "dense_mrr": before.mrr(), "cosine": after.cosine,
    }))
}
