//! An NVIDIA GPU: cuBLASLt's fastest kernel as the baseline, both sides timed as replays of CUDA graphs.
//!
//! Each side takes turns over several copies of X and Y, and with few tokens of W, so that one call does not find in the
//! second-level cache what the call before it used.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fractal::cuda::{
    Buffer, CudaDevice, CudaError, DenseEpilogue, DenseGemm, DenseOperands, DeviceInputs, Graph, Options, Stream,
    download_tensor, upload_tensor,
};
use fractal::{DType, Device, Gemm, Layer, Pruned, Tensor};

use crate::Result;
use crate::args::Ending;
use crate::device::{Bench, Host, Operands, Run, ended};
use crate::measure::random;
use crate::profile::{Launches, Rates};

/// Launches a graph at least.
const LAUNCHES: usize = 8;
/// Copies of X and Y at most.
const MOST_COPIES: usize = 64;
/// Copies of W at most.
const MOST_WEIGHTS: usize = 16;
/// Up to so many tokens the time is that of reading W, which in a model comes from memory.
const FEW_TOKENS: usize = 64;
/// Calls whose CPU time is taken; a stream's queue holds more.
const HOST_CALLS: u32 = 200;
/// Side of the product that tells the peak.
const PEAK_SIDE: usize = 4096;
/// Bytes of the copy that tells the bandwidth.
const COPIED: usize = 1 << 30;

pub struct CudaBench {
    device: Device,
    gpu: CudaDevice,
    stream: Stream,
    ending: Ending,
}

impl CudaBench {
    /// The GPU behind `--device cuda` or `cuda:N`.
    pub fn new(device: Device, text: &str, ending: Ending) -> Result<CudaBench> {
        let index = text.strip_prefix("cuda:").map_or(Ok(0), str::parse)?;
        let gpu = CudaDevice::open(index)?;
        let stream = gpu.stream()?;
        Ok(CudaBench { device, gpu, stream, ending })
    }

    /// Copies that together exceed twice the second-level cache, at most `most`.
    fn copies(&self, bytes: usize, most: usize) -> usize {
        (2 * self.gpu.info().l2_bytes as usize).div_ceil(bytes.max(1)).clamp(1, most)
    }

    /// Copies of a weight that takes `bytes`.
    fn weights(&self, bytes: usize, m: usize) -> usize {
        if m <= FEW_TOKENS { self.copies(bytes, MOST_WEIGHTS) } else { 1 }
    }

    fn copied(&self) -> Result<f64> {
        let bytes = COPIED.min(self.gpu.memory()?.0 / 8);
        let (from, to) = (self.stream.zeros(bytes)?, self.stream.zeros(bytes)?);
        let mut best = f32::INFINITY;
        for _ in 0..5 {
            best = best.min(self.stream.time(4, || self.stream.copy(&from, &to, bytes))?);
        }
        Ok(2.0 * bytes as f64 / f64::from(best) * 1e3)
    }

    fn peak(&self, dtype: DType) -> Result<f64> {
        let side = PEAK_SIDE;
        let data = Tensor::from_f32(dtype, side, side, &random(side * side, 0x33))?;
        let (w, x) = (upload_tensor(&self.stream, &data)?, upload_tensor(&self.stream, &data)?);
        let y = self.stream.alloc(w.bytes())?;
        let mut gemm = DenseGemm::new(&self.stream, dtype, [side; 3], DenseEpilogue::None)?;
        let microseconds = gemm.fastest(&self.stream, &[DenseOperands { w: &w, x: &x, y: &y }])?;
        Ok(2.0 * (side as f64).powi(3) / microseconds * 1e6)
    }
}

/// Compiles the kernels for m tokens.
fn ready(layers: &[Layer], m: usize) -> Result<()> {
    for layer in layers {
        layer.cuda().ok_or("the layer is not on a GPU")?.prepare(m)?;
    }
    Ok(())
}

/// `580.159.04`, where the kernel module tells.
fn driver_version() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let mut words = text.lines().next()?.split_whitespace();
    words.find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned)
}

impl Bench for CudaBench {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn machine(&self) -> Option<String> {
        let info = self.gpu.info();
        let nvrtc = self.gpu.compiler().map_or("none".into(), |c| c.version().to_string());
        let driver = driver_version().map_or(String::new(), |version| format!("{version} "));
        Some(format!("{} ({}), driver {driver}for CUDA {}, NVRTC {nvrtc}", info.name, info.arch, info.driver))
    }

    fn room(&self) -> Result<usize> {
        // The rest is for operands and what the library keeps.
        Ok(self.gpu.memory()?.0 / 4)
    }

    fn rates(&self, dtype: DType) -> Result<Option<Rates>> {
        let multiprocessors = self.gpu.info().sm_count;
        Ok(Some(Rates { copied: self.copied()?, dense: self.peak(dtype)?, multiprocessors }))
    }

    fn load(&self, gemm: &Gemm, pruned: &Pruned, m: usize) -> Result<Vec<Layer>> {
        let kernel = self.device.compile(&ended(gemm, self.ending))?;
        let layers = (0..self.weights(pruned.packed_bytes(), m)).map(|_| Ok(kernel.load(pruned)?));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        ready(&layers, m)?;
        Ok(layers)
    }

    fn serves(&self, layers: &[Layer], packed_bytes: usize, m: usize) -> Result<bool> {
        let serves = layers.len() == self.weights(packed_bytes, m);
        if serves {
            ready(layers, m)?;
        }
        Ok(serves)
    }

    fn operands(&self, w: &Tensor, x: &Tensor, bias: &[f32]) -> Result<Box<dyn Operands + '_>> {
        let (shape, dtype) = ([w.rows(), w.columns(), x.columns()], w.dtype());
        let [n, k, m] = shape;
        let copy_of = |first: &Buffer| -> Result<Buffer> {
            let copy = self.stream.alloc(first.bytes())?;
            self.stream.copy(first, &copy, first.bytes())?;
            Ok(copy)
        };
        let first = upload_tensor(&self.stream, x)?;
        let sets = (0..self.copies((k + n) * m * dtype.bytes(), MOST_COPIES)).map(|at| {
            let x = if at == 0 { first.clone() } else { copy_of(&first)? };
            Ok((x, self.stream.alloc(n * m * dtype.bytes())?))
        });
        let sets = sets.collect::<Result<Vec<_>>>()?;
        let mut weights = vec![upload_tensor(&self.stream, w)?];
        for _ in 1..self.weights(weights[0].bytes(), m) {
            weights.push(copy_of(&weights[0])?);
        }
        let biased = match self.ending {
            Ending::None => None,
            Ending::BiasGelu => {
                let narrow = upload_tensor(&self.stream, &Tensor::from_f32(dtype, n, 1, bias)?)?;
                let first = upload_tensor(&self.stream, &x.transposed())?;
                let turned = (0..sets.len()).map(|at| if at == 0 { Ok(first.clone()) } else { copy_of(&first) });
                let turned = turned.collect::<Result<Vec<_>>>()?;
                Some(Biased { wide: self.stream.upload(bias)?, narrow, turned })
            }
        };
        Ok(Box::new(CudaOperands { stream: self.stream.clone(), dtype, weights, sets, biased, shape }))
    }
}

/// Copies of W, and of X and Y.
struct CudaOperands {
    stream: Stream,
    dtype: DType,
    weights: Vec<Buffer>,
    sets: Vec<(Buffer, Buffer)>,
    biased: Option<Biased>,
    shape: [usize; 3],
}

/// What a bias needs.
struct Biased {
    /// In f32, for the pruned layer.
    wide: Buffer,
    /// In the storage type, for the baseline.
    narrow: Buffer,
    /// X of each set token-major, as the baseline reads it then; its Y is token-major too.
    turned: Vec<Buffer>,
}

impl CudaOperands {
    /// Captures calls of one side, after its first one.
    fn run(&self, side: Side, sets: Vec<(Buffer, Buffer)>) -> Result<Box<dyn Run>> {
        let bias = self.biased.as_ref().map(|biased| biased.wide.clone());
        let calls = Calls { side, sets, bias, m: self.shape[2] };
        // Tells errors that a capture could not.
        calls.launch(&self.stream, 0)?;
        // Takes back what was written: all bits set are NaN in every type.
        self.sets.iter().try_for_each(|(_, y)| self.stream.fill(y, 0xff))?;
        let launches = LAUNCHES.max(calls.turns()).next_multiple_of(self.sets.len());
        let graph = self.stream.capture(|stream| {
            (0..launches).try_for_each(|at| {
                calls.launch(stream, at).map_err(|error| match error {
                    fractal::Error::Cuda(error) => error,
                    other => CudaError::Capture { reason: other.to_string() },
                })
            })
        })?;
        let ([n, _, m], dtype, stream) = (self.shape, self.dtype, self.stream.clone());
        Ok(Box::new(CudaRun { graph, launches, stream, calls, shape: (dtype, n, m) }))
    }
}

impl Operands for CudaOperands {
    fn dense(&self) -> Result<Box<dyn Run>> {
        let (stream, dtype, shape) = (&self.stream, self.dtype, self.shape);
        let mut sets = self.sets.clone();
        let mut gemm = match &self.biased {
            None => DenseGemm::new(stream, dtype, shape, DenseEpilogue::None)?,
            Some(Biased { narrow, turned, .. }) => {
                sets.iter_mut().zip(turned).for_each(|((x, _), turned)| *x = turned.clone());
                DenseGemm::with_bias_gelu(stream, dtype, shape, narrow)?
            }
        };
        let turns = 0..sets.len().max(self.weights.len());
        let operands = turns.map(|at| {
            let (x, y) = &sets[at % sets.len()];
            DenseOperands { w: &self.weights[at % self.weights.len()], x, y }
        });
        gemm.fastest(stream, &operands.collect::<Vec<_>>())?;
        self.run(Side::Dense { gemm, weights: self.weights.clone() }, sets)
    }

    fn sparse(&self, layers: &[Layer]) -> Result<Box<dyn Run>> {
        self.run(Side::Sparse(layers.to_vec()), self.sets.clone())
    }
}

enum Side {
    /// The library may keep what its launches use.
    Dense {
        gemm: DenseGemm,
        weights: Vec<Buffer>,
    },
    Sparse(Vec<Layer>),
}

/// Calls of one side, which take turns over the copies.
struct Calls {
    side: Side,
    sets: Vec<(Buffer, Buffer)>,
    bias: Option<Buffer>,
    m: usize,
}

impl Calls {
    fn turns(&self) -> usize {
        self.sets.len().max(match &self.side {
            Side::Dense { weights, .. } => weights.len(),
            Side::Sparse(layers) => layers.len(),
        })
    }

    fn launch(&self, stream: &Stream, at: usize) -> std::result::Result<(), fractal::Error> {
        let (x, y) = &self.sets[at % self.sets.len()];
        match &self.side {
            Side::Dense { gemm, weights } => {
                Ok(gemm.launch(stream, DenseOperands { w: &weights[at % weights.len()], x, y })?)
            }
            Side::Sparse(layers) => match layers[at % layers.len()].cuda() {
                Some(weight) => weight.launch(
                    stream,
                    &DeviceInputs { x, y, bias: self.bias.iter().collect(), residual: vec![], m: self.m },
                ),
                None => unreachable!("a layer that is on no GPU is not loaded"),
            },
        }
    }

    /// The layer that runs first.
    fn layer(&self) -> Option<&Layer> {
        match &self.side {
            Side::Dense { .. } => None,
            Side::Sparse(layers) => layers.first(),
        }
    }
}

struct CudaRun {
    graph: Graph,
    launches: usize,
    stream: Stream,
    calls: Calls,
    shape: (DType, usize, usize),
}

impl Run for CudaRun {
    fn time(&mut self, calls: u32) -> Result<Duration> {
        let replays = (calls as usize).div_ceil(self.launches).max(1) as u32;
        let once = self.stream.time(replays, || self.graph.replay())? / 1e3 / self.launches as f32;
        Ok(Duration::from_secs_f64(f64::from(once) * f64::from(calls)))
    }

    fn result(&self) -> Result<Tensor> {
        let (dtype, n, m) = self.shape;
        let y = &self.calls.sets[0].1;
        if self.approximates_gelu() {
            return Ok(download_tensor(&self.stream, y, dtype, m, n)?.transposed());
        }
        Ok(download_tensor(&self.stream, y, dtype, n, m)?)
    }

    fn kernel(&self) -> String {
        match &self.calls.side {
            Side::Dense { gemm, .. } => format!("cuBLASLt {}, best of {}", gemm.version(), gemm.algorithms()),
            Side::Sparse(layers) => layers[0].kernel(self.calls.m),
        }
    }

    fn approximates_gelu(&self) -> bool {
        self.calls.bias.is_some() && matches!(self.calls.side, Side::Dense { .. })
    }

    fn waste(&self) -> Option<f64> {
        Some(self.calls.layer()?.cuda()?.waste())
    }

    fn config(&self) -> Option<String> {
        Some(self.calls.layer()?.cuda()?.config(self.calls.m).ok()?.to_string())
    }

    fn launches(&self) -> Result<Option<Launches>> {
        // Every call launches the same kernels.
        let mut kernels = self.graph.kernels()?;
        kernels.truncate(kernels.len() / self.launches);
        let (weight_bytes, stored, two_of_four) = match (&self.calls.side, self.calls.layer().and_then(Layer::cuda)) {
            (_, Some(weight)) => (weight.bytes(), weight.stored(), weight.config(self.calls.m)?.intrinsic.is_sparse()),
            (Side::Dense { weights, .. }, None) => {
                (weights[0].bytes(), weights[0].bytes() / self.shape.0.bytes(), false)
            }
            (Side::Sparse(_), None) => return Ok(None),
        };
        Ok(Some(Launches { kernels, weight_bytes, stored, two_of_four }))
    }

    fn host(&self) -> Result<Option<Host>> {
        let mut best = Duration::MAX;
        for _ in 0..3 {
            self.stream.synchronize()?;
            let start = Instant::now();
            for at in 0..HOST_CALLS {
                self.calls.launch(&self.stream, at as usize)?;
            }
            best = best.min(start.elapsed() / HOST_CALLS);
        }
        self.stream.synchronize()?;
        let compile = match self.calls.layer().and_then(Layer::cuda) {
            None => None,
            Some(weight) => {
                let (device, source) = (weight.device(), weight.source(&weight.config(self.calls.m)?)?);
                // The compiler may remember texts.
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
                let mut new = source.clone();
                new.text += &format!("constexpr unsigned long long NEW_TEXT = {now}ull;\n");
                let start = Instant::now();
                device.compiler()?.compile(&new, device.info().arch, &Options::default())?;
                let compiled = start.elapsed();
                let start = Instant::now();
                device.compile(&source, &Options::default())?;
                Some((compiled, start.elapsed()))
            }
        };
        Ok(Some(Host { call: best, compile }))
    }
}
