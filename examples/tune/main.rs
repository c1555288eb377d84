//! Finds pattern and schedule for layers, measured on a device.
//!
//! ```text
//! cargo run --release --example tune -- --shape 4096,1024,4096 --report tuned.html
//! ```

mod args;
mod calibrate;
#[allow(dead_code, reason = "the sentence encoder uses the rest")]
#[path = "../minilm/cuda.rs"]
mod gpu;
#[path = "../common/json_file.rs"]
mod json_file;
mod model;
#[path = "../common/output.rs"]
mod output;
mod picture_of_model;
#[path = "../common/progress.rs"]
mod progress;
mod report;
mod rules;
#[path = "../common/shapes.rs"]
mod shapes;
mod summary;
mod weight;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use fractal::cuda::{DenseEpilogue, DenseGemm, DenseOperands, upload_tensor};
use fractal::dsl::Layout;
use fractal::runtime::tune::{Database, Event, Problem, Tuned, Tuner};
use fractal::{DType, Device, Magnitude, Tensor};

use args::{Args, Command};
use output::line;
use progress::Progress;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Ctrl-C: end, and keep what was found.
static ENDED: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.command {
        Some(Command::Calibrate(calibrate)) => calibrate::run(calibrate),
        Some(Command::Rules(args)) => rules::run(args),
        Some(Command::Model(args)) => listen().and_then(|()| model::run(args)),
        None => run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let (layers, settings) = (args.layers()?, args.settings()?);
    for path in args.json.iter().chain(&args.report) {
        json_file::check_writable(path)?;
    }
    if args.json.is_some() && args.json == args.report {
        return Err("--json and --report name one file; give them two".into());
    }
    listen()?;
    let tuner = open_tuner(&args.device, args.threads, args.database.as_ref(), args.no_database)?;
    let gpu = args.device != "cpu" && !tuner.device_name().starts_with("cpu");
    let dtype = args.dtype.or(args.weights.is_none().then_some(if gpu { DType::F16 } else { DType::F32 }));
    let mut weights = Vec::new();
    if let (Some(path), Some(name)) = (&args.weights, &args.tensor) {
        let (weight, m) = (weight::read(path, name, dtype)?, args.m as usize);
        let sizes = format!("{},{},{m}", weight.rows(), weight.columns());
        sizes.parse::<shapes::Shape>().map_err(|error| format!("--m {m}: {error}"))?;
        weights.push((Some(weight), m));
    }
    let mut all = Vec::new();
    let several = layers.len() + weights.len() > 1;
    let mut results = Vec::new();
    let jobs = weights.into_iter().chain(layers.iter().map(|shape| (None, shape.m)));
    for (at, (given, m)) in jobs.enumerate() {
        if ended() {
            break;
        }
        let weight = match given {
            Some(weight) => weight,
            None => {
                let shape = layers[at - usize::from(args.weights.is_some())];
                weight::random(dtype.unwrap_or(DType::F32), shape.n, shape.k)?
            }
        };
        let tuned = tune(args, &tuner, &weight, m, &settings)?;
        let dense = if gpu { dense(args, &weight, m)? } else { None };
        // Files first: printing may end the program, where nobody reads on.
        results.push(serde_json::json!({ "dense_us": dense, "tuned": tuned }));
        if let Some(path) = &args.json {
            json_file::write(path, &serde_json::Value::Array(results.clone()))?;
        }
        if let Some(path) = &args.report {
            let scores: Vec<f32> = weight.to_f32().iter().map(|w| w.abs()).collect();
            write_report(path, several.then_some(at), &report::html(&tuned, &scores, dense), &tuned)?;
        }
        summary::print(&tuned, dense);
        all.push(tuned);
    }
    summary::print_all(&all);
    Ok(())
}

/// Whole or not at all; of several layers, each has a file of its own.
fn write_report(path: &Path, number: Option<usize>, page: &str, tuned: &Tuned) -> Result<()> {
    let c = &tuned.context;
    let path = if let Some(number) = number {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        path.with_file_name(format!("{stem}-{}-{}-{}-{}.html", number + 1, c.n, c.k, c.m))
    } else {
        path.to_owned()
    };
    json_file::write_text(&path, page)?;
    line(format_args!("report: {}", path.display()));
    Ok(())
}

/// Ends the search at the first Ctrl-C, and the process at the second.
fn listen() -> Result<()> {
    Ok(ctrlc::set_handler(|| {
        if ENDED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })?)
}

/// Whether it was asked for.
fn ended() -> bool {
    ENDED.load(Ordering::Relaxed)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn open_tuner(device: &str, threads: Option<u32>, database: Option<&PathBuf>, none: bool) -> Result<Tuner> {
    let database = match database {
        _ if none => Database::in_memory(),
        given => {
            let path = given.cloned().or_else(default_database).ok_or("no data folder: pass --database FILE")?;
            let (database, skipped) = Database::open(&path)?;
            for line in skipped {
                eprintln!("{}:{}: {}; passed over", path.display(), line.line, line.reason);
            }
            database
        }
    };
    let threads = threads.map_or_else(
        || std::thread::available_parallelism().map_or(1, |cores| cores.get()),
        |threads| threads as usize,
    );
    let index = match device {
        "cpu" => None,
        "auto" => (Device::auto().name() == "cuda").then_some(0),
        "cuda" => Some(0),
        other => {
            let index = other.strip_prefix("cuda:").and_then(|index| index.parse().ok());
            Some(index.ok_or_else(|| format!("--device {other}: expected cpu, cuda, cuda:1 or auto"))?)
        }
    };
    Ok(match index {
        None => Tuner::cpu(threads, database),
        Some(index) => Tuner::cuda(index, database)?,
    })
}

fn default_database() -> Option<std::path::PathBuf> {
    use etcetera::{BaseStrategy, choose_base_strategy};
    Some(choose_base_strategy().ok()?.data_dir().join("fractal/tuned.jsonl"))
}

fn tune(
    args: &Args,
    tuner: &Tuner,
    weight: &Tensor,
    m: usize,
    settings: &fractal::runtime::tune::Settings,
) -> Result<Tuned> {
    let problem = Problem {
        weight,
        importance: &Magnitude,
        m,
        epilogue: args.epilogue(),
        layouts: (Layout::FeatureMajor, Layout::FeatureMajor),
    };
    let bar = Progress::timed(settings.time.as_secs().max(1), "{bar:30} {elapsed}/{msg}");
    let start = Instant::now();
    let mut promising = 0;
    let mut best: Option<(f64, f64, String)> = None;
    let name = format!("{}/{}/{m}", weight.rows(), weight.columns());
    let tuned = tuner.tune(&problem, args.goal(), settings, &mut |event| {
        bar.set_position(start.elapsed().as_secs());
        let left = settings.time.saturating_sub(start.elapsed()).as_secs();
        match event {
            Event::Scored(done, all) => {
                bar.set_message(format!("{left} s left; {name}: {done} of {all} tilings scored"))
            }
            Event::Promising(count) => promising = count,
            Event::Measured(measured, patterns) => {
                if let Some((retained, time)) = measured.point()
                    && best.as_ref().is_none_or(|(_, least, _)| time < *least)
                {
                    best = Some((retained, time, measured.tiling.clone()));
                }
                let so_far = best.as_ref().map_or(String::new(), |(retained, time, tiling)| {
                    format!("; fastest {tiling}: {time:.1} us, {:.1} % retained", retained * 100.0)
                });
                bar.set_message(format!("{left} s left; {name}: {patterns} of {promising} patterns{so_far}"));
            }
            Event::Failed(reason) => bar.suspend(|| eprintln!("{reason}")),
            Event::Tick => bar.tick(),
        }
        !ended()
    });
    bar.finish_and_clear();
    Ok(tuned?)
}

/// Microseconds of cuBLASLt's fastest kernel; nothing without the library.
fn dense(args: &Args, weight: &Tensor, m: usize) -> Result<Option<f64>> {
    let index = args.device.strip_prefix("cuda:").and_then(|index| index.parse().ok()).unwrap_or(0);
    let stream = fractal::cuda::CudaDevice::open(index)?.stream()?;
    let (n, k) = (weight.rows(), weight.columns());
    let mut gemm = match DenseGemm::new(&stream, weight.dtype(), [n, k, m], DenseEpilogue::None) {
        Ok(gemm) => gemm,
        Err(error) => {
            eprintln!("no dense baseline: {error}");
            return Ok(None);
        }
    };
    let x = weight::random(weight.dtype(), k, m)?;
    let (w, x) = (upload_tensor(&stream, weight)?, upload_tensor(&stream, &x)?);
    let bytes = (n + k) * m * weight.dtype().bytes();
    // As many copies as the tuner's measurements take turns over.
    let sets = (0..(96usize << 20).div_ceil(bytes).clamp(1, 64))
        .map(|_| Ok((stream.alloc(x.bytes())?, stream.alloc(n * m * weight.dtype().bytes())?)))
        .collect::<Result<Vec<_>>>()?;
    for (copy, _) in &sets {
        stream.copy(&x, copy, x.bytes())?;
    }
    let operands: Vec<_> = sets.iter().map(|(x, y)| DenseOperands { w: &w, x, y }).collect();
    let time = gemm.fastest(&stream, &operands)?;
    line(format_args!("dense {n}/{k}/{m}: {time:.1} us"));
    Ok(Some(time))
}
