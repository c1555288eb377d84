//! Sentence embeddings with pruned weights: for each pattern and sparsity, how close they stay to the dense model's,
//! and how much faster they come.
//!
//! ```text
//! python3 examples/fetch_minilm.py
//! cargo run --release --example minilm
//! ```

#[path = "../common/output.rs"]
mod output;

/// The standard one panics where the reader of a pipe has gone.
macro_rules! println {
    () => { crate::output::line(format_args!("")) };
    ($($text:tt)*) => { crate::output::line(format_args!($($text)*)) };
}

mod cuda;
#[path = "../common/json_file.rs"]
mod json_file;
#[path = "../common/progress.rs"]
mod progress;
mod prune;
mod report;
#[path = "../common/tokens.rs"]
mod tokens;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use fractal::DType;
use fractal_runtime::model::{BertModel, MAX_BATCH_TOKENS, Profile};
use rayon::prelude::*;

use cuda::Gpu;
use progress::Progress;
use report::{Outcome, Report, Row};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Compare sentence embeddings of dense and pruned all-MiniLM-L6-v2.
#[derive(Parser)]
#[command(name = "minilm")]
struct Args {
    /// Directory with config.json and model.safetensors, or a .safetensors file with config.json beside it
    #[arg(long, value_name = "DIR_OR_FILE", default_value = "weights/minilm")]
    weights: PathBuf,
    /// tokenizer.json [default: beside the weights]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Where the linear layers run
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    device: Device,
    /// Storage type in which a GPU's linear layers are timed: f32, f16, bf16; the embeddings are made in f32
    #[arg(long, value_parser = parse_dtype, default_value = "f32")]
    dtype: DType,
    /// Text file of one sentence per line [default: 64 sentences that come with the example]
    #[arg(long, value_name = "FILE")]
    sentences: Option<PathBuf>,
    /// Shares of the weights to remove, each from 0 to below 1
    #[arg(long, value_delimiter = ',', value_parser = parse_sparsity, default_value = "0.5,0.75,0.9375")]
    sparsity: Vec<f64>,
    /// `all` or names such as `tw:64,bw:32x32`; may be given several times [default: all]
    #[arg(long)]
    pattern: Vec<String>,
    /// Also write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Where the linear layers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// All cores of the CPU
    Cpu,
    /// A GPU where there is one, else the CPU
    Auto,
    /// The first CUDA GPU
    Cuda,
}

fn parse_sparsity(text: &str) -> std::result::Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(sparsity) if (0.0..1.0).contains(&sparsity) => Ok(sparsity),
        _ => Err("expected a number from 0 to below 1, such as 0.75".into()),
    }
}

fn parse_dtype(name: &str) -> std::result::Result<DType, String> {
    DType::from_name(name.trim()).ok_or_else(|| "expected f32, f16 or bf16".into())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    // What can be refused is refused before a minute of loading and timing.
    let runs = prune::runs(&args.pattern, &args.sparsity)?;
    args.json.as_deref().map_or(Ok(()), json_file::check_writable)?;
    let sentences = read_sentences(args.sentences.as_deref())?;
    check_weights(args)?;
    let tokens = tokens::encode(&tokens::load(args.tokenizer.as_deref(), &args.weights)?, &sentences)?;
    let dense = load_model(args, batch(&tokens))?;
    let (embeddings, _) = dense.embed_profiled(&tokens)?;
    let (time, profile) = time_dense(&dense, &tokens)?;
    let mut report = Report::new(&sentences, &tokens, &embeddings, time, profile);
    let gpu = if prune::on_gpu(args.device)? {
        Some(Gpu::new(&dense, args.dtype, tokens.iter().map(Vec::len).sum())?)
    } else {
        None
    };
    report.timed_on_gpu = gpu.as_ref().map(Gpu::dtype);
    report.print_dense();

    let bar = Progress::new(runs.len() as u64);
    for (pattern, sparsity) in runs {
        bar.set_message(format!("{pattern} at {sparsity}"));
        // One pattern that cannot be had at one sparsity leaves the others to be measured.
        let outcome = match measure(args.device, gpu.as_ref(), &dense, &tokens, &embeddings, &pattern, sparsity) {
            Ok(row) => Outcome::Measured(row),
            Err(error) => Outcome::NotRun(error.to_string()),
        };
        report.rows.push((pattern, sparsity, outcome));
        bar.inc(1);
    }
    bar.finish_and_clear();
    report.print_pruned();
    if let Some(path) = &args.json {
        json_file::write(path, &report.to_json())?;
    }
    if report.rows.iter().all(|(_, _, outcome)| matches!(outcome, Outcome::NotRun(_))) {
        return Err("no pattern could be run; the table says why".into());
    }
    Ok(())
}

fn read_sentences(path: Option<&Path>) -> Result<Vec<String>> {
    let text = match path {
        None => include_str!("sentences.txt").to_owned(),
        Some(path) => std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?,
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let sentences: Vec<_> = lines.map(str::to_owned).collect();
    if sentences.is_empty() {
        return Err("no sentences: expected a text file of one sentence per line".into());
    }
    Ok(sentences)
}

fn check_weights(args: &Args) -> Result<()> {
    if args.weights.exists() {
        return Ok(());
    }
    let weights = args.weights.display();
    Err(format!("no model at {weights}: run `python3 examples/fetch_minilm.py`, or pass --weights").into())
}

fn load_model(args: &Args, tokens: usize) -> Result<BertModel> {
    let mut model = BertModel::load(&args.weights)?;
    for name in model.linear_names() {
        if let Some(op) = prune::dense(args.device, &model, &name, tokens)? {
            model.replace(&name, op)?;
        }
    }
    Ok(model)
}

/// Tokens that the model takes at once.
fn batch(sentences: &[Vec<u32>]) -> usize {
    sentences.iter().map(Vec::len).sum::<usize>().min(MAX_BATCH_TOKENS)
}

/// Prunes every linear layer, and compares the result with the dense model.
fn measure(
    device: Device,
    gpu: Option<&Gpu>,
    dense: &BertModel,
    tokens: &[Vec<u32>],
    embeddings: &[Vec<f32>],
    pattern: &str,
    sparsity: f64,
) -> Result<Row> {
    let mut pruned = dense.clone();
    let mut row = Row::default();
    let names = dense.linear_names();
    // Side by side: a GPU's kernels must be compiled.
    let operators: Vec<_> = names
        .par_iter()
        .map(|name| prune::prune(device, pattern, sparsity, dense, name, batch(tokens)))
        .collect::<Result<_>>()?;
    for (name, (op, layer)) in names.iter().zip(operators) {
        pruned.replace(name, op)?;
        row.add_layer(&layer, dense.weight(name)?);
    }
    let found = pruned.embed(tokens)?;
    if !found.iter().flatten().all(|v| v.is_finite()) {
        return Err("its embeddings are not finite: without the pruned weights, activations overflow".into());
    }
    row.compare(embeddings, &found);
    (row.dense_time, row.time) = match gpu {
        None => time_interleaved(dense, &pruned, tokens)?,
        Some(gpu) => {
            let layer =
                |name: &String| prune::layer(device, pattern, sparsity, dense, name, (gpu.dtype(), gpu.tokens()));
            let layers = names.par_iter().map(layer).collect::<Result<Vec<_>>>()?;
            row.set_kernels(layers.iter().map(|layer| layer.kernel(gpu.tokens())));
            gpu.time(&layers)?
        }
    };
    Ok(row)
}

/// A run ends after this many rounds, or after [`BUDGET`] but never before [`FEWEST_ROUNDS`].
const MOST_ROUNDS: usize = 9;
const FEWEST_ROUNDS: usize = 3;
const BUDGET: Duration = Duration::from_millis(1500);

/// Median times of `a` and `b`, which take turns, so that a change of clock speed or a busy neighbour hits both alike.
fn time_interleaved(a: &BertModel, b: &BertModel, tokens: &[Vec<u32>]) -> Result<(Duration, Duration)> {
    let (mut times_a, mut times_b) = (Vec::new(), Vec::new());
    let start = Instant::now();
    while times_a.len() < FEWEST_ROUNDS || (times_a.len() < MOST_ROUNDS && start.elapsed() < BUDGET) {
        times_a.push(a.embed_profiled(tokens)?.1.total());
        times_b.push(b.embed_profiled(tokens)?.1.total());
    }
    Ok((median(times_a), median(times_b)))
}

/// The median time of the dense model alone, and where it went.
fn time_dense(model: &BertModel, tokens: &[Vec<u32>]) -> Result<(Duration, Profile)> {
    let mut profiles = (0..MOST_ROUNDS).map(|_| Ok(model.embed_profiled(tokens)?.1)).collect::<Result<Vec<_>>>()?;
    profiles.sort_by_key(Profile::total);
    let middle = profiles[profiles.len() / 2];
    Ok((middle.total(), middle))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
