//! Times the kernels of a weight on a GPU: replays of a CUDA graph of calls that take turns over copies of the operands,
//! so that no call finds in the second-level cache what the call before it used.

use crate::cuda::{Buffer, CudaDevice, CudaError, CudaWeight, DeviceInputs, Stream, download_tensor, upload_tensor};
use crate::error::Error;
use crate::gemm::Gemm;
use crate::tensor::Tensor;
use fractal_dsl::{DType, Layout};
use fractal_sched::codegen::KernelConfig;
use std::time::{Duration, Instant};

/// Second-level caches of today's GPUs are smaller, bytes.
const CACHE: usize = 96 << 20;
/// Copies at most.
const MOST_COPIES: usize = 64;
/// Least time of one measurement, milliseconds.
const LEAST: f32 = 0.4;
/// Measurements, of which the median counts.
const ROUNDS: usize = 5;
/// A call that takes longer hangs.
pub const LIMIT: Duration = Duration::from_secs(5);

/// Operands on a GPU for one shape, and a stream.
pub struct Stopwatch {
    stream: Stream,
    sets: Vec<(Buffer, Buffer)>,
    bias: Vec<Buffer>,
    residual: Vec<Buffer>,
    m: usize,
    shape: (DType, usize, usize),
}

impl Stopwatch {
    /// Operands of `gemm` with these activations [k, m] or [m, k], as its layout says, and random epilogue operands.
    ///
    /// # Errors
    /// Where the GPU has no room or fails.
    pub fn new(device: &CudaDevice, gemm: &Gemm, x: &Tensor, extras: &Extras) -> Result<Stopwatch, Error> {
        let stream = device.stream()?;
        let n = gemm.pattern().n();
        let m = if gemm.input() == Layout::FeatureMajor { x.columns() } else { x.rows() };
        let dtype = gemm.dtype();
        let bytes = (x.rows() * x.columns() + n * m) * dtype.bytes();
        let copies = CACHE.div_ceil(bytes.max(1)).clamp(1, MOST_COPIES);
        let first = upload_tensor(&stream, x)?;
        let mut sets = Vec::new();
        for at in 0..copies {
            let x = if at == 0 {
                first.clone()
            } else {
                let copy = stream.alloc(first.bytes())?;
                stream.copy(&first, &copy, first.bytes())?;
                copy
            };
            sets.push((x, stream.alloc((n * m * dtype.bytes()).max(1))?));
        }
        let bias = extras.bias.iter().map(|b| stream.upload(b)).collect::<Result<Vec<_>, _>>()?;
        let residual = extras.residual.iter().map(|r| upload_tensor(&stream, r)).collect::<Result<Vec<_>, _>>()?;
        let (rows, columns) = if gemm.output() == Layout::FeatureMajor { (n, m) } else { (m, n) };
        Ok(Stopwatch { stream, sets, bias, residual, m, shape: (dtype, rows, columns) })
    }

    /// Tokens.
    pub fn m(&self) -> usize {
        self.m
    }

    fn launch(&self, stream: &Stream, weight: &CudaWeight, config: &KernelConfig, at: usize) -> Result<(), Error> {
        let (x, y) = &self.sets[at % self.sets.len()];
        let (bias, residual) = (self.bias.iter().collect(), self.residual.iter().collect());
        weight.launch_config(stream, &DeviceInputs { x, y, bias, residual, m: self.m }, config)
    }

    /// Waits for the stream, but not for ever.
    fn wait(&self) -> Result<(), Error> {
        let done = self.stream.record()?;
        let start = Instant::now();
        while !done.is_complete()? {
            if start.elapsed() > LIMIT {
                return Err(Error::Hangs { seconds: LIMIT.as_secs() });
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// What the kernel makes of the activations, in the layout of Y; what it does not write is NaN.
    ///
    /// # Errors
    /// A kernel that fails, or hangs ([`Error::Hangs`]): the GPU is of no use then.
    pub fn result(&self, weight: &CudaWeight, config: &KernelConfig) -> Result<Tensor, Error> {
        let (_, y) = &self.sets[0];
        // All bits set are NaN in every type.
        self.stream.fill(y, 0xff)?;
        self.launch(&self.stream, weight, config, 0)?;
        self.wait()?;
        let (dtype, rows, columns) = self.shape;
        download_tensor(&self.stream, y, dtype, rows, columns)
    }

    /// Microseconds of a call, the median of some.
    ///
    /// # Errors
    /// As [`Stopwatch::result`].
    pub fn time(&self, weight: &CudaWeight, config: &KernelConfig) -> Result<f64, Error> {
        self.launch(&self.stream, weight, config, 0)?;
        self.wait()?;
        let mut failed = None;
        let once = self.stream.time(1, || {
            self.launch(&self.stream, weight, config, 1).map_err(|error| {
                let reason = error.to_string();
                failed = Some(error);
                CudaError::Capture { reason }
            })
        });
        let once = match (once, failed) {
            (_, Some(error)) => return Err(error),
            (once, None) => once?,
        };
        let calls = (LEAST / once.max(1e-3)).ceil().clamp(1.0, 64.0) as usize;
        let graph = self.stream.capture(|stream| {
            (0..calls).try_for_each(|at| match self.launch(stream, weight, config, at) {
                Ok(()) => Ok(()),
                Err(Error::Cuda(error)) => Err(error),
                Err(other) => Err(CudaError::Capture { reason: other.to_string() }),
            })
        })?;
        graph.replay()?;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            times.push(self.stream.time(1, || graph.replay())?);
        }
        times.sort_by(f32::total_cmp);
        Ok(f64::from(times[times.len() / 2]) * 1e3 / calls as f64)
    }
}

/// Operands of an epilogue, by number.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// Bias vectors of n entries.
    pub bias: Vec<Vec<f32>>,
    /// Matrices laid out as Y.
    pub residual: Vec<Tensor>,
}
