//! Where the example meets the pruner: (pattern, sparsity, dense weight) -> packed operator and report.

use std::sync::OnceLock;

use fractal::dsl::DType;
use fractal::model::{BertModel, DenseWeight, EpilogueKind, LinearOp, SparseLinear};
use fractal::pattern::{Named, PatternSpec};
use fractal::{Layer, Magnitude, Pruned, Tensor};

use crate::{Device, Result};

/// The patterns that run when none is asked for; an N:M runs where it is the sparsity asked for.
const PATTERNS: &[&str] = &[
    "ew",
    "vw:16",
    "2:4",
    "perm-2:4",
    "1:4",
    "1:16",
    "bw:32x32",
    "bw:64x64",
    "bw-global:32x32",
    "tw:64",
    "tw:128",
    "tw-global:128",
    "tw2:64",
    "tvw:64",
    "vnm:64",
    "perm-vnm:64",
    "shfl-bw:32x32",
    "shfl-vw:64",
    "hybrid:128x64/32x16",
];

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

/// Whether this device is a GPU, where host time is no measure.
pub fn on_gpu(device: Device) -> Result<bool> {
    Ok(open(device)?.name() == "cuda")
}

/// A pruned layer in this type with the model's epilogue, to be timed with so many tokens.
pub fn layer(
    device: Device,
    pattern: &str,
    sparsity: f64,
    model: &BertModel,
    name: &str,
    (dtype, tokens): (DType, usize),
) -> Result<Layer> {
    let weight = model.weight(name)?;
    let pruned = pruned(pattern.parse()?, sparsity, weight, dtype)?;
    let layer = SparseLinear::new(open(device)?, pruned).prepare(model.epilogue(name)?)?;
    compile(&layer, tokens)?;
    Ok(layer)
}

/// Compiles the GPU's kernel now: layers are prepared side by side, but run one after the other.
fn compile(layer: &Layer, tokens: usize) -> Result<()> {
    if let Some(weight) = layer.cuda() {
        weight.prepare(tokens)?;
    }
    Ok(())
}

/// The (pattern, sparsity) pairs to run: all of `patterns` at all of `sparsities`. Where none is asked for, every
/// pattern that does not fix another sparsity.
///
/// # Errors
/// A name that is no pattern; nothing to run.
pub fn runs(patterns: &[String], sparsities: &[f64]) -> Result<Vec<(String, f64)>> {
    let asked: Vec<&str> = patterns.iter().flat_map(|list| list.split(',')).map(str::trim).collect();
    let all = asked.is_empty() || asked == ["all"];
    let mut runs = Vec::new();
    for name in if all { PATTERNS } else { &asked } {
        let fixed = name.parse::<PatternSpec>()?.fixed_keep();
        let fits = |sparsity: f64| fixed.is_none_or(|keep| (1.0 - sparsity - keep).abs() < 1e-6);
        let sparsities = sparsities.iter().filter(|&&sparsity| !all || fits(sparsity));
        for run in sparsities.map(|&sparsity| (String::from(*name), sparsity)) {
            if !runs.contains(&run) {
                runs.push(run);
            }
        }
    }
    if runs.is_empty() { Err("no sparsity: pass --sparsity 0.75".into()) } else { Ok(runs) }
}

/// The dense operator that pruned ones are compared with on this device; `None` keeps the model's own, on the CPU.
pub fn dense(device: Device, model: &BertModel, name: &str, tokens: usize) -> Result<Option<Box<dyn LinearOp>>> {
    if open(device)?.name() == "cpu" {
        return Ok(None);
    }
    let (op, _) = operator(device, Named::Dense.into(), 0.0, (model.weight(name)?, model.epilogue(name)?), tokens)?;
    Ok(Some(op))
}

/// Prunes a layer's weight by magnitude to `pattern`, packs it for `device` and makes it ready for so many tokens.
pub fn prune(
    device: Device,
    pattern: &str,
    sparsity: f64,
    model: &BertModel,
    name: &str,
    tokens: usize,
) -> Result<(Box<dyn LinearOp>, LayerReport)> {
    operator(device, pattern.parse()?, sparsity, (model.weight(name)?, model.epilogue(name)?), tokens)
}

/// Prunes a weight by magnitude, with the residue that the pattern's name asks for.
fn pruned(spec: PatternSpec, sparsity: f64, weight: DenseWeight<'_>, dtype: DType) -> Result<Pruned> {
    let pattern = spec.pattern(weight.n, weight.k, 1.0 - sparsity)?;
    let tensor = Tensor::from_f32(dtype, weight.n, weight.k, weight.data)?;
    Ok(fractal::prune_with_residue(&pattern, &tensor, &Magnitude, spec.share())?)
}

fn operator(
    device: Device,
    spec: PatternSpec,
    sparsity: f64,
    (weight, epilogue): (DenseWeight<'_>, EpilogueKind),
    tokens: usize,
) -> Result<(Box<dyn LinearOp>, LayerReport)> {
    let pruned = pruned(spec, sparsity, weight, DType::F32)?;
    let (retained, packed_bytes, dense_bytes) = (pruned.retained(), pruned.packed_bytes(), pruned.dense_bytes());
    let op = SparseLinear::new(open(device)?, pruned);
    let layer = op.prepare(epilogue)?;
    compile(&layer, tokens)?;
    let kernel = layer.kernel(tokens);
    Ok((Box::new(op), LayerReport { retained, packed_bytes, dense_bytes, kernel }))
}

/// The device, opened once.
fn open(device: Device) -> Result<fractal::Device> {
    static OPENED: [OnceLock<std::result::Result<fractal::Device, String>>; 3] = [const { OnceLock::new() }; 3];
    let name = match device {
        Device::Cpu => "cpu",
        Device::Auto => "auto",
        Device::Cuda => "cuda",
    };
    let opened = OPENED[device as usize].get_or_init(|| name.parse().map_err(|e: fractal::Error| e.to_string()));
    Ok(opened.clone()?)
}
