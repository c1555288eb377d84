//! One shape, type and pattern -> one [`Row`]: correctness first, then times in turns with the dense baseline.

use std::time::{Duration, Instant};

use fractal::pattern::{Mask, Pattern};
use fractal::{DType, Magnitude, Pruned, Tensor, prune};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rayon::prelude::*;

use crate::Result;
use crate::args::Shape;
use crate::device::{Bench, Run};

/// A row that takes long ends after this time, but never before [`FEWEST_ROUNDS`].
const BUDGET: Duration = Duration::from_secs(3);
const FEWEST_ROUNDS: u32 = 3;

/// A layer with random data, and the reference for some of its rows.
pub struct Layer {
    shape: Shape,
    w: Tensor,
    x: Tensor,
    wide_x: Vec<f32>,
    /// The rows whose result is checked.
    rows: Vec<usize>,
}

/// How long to measure.
#[derive(Clone, Copy)]
pub struct Effort {
    pub rounds: u32,
    /// Least time of one measurement.
    pub min_time: Duration,
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
    /// Registers of a thread.
    pub registers: Option<u32>,
    pub packed_bytes: usize,
    pub dense_bytes: usize,
    /// Magnitude kept over all.
    pub retained: f64,
    /// Time to prune, pack, compile and load.
    pub prepare: Duration,
}

impl Layer {
    /// Weights and activations are uniform in -1..1; no element is special, and none is zero but by chance.
    pub fn random(shape: Shape, dtype: DType) -> Result<Layer> {
        let Shape { n, k, m } = shape;
        let mut rng = StdRng::seed_from_u64(0x5EED);
        let mut random = |len: usize| -> Vec<f32> { (0..len).map(|_| rng.random_range(-1.0f32..1.0)).collect() };
        let w = Tensor::from_f32(dtype, n, k, &random(n * k))?;
        let x = Tensor::from_f32(dtype, k, m, &random(k * m))?;
        // About 2^29 multiply-adds of reference, the first and the last row among them.
        let count = ((1 << 29) / (k * m)).clamp(6, 64).min(n);
        let mut rows: Vec<usize> = [0, n - 1].into_iter().chain((2..count).map(|_| rng.random_range(0..n))).collect();
        rows.sort_unstable();
        rows.dedup();
        Ok(Layer { shape, w, wide_x: x.to_f32(), x, rows })
    }

    /// The dense baseline, its result checked.
    pub fn dense(&self, bench: &dyn Bench) -> Result<Box<dyn Run>> {
        let mut dense = bench.dense(&self.w, &self.x)?;
        dense.time(1)?;
        self.check(&*dense, &self.reference(None))?;
        Ok(dense)
    }

    /// Prunes and packs the weight; and the time it took.
    pub fn prune(&self, pattern: &Pattern) -> Result<(Pruned, Duration)> {
        let start = Instant::now();
        Ok((prune(pattern, &self.w, &Magnitude)?, start.elapsed()))
    }

    /// Loads the pruned weight, checks the result and times it in turns with `dense`.
    pub fn measure(
        &self,
        bench: &dyn Bench,
        dense: &mut dyn Run,
        pattern: &Pattern,
        pruned: &(Pruned, Duration),
        effort: Effort,
    ) -> Result<Row> {
        let (pruned, pruning) = pruned;
        let start = Instant::now();
        let mut sparse = bench.sparse(pattern, pruned, &self.x)?;
        let prepare = start.elapsed() + *pruning;
        let first = sparse.time(1)?;
        let rel_err = self.check(&*sparse, &self.reference_of(pattern, pruned)?)?;
        let (time, dense, rounds) = in_turns(&mut *sparse, dense, first, effort)?;
        Ok(Row {
            sparsity: pruned.sparsity(),
            time,
            dense,
            rounds,
            rel_err,
            kernel: sparse.kernel(),
            waste: sparse.waste(),
            config: sparse.config(),
            registers: sparse.registers(),
            packed_bytes: pruned.packed_bytes(),
            dense_bytes: pruned.dense_bytes(),
            retained: pruned.retained(),
            prepare,
        })
    }

    /// From the mask and the unpruned weight, so that packing is checked too.
    fn reference_of(&self, pattern: &Pattern, pruned: &Pruned) -> Result<Vec<f64>> {
        Ok(self.reference(Some(&pattern.mask(pruned.selection())?)))
    }

    /// The checked rows of W X in f64.
    fn reference(&self, mask: Option<&Mask>) -> Vec<f64> {
        let Shape { k, m, .. } = self.shape;
        let mut y = vec![0.0; self.rows.len() * m];
        let wide_w = self.w_rows();
        y.par_chunks_exact_mut(m).enumerate().for_each(|(at, y)| {
            for column in (0..k).filter(|&column| mask.is_none_or(|mask| mask.contains(self.rows[at], column))) {
                let weight = f64::from(wide_w[at * k + column]);
                let x = &self.wide_x[column * m..][..m];
                y.iter_mut().zip(x).for_each(|(y, &x)| *y += weight * f64::from(x));
            }
        });
        y
    }

    /// The weight's checked rows.
    fn w_rows(&self) -> Vec<f32> {
        let (k, all) = (self.shape.k, self.w.to_f32());
        self.rows.iter().flat_map(|&row| all[row * k..][..k].to_vec()).collect()
    }

    /// The greatest error of the checked rows over their greatest magnitude. An element left unwritten anywhere fails.
    fn check(&self, run: &dyn Run, reference: &[f64]) -> Result<f64> {
        let Shape { n, k, m } = self.shape;
        let y = run.result()?;
        if let Some(at) = y.iter().position(|v| !v.is_finite()) {
            let (row, column, value) = (at / m, at % m, y[at]);
            return Err(format!("wrong result: y[{row}, {column}] is {value} after {}", run.kernel()).into());
        }
        if y.len() != n * m {
            return Err(format!("wrong result: {} elements after {}, expected {n} x {m}", y.len(), run.kernel()).into());
        }
        let greatest = reference.iter().fold(0.0f64, |greatest, v| greatest.max(v.abs()));
        let found = self.rows.iter().flat_map(|&row| &y[row * m..][..m]);
        let errors = found.zip(reference).map(|(&y, r)| (f64::from(y) - r).abs());
        let error = errors.fold(0.0, f64::max);
        let rel_err = if error == 0.0 { 0.0 } else { error / greatest };
        let limit = limit(self.w.dtype(), k);
        if rel_err > limit || rel_err.is_nan() {
            return Err(format!("wrong result: error {rel_err:.2e} after {}, limit {limit:.2e}", run.kernel()).into());
        }
        Ok(rel_err)
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
        times_a.push(a.time(calls_a)? / calls_a);
        times_b.push(b.time(calls_b)? / calls_b);
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
    struct Faulty {
        device: Box<dyn Bench>,
        fault: fn(&mut Vec<f32>),
    }

    struct FaultyRun(Box<dyn Run>, fn(&mut Vec<f32>));

    impl Bench for Faulty {
        fn name(&self) -> &'static str {
            "faulty"
        }

        fn dense(&self, w: &Tensor, x: &Tensor) -> Result<Box<dyn Run>> {
            self.device.dense(w, x)
        }

        fn sparse(&self, pattern: &Pattern, pruned: &Pruned, x: &Tensor) -> Result<Box<dyn Run>> {
            Ok(Box::new(FaultyRun(self.device.sparse(pattern, pruned, x)?, self.fault)))
        }
    }

    impl Run for FaultyRun {
        fn time(&mut self, calls: u32) -> Result<Duration> {
            self.0.time(calls)
        }

        fn result(&self) -> Result<Vec<f32>> {
            let mut y = self.0.result()?;
            self.1(&mut y);
            Ok(y)
        }

        fn kernel(&self) -> String {
            self.0.kernel()
        }
    }

    fn measure(dtype: DType, fault: fn(&mut Vec<f32>)) -> Result<Row> {
        let (n, k, m) = (48, 64, 24);
        let layer = Layer::random(Shape { n, k, m }, dtype)?;
        let bench = Faulty { device: crate::device::open("cpu", 1)?, fault };
        let pattern = "tw:16".parse::<Named>()?.pattern(n, k, 0.25)?;
        let mut dense = layer.dense(&bench)?;
        let pruned = layer.prune(&pattern)?;
        layer.measure(&bench, &mut *dense, &pattern, &pruned, Effort { rounds: 1, min_time: Duration::ZERO })
    }

    #[test]
    fn a_right_result_passes_and_a_wrong_element_fails_in_every_type() {
        for dtype in DType::ALL {
            let row = measure(dtype, |_| {}).unwrap();
            assert!(row.rel_err <= limit(dtype, 64) && row.sparsity == 0.75 && row.rounds == 1, "{dtype}");
            let error = measure(dtype, |y| y[5] += 0.5).err().unwrap().to_string();
            assert!(error.starts_with("wrong result: error "), "{error}");
            let error = measure(dtype, |y| y[1100] = f32::NAN).err().unwrap().to_string();
            assert!(error.starts_with("wrong result: y[45, 20] is NaN after cpu"), "{error}");
            let error = measure(dtype, |y| y.truncate(y.len() - 1)).err().unwrap().to_string();
            assert!(error.starts_with("wrong result: 1151 elements"), "{error}");
        }
    }
}
