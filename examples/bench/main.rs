//! Pruned layers against dense ones, side by side: how much faster a pattern is, on this machine, for these shapes.
//!
//! ```text
//! cargo run --release --example bench -- --shapes paper --pattern tw:128 --pattern bw:128x64
//! cargo run --release --example bench -- --shape 1024,1024,1024 --pattern all --sparsity 0.5,0.75 --json rows.json
//! cargo run --release --example bench -- --shape 768,768,512 --pattern "n0:32 k0:64^16 n1:32 k1:16"
//! ```

#[path = "../common/output.rs"]
mod output;

/// The standard one panics where the reader of a pipe has gone.
macro_rules! println {
    () => { crate::output::line(format_args!("")) };
    ($($text:tt)*) => { crate::output::line(format_args!($($text)*)) };
}

mod args;
mod cuda;
mod device;
#[path = "../common/json_file.rs"]
mod json_file;
mod measure;
mod profile;
#[path = "../common/progress.rs"]
mod progress;
mod report;
#[path = "../common/shapes.rs"]
mod shapes;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use rayon::prelude::*;

use args::{Args, Case};
use device::Bench;
use fractal::DType;
use measure::{Effort, Layer, Loaded, Prepared};
use profile::Rates;
use progress::Progress;
use report::{Machine, Report};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

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
    let plan = args.plan()?;
    let threads = args.threads.unwrap_or_else(args::cores);
    let bench = device::open(&args.device, threads, args.epilogue)?;
    if let Some(path) = &args.json {
        json_file::check_writable(path)?;
    }
    let machine = Machine::of(&*bench, args::cores(), threads);
    machine.print();
    let min_time = Duration::from_secs_f64(args.min_time / 1e3);
    let effort = Effort { rounds: args.rounds, min_time, host: args.profile };
    let cases = || plan.layers.iter().flat_map(|layer| &layer.cases);
    let width = cases().map(|case| case.name.chars().count()).max().unwrap_or(0);
    let mut report = Report::new(machine, args.epilogue, width);
    println!("{}", report.heading());
    let bar = Progress::new(cases().count() as u64);
    // Of each type, measured before its first layer.
    let mut known: Vec<(DType, Option<Rates>)> = Vec::new();
    // Of each case of the layer before, where the weight is the same.
    let mut loaded: Vec<Option<Arc<Loaded>>> = Vec::new();
    for (number, planned) in plan.layers.iter().enumerate() {
        let (shape, dtype) = (planned.shape, planned.dtype);
        let at = |error: Box<dyn Error + Send + Sync>, pattern: &str| {
            bar.finish_and_clear();
            format!("{}/{}/{} {dtype} {pattern}: {error}", shape.n, shape.k, shape.m)
        };
        let rates = match known.iter().find(|(of, _)| *of == dtype) {
            Some((_, rates)) => *rates,
            None => {
                bar.set_message(format!("{dtype}: rates of the device"));
                let rates = bench.rates(dtype).map_err(|e| at(e, "rates"))?;
                known.push((dtype, rates));
                if let Some(rates) = rates.filter(|_| args.profile) {
                    let (copied, dense) = (rates.copied / 1e9, rates.dense / 1e12);
                    bar.suspend(|| println!("{dtype}: {copied:.0} GB/s copied, {dense:.1} TFLOP/s dense"));
                }
                rates
            }
        };
        let layer = Layer::random(shape, dtype, args.epilogue).map_err(|e| at(e, "data"))?;
        let operands = layer.operands(&*bench).map_err(|e| at(e, "operands"))?;
        let mut dense = layer.dense(&*operands, effort).map_err(|e| at(e, "dense"))?;
        let most = layer.most_loaded(&*bench)?;
        let same = plan.layers.get(number + 1).is_some_and(|next| next.same_weight(planned));
        let keeps = same && planned.cases.len() <= most;
        loaded.resize(planned.cases.len(), None);
        // Several weights are prepared at once; nothing else runs while they are timed, one after the other.
        for (cases, loaded) in planned.cases.chunks(most).zip(loaded.chunks_mut(most)) {
            bar.set_message(format!("{}/{}/{} {dtype}: preparing", shape.n, shape.k, shape.m));
            let jobs = args.jobs.map_or_else(|| layer.preparers(), |jobs| jobs as usize);
            let prepared = prepare(&*bench, &layer, cases, loaded, jobs)?;
            for ((case, prepared), loaded) in cases.iter().zip(prepared).zip(loaded) {
                bar.set_message(format!("{}/{}/{} {dtype} {}", shape.n, shape.k, shape.m, case.name));
                *loaded = match &prepared {
                    Ok(Ok(prepared)) if keeps => Some(Arc::clone(&prepared.loaded)),
                    _ => None,
                };
                let line = match prepared {
                    Ok(prepared) => {
                        let row = prepared.and_then(|p| layer.measure(&*operands, &mut dense, p, effort, rates));
                        let line = report.add(shape, dtype, case, row.map_err(|e| at(e, &case.name))?, args.profile);
                        // A run that is cut short keeps its rows.
                        args.json.as_deref().map_or(Ok(()), |path| report.write_json(path))?;
                        line
                    }
                    Err(reason) => report.not_run(shape, dtype, case, reason),
                };
                bar.suspend(|| println!("{line}"));
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    report.print_means();
    // Without a row there is a list all the same.
    args.json.as_deref().map_or(Ok(()), |path| report.write_json(path))
}

/// Of each case what was prepared, or why it cannot be had.
fn prepare<'a>(
    bench: &dyn Bench,
    layer: &Layer,
    cases: &'a [Case],
    loaded: &[Option<Arc<Loaded>>],
    jobs: usize,
) -> Result<Vec<std::result::Result<Result<Prepared>, &'a str>>> {
    let one = |(case, loaded): (&'a Case, &Option<Arc<Loaded>>)| match &case.gemm {
        Ok(gemm) => Ok(layer.prepare(bench, (gemm, case.residue), loaded.as_ref())),
        Err(reason) => Err(reason.as_str()),
    };
    // A pool of its own: how many run at a time is how much memory is used, and its threads are gone before the timing.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs).build()?;
    Ok(pool.install(|| cases.par_iter().zip(loaded).with_max_len(1).map(one).collect()))
}
