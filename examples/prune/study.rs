//! Every pattern by every method, on the task: what is found, beside what is retained and how long it takes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fractal::pattern::Named;
use fractal::{DType, Device, Gemm, Layer, Magnitude, StoredWeight, Tensor};
use fractal_runtime::model::{BertModel, PrunedModel};
use serde_json::{Value, json};

use crate::args::Study;
use crate::cuda::Gpu;
use crate::recipe::{Budget, MethodName, Recipe, pattern_named};
use crate::retrieval::{Embeddings, Found, Task};
use crate::run::{Loaded, check_apart, load, prune};
use crate::{Result, json_file, median};

/// Texts that the CPU is timed on, and tokens a call of the GPU.
const TIMED_TEXTS: usize = 64;
const GPU_TOKENS: usize = 4096;

/// Before the file of a recipe that `tune model --recipe` wrote.
const TUNED: &str = "tuned=";

/// Before the file of a recipe that is run as it is.
const RECIPE: &str = "recipe=";

/// The command.
///
/// # Errors
/// Whatever keeps it from its end; one pattern that cannot be had leaves the others.
pub fn run(args: &Study) -> Result<()> {
    let (files, patterns): (Vec<&String>, Vec<&String>) = args.pattern.iter().partition(|t| t.starts_with(RECIPE));
    let files: Vec<Option<PathBuf>> = files.iter().map(|text| Some(text[RECIPE.len()..].into())).collect();
    let runs: Vec<(String, f64)> = patterns.iter().map(|text| parse(text)).collect::<Result<_>>()?;
    let recipes: Vec<(&str, Recipe)> =
        args.method.iter().map(|name| Ok((name.as_str(), method(name)?))).collect::<Result<_>>()?;
    // All that is asked for, checked before anything is loaded.
    let mut asked: Vec<(String, Option<f64>, &str, Recipe)> = Vec::new();
    for path in files.iter().flatten() {
        asked.push((path.display().to_string(), None, "recipe", Recipe::read(path)?));
    }
    for (pattern, sparsity) in &runs {
        let tuned = pattern.strip_prefix(TUNED).map(PathBuf::from);
        let fixed = tuned.is_some() || pattern_named(pattern)?.fixed_keep().is_some();
        for (name, recipe) in recipes.iter().filter(|(_, recipe)| !fixed || recipe.budget == Budget::Uniform) {
            let recipe = Recipe {
                pattern: tuned.is_none().then(|| pattern.clone()),
                tuned: tuned.clone(),
                sparsity: *sparsity,
                damping: args.damping,
                stages: args.stages as usize,
                least: args.least,
                most: args.most,
                distill: recipe.distill * args.epochs as usize,
                rate: args.rate,
                relation: args.relation,
                ..recipe.clone()
            };
            recipe.check()?;
            asked.push((pattern.clone(), Some(*sparsity), name, recipe));
        }
    }
    if asked.is_empty() {
        return Err(
            "nothing to study: the names fix what every layer keeps, and the methods given choose it by a budget"
                .into(),
        );
    }
    if args.inputs.training > 0 && asked.iter().all(|(_, _, _, recipe)| recipe.distill == 0) {
        return Err(
            "--training: nothing asked for distils; add `distilled` to --method, or `distill = 1` to a recipe".into()
        );
    }
    args.json.as_deref().map_or(Ok(()), json_file::check_writable)?;
    let tuned: Vec<Option<PathBuf>> = asked.iter().map(|(_, _, _, recipe)| recipe.tuned.clone()).collect();
    check_apart(&[("--json", &args.json)], &args.inputs, &files.iter().chain(&tuned).collect::<Vec<_>>())?;
    let loaded = load(&args.inputs, None)?;
    let task = Task::read(&args.inputs.packages, &args.part, &loaded.tokenizer, args.queries as usize)?;
    let gpu = if args.gpu { Some(Gpu::new(&loaded.model, DType::F16, GPU_TOKENS)?) } else { None };
    let tokens = |sentences: &[Vec<u32>]| sentences.iter().map(Vec::len).sum::<usize>();
    let embeddings = task.run(&loaded.model)?;
    let dense = embeddings.find(&embeddings);
    println!(
        "{} packages of the part `{}`, {} tokens; calibration {} tokens, training {}; {} threads",
        task.len(),
        args.part,
        tokens(&task.sentences()),
        tokens(&loaded.sentences),
        tokens(&loaded.training),
        rayon::current_num_threads()
    );
    println!("dense: recall@1 {:.2} %, MRR {:.4}", 100.0 * dense.recall(), dense.mrr());
    println!(
        "{:18} {:>8}  {:22} {:>8}  {:>15}  {:>6}  {:>6}  {:>8}  {:>6}  {:>7}  {:>9}  {:>9}",
        "pattern",
        "sparsity",
        "method",
        "recall@1",
        "loss, points",
        "MRR",
        "cosine",
        "retained",
        "error",
        "prune s",
        "CPU",
        "GPU"
    );
    let mut rows = vec![json!({
        "pattern": "dense", "part": args.part, "packages": task.len(), "recall": dense.recall(), "mrr": dense.mrr(),
        "calibration_tokens": tokens(&loaded.sentences), "threads": rayon::current_num_threads(),
    })];
    for (pattern, sparsity, name, recipe) in &asked {
        match row(recipe, &loaded, &task, &embeddings, &dense, gpu.as_ref()) {
            Ok((mut row, text)) => {
                // A recipe's is that of what it made.
                let sparsity = sparsity.unwrap_or(1.0 - row["density"].as_f64().unwrap_or(1.0));
                println!("{pattern:18} {:7.2}%  {name:22} {text}", sparsity * 100.0);
                row["pattern"] = json!(pattern);
                row["sparsity"] = json!(sparsity);
                row["method"] = json!(name);
                rows.push(row);
            }
            Err(error) => {
                let sparsity = sparsity.map_or("       -".into(), |sparsity| format!("{:7.2}%", sparsity * 100.0));
                println!("{pattern:18} {sparsity}  {name:22} not run: {error}");
            }
        }
        if let Some(path) = &args.json {
            json_file::write(path, &Value::from(rows.clone()))?;
        }
    }
    if rows.len() == 1 {
        return Err(format!("none of {} could be run", asked.len()).into());
    }
    println!(
        "loss: of recall@1 against dense, with its 95 % interval by pairs; retained: share of the method's own scores; error: mean over layers of \
         the squared error on the calibration, over the spread;\nCPU: dense over pruned time of the whole model in f32; GPU: of the linear layers in f16, {GPU_TOKENS} tokens, against cuBLASLt's fastest"
    );
    Ok(())
}

/// `tw:64@0.5`.
fn parse(text: &str) -> Result<(String, f64)> {
    let wrong =
        || format!("`{text}`: expected a pattern and a sparsity from 0 to below 1, such as tw:64@0.5, or recipe=FILE");
    let (pattern, sparsity) = text.split_once('@').ok_or_else(wrong)?;
    let sparsity: f64 = sparsity.parse().map_err(|_| wrong())?;
    if !pattern.starts_with(TUNED) && pattern_named(pattern)? == Named::Dense {
        return Err("`dense` is the first row as it is; pass a pattern that drops something".into());
    }
    if (0.0..1.0).contains(&sparsity) { Ok((pattern.into(), sparsity)) } else { Err(wrong().into()) }
}

fn method(name: &str) -> Result<Recipe> {
    let with = |method, budget, distill| Recipe { method, budget, distill, ..Recipe::default() };
    Ok(match name {
        "magnitude" => with(MethodName::Magnitude, Budget::Uniform, 0),
        "magnitude+lamp" => with(MethodName::Magnitude, Budget::Lamp, 0),
        "magnitude+erk" => with(MethodName::Magnitude, Budget::Erk, 0),
        "taylor" => with(MethodName::Taylor, Budget::Uniform, 0),
        "activation-aware" => with(MethodName::ActivationAware, Budget::Uniform, 0),
        "second-order" => with(MethodName::SecondOrder, Budget::Uniform, 0),
        "second-order+budget" => with(MethodName::SecondOrder, Budget::Error, 0),
        "distilled" => with(MethodName::SecondOrder, Budget::Uniform, 1),
        "distilled+budget" => with(MethodName::SecondOrder, Budget::Error, 1),
        _ => {
            return Err(format!(
                "method `{name}`: expected magnitude, magnitude+lamp, magnitude+erk, taylor, activation-aware, second-order, second-order+budget, distilled or distilled+budget"
            )
            .into());
        }
    })
}

fn row(
    recipe: &Recipe,
    loaded: &Loaded,
    task: &Task,
    embeddings: &Embeddings,
    dense: &Found,
    gpu: Option<&Gpu>,
) -> Result<(Value, String)> {
    let begin = Instant::now();
    let (pruned, _) = prune(recipe, loaded, None::<&Path>)?;
    let seconds = begin.elapsed().as_secs_f64();
    let found = task.run(&pruned.model)?.find(embeddings);
    let (loss, half) = found.loss(dense);
    let sum = |of: fn(&fractal::runtime::Reconstructed) -> f64| pruned.layers.values().map(of).sum::<f64>();
    let layers = pruned.layers.len().max(1) as f64;
    let (error, retained) = (sum(|layer| layer.error) / layers, sum(|layer| layer.pruned.retained()) / layers);
    let (mut kept, mut all) = (0, 0);
    for name in loaded.model.linear_names() {
        let elements = loaded.model.weight(&name)?.data.len();
        // One that is not pruned keeps all.
        kept += pruned.layers.get(&name).map_or(elements, |layer| layer.pruned.kept());
        all += elements;
    }
    let cpu = cpu_speed(loaded, &pruned)?;
    let on_gpu = gpu.map(|gpu| gpu_times(gpu, loaded, &pruned)).transpose()?;
    let ratio = |times: (Duration, Duration)| times.0.as_secs_f64() / times.1.as_secs_f64();
    let text = format!(
        "{:7.2}%  {:+6.2} +- {:5.2}  {:.4}  {:.4}  {:7.2}%  {:.4}  {seconds:7.1}  {:8.2}x  {}",
        100.0 * found.recall(),
        -100.0 * loss,
        100.0 * half,
        found.mrr(),
        found.cosine,
        100.0 * retained,
        error,
        ratio(cpu),
        on_gpu.map_or("-".into(), |times| format!("{:8.2}x", ratio(times)))
    );
    let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
    let row = json!({
        "recall": found.recall(), "loss": loss, "loss_half_width": half, "mrr": found.mrr(), "cosine": found.cosine,
        "retained": retained, "error": error, "density": kept as f64 / all.max(1) as f64, "prune_seconds": seconds,
        "cpu_dense_us": microseconds(cpu.0), "cpu_us": microseconds(cpu.1),
        "gpu_dense_us": on_gpu.map(|times| microseconds(times.0)), "gpu_us": on_gpu.map(|times| microseconds(times.1)),
    });
    Ok((row, text))
}

/// Median times of the dense model and of the pruned one on packed weights, in turns.
fn cpu_speed(loaded: &Loaded, pruned: &PrunedModel) -> Result<(Duration, Duration)> {
    let mut packed = loaded.model.clone();
    packed.run_pruned(&pruned.file(StoredWeight::Packed)?, &Device::cpu())?;
    let texts = &loaded.sentences[..loaded.sentences.len().min(TIMED_TEXTS)];
    let time = |model: &BertModel| -> Result<Duration> { Ok(model.embed_profiled(texts)?.1.total()) };
    let (mut dense_times, mut own) = (Vec::new(), Vec::new());
    // The first one warms up.
    time(&packed)?;
    for _ in 0..5 {
        dense_times.push(time(&loaded.model)?);
        own.push(time(&packed)?);
    }
    Ok((median(dense_times), median(own)))
}

fn gpu_times(gpu: &Gpu, loaded: &Loaded, pruned: &PrunedModel) -> Result<(Duration, Duration)> {
    let device: Device = "cuda".parse()?;
    let names = loaded.model.linear_names();
    let layer = |name: &String| -> Result<Layer> {
        let weight = match pruned.layers.get(name) {
            Some(layer) => layer.pruned.clone(),
            None => {
                let dense = loaded.model.weight(name)?;
                let pattern = Named::Dense.pattern(dense.n, dense.k, 1.0)?;
                fractal::prune(&pattern, &Tensor::from_f32(DType::F32, dense.n, dense.k, dense.data)?, &Magnitude)?
            }
        };
        let weight = weight.stored_as(gpu.dtype())?;
        let gemm =
            Gemm::new(weight.pattern().clone(), weight.dtype()).with_epilogue(&loaded.model.epilogue(name)?.steps());
        let layer = device.compile(&gemm)?.load(&weight)?;
        if let Some(weight) = layer.cuda() {
            weight.prepare(gpu.tokens())?;
        }
        Ok(layer)
    };
    let layers = names.iter().map(layer).collect::<Result<Vec<_>>>()?;
    gpu.time(&layers)
}
