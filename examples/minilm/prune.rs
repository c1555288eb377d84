//! Where the example meets the pruner: (pattern, sparsity, dense weight) -> packed operator and report.

use std::sync::Arc;

use fractal_runtime::model::{DenseLinear, DenseWeight, LinearOp};

use crate::{Device, Result};

/// The patterns that run when none is asked for.
pub const PATTERNS: &[&str] = &["element-wise"];

/// What pruning one layer kept, and what it costs.
pub struct LayerReport {
    /// Sum of |w| over kept weights, as a share of the sum over all.
    pub retained: f64,
    /// Bytes of the packed weight, indices included.
    pub packed_bytes: usize,
    /// Bytes of the dense weight.
    pub dense_bytes: usize,
    /// The kernel that runs the layer.
    pub kernel: String,
}

/// The dense operator that pruned ones are compared with on this device; `None` keeps the model's own, on the CPU.
pub fn dense(device: Device, _weight: DenseWeight<'_>) -> Result<Option<Box<dyn LinearOp>>> {
    match device {
        Device::Cpu | Device::Auto => Ok(None),
        Device::Cuda => Err("CUDA is not supported by this example yet: pass --device cpu".into()),
    }
}

/// Prunes one weight by magnitude to `pattern` and packs it for `device`.
pub fn prune(
    _device: Device,
    pattern: &str,
    sparsity: f64,
    weight: DenseWeight<'_>,
) -> Result<(Box<dyn LinearOp>, LayerReport)> {
    if !PATTERNS.contains(&pattern) {
        return Err(format!("unknown pattern `{pattern}`: expected one of {}", PATTERNS.join(", ")).into());
    }
    let removed = (weight.data.len() as f64 * sparsity).round() as usize;
    let mut order: Vec<u32> = (0..weight.data.len() as u32).collect();
    let magnitude = |&i: &u32| weight.data[i as usize].abs();
    if removed > 0 {
        order.select_nth_unstable_by(removed - 1, |a, b| magnitude(a).total_cmp(&magnitude(b)));
    }
    let mut kept: Arc<[f32]> = weight.data.into();
    if let Some(kept) = Arc::get_mut(&mut kept) {
        order[..removed].iter().for_each(|&i| kept[i as usize] = 0.0);
    }
    let sum = |values: &[f32]| values.iter().map(|v| f64::from(v.abs())).sum::<f64>();
    let report = LayerReport {
        retained: sum(&kept) / sum(weight.data),
        packed_bytes: size_of_val(weight.data),
        dense_bytes: size_of_val(weight.data),
        kernel: "dense GEMM over zeros".into(),
    };
    let op = DenseLinear::new(kept, weight.n, weight.k)?;
    Ok((Box::new(op), report))
}
