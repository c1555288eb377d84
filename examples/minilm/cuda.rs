//! GPU time of the model's linear layers alone: layers and tokens -> one CUDA graph of the pruned ones, one of the dense
//! ones by cuBLASLt. Activations stay on the GPU, each layer with its own; nothing is copied from or to the host.

use std::collections::BTreeMap;
use std::time::Duration;

use fractal::cuda::{
    Buffer, CudaDevice, CudaError, DenseEpilogue, DenseGemm, DenseOperands, DeviceInputs, Graph, Stream, upload_tensor,
};
use fractal::model::BertModel;
use fractal::{DType, Error, Layer, Tensor};

use crate::{Result, median};

const ROUNDS: usize = 15;
/// Replays of one measurement.
const REPLAYS: u32 = 5;

/// The dense layers, captured, and operands for the pruned ones.
pub struct Gpu {
    stream: Stream,
    dtype: DType,
    tokens: usize,
    dense: Graph,
    layers: Vec<Operands>,
    /// By (n, k): the graph's launches are theirs.
    _products: BTreeMap<(usize, usize), DenseGemm>,
}

struct Operands {
    shape: (usize, usize),
    w: Buffer,
    x: Buffer,
    y: Buffer,
    residual: Buffer,
    bias: Buffer,
}

impl Gpu {
    /// Uploads weights and activations of `tokens` tokens, or up to 7 more, and finds the fastest dense kernel of each shape.
    pub fn new(model: &BertModel, dtype: DType, tokens: usize) -> Result<Gpu> {
        // Rows of whole 16 bytes, as whoever batches for a GPU makes them.
        let tokens = tokens.next_multiple_of(8);
        let stream = CudaDevice::open(0)?.stream()?;
        let mut layers = Vec::new();
        for name in model.linear_names() {
            let weight = model.weight(&name)?;
            let (n, k) = (weight.n, weight.k);
            let upload = |rows: usize, columns: usize, values: &[f32]| -> Result<Buffer> {
                Ok(upload_tensor(&stream, &Tensor::from_f32(dtype, rows, columns, values)?)?)
            };
            layers.push(Operands {
                shape: (n, k),
                w: upload(n, k, weight.data)?,
                x: upload(k, tokens, &scattered(k * tokens))?,
                y: stream.alloc(n * tokens * dtype.bytes())?,
                residual: upload(n, tokens, &scattered(n * tokens))?,
                bias: stream.upload(&scattered(n))?,
            });
        }
        let mut products = BTreeMap::new();
        for Operands { shape: (n, k), .. } in &layers {
            if products.contains_key(&(*n, *k)) {
                continue;
            }
            let mut product = DenseGemm::new(&stream, dtype, [*n, *k, tokens], DenseEpilogue::None)?;
            let sets: Vec<_> = layers.iter().filter(|layer| layer.shape == (*n, *k)).map(Operands::dense).collect();
            product.fastest(&stream, &sets)?;
            products.insert((*n, *k), product);
        }
        let dense = stream.capture(|stream| {
            layers.iter().try_for_each(|layer| products[&layer.shape].launch(stream, layer.dense()))
        })?;
        Ok(Gpu { stream, dtype, tokens, dense, layers, _products: products })
    }

    /// The type in which layers are timed.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Tokens of an activation.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Median times of all dense and of all pruned layers, which take turns. `pruned` is in the model's order.
    pub fn time(&self, pruned: &[Layer]) -> Result<(Duration, Duration)> {
        let launch = |stream: &Stream| -> std::result::Result<(), Error> {
            pruned.iter().zip(&self.layers).try_for_each(|(layer, operands)| {
                let gemm = layer.gemm();
                let inputs = DeviceInputs {
                    x: &operands.x,
                    y: &operands.y,
                    bias: vec![&operands.bias; gemm.bias().len()],
                    residual: vec![&operands.residual; gemm.residual().len()],
                    m: self.tokens,
                };
                let weight = layer.cuda().ok_or_else(|| Error::Device {
                    asked: "cuda".into(),
                    reason: "a layer was loaded on another device".into(),
                })?;
                weight.launch(stream, &inputs)
            })
        };
        // Compiles, and tells errors that a capture could not.
        launch(&self.stream)?;
        let graph = self.stream.capture(|stream| {
            launch(stream).map_err(|error| match error {
                Error::Cuda(error) => error,
                other => CudaError::Capture { reason: other.to_string() },
            })
        })?;
        let once = |graph: &Graph| -> Result<Duration> {
            let milliseconds = self.stream.time(REPLAYS, || graph.replay())?;
            Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3))
        };
        // Warms up.
        once(&self.dense)?;
        once(&graph)?;
        let (mut dense, mut sparse) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            dense.push(once(&self.dense)?);
            sparse.push(once(&graph)?);
        }
        Ok((median(dense), median(sparse)))
    }
}

impl Operands {
    fn dense(&self) -> DenseOperands<'_> {
        DenseOperands { w: &self.w, x: &self.x, y: &self.y }
    }
}

/// Values without a pattern, -1..1: zeros could run faster than activations do.
fn scattered(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}
