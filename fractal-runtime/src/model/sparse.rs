//! A pruned weight as a [`LinearOp`]: the model's epilogue becomes the one fused into the layer's kernel.

use std::sync::Mutex;

use fractal_dsl::EpilogueOp;
use fractal_sched::KernelRequest;

use super::{Activations, Epilogue, EpilogueKind, LinearError, LinearOp, Nonlinearity, check_shapes};
use crate::{Device, Error, Gemm, Layer, Pruned, Tensor};

/// Names of the epilogue's operands between this file and the kernel.
const BIAS: &str = "bias";
const RESIDUAL: &str = "residual";

/// The sparse operator: a pruned f32 weight, loaded on a device once for each kind of epilogue that it meets.
///
/// Activations reach the kernel where they are; nothing but the bias is copied.
pub struct SparseLinear {
    device: Device,
    weight: Pruned,
    request: KernelRequest,
    layers: Mutex<Vec<(EpilogueKind, Layer)>>,
}

impl SparseLinear {
    /// The operator of a pruned weight. Nothing is compiled before [`SparseLinear::prepare`] or the first call.
    pub fn new(device: Device, weight: Pruned) -> Self {
        Self { device, weight, request: KernelRequest::default(), layers: Mutex::default() }
    }

    /// The same by a kernel that is asked for, where the device is a GPU.
    #[must_use]
    pub fn with_request(mut self, request: KernelRequest) -> Self {
        self.request = request;
        self
    }

    /// Compiles and loads the layer for one kind of epilogue, so that the first call need not; returns it.
    ///
    /// # Errors
    /// Where the device cannot run it.
    pub fn prepare(&self, kind: EpilogueKind) -> Result<Layer, Error> {
        let find = |layers: &[(EpilogueKind, Layer)]| {
            layers.iter().find(|(loaded, _)| *loaded == kind).map(|(_, layer)| layer.clone())
        };
        // A panic of another thread leaves the list as it was.
        let mut layers = self.layers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(layer) = find(&layers) {
            return Ok(layer);
        }
        let gemm = Gemm::new(self.weight.pattern().clone(), self.weight.dtype()).with_epilogue(&kind.steps());
        let gemm = gemm.with_request(self.request);
        let layer = self.device.compile(&gemm)?.load(&self.weight)?;
        layers.push((kind, layer.clone()));
        Ok(layer)
    }

    /// The pruned weight.
    pub fn weight(&self) -> &Pruned {
        &self.weight
    }
}

impl EpilogueKind {
    /// `nonlinearity(P + bias) + residual`, in the words of a kernel.
    pub fn steps(self) -> Vec<EpilogueOp> {
        let bias = self.bias.then(|| EpilogueOp::Bias(BIAS.into()));
        let nonlinearity = self.nonlinearity.map(|f| match f {
            Nonlinearity::Gelu => EpilogueOp::Gelu,
            Nonlinearity::Relu => EpilogueOp::Relu,
        });
        let residual = self.residual.then(|| EpilogueOp::Residual(RESIDUAL.into()));
        [bias, nonlinearity, residual].into_iter().flatten().collect()
    }
}

impl LinearOp for SparseLinear {
    fn n(&self) -> usize {
        self.weight.pattern().n()
    }

    fn k(&self) -> usize {
        self.weight.pattern().k()
    }

    fn forward(&self, x: &Activations, y: &mut Activations, epilogue: &Epilogue<'_>) -> Result<(), LinearError> {
        check_shapes(self.n(), self.k(), x, y, epilogue)?;
        let backend = |error: Error| LinearError::Backend(Box::new(error));
        let layer = self.prepare(epilogue.kind()).map_err(backend)?;
        let bias = epilogue.bias.map(Tensor::vector);
        let bias = bias.as_ref().map(|bias| (BIAS, bias));
        let residual = epilogue.residual.map(|residual| (RESIDUAL, residual.tensor()));
        let operands: Vec<(&str, &Tensor)> = bias.into_iter().chain(residual).collect();
        layer.run_into(x.tensor(), &operands, y.tensor_mut()).map_err(backend)
    }

    fn describe(&self) -> String {
        let (device, weight) = (self.device.name(), &self.weight);
        let (n, k, dtype) = (self.n(), self.k(), weight.dtype());
        format!("sparse {dtype} [{n}, {k}] on {device}, {:.2} % dropped", weight.sparsity() * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Magnitude, prune};
    use fractal_dsl::DType;
    use fractal_dsl::pattern::Named;

    /// Values without a pattern, -1..1.
    fn scattered(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }

    fn operator(name: &str, n: usize, k: usize) -> SparseLinear {
        let pattern = name.parse::<Named>().unwrap().pattern(n, k, 0.5).unwrap();
        let w = Tensor::from_f32(DType::F32, n, k, &scattered(n * k, 1)).unwrap();
        SparseLinear::new(Device::cpu(), prune(&pattern, &w, &Magnitude).unwrap())
    }

    #[test]
    fn every_kind_of_epilogue_is_that_of_the_dense_operator() {
        let (n, k, m) = (40, 56, 33);
        let sparse = operator("tw:16", n, k);
        let w = sparse.weight().dense().to_f32();
        let dense = crate::model::DenseLinear::new(w.into(), n, k).unwrap();
        let x = Activations::from_vec(k, m, scattered(k * m, 2)).unwrap();
        let (bias, rest) = (scattered(n, 3), Activations::from_vec(n, m, scattered(n * m, 4)).unwrap());
        for nonlinearity in [None, Some(Nonlinearity::Gelu), Some(Nonlinearity::Relu)] {
            for bias in [None, Some(&bias[..])] {
                for residual in [None, Some(&rest)] {
                    let epilogue = Epilogue { bias, nonlinearity, residual };
                    let mut found = Activations::from_vec(n, m, vec![f32::NAN; n * m]).unwrap();
                    let mut expected = Activations::zeros(n, m);
                    sparse.forward(&x, &mut found, &epilogue).unwrap();
                    dense.forward(&x, &mut expected, &epilogue).unwrap();
                    let pairs = found.as_slice().iter().zip(expected.as_slice());
                    let error = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(error < 1e-5, "{epilogue:?}: off by {error}");
                }
            }
        }
        assert_eq!(sparse.layers.lock().unwrap().len(), 12);
    }

    #[test]
    fn operands_of_another_shape_are_refused() {
        let sparse = operator("ew", 8, 16);
        let (x, mut y) = (Activations::zeros(15, 3), Activations::zeros(8, 3));
        let error = sparse.forward(&x, &mut y, &Epilogue::default()).unwrap_err();
        assert_eq!(error.to_string(), "operand `x`: expected shape [16, 3], found [15, 3]");
    }

    #[test]
    fn no_tokens_are_no_work() {
        let sparse = operator("bw:4x4", 8, 16);
        let (x, mut y) = (Activations::zeros(16, 0), Activations::zeros(8, 0));
        sparse.forward(&x, &mut y, &Epilogue::default()).unwrap();
    }
}
