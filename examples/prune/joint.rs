//! Times of patterns and the errors of layers alone -> of each layer pattern and ratio, as a recipe.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use fractal::pattern::Pattern;
use fractal::runtime::SecondOrder;
use fractal::runtime::prune::budget;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::args::Joint;
use crate::progress::Progress;
use crate::recipe::CURVE_SENTENCES;
use crate::run::{Loaded, check_apart, load, origin};
use crate::times::{Choice, Measured, Times, one_line};
use crate::{Result, json_file};

/// 1 - cosine by layer and by [`Choice::name`], of one model and its texts: the file of `--errors`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Errors {
    /// Of weights and calibration texts.
    of: String,
    /// Sentences whose embeddings tell the errors.
    measured: usize,
    layers: BTreeMap<String, BTreeMap<String, f64>>,
}

/// A layer and what it may have.
struct Layer<'a> {
    name: String,
    /// Dense first.
    choices: &'a [Choice],
    /// Of each choice.
    errors: Vec<f64>,
}

/// The command.
///
/// # Errors
/// Whatever keeps it from its end.
pub fn run(args: &Joint) -> Result<()> {
    if args.inputs.training > 0 {
        return Err("--training: nothing is distilled here; pass it to the run of the recipe".into());
    }
    if !(1.0..=1e6).contains(&args.speedup) {
        return Err(
            format!("--speedup: expected a number from 1 to 1000000, such as 2, found {:e}", args.speedup).into()
        );
    }
    json_file::check_writable(&args.recipe)?;
    args.json.as_deref().map_or(Ok(()), json_file::check_writable)?;
    args.errors.as_deref().map_or(Ok(()), json_file::check_file)?;
    let recipe = Some(args.recipe.clone());
    let outputs = [("--recipe", &recipe), ("--errors", &args.errors), ("--json", &args.json)];
    let read: Vec<_> = args.times.iter().cloned().map(Some).collect();
    check_apart(&outputs, &args.inputs, &read.iter().collect::<Vec<_>>())?;
    let times = Times::read(&args.times)?;
    let kept = args.errors.as_deref().map(Errors::read).transpose()?.flatten();

    let loaded = load(&args.inputs, None)?;
    let names = loaded.model.linear_names();
    let shape = |name: &String| loaded.model.weight(name).map(|weight| (weight.n, weight.k));
    let shapes = names.iter().map(shape).collect::<std::result::Result<Vec<_>, _>>()?;
    let wider = args.wider as usize;
    let told = |note| println!("note: {note}");
    let (choices, measured) = times.choices(&shapes.iter().copied().collect::<BTreeSet<_>>(), wider, told)?;
    let of_layer = |shape: &(usize, usize)| choices.get(shape).map_or(&[][..], Vec::as_slice);
    let mut layers: Vec<Layer> = names
        .into_iter()
        .zip(&shapes)
        .map(|(name, shape)| Layer { name, choices: of_layer(shape), errors: Vec::new() })
        .collect();
    let dense: f64 = layers.iter().map(|layer| layer.choices[0].time).sum();
    let fastest = |layer: &Layer| layer.choices.iter().map(|choice| choice.time).fold(f64::INFINITY, f64::min);
    let least = layers.iter().map(fastest).sum::<f64>();
    let greatest = dense / least;
    // But for rounding.
    if args.speedup > greatest * (1.0 + 1e-9) {
        let asked = args.speedup;
        // Rounded down: what is told can be had.
        let told = (greatest * 1000.0).floor() / 1000.0;
        return Err(format!("--speedup: expected at most {told}, what the fastest options give, found {asked}").into());
    }
    let errors = measure(&loaded, &layers, kept, args.errors.as_deref())?;
    for layer in &mut layers {
        let of = |choice: &Choice| errors.of(&layer.name, choice);
        layer.errors = layer.choices.iter().map(of).collect::<Option<_>>().ok_or("an error was not measured")?;
    }
    let options: Vec<Vec<(f64, f64)>> = layers
        .iter()
        .map(|layer| layer.choices.iter().zip(&layer.errors).map(|(choice, &error)| (choice.time, error)).collect())
        .collect();
    let chosen = budget::by_time(&options, (dense / args.speedup).max(least * (1.0 + 1e-12)))?;
    let report = report(args, &measured, &layers, &chosen);
    json_file::write_text(&args.recipe, &recipe_of(args, &measured, &layers, &chosen))?;
    println!("wrote {}", args.recipe.display());
    args.json.as_deref().map_or(Ok(()), |path| json_file::write(path, &report))
}

impl Errors {
    /// What is there, if anything is.
    fn read(path: &Path) -> Result<Option<Errors>> {
        if !path.exists() {
            return Ok(None);
        }
        let wrong = |what: String| {
            format!(
                "{}: expected errors that `prune joint` wrote: {what}; remove it, or pass another --errors",
                path.display()
            )
        };
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        let errors: Errors = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        match errors.layers.values().flat_map(BTreeMap::values).find(|error| !(0.0..=2.0).contains(*error)) {
            None => Ok(Some(errors)),
            Some(bad) => Err(wrong(format!("{bad} is no error")).into()),
        }
    }

    /// What another run has written meanwhile.
    fn add(&mut self, others: Option<Errors>) {
        for (layer, more) in others.filter(|others| others.of == self.of).into_iter().flat_map(|others| others.layers) {
            let own = self.layers.entry(layer).or_default();
            more.into_iter().for_each(|(choice, error)| _ = own.entry(choice).or_insert(error));
        }
    }

    /// Of dense 0.
    fn of(&self, layer: &str, choice: &Choice) -> Option<f64> {
        if choice.sparsity == 0.0 {
            return Some(0.0);
        }
        self.layers.get(layer)?.get(&choice.name()).copied()
    }
}

/// The errors of all layers' choices: those that are kept, and the others measured and added to the file, layer by layer.
fn measure(loaded: &Loaded, layers: &[Layer], kept: Option<Errors>, path: Option<&Path>) -> Result<Errors> {
    let some = &loaded.sentences[..loaded.sentences.len().min(CURVE_SENTENCES)];
    let fresh = Errors { of: origin(loaded, None)?, measured: some.len(), layers: BTreeMap::new() };
    let mut errors = kept.unwrap_or_else(|| fresh.clone());
    if (&errors.of, errors.measured) != (&fresh.of, fresh.measured) {
        let file = path.unwrap_or(Path::new("")).display();
        let told = "is of other weights or calibration texts: remove it, or pass another --errors";
        return Err(format!("{file} {told}").into());
    }
    let mut wanted: BTreeMap<String, (Vec<String>, Vec<Pattern>)> = BTreeMap::new();
    for layer in layers {
        for choice in layer.choices.iter().filter(|choice| errors.of(&layer.name, choice).is_none()) {
            let (names, patterns) = wanted.entry(layer.name.clone()).or_default();
            names.push(choice.name());
            patterns.push(choice.pattern.clone());
        }
    }
    let all: usize = layers.iter().map(|layer| layer.choices.len() - 1).sum();
    let missing: usize = wanted.values().map(|(names, _)| names.len()).sum();
    println!("{missing} of {all} errors to measure, {} texts", some.len());
    if missing == 0 {
        return Ok(errors);
    }
    let bar = Progress::new(missing as u64);
    let (names, patterns): (BTreeMap<_, _>, BTreeMap<_, _>) =
        wanted.into_iter().map(|(layer, (names, patterns))| ((layer.clone(), names), (layer, patterns))).unzip();
    let settings = SecondOrder::default();
    loaded.model.errors_alone(&loaded.sentences, some, &patterns, &settings, |layer, number, error| {
        let names = &names[layer];
        bar.set_message(format!("{layer}, {}: error {error:.4}", names[number]));
        bar.inc(1);
        errors.layers.entry(layer.to_owned()).or_default().insert(names[number].clone(), error);
        match path {
            Some(path) if number + 1 == names.len() => {
                errors.add(Errors::read(path)?);
                json_file::write(path, &serde_json::to_value(&errors)?)
            }
            _ => Ok(()),
        }
    })?;
    bar.finish_and_clear();
    Ok(errors)
}

/// Time dense and chosen, and the sum of the errors.
fn sums(layers: &[Layer], chosen: &[usize]) -> (f64, f64, f64) {
    let sum = |of: fn(&Layer, usize) -> f64| layers.iter().zip(chosen).map(|(layer, &at)| of(layer, at)).sum::<f64>();
    (sum(|layer, _| layer.choices[0].time), sum(|layer, at| layer.choices[at].time), sum(|layer, at| layer.errors[at]))
}

/// Prints the table of layers; the same as JSON, with all options.
fn report(args: &Joint, measured: &Measured, layers: &[Layer], chosen: &[usize]) -> Value {
    println!("{:44} {:>11}  {:18}    kept  error alone        us of dense us", "layer", "n x k", "pattern");
    let mut rows = Vec::new();
    for (layer, &at) in layers.iter().zip(chosen) {
        let (choice, dense) = (&layer.choices[at], layer.choices[0].time);
        let (n, k) = (choice.pattern.n(), choice.pattern.k());
        println!(
            "{:44} {:>11}  {:18} {:6.2}%     {:.5}  {:9.1} of {:8.1}",
            layer.name,
            format!("{n} x {k}"),
            choice.named.to_string(),
            100.0 * (1.0 - choice.sparsity),
            layer.errors[at],
            choice.time,
            dense
        );
        let option = |(choice, error): (&Choice, &f64)| json!({ "pattern": choice.named.to_string(), "sparsity": choice.sparsity, "time_us": choice.time, "error": error });
        rows.push(json!({
            "layer": layer.name, "n": n, "k": k, "pattern": choice.named.to_string(), "sparsity": choice.sparsity,
            "error": layer.errors[at], "time_us": choice.time, "dense_us": dense,
            "options": layer.choices.iter().zip(&layer.errors).map(option).collect::<Vec<_>>(),
        }));
    }
    let (dense, time, error) = sums(layers, chosen);
    println!(
        "{} layers, {time:.1} of {dense:.1} us: linear layers {:.2} times as fast ({} asked); errors alone {error:.5} in all",
        layers.len(),
        dense / time,
        args.speedup
    );
    println!(
        "kept: as asked for; error alone: 1 - mean cosine of the embeddings to the dense ones, this layer alone pruned; us: {}, {}, {} tokens, layers {} times as wide",
        one_line(&measured.machine),
        measured.dtype,
        measured.m,
        args.wider
    );
    json!({
        "machine": measured.machine, "dtype": measured.dtype, "m": measured.m, "dates": measured.dates, "wider": args.wider,
        "speedup_asked": args.speedup, "speedup": dense / time, "time_us": time, "dense_us": dense, "error": error, "layers": rows,
    })
}

/// A file that [`Recipe::read`](crate::recipe::Recipe::read) takes.
fn recipe_of(args: &Joint, measured: &Measured, layers: &[Layer], chosen: &[usize]) -> String {
    let (dense, time, error) = sums(layers, chosen);
    let from =
        format!("{}, {}, {} tokens, {}", measured.machine, measured.dtype, measured.m, measured.dates.join(", "));
    // A comment ends with its line.
    let from = one_line(&from);
    let mut text = format!(
        "# Made by `prune joint`: of each layer the pattern and the ratio of least error alone in the time that there is.\n\
         # Times: {from}; of layers {} times as wide.\n\
         # Linear layers {} times as fast asked, {:.3} expected; errors alone {error:.5} in all.\n\
         method = \"second-order\"\n",
        args.wider,
        args.speedup,
        dense / time
    );
    if let Some(passes) = args.distill {
        text += &format!("distill = {passes}\n");
    }
    for (layer, &at) in layers.iter().zip(chosen) {
        let choice = &layer.choices[at];
        let name = toml::Value::from(layer.name.as_str());
        text +=
            &format!("\n[[layer]]\nname = {name}\npattern = \"{}\"\nsparsity = {:?}\n", choice.named, choice.sparsity);
    }
    text
}
