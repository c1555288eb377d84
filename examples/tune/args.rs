//! Command line -> what is to be tuned, and for what.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Parser, Subcommand};
use fractal::DType;
use fractal::dsl::EpilogueOp;
use fractal::runtime::tune::{Goal, Settings};

use crate::Result;
use crate::shapes::{Shape, ShapeList, shape_list};

/// Find the sparsity pattern and the kernel for a layer: what dominates in retained importance and time on this device.
#[derive(Parser)]
#[command(name = "tune", version, args_conflicts_with_subcommands = true)]
#[command(group(ArgGroup::new("goal").args(["sparsity", "retained", "microseconds"])))]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// A layer as n,k,m: output features, input features, tokens, with random weights of a trained layer's shape; may be
    /// given several times
    #[arg(long, value_name = "N,K,M")]
    shape: Vec<Shape>,
    /// A list of layers: `paper`, `large`, `mid` or `decode`
    #[arg(long, value_name = "LIST", value_parser = shape_list)]
    shapes: Vec<ShapeList>,
    /// Weights of your own: a .safetensors file, with --tensor and --m
    #[arg(long, value_name = "FILE", requires = "tensor")]
    pub weights: Option<PathBuf>,
    /// The matrix [n, k] in that file
    #[arg(long, value_name = "NAME", requires = "weights")]
    pub tensor: Option<String>,
    /// Tokens a call, for --weights
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub m: u32,
    /// Storage type: f32, f16, bf16 [default: f16 on a GPU, f32 on a CPU]
    #[arg(long, value_parser = |name: &str| DType::from_name(name.trim()).ok_or("expected f32, f16 or bf16"))]
    pub dtype: Option<DType>,
    /// Share of the weights to remove, from 0 to below 1 [default: 0.75]
    #[arg(long)]
    sparsity: Option<f64>,
    /// Share of the importance to retain at least: the fastest pair is searched
    #[arg(long)]
    retained: Option<f64>,
    /// Time of a call at most: the pair that retains most is searched
    #[arg(long, value_name = "US")]
    microseconds: Option<f64>,
    /// What is done to each result before it is stored: none or bias-gelu
    #[arg(long, default_value = "none", value_parser = ["none", "bias-gelu"])]
    epilogue: String,
    /// Where the layers run: cpu, cuda, cuda:1, auto
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// Time of the search, a layer
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    time: f64,
    /// Patterns to measure at most
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    patterns: u32,
    /// Schedules of each to measure
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    schedules: u32,
    /// Patterns without a better one after which the search ends
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    patience: u32,
    /// Threads that prune and compile, for a GPU [default: all cores but one]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    jobs: Option<u32>,
    /// Threads of a CPU [default: all cores]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Where measurements are kept [default: a file in your data folder]
    #[arg(long, value_name = "FILE", conflicts_with = "no_database")]
    pub database: Option<PathBuf>,
    /// Keep none
    #[arg(long)]
    pub no_database: bool,
    /// Write the results to this file, as a JSON list of one object a layer
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a report of each layer, to FILE.html, or of several to FILE-1-n-k-m.html and so on
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Time kernels of many shapes on a GPU and fit the cost model to them
    Calibrate(Calibrate),
    /// Tune every linear layer of a model to what a global unstructured pruning would leave it
    Model(Model),
    /// Count how often each rewrite rule takes part in the cheapest pairs of the paper's shapes, by an H200's cost model
    Rules(Rules),
}

#[derive(Parser)]
pub struct Model {
    /// Directory with config.json and model.safetensors
    #[arg(long, value_name = "DIR", default_value = "weights/minilm")]
    pub weights: PathBuf,
    /// Share of all weights that the unstructured pruning drops, above 0 and below 1: what it leaves of a layer's importance
    /// is what the layer must retain
    #[arg(long, default_value_t = 0.5)]
    pub sparsity: f64,
    /// What calibration tells about the layers' inputs, as the example prune writes it with --scores: importance is then second-order
    /// instead of by magnitude, and every layer drops --sparsity of its weights
    #[arg(long, value_name = "FILE")]
    pub scores: Option<PathBuf>,
    /// Tokens a call
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub tokens: u32,
    /// Where the layers run: cpu, cuda, cuda:1, auto
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// Time of the search, a layer
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    pub time: f64,
    /// Patterns to measure of each layer at most
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub patterns: u32,
    /// Threads of a CPU [default: all cores]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Where measurements are kept [default: a file in your data folder]
    #[arg(long, value_name = "FILE")]
    pub database: Option<PathBuf>,
    /// Write what was chosen to this file: a model starts from it without tuning
    #[arg(long, value_name = "FILE")]
    pub recipe: Option<PathBuf>,
    /// Start from this recipe: nothing is tuned
    #[arg(long, value_name = "FILE", conflicts_with = "recipe")]
    pub from: Option<PathBuf>,
    /// Draw the patterns of the layers to this SVG file
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
}

#[derive(Parser)]
pub struct Rules {
    /// Pairs of each pattern that count as winners
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub winners: u32,
}

#[derive(Parser)]
pub struct Calibrate {
    /// Which GPU: cuda or cuda:1
    #[arg(long, default_value = "cuda")]
    pub device: String,
    /// Shapes to time, beside or instead of the usual ones
    #[arg(long, value_name = "N,K,M")]
    pub shape: Vec<Shape>,
    /// A list of shapes
    #[arg(long, value_name = "LIST", value_parser = shape_list)]
    pub shapes: Vec<ShapeList>,
    /// Storage types
    #[arg(long, value_delimiter = ',', default_value = "f16,f32",
          value_parser = |name: &str| DType::from_name(name.trim()).ok_or("expected f32, f16 or bf16"))]
    pub dtype: Vec<DType>,
    /// Write what was timed to this file, as JSON
    #[arg(long, value_name = "FILE", conflicts_with = "fit")]
    pub samples: Option<PathBuf>,
    /// Fit to these files of samples; nothing is timed
    #[arg(long, value_name = "FILE")]
    pub fit: Vec<PathBuf>,
    /// Test the model on these files of samples instead of storing it
    #[arg(long, value_name = "FILE")]
    pub test: Vec<PathBuf>,
    /// Where the model is stored [default: your data folder]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

impl Args {
    /// The layers.
    ///
    /// # Errors
    /// None given.
    pub fn layers(&self) -> Result<Vec<Shape>> {
        let listed = self.shapes.iter().flat_map(|list| list.0.iter().copied());
        let all: Vec<Shape> = self.shape.iter().copied().chain(listed).collect();
        if all.is_empty() && self.weights.is_none() {
            return Err("no layer: pass --shape n,k,m, --shapes paper, or --weights FILE --tensor NAME".into());
        }
        Ok(all)
    }

    /// What is wanted.
    pub fn goal(&self) -> Goal {
        match (self.retained, self.microseconds) {
            (Some(retained), _) => Goal::Retained(retained),
            (_, Some(microseconds)) => Goal::Microseconds(microseconds),
            _ => Goal::Sparsity(self.sparsity.unwrap_or(0.75)),
        }
    }

    /// What follows the product.
    pub fn epilogue(&self) -> Vec<EpilogueOp> {
        match self.epilogue.as_str() {
            "bias-gelu" => vec![EpilogueOp::Bias("bias".into()), EpilogueOp::Gelu],
            _ => Vec::new(),
        }
    }

    /// How much is tried.
    ///
    /// # Errors
    /// A time that is none.
    pub fn settings(&self) -> Result<Settings> {
        if !(self.time > 0.0 && self.time <= 1e6) {
            return Err(format!("--time: expected seconds above 0 and up to 1000000, found {}", self.time).into());
        }
        let usual = Settings::default();
        Ok(Settings {
            time: Duration::from_secs_f64(self.time),
            patterns: self.patterns as usize,
            schedules: self.schedules as usize,
            patience: self.patience as usize,
            jobs: self.jobs.map_or(usual.jobs, |jobs| jobs as usize),
            tilings: None,
        })
    }
}
