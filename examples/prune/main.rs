//! Prune a sentence encoder so that it keeps its task: a recipe in, a pruned model, a report and a picture out.
//!
//! ```text
//! python3 examples/fetch_minilm.py && python3 examples/fetch_packages.py
//! cargo run --release --example prune -- --recipe examples/prune/tvw.toml --training 1500 --out pruned.safetensors --evaluate test
//! ```

#[path = "../common/output.rs"]
mod output;

/// The standard one panics where the reader of a pipe has gone.
macro_rules! println {
    () => { crate::output::line(format_args!("")) };
    ($($text:tt)*) => { crate::output::line(format_args!($($text)*)) };
}

mod args;
#[path = "../minilm/cuda.rs"]
mod cuda;
mod joint;
#[path = "../common/json_file.rs"]
mod json_file;
mod picture;
#[path = "../common/progress.rs"]
mod progress;
mod recipe;
mod retrieval;
mod run;
mod study;
mod times;
#[path = "../common/tokens.rs"]
mod tokens;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    let threads = match &cli.command {
        Some(args::Command::Study(study)) => study.inputs.threads,
        Some(args::Command::Joint(joint)) => joint.inputs.threads,
        None => cli.run.inputs.threads,
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0) as usize).build_global();
    let done = pool.map_err(|error| error.into()).and_then(|()| match &cli.command {
        Some(args::Command::Study(study)) => study::run(study),
        Some(args::Command::Joint(joint)) => joint::run(joint),
        None => run::run(&cli.run),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
