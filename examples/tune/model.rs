//! `tune model`: every linear layer of a BERT-like model -> a recipe, and the time of the whole beside dense and beside the best
//! single pattern that retains as much.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use fractal::model::{BertModel, SparseLinear};
use fractal::pattern::Named;
use fractal::runtime::Curvature;
use fractal::runtime::tune::{Estimator, Goal, Problem, Recipe, RecipeLayer, Settings, Tuner, floors, space};
use fractal::{DType, Device, Given, Importance, Layer, Layout, Magnitude, Tensor, prune};
use rayon::prelude::*;

use crate::args::Model;
use crate::gpu::Gpu;
use crate::output::line;
use crate::progress::Progress;
use crate::{Result, ended, json_file, median, picture_of_model};

/// One layer's weight and what it must retain.
struct Work {
    name: String,
    tensor: Tensor,
    scores: Vec<f32>,
    floor: f64,
}

pub fn run(args: &Model) -> Result<()> {
    if !(args.sparsity > 0.0 && args.sparsity < 1.0) {
        return Err(format!("--sparsity: expected a share above 0 and below 1, found {}", args.sparsity).into());
    }
    if !(args.time > 0.0 && args.time <= 1e6) {
        return Err(format!("--time: expected seconds above 0 and up to 1000000, found {}", args.time).into());
    }
    for path in args.recipe.iter().chain(&args.picture) {
        json_file::check_writable(path)?;
    }
    if !args.weights.exists() {
        let weights = args.weights.display();
        return Err(format!("no model at {weights}: run `python3 examples/fetch_minilm.py`, or pass --weights").into());
    }
    let tuner = crate::open_tuner(&args.device, args.threads, args.database.as_ref(), false)?;
    let on_gpu = !tuner.device_name().starts_with("cpu");
    let dtype = if on_gpu { DType::F16 } else { DType::F32 };
    let model = BertModel::load(&args.weights)?;
    let layers = layers(&model, dtype, 1.0 - args.sparsity, args.scores.as_deref())?;
    let recipe = match &args.from {
        Some(path) => Recipe::read(path)?,
        None => tuned(args, &tuner, &model, &layers)?,
    };
    let unknown: Vec<&str> =
        recipe.layers.keys().map(String::as_str).filter(|name| !layers.iter().any(|l| l.name == *name)).collect();
    if !unknown.is_empty() {
        return Err(format!("the recipe is of another model, which has the layers {}", unknown.join(", ")).into());
    }
    print(&recipe, &layers);
    if let Some(path) = &args.recipe {
        json_file::write(path, &serde_json::to_value(&recipe)?)?;
    }
    if let Some(path) = &args.picture {
        json_file::write_text(path, &picture_of_model::svg(&recipe))?;
    }
    if recipe.layers.len() < layers.len() {
        return Err(format!(
            "{} of {} layers have no pattern that retains enough",
            layers.len() - recipe.layers.len(),
            layers.len()
        )
        .into());
    }
    compare(args, &model, &layers, &recipe, dtype, on_gpu)
}

fn layers(model: &BertModel, dtype: DType, keep: f64, calibrated: Option<&Path>) -> Result<Vec<Work>> {
    let mut layers = Vec::new();
    for name in model.linear_names() {
        let weight = model.weight(&name)?;
        let tensor = Tensor::from_f32(dtype, weight.n, weight.k, weight.data)?;
        let importance: Box<dyn Importance> = match calibrated {
            None => Box::new(Magnitude),
            Some(path) => Box::new(Curvature::new(curvature(path, &name)?)?),
        };
        let scores = importance.scores(&tensor.to_f32(), weight.n, weight.k)?;
        layers.push(Work { name, tensor, scores, floor: 0.0 });
    }
    let floors = floors(&layers.iter().map(|layer| layer.scores.clone()).collect::<Vec<_>>(), keep);
    if calibrated.is_none() {
        layers.iter_mut().zip(floors).for_each(|(layer, floor)| layer.floor = floor);
    }
    Ok(layers)
}

/// What `prune --scores` wrote of a layer.
fn curvature(path: &Path, layer: &str) -> Result<Vec<f32>> {
    let tensor = crate::weight::read(path, &format!("{layer}.curvature"), Some(DType::F32))?;
    Ok(tensor.to_f32())
}

fn tuned(args: &Model, tuner: &Tuner, model: &BertModel, layers: &[Work]) -> Result<Recipe> {
    let settings = Settings {
        time: Duration::from_secs_f64(args.time),
        patterns: args.patterns as usize,
        schedules: 3,
        patience: 10,
        ..Settings::default()
    };
    let bar = Progress::styled(layers.len() as u64, "{bar:30} {pos}/{len} [{elapsed}, {eta} left] {msg}");
    let mut found = BTreeMap::new();
    for layer in layers {
        bar.set_message(layer.name.clone());
        let problem = Problem {
            weight: &layer.tensor,
            importance: &Given(layer.scores.clone()),
            m: args.tokens as usize,
            epilogue: model.epilogue(&layer.name)?.steps(),
            layouts: (Layout::FeatureMajor, Layout::FeatureMajor),
        };
        // Second-order scores are squares: what a threshold over all layers leaves of them, few patterns retain.
        let goal = if args.scores.is_some() { Goal::Sparsity(args.sparsity) } else { Goal::Retained(layer.floor) };
        let tuned = tuner.tune(&problem, goal, &settings, &mut |_| {
            bar.tick();
            !ended()
        })?;
        if let Some(chosen) = &tuned.chosen {
            let record = &chosen.record;
            found.insert(
                layer.name.clone(),
                RecipeLayer {
                    tiling: chosen.tiling.clone(),
                    pattern: record.pattern.clone(),
                    request: record.request,
                    retained: record.retained,
                    density: record.density,
                    microseconds: record.microseconds().unwrap_or(f64::INFINITY),
                },
            );
        }
        bar.inc(1);
        if ended() {
            bar.finish_and_clear();
            return Err("ended; what was measured is in the database, and the next run goes on from there".into());
        }
    }
    bar.finish_and_clear();
    Ok(Recipe::new(found))
}

fn print(recipe: &Recipe, layers: &[Work]) {
    line(format_args!(
        "{:44} {:>11} {:>7} {:>9} {:>6} {:>9}  pattern",
        "layer", "n x k", "floor", "retained", "kept", "us"
    ));
    for layer in layers {
        let size = format!("{} x {}", layer.tensor.rows(), layer.tensor.columns());
        match recipe.layers.get(&layer.name) {
            None => {
                line(format_args!("{:44} {size:>11} {:6.1}%  nothing retains enough", layer.name, layer.floor * 100.0))
            }
            Some(found) => line(format_args!(
                "{:44} {size:>11} {:6.1}% {:8.1}% {:5.1}% {:9.1}  {}",
                layer.name,
                layer.floor * 100.0,
                found.retained * 100.0,
                found.density * 100.0,
                found.microseconds,
                found.tiling
            )),
        }
    }
}

/// A model's layers by one way to prune them.
struct Way {
    name: String,
    /// Importance kept over all importance.
    retained: f64,
    layers: Vec<Layer>,
    model: BertModel,
}

/// Prunes all layers; `of` gives each its pattern and request.
fn way(
    name: String,
    model: &BertModel,
    layers: &[Work],
    device: &Device,
    tokens: usize,
    of: impl Fn(&Work) -> Result<(fractal::pattern::Pattern, fractal::KernelRequest)> + Sync,
) -> Result<Way> {
    let one = |work: &Work| -> Result<(Layer, SparseLinear, f64, f64)> {
        let (pattern, request) = of(work)?;
        let pruned = prune(&pattern, &work.tensor, &Given(work.scores.clone()))?;
        let all: f64 = work.scores.iter().map(|&s| f64::from(s)).sum();
        let kept = pruned.retained() * all;
        let op = SparseLinear::new(device.clone(), pruned).with_request(request);
        let layer = op.prepare(model.epilogue(&work.name)?)?;
        if let Some(weight) = layer.cuda() {
            weight.prepare(tokens)?;
        }
        Ok((layer, op, kept, all))
    };
    let done = layers.par_iter().map(one).collect::<Result<Vec<_>>>()?;
    let (kept, all) = done.iter().fold((0.0, 0.0), |(kept, all), (_, _, k, a)| (kept + k, all + a));
    let mut pruned = model.clone();
    let mut loaded = Vec::new();
    for (work, (layer, op, ..)) in layers.iter().zip(done) {
        if layer.cuda().is_none() {
            pruned.replace(&work.name, Box::new(op))?;
        }
        loaded.push(layer);
    }
    Ok(Way { name, retained: kept / all, layers: loaded, model: pruned })
}

/// The least that the pattern must keep to retain so much of the model, to 1/64.
fn keep_for(named: Named, layers: &[Work], estimators: &[Estimator], wanted: f64) -> Option<f64> {
    let retained = |keep: f64| -> Option<f64> {
        let one = |(work, estimator): (&Work, &Estimator)| {
            let all: f64 = work.scores.iter().map(|&s| f64::from(s)).sum();
            Some((estimator.retained(&space::Tiling::Named(named, keep)).ok()? * all, all))
        };
        let sums: Option<Vec<(f64, f64)>> = layers.par_iter().zip(estimators).map(one).collect();
        let (kept, all) = sums?.into_iter().fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d));
        Some(kept / all)
    };
    if let Some(fixed) = named.fixed_keep() {
        return (retained(fixed)? >= wanted).then_some(fixed);
    }
    let (mut low, mut high) = (1, 64);
    while low < high {
        let middle = (low + high) / 2;
        // A ratio that the pattern cannot have is too low or too high: V:N:M has few.
        match retained(f64::from(middle) / 64.0) {
            Some(share) if share >= wanted => high = middle,
            Some(_) => low = middle + 1,
            None => return None,
        }
    }
    Some(f64::from(low) / 64.0)
}

fn compare(
    args: &Model,
    model: &BertModel,
    layers: &[Work],
    recipe: &Recipe,
    dtype: DType,
    on_gpu: bool,
) -> Result<()> {
    let device = match (on_gpu, args.threads) {
        (true, _) => args.device.parse()?,
        (false, Some(threads)) => Device::cpu_with_threads(threads as usize),
        (false, None) => Device::cpu(),
    };
    let tokens = (args.tokens as usize).next_multiple_of(8);
    let tuned = way("tuned".into(), model, layers, &device, tokens, |work| {
        let layer = recipe.layers.get(&work.name).ok_or("the recipe lacks a layer")?;
        let pattern = layer.pattern(work.tensor.rows(), work.tensor.columns()).map_err(|error| error.to_string())?;
        Ok((pattern, layer.request))
    })?;
    let estimators: Vec<Estimator> =
        layers.iter().map(|work| Estimator::new(&work.scores, work.tensor.rows(), work.tensor.columns())).collect();
    let mut ways = vec![tuned];
    for name in ["tw:64", "tw:128", "bw:16x16", "bw:32x32", "bw:64x64", "2:4", "tw-global:64", "tw-global:128"] {
        let named: Named = name.parse()?;
        let Some(keep) = keep_for(named, layers, &estimators, ways[0].retained) else { continue };
        let text = format!("{name} keeping {:.1} %", keep * 100.0);
        ways.push(way(text, model, layers, &device, tokens, |work| {
            let (n, k) = (work.tensor.rows(), work.tensor.columns());
            Ok((named.pattern(n, k, keep)?, fractal::KernelRequest::default()))
        })?);
    }
    let what = if on_gpu { "linear layers as one CUDA graph, cuBLASLt for dense" } else { "the whole model" };
    line(format_args!("time of {what}, {tokens} tokens, {dtype}:"));
    let gpu = if on_gpu { Some(Gpu::new(model, dtype, tokens)?) } else { None };
    let sentences: Vec<Vec<u32>> = (0..tokens.div_ceil(16))
        .map(|s| (0..16.min(tokens)).map(|t| (999 + s * 37 + t * 11) as u32 % 20_000).collect())
        .collect();
    for way in &ways {
        let (dense, own) = match &gpu {
            Some(gpu) => gpu.time(&way.layers)?,
            None => interleaved(model, &way.model, &sentences)?,
        };
        line(format_args!(
            "  {:28} {:6.2} % retained  {:9.1} us, dense {:9.1} us: {:.2}x",
            way.name,
            way.retained * 100.0,
            own.as_secs_f64() * 1e6,
            dense.as_secs_f64() * 1e6,
            dense.as_secs_f64() / own.as_secs_f64()
        ));
    }
    Ok(())
}

/// Median times of both, in turns.
fn interleaved(a: &BertModel, b: &BertModel, sentences: &[Vec<u32>]) -> Result<(Duration, Duration)> {
    let (mut times_a, mut times_b) = (Vec::new(), Vec::new());
    let start = Instant::now();
    while times_a.len() < 3 || (times_a.len() < 9 && start.elapsed() < Duration::from_secs(3)) {
        times_a.push(a.embed_profiled(sentences)?.1.total());
        times_b.push(b.embed_profiled(sentences)?.1.total());
    }
    Ok((median(times_a), median(times_b)))
}
