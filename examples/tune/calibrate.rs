//! `tune calibrate`: samples from a GPU or from files -> the cost model, stored, or tested against other samples.

use std::collections::BTreeMap;
use std::path::Path;

use fractal::DType;
use fractal::cuda::{CudaDevice, Gpu};
use fractal::runtime::tune::Calibration;
use fractal::runtime::tune::calibrate::{Plan, Sample, collect};

use crate::Result;
use crate::args::Calibrate;
use crate::json_file;
use crate::output::line;
use crate::progress::Progress;

/// None of them is one of the paper's.
const SHAPES: [[usize; 3]; 14] = [
    [2048, 2048, 2048],
    [4096, 1024, 4096],
    [3072, 768, 4096],
    [512, 512, 512],
    [2048, 512, 1024],
    [1536, 6144, 512],
    [512, 2304, 784],
    [192, 768, 6272],
    [128, 1024, 512],
    [64, 512, 2048],
    [96, 768, 1024],
    [8192, 2048, 2048],
    [11008, 4096, 16],
    [4096, 4096, 8],
];
const PATTERNS: [&str; 11] = [
    "tw:128",
    "bw:128x64",
    "bw:128x16",
    "tw:64",
    "bw:64x64",
    "bw:32x32",
    "tvw:128",
    "vnm:64",
    "2:4",
    "tw-global:128",
    "tw:32",
];
/// CUDA cores run dense tiles alone.
const F32_PATTERNS: [&str; 3] = ["tw:128", "bw:128x64", "tw:64"];

pub fn run(args: &Calibrate) -> Result<()> {
    for path in args.samples.iter().chain(&args.out) {
        json_file::check_writable(path)?;
    }
    let (device, gpu, samples) = if args.fit.is_empty() {
        let index = match args.device.as_str() {
            "cuda" => Some(0),
            other => other.strip_prefix("cuda:").and_then(|index| index.parse().ok()),
        };
        let index = index.ok_or_else(|| format!("--device {}: expected cuda or cuda:1", args.device))?;
        let gpu = CudaDevice::open(index)?;
        let samples = timed(args, &gpu)?;
        if let Some(path) = &args.samples {
            json_file::write(path, &serde_json::to_value(&samples)?)?;
        }
        (gpu.info().name.clone(), Gpu::from(gpu.info()), samples)
    } else {
        ("NVIDIA H200".into(), Gpu::H200, read(&args.fit)?)
    };
    let model = Calibration::fit(&device, gpu, &samples);
    if model.samples().next().is_none() {
        return Err(format!("{} samples teach nothing: expected at least 60 of a kind of kernel", samples.len()).into());
    }
    for (kind, samples) in model.samples() {
        line(format_args!("{kind:?}: learned from {samples} kernels"));
    }
    if !args.test.is_empty() {
        return test(&model, gpu, &read(&args.test)?);
    }
    let path = args.out.clone().or_else(|| Calibration::path(&device)).ok_or("no data folder: pass --out FILE")?;
    model.write(&path)?;
    line(format_args!("{}: fitted to {} kernels of {device}", path.display(), samples.len()));
    Ok(())
}

fn timed(args: &Calibrate, gpu: &CudaDevice) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for &dtype in &args.dtype {
        let listed = args.shapes.iter().flat_map(|list| &list.0).chain(&args.shape);
        let mut shapes: Vec<[usize; 3]> = listed.map(|shape| [shape.n, shape.k, shape.m]).collect();
        if shapes.is_empty() {
            shapes.extend(SHAPES);
        }
        let names = if dtype == DType::F32 { &F32_PATTERNS[..] } else { &PATTERNS[..] };
        let patterns = names.iter().map(|name| name.parse()).collect::<std::result::Result<_, _>>()?;
        let plan = Plan { shapes, patterns, keeps: vec![0.5, 0.25, 0.0625], heights: vec![64], dtype };
        let bar = Progress::styled(0, "{spinner} {msg}");
        samples.extend(collect(gpu, &plan, &mut |what| {
            bar.set_message(what.to_owned());
            bar.tick();
        })?);
        bar.finish_and_clear();
    }
    Ok(samples)
}

fn read(paths: &[impl AsRef<Path>]) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for path in paths {
        let path = path.as_ref();
        let wrong = |error: &dyn std::fmt::Display| format!("samples {}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
        let read = serde_json::from_str::<Vec<Sample>>(&text).map_err(|error| wrong(&error))?;
        if let Some(reason) = read.iter().find_map(|sample| sample.work.config.check().err()) {
            return Err(wrong(&format!("a sample is of no kernel: {reason}")).into());
        }
        samples.extend(read);
    }
    Ok(samples)
}

/// The rank of each value.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    order.into_iter().enumerate().for_each(|(rank, at)| ranks[at] = rank as f64);
    ranks
}

/// Spearman's rank correlation.
fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 - 1.0) / 2.0;
    let (mut both, mut own) = (0.0, 0.0);
    for (x, y) in a.iter().zip(&b) {
        both += (x - mean) * (y - mean);
        own += (x - mean).powi(2);
    }
    if own == 0.0 { 1.0 } else { both / own }
}

/// Ranks within a shape; and whether the model's five best hold one that is nearly the best.
fn test(model: &Calibration, gpu: Gpu, samples: &[Sample]) -> Result<()> {
    // Of each kernel: microseconds expected and found.
    type Times = Vec<(f64, f64)>;
    let mut shapes: BTreeMap<[usize; 3], Times> = BTreeMap::new();
    let mut cases: BTreeMap<([usize; 3], String, u64), Times> = BTreeMap::new();
    for sample in samples {
        let shape = [sample.work.n, sample.work.k, sample.work.m];
        let pair = (model.microseconds(&sample.work, gpu), sample.microseconds);
        shapes.entry(shape).or_default().push(pair);
        cases.entry((shape, sample.pattern.clone(), sample.keep.to_bits())).or_default().push(pair);
    }
    line(format_args!("{:20} {:>8} {:>9}", "n/k/m", "kernels", "Spearman"));
    let mut all = Vec::new();
    for ([n, k, m], pairs) in &shapes {
        let (expected, found): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let rho = spearman(&expected, &found);
        all.push(rho);
        line(format_args!("{:20} {:>8} {rho:>9.3}", format!("{n}/{k}/{m}"), pairs.len()));
    }
    let near = cases.values().filter(|pairs| {
        let mut by_model: Vec<_> = pairs.iter().collect();
        by_model.sort_by(|a, b| a.0.total_cmp(&b.0));
        let best = pairs.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
        by_model.iter().take(5).any(|p| p.1 <= 1.05 * best)
    });
    let near = near.count();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    line(format_args!("Spearman: least {least:.3}, mean {:.3}", all.iter().sum::<f64>() / all.len().max(1) as f64));
    line(format_args!(
        "one of the model's five best within 5 % of the best: {near} of {} cases ({:.1} %)",
        cases.len(),
        100.0 * near as f64 / cases.len().max(1) as f64
    ));
    Ok(())
}
