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
use crate::device::{Bench, Operands, Run};

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

    fn room(&self) -> Result<usize> {
        // The rest is for operands and what the library keeps.
        Ok(self.gpu.memory()?.0 / 4)
    }

    fn load(&self, pattern: &Pattern, pruned: &Pruned, m: usize) -> Result<Layer> {
        let layer = self.device.compile(&Gemm::new(pattern.clone(), pruned.dtype()))?.load(pruned)?;
        layer.cuda().ok_or("the layer is not on a GPU")?.prepare(m)?;
        Ok(layer)
    }

    fn operands(&self, w: &Tensor, x: &Tensor) -> Result<Box<dyn Operands + '_>> {
        let shape = [w.rows(), w.columns(), x.columns()];
        let [n, k, m] = shape;
        let copies = self.copies((k + n) * m * w.dtype().bytes());
        let first = upload_tensor(&self.stream, x)?;
        let sets = (0..copies).map(|at| {
            let y = self.stream.alloc(n * m * w.dtype().bytes())?;
            if at == 0 {
                return Ok((first.clone(), y));
            }
            let copy = self.stream.alloc(first.bytes())?;
            self.stream.copy(&first, &copy, first.bytes())?;
            Ok((copy, y))
        });
        let sets = sets.collect::<Result<Vec<_>>>()?;
        let w = upload_tensor(&self.stream, w).map(|buffer| (buffer, w.dtype()))?;
        Ok(Box::new(CudaOperands { stream: self.stream.clone(), w, sets, shape }))
    }
}

/// W, and copies of X and Y.
struct CudaOperands {
    stream: Stream,
    w: (Buffer, DType),
    sets: Vec<(Buffer, Buffer)>,
    shape: [usize; 3],
}

impl CudaOperands {
    /// Takes back what the other side wrote: all bits set are NaN in every type.
    fn poison(&self) -> Result<()> {
        Ok(self.sets.iter().try_for_each(|(_, y)| self.stream.fill(y, 0xff))?)
    }

    fn run(
        &self,
        graph: Graph,
        launches: usize,
        kernel: String,
        layer: Option<Layer>,
        gemm: Option<DenseGemm>,
    ) -> CudaRun {
        let ([n, _, m], dtype) = (self.shape, self.w.1);
        let (stream, y) = (self.stream.clone(), self.sets[0].1.clone());
        CudaRun { graph, launches, stream, y, shape: (dtype, n, m), kernel, layer, _gemm: gemm }
    }
}

impl Operands for CudaOperands {
    fn dense(&self) -> Result<Box<dyn Run>> {
        let (w, dtype) = &self.w;
        let sets: Vec<DenseOperands<'_>> = self.sets.iter().map(|(x, y)| DenseOperands { w, x, y }).collect();
        let mut gemm = DenseGemm::new(&self.stream, *dtype, self.shape, DenseEpilogue::None)?;
        gemm.fastest(&self.stream, &sets)?;
        self.poison()?;
        let (rounds, launches) = rounds(sets.len());
        let graph = self.stream.capture(|stream| {
            (0..rounds).try_for_each(|_| sets.iter().try_for_each(|set| gemm.launch(stream, *set)))
        })?;
        let kernel = format!("cuBLASLt {}, best of {}", gemm.version(), gemm.algorithms());
        Ok(Box::new(self.run(graph, launches, kernel, None, Some(gemm))))
    }

    fn sparse(&self, layer: Layer) -> Result<Box<dyn Run>> {
        let m = self.shape[2];
        let weight = layer.cuda().ok_or("the layer is not on a GPU")?;
        let (rounds, launches) = rounds(self.sets.len());
        let launch = |stream: &Stream, (x, y): &(Buffer, Buffer)| -> std::result::Result<(), fractal::Error> {
            weight.launch(stream, &DeviceInputs { x, y, bias: vec![], residual: vec![], m })
        };
        // Tells errors that a capture could not.
        launch(&self.stream, &self.sets[0])?;
        self.poison()?;
        let graph = self.stream.capture(|stream| {
            (0..rounds).try_for_each(|_| {
                self.sets.iter().try_for_each(|set| {
                    launch(stream, set).map_err(|error| match error {
                        fractal::Error::Cuda(error) => error,
                        other => CudaError::Capture { reason: other.to_string() },
                    })
                })
            })
        })?;
        let kernel = layer.kernel(m);
        Ok(Box::new(self.run(graph, launches, kernel, Some(layer), None)))
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

    fn result(&self) -> Result<Tensor> {
        let (dtype, n, m) = self.shape;
        Ok(download_tensor(&self.stream, &self.y, dtype, n, m)?)
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
