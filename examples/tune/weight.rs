//! The weight to be tuned: from a file, or random with the unevenness of a trained layer.

use std::path::Path;

use fractal::{DType, Tensor};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::Result;

/// Normal values; columns and rows differ in scale as those of trained transformers do (log-normal, sigma 0.4 and 0.2), so that
/// patterns have something to choose.
pub fn random(dtype: DType, n: usize, k: usize) -> Result<Tensor> {
    let mut rng = StdRng::seed_from_u64((n * 31 + k) as u64);
    let mut normal = || {
        // Box and Muller's.
        let (u, v): (f64, f64) = (rng.random_range(1e-12..1.0), rng.random_range(0.0..std::f64::consts::TAU));
        (-2.0 * u.ln()).sqrt() * v.cos()
    };
    let columns: Vec<f64> = (0..k).map(|_| (0.4 * normal()).exp()).collect();
    let mut values = Vec::with_capacity(n * k);
    for _ in 0..n {
        let row = 0.05 * (0.2 * normal()).exp();
        values.extend(columns.iter().map(|column| (row * column * normal()) as f32));
    }
    Ok(Tensor::from_f32(dtype, n, k, &values)?)
}

/// A matrix of a .safetensors file.
pub fn read(path: &Path, name: &str, dtype: Option<DType>) -> Result<Tensor> {
    let wrong = |reason: String| format!("{}: {reason}", path.display());
    let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let file =
        safetensors::SafeTensors::deserialize(&bytes).map_err(|error| wrong(format!("no safetensors: {error}")))?;
    let view = file.tensor(name).map_err(|_| {
        let mut matrices: Vec<String> =
            file.tensors().iter().filter(|(_, t)| t.shape().len() == 2).map(|(name, _)| name.clone()).collect();
        matrices.sort();
        wrong(format!("no tensor `{name}`; its matrices: {}", matrices.join(", ")))
    })?;
    let &[n, k] = view.shape() else {
        return Err(wrong(format!("`{name}` has the shape {:?}; expected a matrix [n, k]", view.shape())).into());
    };
    let (own, values): (DType, Vec<f32>) = match view.dtype() {
        safetensors::Dtype::F32 => {
            (DType::F32, view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        }
        safetensors::Dtype::F16 => {
            let half = |b: &[u8]| half::f16::from_le_bytes([b[0], b[1]]).to_f32();
            (DType::F16, view.data().chunks_exact(2).map(half).collect())
        }
        safetensors::Dtype::BF16 => {
            let half = |b: &[u8]| half::bf16::from_le_bytes([b[0], b[1]]).to_f32();
            (DType::BF16, view.data().chunks_exact(2).map(half).collect())
        }
        other => return Err(wrong(format!("`{name}` is {other:?}; expected F32, F16 or BF16")).into()),
    };
    Ok(Tensor::from_f32(dtype.unwrap_or(own), n, k, &values)?)
}
