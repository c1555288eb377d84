//! One shape, type and pattern -> one [`Row`]: prepared beside others, then correctness, then times in turns with the
//! dense baseline, alone.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fractal::cpu::Values;
use fractal::pattern::Mask;
use fractal::{DType, Gemm, Magnitude, Tensor, prune_with_residue};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rayon::prelude::*;

use crate::Result;
use crate::args::{Ending, Shape};
use crate::device::{Bench, Host, Operands, Run};
use crate::profile::{Profile, Rates};

/// A row that takes long ends after this time, but never before [`FEWEST_ROUNDS`].
const BUDGET: Duration = Duration::from_secs(3);
const FEWEST_ROUNDS: u32 = 3;
/// Host memory that pruning and recording take for each element of the weight, at most: about 30 for a pattern that keeps
/// half of the elements one by one.
const HOST_BYTES: usize = 40;

/// A layer with random data, and the reference for some of its rows.
pub struct Layer {
    shape: Shape,
    ending: Ending,
    bias: Vec<f32>,
    w: Tensor,
    x: Tensor,
    wide_x: Vec<f32>,
    /// The rows whose result is checked.
    rows: Vec<usize>,
}

/// A pruned weight on its device.
pub struct Loaded {
    layers: Vec<fractal::Layer>,
    mask: Mask,
    kept: usize,
    sparsity: f64,
    packed_bytes: usize,
    dense_bytes: usize,
    retained: f64,
    /// Time to prune, pack, compile and load.
    time: Duration,
}

/// What it must compute for a layer's tokens, before it is timed.
pub struct Prepared {
    pub loaded: Arc<Loaded>,
    reference: Vec<f64>,
}

/// How long to measure.
#[derive(Clone, Copy)]
pub struct Effort {
    pub rounds: u32,
    /// Least time of one measurement.
    pub min_time: Duration,
    /// Whether the CPU's time for a call is taken too.
    pub host: bool,
}

/// The baseline of a layer.
pub struct Dense {
    run: Box<dyn Run>,
    host: Option<Host>,
}

/// What was measured.
pub struct Row {
    /// Dropped weights over all.
    pub sparsity: f64,
    pub time: Duration,
    pub dense: Duration,
    pub rounds: usize,
    pub rel_err: f64,
    pub kernel: String,
    /// Stored over kept weights on the device.
    pub waste: Option<f64>,
    /// The generated kernel's configuration.
    pub config: Option<String>,
    pub dense_kernel: String,
    /// Of both sides, where the device's rates are known.
    pub profile: Option<Profile>,
    pub dense_profile: Option<Profile>,
    pub packed_bytes: usize,
    pub dense_bytes: usize,
    /// Magnitude kept over all.
    pub retained: f64,
    /// Time to prune, pack, compile and load, beside the other patterns of the layer.
    pub prepare: Duration,
}

impl Layer {
    /// Weights and activations are uniform in -1..1; no element is special, and none is zero but by chance.
    pub fn random(shape: Shape, dtype: DType, ending: Ending) -> Result<Layer> {
        let Shape { n, k, m } = shape;
        let mut rng = StdRng::seed_from_u64(0x5EED);
        let w = Tensor::from_f32(dtype, n, k, &random(n * k, 0x11))?;
        let x = Tensor::from_f32(dtype, k, m, &random(k * m, 0x22))?;
        // In the storage type, which is the baseline's.
        let bias = Tensor::from_f32(dtype, n, 1, &random(n, 0x44))?.to_f32();
        // About 2^29 multiply-adds of reference, the first and the last row among them.
        let count = ((1 << 29) / (k * m)).clamp(6, 64).min(n);
        let mut rows: Vec<usize> = [0, n - 1].into_iter().chain((2..count).map(|_| rng.random_range(0..n))).collect();
        rows.sort_unstable();
        rows.dedup();
        Ok(Layer { shape, ending, bias, w, wide_x: x.to_f32(), x, rows })
    }

    /// Its operands on a device.
    pub fn operands<'a>(&self, bench: &'a dyn Bench) -> Result<Box<dyn Operands + 'a>> {
        bench.operands(&self.w, &self.x, &self.bias)
    }

    /// The dense baseline, its result checked.
    pub fn dense(&self, operands: &dyn Operands, effort: Effort) -> Result<Dense> {
        let mut run = operands.dense()?;
        run.time(1)?;
        self.check(&*run, &self.reference(None, if run.approximates_gelu() { tanh_gelu } else { gelu }))?;
        let host = if effort.host { run.host()? } else { None };
        Ok(Dense { run, host })
    }

    /// How many patterns may be loaded at a time: what the device has memory for.
    pub fn most_loaded(&self, bench: &dyn Bench) -> Result<usize> {
        // A cover may store every element, and padding.
        let each = self.shape.n * self.shape.k * 2 * self.w.dtype().bytes();
        Ok((bench.room()? / each).max(1))
    }

    /// Threads that prepare patterns, each one of its own: what this machine has memory for now. A machine whose memory
    /// grows as it is used has more.
    pub fn preparers(&self) -> usize {
        let each = self.shape.n * self.shape.k * HOST_BYTES;
        (available_memory() / 2 / each).clamp(1, crate::args::cores())
    }

    /// Prunes, packs and loads the weight, or takes what was loaded `before` for other tokens, and computes what the result
    /// must be. Several patterns at once.
    pub fn prepare(
        &self,
        bench: &dyn Bench,
        (gemm, residue): (&Gemm, f64),
        before: Option<&Arc<Loaded>>,
    ) -> Result<Prepared> {
        let loaded = match before {
            Some(before) if bench.serves(&before.layers, before.packed_bytes, self.shape.m)? => Arc::clone(before),
            _ => Arc::new(self.load(bench, gemm, residue)?),
        };
        // From the mask and the unpruned weight, so that packing is checked too.
        let reference = self.reference(Some(&loaded.mask), gelu);
        Ok(Prepared { loaded, reference })
    }

    fn load(&self, bench: &dyn Bench, gemm: &Gemm, residue: f64) -> Result<Loaded> {
        let start = Instant::now();
        let pruned = prune_with_residue(gemm.pattern(), &self.w, &Magnitude, residue)?;
        let layers = bench.load(gemm, &pruned, self.shape.m)?;
        let time = start.elapsed();
        Ok(Loaded {
            layers,
            mask: pruned.mask(),
            kept: pruned.kept(),
            sparsity: pruned.sparsity(),
            packed_bytes: pruned.packed_bytes(),
            dense_bytes: pruned.dense_bytes(),
            retained: pruned.retained(),
            time,
        })
    }

    /// Checks the result of a prepared weight and times it in turns with `dense`.
    pub fn measure(
        &self,
        operands: &dyn Operands,
        baseline: &mut Dense,
        prepared: Prepared,
        effort: Effort,
        rates: Option<Rates>,
    ) -> Result<Row> {
        let Prepared { loaded, reference } = prepared;
        let &Loaded { kept, sparsity, packed_bytes, dense_bytes, retained, time: prepare, .. } = &*loaded;
        let mut sparse = operands.sparse(&loaded.layers)?;
        let first = sparse.time(1)?;
        let rel_err = self.check(&*sparse, &reference)?;
        let (time, dense, rounds) = in_turns(&mut *sparse, &mut *baseline.run, first, effort)?;
        let host = if effort.host { sparse.host()? } else { None };
        let profile = |run: &dyn Run, kept, bytes, time| -> Result<Option<Profile>> {
            let layer = (self.shape, self.w.dtype().bytes());
            let both = run.launches()?.zip(rates);
            Ok(both.map(|both| Profile::new(layer, (kept, bytes), both, time)))
        };
        let all = self.shape.n * self.shape.k;
        Ok(Row {
            sparsity,
            profile: profile(&*sparse, kept, packed_bytes, (time, host))?,
            dense_profile: profile(&*baseline.run, all, dense_bytes, (dense, baseline.host))?,
            dense_kernel: baseline.run.kernel(),
            time,
            dense,
            rounds,
            rel_err,
            kernel: sparse.kernel(),
            waste: sparse.waste(),
            config: sparse.config(),
            packed_bytes,
            dense_bytes,
            retained,
            prepare,
        })
    }

    /// The checked rows of W X in f64, with the ending's GELU in this form.
    fn reference(&self, mask: Option<&Mask>, gelu: fn(f64) -> f64) -> Vec<f64> {
        let Shape { k, m, .. } = self.shape;
        let mut y = vec![0.0; self.rows.len() * m];
        y.par_chunks_exact_mut(m).enumerate().for_each(|(at, y)| {
            let row = self.rows[at];
            let w = widened(&self.w, row * k..(row + 1) * k);
            for column in (0..k).filter(|&column| mask.is_none_or(|mask| mask.contains(row, column))) {
                let weight = f64::from(w[column]);
                let x = &self.wide_x[column * m..][..m];
                y.iter_mut().zip(x).for_each(|(y, &x)| *y += weight * f64::from(x));
            }
            if self.ending == Ending::BiasGelu {
                let bias = f64::from(self.bias[row]);
                y.iter_mut().for_each(|y| *y = gelu(*y + bias));
            }
        });
        y
    }

    /// The greatest error of the checked rows over their greatest magnitude. An element left unwritten anywhere fails.
    fn check(&self, run: &dyn Run, reference: &[f64]) -> Result<f64> {
        let Shape { n, k, m } = self.shape;
        let y = run.result()?;
        if let Some(at) = first_not_finite(&y) {
            let (row, column, value) = (at / m, at % m, widened(&y, at..at + 1)[0]);
            return Err(format!("wrong result: y[{row}, {column}] is {value} after {}", run.kernel()).into());
        }
        let len = y.values().len();
        if len != n * m {
            return Err(format!("wrong result: {len} elements after {}, expected {n} x {m}", run.kernel()).into());
        }
        let greatest = reference.iter().fold(0.0f64, |greatest, v| greatest.max(v.abs()));
        let found = self.rows.iter().flat_map(|&row| widened(&y, row * m..(row + 1) * m));
        let errors = found.zip(reference).map(|(y, r)| (f64::from(y) - r).abs());
        let error = errors.fold(0.0, f64::max);
        let rel_err = if error == 0.0 { 0.0 } else { error / greatest };
        // A tanh may be the approximate instruction.
        let limit = limit(self.w.dtype(), k).max(if run.approximates_gelu() { 1e-3 } else { 0.0 });
        if rel_err > limit || rel_err.is_nan() {
            return Err(format!("wrong result: error {rel_err:.2e} after {}, limit {limit:.2e}", run.kernel()).into());
        }
        Ok(rel_err)
    }
}

/// Uniform in -1..1, the same for each `stream` wherever it runs.
pub fn random(len: usize, stream: u64) -> Vec<f32> {
    const CHUNK: usize = 1 << 16;
    let mut values = vec![0.0; len];
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(at, chunk)| {
        let mut rng = StdRng::seed_from_u64(stream << 32 | at as u64);
        chunk.iter_mut().for_each(|value| *value = rng.random_range(-1.0f32..1.0));
    });
    values
}

/// Hendrycks and Gimpel, arXiv:1606.08415: x times the normal distribution's Phi(x).
fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))
}

/// Their approximation.
fn tanh_gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// Bytes that may be had without swapping; where the system does not tell, enough for small layers.
pub fn available_memory() -> usize {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    kib.map_or(4 << 30, |kib| kib << 10)
}

fn first_not_finite(tensor: &Tensor) -> Option<usize> {
    match tensor.values() {
        Values::F32(v) => v.par_iter().position_first(|v| !v.is_finite()),
        Values::F16(v) => v.par_iter().position_first(|v| !v.is_finite()),
        Values::BF16(v) => v.par_iter().position_first(|v| !v.is_finite()),
    }
}

/// Some elements as f32.
fn widened(tensor: &Tensor, range: Range<usize>) -> Vec<f32> {
    match tensor.values() {
        Values::F32(v) => v[range].to_vec(),
        Values::F16(v) => v[range].iter().map(|v| v.to_f32()).collect(),
        Values::BF16(v) => v[range].iter().map(|v| v.to_f32()).collect(),
    }
}

/// What rounding may cost: once to the storage type, and an f32 sum of k terms in any order, with room.
pub fn limit(dtype: DType, k: usize) -> f64 {
    let stored = match dtype {
        DType::F32 => 0.0,
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
    };
    stored + f64::from(f32::EPSILON) * (4.0 + (k as f64).sqrt())
}

/// Median times of one call of each, and the rounds.
fn in_turns(a: &mut dyn Run, b: &mut dyn Run, first: Duration, effort: Effort) -> Result<(Duration, Duration, usize)> {
    let start = Instant::now();
    let calls = |once: Duration| (effort.min_time.as_secs_f64() / once.as_secs_f64().max(1e-7)).ceil().clamp(1.0, 1e5);
    // The first call finds caches cold; where calls are short, the next one counts them.
    let short = first < effort.min_time;
    let calls_a = calls(if short { a.time(1)? } else { first }) as u32;
    let calls_b = calls(b.time(1)?) as u32;
    let (mut times_a, mut times_b) = (Vec::new(), Vec::new());
    for round in 0..effort.rounds {
        if round >= FEWEST_ROUNDS && start.elapsed() > BUDGET {
            break;
        }
        // Each comes first every other time: the clocks of a device follow what ran before.
        if round % 2 == 0 {
            times_a.push(a.time(calls_a)? / calls_a);
        }
        times_b.push(b.time(calls_b)? / calls_b);
        if round % 2 == 1 {
            times_a.push(a.time(calls_a)? / calls_a);
        }
    }
    let rounds = times_a.len();
    Ok((median(times_a), median(times_b), rounds))
}

/// The lower one of two in the middle.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[(times.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use fractal::pattern::Named;

    /// A device that spoils the results of its sparse kernels.
    struct Faulty<'a>(Box<dyn Operands + 'a>, fn(&mut Vec<f32>));

    struct FaultyRun(Box<dyn Run>, fn(&mut Vec<f32>));

    impl Operands for Faulty<'_> {
        fn dense(&self) -> Result<Box<dyn Run>> {
            self.0.dense()
        }

        fn sparse(&self, layers: &[fractal::Layer]) -> Result<Box<dyn Run>> {
            Ok(Box::new(FaultyRun(self.0.sparse(layers)?, self.1)))
        }
    }

    impl Run for FaultyRun {
        fn time(&mut self, calls: u32) -> Result<Duration> {
            self.0.time(calls)
        }

        fn result(&self) -> Result<Tensor> {
            let y = self.0.result()?;
            let mut elements = y.to_f32();
            self.1(&mut elements);
            Ok(Tensor::from_f32(y.dtype(), 1, elements.len(), &elements)?)
        }

        fn kernel(&self) -> String {
            self.0.kernel()
        }
    }

    fn measure(dtype: DType, ending: Ending, residue: f64, fault: fn(&mut Vec<f32>)) -> Result<Row> {
        let (n, k, m) = (48, 64, 24);
        let layer = Layer::random(Shape { n, k, m }, dtype, ending)?;
        let bench = crate::device::open("cpu", 1, ending)?;
        let operands = Faulty(layer.operands(&*bench)?, fault);
        let gemm = Gemm::new("tw:16".parse::<Named>()?.pattern(n, k, 0.25)?, dtype);
        let effort = Effort { rounds: 1, min_time: Duration::ZERO, host: true };
        let mut dense = layer.dense(&operands, effort)?;
        let prepared = layer.prepare(&*bench, (&gemm, residue), None)?;
        layer.measure(&operands, &mut dense, prepared, effort, None)
    }

    #[test]
    fn a_right_result_passes_and_a_wrong_element_fails_in_every_type() {
        for dtype in DType::ALL {
            let row = measure(dtype, Ending::BiasGelu, 0.0, |_| {}).unwrap();
            assert!(row.rel_err <= limit(dtype, 64), "{dtype}");
            let row = measure(dtype, Ending::None, 0.125, |_| {}).unwrap();
            assert!(row.rel_err <= limit(dtype, 64) && row.sparsity == 0.625, "{dtype}");
            let measure = |fault| measure(dtype, Ending::None, 0.0, fault);
            let row = measure(|_| {}).unwrap();
            assert!(row.rel_err <= limit(dtype, 64) && row.sparsity == 0.75 && row.rounds == 1, "{dtype}");
            let error = measure(|y| y[5] += 0.5).err().unwrap().to_string();
            assert!(error.starts_with("wrong result: error "), "{error}");
            let error = measure(|y| y[1100] = f32::NAN).err().unwrap().to_string();
            assert!(error.starts_with("wrong result: y[45, 20] is NaN after cpu"), "{error}");
            let error = measure(|y| y.truncate(y.len() - 1)).err().unwrap().to_string();
            assert!(error.starts_with("wrong result: 1151 elements"), "{error}");
        }
    }
}
