//! A short run on a GPU: kernels of many shapes, patterns and sizes, timed, to fit the cost model to.

use super::model::Work;
use super::stopwatch::{Extras, Stopwatch};
use crate::cuda::{CudaDevice, CudaWeight};
use crate::device::Device;
use crate::error::Error;
use crate::gemm::Gemm;
use crate::prune::{Magnitude, prune};
use crate::tensor::Tensor;
use fractal_dsl::DType;
use fractal_dsl::pattern::Named;
use fractal_sched::KernelRequest;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// One kernel and its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Name of the pattern.
    pub pattern: String,
    /// Its keep ratio.
    pub keep: f64,
    /// What ran.
    pub work: Work,
    /// Microseconds a call.
    pub microseconds: f64,
}

/// What is timed: a weight of n x k by each pattern at each keep ratio, m tokens.
#[derive(Clone, Debug)]
pub struct Plan {
    /// n, k, m.
    pub shapes: Vec<[usize; 3]>,
    /// Patterns by name.
    pub patterns: Vec<Named>,
    /// Keep ratios; a pattern that fixes its own has that one alone.
    pub keeps: Vec<f64>,
    /// Heights of tiles to ask for beside the one that is chosen.
    pub heights: Vec<usize>,
    /// Type of operands.
    pub dtype: DType,
}

/// Times every kernel of every case of the plan that the GPU has; `told` hears of each case.
///
/// # Errors
/// A GPU that fails. Patterns that a shape does not allow are left out.
pub fn collect(gpu: &CudaDevice, plan: &Plan, told: &mut dyn FnMut(&str)) -> Result<Vec<Sample>, Error> {
    let device = Device::cuda(gpu.info().index)?;
    let mut samples = Vec::new();
    for &[n, k, m] in &plan.shapes {
        let mut state = (n * 31 + k * 7 + m) as u32 | 1;
        let mut random = |len: usize| -> Vec<f32> {
            let next = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            (0..len).map(next).collect()
        };
        let w = Tensor::from_f32(plan.dtype, n, k, &random(n * k))?;
        let x = Tensor::from_f32(plan.dtype, k, m, &random(k * m))?;
        let mut cases: Vec<(Named, f64, Option<usize>)> = Vec::new();
        for &named in &plan.patterns {
            let keeps = named.fixed_keep().map_or(plan.keeps.clone(), |keep| vec![keep]);
            for keep in keeps {
                let heights = std::iter::once(None).chain(plan.heights.iter().copied().map(Some));
                cases.extend(heights.map(|height| (named, keep, height)));
            }
        }
        let loaded: Vec<_> = cases
            .par_iter()
            .filter_map(|&(named, keep, rows)| {
                let pattern = named.pattern(n, k, keep).ok()?;
                let pruned = prune(&pattern, &w, &Magnitude).ok()?;
                let gemm =
                    Gemm::new(pattern, plan.dtype).with_request(KernelRequest { rows, ..KernelRequest::default() });
                let layer = device.compile(&gemm).and_then(|kernel| kernel.load(&pruned)).ok()?;
                let configs = layer.cuda()?.configs(m);
                configs.par_iter().for_each(|config| drop(layer.cuda().map(|weight| weight.prepare_config(config))));
                Some((named, keep, gemm, layer, configs))
            })
            .collect();
        let mut seen: Vec<(Named, u64, usize)> = Vec::new();
        for (named, keep, gemm, layer, configs) in loaded {
            let Some(weight) = layer.cuda() else { continue };
            // An asked height that is the chosen one.
            let rows = weight.tables().rows;
            if seen.contains(&(named, keep.to_bits(), rows)) {
                continue;
            }
            seen.push((named, keep.to_bits(), rows));
            told(&format!("{n}/{k}/{m} {named} {keep}: {} kernels", configs.len()));
            let watch = Stopwatch::new(gpu, &gemm, &x, &Extras::default())?;
            for config in configs {
                let microseconds = watch.time(weight, &config)?;
                let work = work(weight, config, [n, k, m]);
                samples.push(Sample { pattern: named.to_string(), keep, work, microseconds });
            }
        }
    }
    Ok(samples)
}

/// What a kernel does for a loaded weight.
pub(super) fn work(weight: &CudaWeight, config: fractal_sched::codegen::KernelConfig, [n, k, m]: [usize; 3]) -> Work {
    let tables = weight.tables();
    Work { config, load: tables.load, columns: tables.columns, n, k, m }
}
