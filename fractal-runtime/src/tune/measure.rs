//! A loaded weight -> a time that is only told of a right result.

use super::record::Outcome;
use super::stopwatch::{Extras, Stopwatch};
use crate::device::Layer;
use crate::error::Error;
use crate::gemm::Gemm;
use crate::prune::Pruned;
use crate::tensor::Tensor;
use fractal_dsl::{DType, Layout};
use fractal_sched::codegen::KernelConfig;
use fractal_sched::{Operands, apply_epilogue};
use std::time::Instant;

/// Activations and epilogue operands of a problem, with values of their own.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// [k, m], or [m, k] where the product says so.
    pub x: Tensor,
    /// Of the epilogue.
    pub extras: Extras,
    /// Tokens.
    pub m: usize,
}

impl Inputs {
    /// Random ones, the same for the same problem.
    ///
    /// # Errors
    /// None for sizes that fit the address space.
    pub fn random(gemm: &Gemm, m: usize) -> Result<Inputs, Error> {
        let (n, k) = (gemm.pattern().n(), gemm.pattern().k());
        let mut state = (n * 31 + k * 7 + m) as u32 | 1;
        let mut random = |len: usize| -> Vec<f32> {
            let next = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            (0..len).map(next).collect()
        };
        let shape = |layout, features| if layout == Layout::FeatureMajor { (features, m) } else { (m, features) };
        let (rows, columns) = shape(gemm.input(), k);
        let x = Tensor::from_f32(gemm.dtype(), rows, columns, &random(k * m))?;
        let bias = gemm.bias().iter().map(|_| random(n)).collect();
        let (rows, columns) = shape(gemm.output(), n);
        let residual = gemm
            .residual()
            .iter()
            .map(|_| Tensor::from_f32(gemm.dtype(), rows, columns, &random(n * m)))
            .collect::<Result<_, _>>()?;
        Ok(Inputs { x, extras: Extras { bias, residual }, m })
    }
}

/// Elements of Y in f64, to compare results with: of some rows and tokens, the last among them.
pub struct Reference {
    samples: Vec<(usize, usize, f64)>,
    greatest: f64,
    limit: f64,
    layout: Layout,
}

/// Rows and tokens that are compared.
const SAMPLED: (usize, usize) = (24, 24);

impl Reference {
    /// Of the weight that was pruned, without its packed form's index vectors.
    pub fn new(gemm: &Gemm, pruned: &Pruned, inputs: &Inputs) -> Reference {
        let (n, k, m) = (gemm.pattern().n(), gemm.pattern().k(), inputs.m);
        let dense = pruned.dense().to_f32();
        let x = inputs.x.to_f32();
        let at = |layout: Layout, features: usize, feature: usize, token: usize| match layout {
            Layout::FeatureMajor => feature * m + token,
            Layout::TokenMajor => token * features + feature,
        };
        let some = |len: usize, most: usize| -> Vec<usize> {
            let step = len.div_ceil(most).max(1);
            (0..len).step_by(step).chain(len.checked_sub(1)).collect()
        };
        let features_first = |t: &Tensor| match gemm.output() {
            Layout::FeatureMajor => t.to_f32(),
            Layout::TokenMajor => t.transposed().to_f32(),
        };
        let residual: Vec<Vec<f32>> = inputs.extras.residual.iter().map(features_first).collect();
        let operands = Operands {
            values: &[],
            x: &[],
            m,
            bias: inputs.extras.bias.iter().map(Vec::as_slice).collect(),
            residual: residual.iter().map(Vec::as_slice).collect(),
        };
        let mut samples = Vec::new();
        for row in some(n, SAMPLED.0) {
            let weights = &dense[row * k..][..k];
            for token in some(m, SAMPLED.1) {
                let terms = weights.iter().enumerate().filter(|(_, w)| **w != 0.0);
                let sum: f64 = terms.map(|(c, &w)| f64::from(w) * f64::from(x[at(gemm.input(), k, c, token)])).sum();
                let ended = gemm
                    .steps()
                    .iter()
                    .try_fold(sum as f32, |value, step| apply_epilogue(*step, value, row, token, &operands));
                // Every operand of the epilogue is there: they were made for this product.
                samples.push((row, token, ended.map_or(f64::NAN, f64::from)));
            }
        }
        let greatest = samples.iter().fold(1e-6f64, |greatest, (_, _, v)| greatest.max(v.abs()));
        let rounding = match gemm.dtype() {
            DType::F32 => 2e-6,
            DType::F16 => 1e-3,
            DType::BF16 => 8e-3,
        };
        let limit = rounding + 1e-7 * (k as f64).sqrt() * 8.0;
        Reference { samples, greatest, limit, layout: gemm.output() }
    }

    /// The greatest error over the greatest magnitude.
    ///
    /// # Errors
    /// A sentence about the first element that is too far off.
    pub fn check(&self, y: &Tensor) -> Result<f64, String> {
        let values = y.to_f32();
        let mut worst = 0.0f64;
        for &(row, token, expected) in &self.samples {
            let at = match self.layout {
                Layout::FeatureMajor => row * y.columns() + token,
                Layout::TokenMajor => token * y.columns() + row,
            };
            let found = f64::from(values[at]);
            let error = (found - expected).abs() / self.greatest;
            // NaN is no number below the limit.
            if error.is_nan() || error > self.limit {
                return Err(format!("wrong result: y[{row}, {token}] is {found}, expected {expected}"));
            }
            worst = worst.max(error);
        }
        Ok(worst)
    }
}

/// Times one kernel of a weight on a GPU, once its result is right.
///
/// # Errors
/// What ends the search: a GPU that hangs or is lost. All else is an outcome.
pub fn on_gpu(
    watch: &Stopwatch,
    layer: &Layer,
    config: &KernelConfig,
    reference: &Reference,
) -> Result<Outcome, Error> {
    let failed = |reason: String| Ok(Outcome::Failed { reason });
    let Some(weight) = layer.cuda() else { return failed("the weight is on no GPU".into()) };
    let y = match watch.result(weight, config) {
        Ok(y) => y,
        Err(error @ Error::Hangs { .. }) => return Err(error),
        Err(error) => return failed(error.to_string()),
    };
    match reference.check(&y) {
        Err(reason) => failed(reason),
        Ok(error) => match watch.time(weight, config) {
            Ok(microseconds) => Ok(Outcome::Timed { microseconds, kernel: config.name(), error }),
            Err(error @ Error::Hangs { .. }) => Err(error),
            Err(error) => failed(error.to_string()),
        },
    }
}

/// Runs on a CPU: most, and the time after which three are enough.
const CPU_ROUNDS: usize = 5;
const CPU_SECONDS: f64 = 0.3;

/// A layer's operands by name, and where its result goes.
fn operands<'a>(gemm: &'a Gemm, inputs: &'a Inputs, bias: &'a [Tensor]) -> Vec<(&'a str, &'a Tensor)> {
    let named = gemm.bias().iter().zip(bias).chain(gemm.residual().iter().zip(&inputs.extras.residual));
    named.map(|(name, tensor)| (name.as_str(), tensor)).collect()
}

/// Microseconds of a call on a CPU, the median of some.
///
/// # Errors
/// Where the layer fails.
pub fn cpu_time(gemm: &Gemm, layer: &Layer, inputs: &Inputs) -> Result<f64, Error> {
    let bias: Vec<Tensor> = inputs.extras.bias.iter().map(|b| Tensor::vector(b)).collect();
    let operands = operands(gemm, inputs, &bias);
    let mut y = layer.run(&inputs.x, &operands)?;
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < CPU_ROUNDS && (times.len() < 3 || begin.elapsed().as_secs_f64() < CPU_SECONDS) {
        let start = Instant::now();
        layer.run_into(&inputs.x, &operands, &mut y)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Times a layer on a CPU, once its result is right.
pub fn on_cpu(gemm: &Gemm, layer: &Layer, inputs: &Inputs, reference: &Reference) -> Outcome {
    let bias: Vec<Tensor> = inputs.extras.bias.iter().map(|b| Tensor::vector(b)).collect();
    let right = match layer.run(&inputs.x, &operands(gemm, inputs, &bias)) {
        Ok(y) => reference.check(&y),
        Err(error) => Err(error.to_string()),
    };
    match right.and_then(|error| Ok((error, cpu_time(gemm, layer, inputs).map_err(|error| error.to_string())?))) {
        Ok((error, microseconds)) => Outcome::Timed { microseconds, kernel: layer.kernel(inputs.m), error },
        Err(reason) => Outcome::Failed { reason },
    }
}
