//! Command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::recipe::{RATE, RELATION};

/// Prune a sentence encoder so that it keeps its task.
#[derive(Parser)]
#[command(name = "prune", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub run: Run,
}

#[derive(Subcommand)]
pub enum Command {
    /// Prune by every method to every pattern given, and tell how well each model still finds packages
    Study(Study),
    /// Choose of each layer pattern and ratio, for the least error in the time that a speedup leaves, and write them as a recipe
    Joint(Joint),
}

/// Where the model and its texts are.
#[derive(Args, Clone)]
pub struct Inputs {
    /// Directory with config.json, model.safetensors and tokenizer.json
    #[arg(long, value_name = "DIR", default_value = "weights/minilm")]
    pub weights: PathBuf,
    /// Directory that examples/fetch_packages.py filled
    #[arg(long, value_name = "DIR", default_value = "weights/packages")]
    pub packages: PathBuf,
    /// Packages whose descriptions calibrate, at most
    #[arg(long, value_name = "PACKAGES", default_value_t = 600, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub calibration: u32,
    /// Packages of the part `training` that distillation sees beside those, at most
    #[arg(long, value_name = "PACKAGES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub training: u32,
    /// Threads [default: all cores]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
}

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    pub inputs: Inputs,
    /// What is pruned and how, TOML: see docs/pruning.md
    #[arg(long, value_name = "FILE")]
    pub recipe: Option<PathBuf>,
    /// Calibrate on this text file, one sentence a line, in place of packages
    #[arg(long, value_name = "FILE")]
    pub sentences: Option<PathBuf>,
    /// Write the pruned model here: a whole checkpoint, zero where weights are dropped, that loads where the dense one does
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Write the packed layers here
    #[arg(long, value_name = "FILE")]
    pub packed: Option<PathBuf>,
    /// Keep the model after each step here, and go on from it
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Write the report here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write what calibration tells about the inputs of the dense layers here, for `tune model --scores`; nothing is pruned
    #[arg(long, value_name = "FILE", conflicts_with_all = ["recipe", "out", "packed", "state", "json", "picture", "evaluate"])]
    pub scores: Option<PathBuf>,
    /// Draw the masks of the layers here, SVG
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// Tell how well the pruned model finds packages of this part
    #[arg(long, value_name = "PART", value_parser = ["test", "final"])]
    pub evaluate: Option<String>,
}

#[derive(Args)]
pub struct Study {
    #[command(flatten)]
    pub inputs: Inputs,
    /// Patterns and sparsities, such as `tw:64@0.5,2:4@0.5`, `tuned=FILE@0.75` for the patterns of a tuned recipe, or `recipe=FILE` for a recipe as it is, by no other method
    #[arg(long, value_delimiter = ',', required = true)]
    pub pattern: Vec<String>,
    /// magnitude, taylor, activation-aware, second-order, second-order+budget, distilled (after second order), distilled+budget; magnitude+lamp and magnitude+erk
    #[arg(long, value_delimiter = ',', default_value = "magnitude,activation-aware,second-order,second-order+budget")]
    pub method: Vec<String>,
    /// Part of the packages
    #[arg(long, default_value = "test", value_parser = ["test", "final"])]
    pub part: String,
    /// Packages of it, at most
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub queries: u32,
    /// Of second-order methods: added to the Hessian's diagonal, of its mean
    #[arg(long, default_value_t = 0.01)]
    pub damping: f64,
    /// Of second-order methods: stages within a layer
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub stages: u32,
    /// Of budgets: what they leave a layer at least, as a part of the even share
    #[arg(long, default_value_t = 0.6)]
    pub least: f64,
    /// Of budgets: what they leave a layer at most
    #[arg(long, default_value_t = 1.6)]
    pub most: f64,
    /// Passes of distillation over the calibration's and the training's packages
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub epochs: u32,
    /// Greatest learning rate of distillation
    #[arg(long, default_value_t = RATE)]
    pub rate: f32,
    /// Weight of the similarities between texts in distillation, beside that of the embeddings
    #[arg(long, default_value_t = RELATION)]
    pub relation: f32,
    /// Also time the model's linear layers on the GPU, in f16
    #[arg(long)]
    pub gpu: bool,
    /// Write the rows here as JSON, each as soon as it is there
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Args)]
pub struct Joint {
    #[command(flatten)]
    pub inputs: Inputs,
    /// Times of patterns, as `bench --json` writes them; may be given several times
    #[arg(long, value_name = "FILE", required = true)]
    pub times: Vec<PathBuf>,
    /// How many times as fast as dense the linear layers shall be together, at least
    #[arg(long)]
    pub speedup: f64,
    /// The times are of layers so many times as wide: what a wider model would gain
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub wider: u32,
    /// Keep the errors of the layers here, JSON: what is there is not measured again
    #[arg(long, value_name = "FILE")]
    pub errors: Option<PathBuf>,
    /// Write the recipe here, TOML
    #[arg(long, value_name = "FILE")]
    pub recipe: PathBuf,
    /// Passes of distillation that the recipe asks for
    #[arg(long, value_name = "PASSES", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub distill: Option<u32>,
    /// Write the choice and all options here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
