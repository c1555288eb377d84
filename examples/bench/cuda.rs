//! An NVIDIA GPU: cuBLASLt's fastest kernel as the baseline, both sides timed as replays of CUDA graphs.
//!
//! Each side takes turns over several copies of X and Y, so that one call does not find in the second-level cache what the
//! call before it used.

use std::time::Duration;

use fractal::cuda::{
    Buffer, CudaDevice, CudaError, DenseEpilogue, DenseGemm, DenseOperands, DeviceInputs, Graph, Stream,
    download_tensor, upload_tensor,
};
use fractal::pattern::Pattern;
use fractal::{DType, Device, Gemm, Layer, Pruned, Tensor};

use crate::Result;
use crate::device::{Bench, Run};

/// Launches a graph at least.
const LAUNCHES: usize = 8;
/// Copies of X and Y at most.
const MOST_COPIES: usize = 64;

pub struct CudaBench {
    device: Device,
    gpu: CudaDevice,
    stream: Stream,
}

impl CudaBench {
    /// The GPU behind `--device cuda` or `cuda:N`.
    pub fn new(device: Device, text: &str) -> Result<CudaBench> {
        let index = text.strip_prefix("cuda:").map_or(Ok(0), str::parse)?;
        let gpu = CudaDevice::open(index)?;
        let stream = gpu.stream()?;
        Ok(CudaBench { device, gpu, stream })
    }

    /// Copies that together exceed twice the second-level cache, at most [`MOST_COPIES`].
    fn copies(&self, bytes: usize) -> usize {
        (2 * self.gpu.info().l2_bytes as usize).div_ceil(bytes.max(1)).clamp(1, MOST_COPIES)
    }

    fn operands(&self, dtype: DType, n: usize, x: &Tensor) -> Result<Vec<(Buffer, Buffer)>> {
        let m = x.columns();
        let bytes = (x.rows() + n) * m * dtype.bytes();
        let copies = 0..self.copies(bytes);
        copies
            .map(|_| {
                let y = self.stream.alloc(n * m * dtype.bytes())?;
                // All bits set are NaN in every type.
                self.stream.write(&y, &vec![0xffu8; y.bytes()])?;
                Ok((upload_tensor(&self.stream, x)?, y))
            })
            .collect()
    }
}

impl Bench for CudaBench {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn machine(&self) -> Option<String> {
        let info = self.gpu.info();
        let nvrtc = self.gpu.compiler().map_or("none".into(), |c| c.version().to_string());
        Some(format!("{} ({}), driver for CUDA {}, NVRTC {nvrtc}", info.name, info.arch, info.driver))
    }

    fn dense(&self, w: &Tensor, x: &Tensor) -> Result<Box<dyn Run>> {
        let (dtype, n, k, m) = (w.dtype(), w.rows(), w.columns(), x.columns());
        let weight = upload_tensor(&self.stream, w)?;
        let operands = self.operands(dtype, n, x)?;
        let sets: Vec<DenseOperands<'_>> = operands.iter().map(|(x, y)| DenseOperands { w: &weight, x, y }).collect();
        let mut gemm = DenseGemm::new(&self.stream, dtype, [n, k, m], DenseEpilogue::None)?;
        gemm.fastest(&self.stream, &sets)?;
        let (rounds, launches) = rounds(sets.len());
        let graph = self.stream.capture(|stream| {
            (0..rounds).try_for_each(|_| sets.iter().try_for_each(|set| gemm.launch(stream, *set)))
        })?;
        let kernel = format!("cuBLASLt {}, best of {}", gemm.version(), gemm.algorithms());
        drop(sets);
        let (y, gemm) = (operands[0].1.clone(), Some(gemm));
        Ok(Box::new(CudaRun {
            graph,
            launches,
            stream: self.stream.clone(),
            y,
            shape: (dtype, n, m),
            kernel,
            layer: None,
            _gemm: gemm,
        }))
    }

    fn sparse(&self, pattern: &Pattern, pruned: &Pruned, x: &Tensor) -> Result<Box<dyn Run>> {
        let (dtype, n, m) = (pruned.dtype(), pattern.n(), x.columns());
        let layer = self.device.compile(&Gemm::new(pattern.clone(), dtype))?.load(pruned)?;
        let operands = self.operands(dtype, n, x)?;
        let weight = layer.cuda().ok_or("the layer is not on a GPU")?;
        let (rounds, launches) = rounds(operands.len());
        let launch = |stream: &Stream, (x, y): &(Buffer, Buffer)| -> std::result::Result<(), fractal::Error> {
            weight.launch(stream, &DeviceInputs { x, y, bias: vec![], residual: vec![], m })
        };
        // Compiles, and tells errors that a capture could not.
        launch(&self.stream, &operands[0])?;
        let graph = self.stream.capture(|stream| {
            (0..rounds).try_for_each(|_| {
                operands.iter().try_for_each(|set| {
                    launch(stream, set).map_err(|error| match error {
                        fractal::Error::Cuda(error) => error,
                        other => CudaError::Capture { reason: other.to_string() },
                    })
                })
            })
        })?;
        let (kernel, y) = (layer.kernel(m), operands[0].1.clone());
        let stream = self.stream.clone();
        let (shape, layer) = ((dtype, n, m), Some(layer));
        Ok(Box::new(CudaRun { graph, launches, stream, y, shape, kernel, layer, _gemm: None }))
    }
}

/// How often a graph goes over the copies, and its launches.
fn rounds(copies: usize) -> (usize, usize) {
    let rounds = LAUNCHES.div_ceil(copies);
    (rounds, rounds * copies)
}

struct CudaRun {
    graph: Graph,
    launches: usize,
    stream: Stream,
    y: Buffer,
    shape: (DType, usize, usize),
    kernel: String,
    layer: Option<Layer>,
    /// The library may keep what its launches use.
    _gemm: Option<DenseGemm>,
}

impl Run for CudaRun {
    fn time(&mut self, calls: u32) -> Result<Duration> {
        let replays = (calls as usize).div_ceil(self.launches).max(1) as u32;
        let once = self.stream.time(replays, || self.graph.replay())? / 1e3 / self.launches as f32;
        Ok(Duration::from_secs_f64(f64::from(once) * f64::from(calls)))
    }

    fn result(&self) -> Result<Vec<f32>> {
        let (dtype, n, m) = self.shape;
        Ok(download_tensor(&self.stream, &self.y, dtype, n, m)?.to_f32())
    }

    fn kernel(&self) -> String {
        self.kernel.clone()
    }

    fn waste(&self) -> Option<f64> {
        Some(self.layer.as_ref()?.cuda()?.waste())
    }

    fn config(&self) -> Option<String> {
        let (_, _, m) = self.shape;
        Some(self.layer.as_ref()?.cuda()?.config(m).to_string())
    }

    fn registers(&self) -> Option<u32> {
        let (_, _, m) = self.shape;
        Some(self.layer.as_ref()?.cuda()?.prepare(m).ok()?.registers)
    }
}
