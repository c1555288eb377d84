//! What a device must offer to be benchmarked: a dense baseline, and a way to time both sides alike.
//!
//! A device joins with one implementation of [`Bench`] and [`Operands`], and one line in [`open`].

use std::time::{Duration, Instant};

use fractal::cpu::{self, Epilogue, MatMut, MatRef, Values};
use fractal::dsl::EpilogueOp;
use fractal::{DType, Device, Gemm, Layer, Pruned, Tensor};

use crate::Result;
use crate::args::Ending;
use crate::cuda::CudaBench;
use crate::measure::available_memory;
use crate::profile::{Launches, Rates};

/// A device with its dense baseline.
pub trait Bench: Sync {
    /// What the table calls it.
    fn name(&self) -> &'static str;

    /// What it is, for the heading; `None` for the CPU.
    fn machine(&self) -> Option<String> {
        None
    }

    /// Bytes of weights that may be loaded at a time.
    fn room(&self) -> Result<usize>;

    /// What it does at best; `None` where that is not measured.
    fn rates(&self, _dtype: DType) -> Result<Option<Rates>> {
        Ok(None)
    }

    /// A pruned weight, compiled and loaded, the kernel for `m` tokens included; several times where calls are to take
    /// turns over copies. Several threads load at once.
    fn load(&self, gemm: &Gemm, pruned: &Pruned, m: usize) -> Result<Vec<Layer>>;

    /// Whether what [`Bench::load`] made of a weight of `packed_bytes` serves `m` tokens too; then it is made ready for them.
    fn serves(&self, layers: &[Layer], packed_bytes: usize, m: usize) -> Result<bool>;

    /// The operands of one layer where the device reads them, for both sides. `bias` has one f32 for each row of W.
    fn operands(&self, w: &Tensor, x: &Tensor, bias: &[f32]) -> Result<Box<dyn Operands + '_>>;
}

/// CPU time.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// To put a call on the device's queue.
    pub call: Duration,
    /// To compile the kernel, and to read it from the cache.
    pub compile: Option<(Duration, Duration)>,
}

/// One layer's operands.
pub trait Operands {
    /// The baseline: the fastest dense GEMM of this device, on the same resources.
    fn dense(&self) -> Result<Box<dyn Run>>;

    /// What [`Bench::load`] has made of one weight.
    fn sparse(&self, layers: &[Layer]) -> Result<Box<dyn Run>>;
}

/// One side of a comparison, with its operands where the device reads them.
pub trait Run {
    /// The time of `calls` calls, one after the other, without what a call from a running model would not pay.
    fn time(&mut self, calls: u32) -> Result<Duration>;

    /// Y [n, m] after the last call; elements that no call of this side has written are NaN.
    fn result(&self) -> Result<Tensor>;

    /// Whether its GELU is the tanh form.
    fn approximates_gelu(&self) -> bool {
        false
    }

    /// The kernel that runs.
    fn kernel(&self) -> String;

    /// Stored over kept weights, where the device covers the pattern.
    fn waste(&self) -> Option<f64> {
        None
    }

    /// The kernel's configuration, where it is generated.
    fn config(&self) -> Option<String> {
        None
    }

    /// What a call puts on the device, where that can be told.
    fn launches(&self) -> Result<Option<Launches>> {
        Ok(None)
    }

    /// What a call costs the CPU, where calls do not wait.
    fn host(&self) -> Result<Option<Host>> {
        Ok(None)
    }
}

/// The device of a `--device` argument.
///
/// # Errors
/// A device that is not there, or has no baseline.
pub fn open(text: &str, threads: usize, ending: Ending) -> Result<Box<dyn Bench>> {
    let device: Device = text.parse()?;
    match device.name() {
        "cpu" => Ok(Box::new(CpuBench { device: Device::cpu_with_threads(threads), threads, ending })),
        "cuda" => Ok(Box::new(CudaBench::new(device, if text == "auto" { "cuda" } else { text }, ending)?)),
        other => Err(format!("device `{other}` has no dense baseline in this benchmark; pass --device cpu").into()),
    }
}

/// The product with this ending; its bias is called [`BIAS`].
pub fn ended(gemm: &Gemm, ending: Ending) -> Gemm {
    match ending {
        Ending::None => gemm.clone(),
        Ending::BiasGelu => gemm.clone().with_epilogue(&[EpilogueOp::Bias(BIAS.into()), EpilogueOp::Gelu]),
    }
}

pub const BIAS: &str = "bias";

struct CpuBench {
    device: Device,
    threads: usize,
    ending: Ending,
}

impl Bench for CpuBench {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn room(&self) -> Result<usize> {
        Ok(available_memory() / 4)
    }

    fn load(&self, gemm: &Gemm, pruned: &Pruned, _m: usize) -> Result<Vec<Layer>> {
        Ok(vec![self.device.compile(&ended(gemm, self.ending))?.load(pruned)?])
    }

    fn serves(&self, _layers: &[Layer], _packed_bytes: usize, _m: usize) -> Result<bool> {
        Ok(true)
    }

    fn operands(&self, w: &Tensor, x: &Tensor, bias: &[f32]) -> Result<Box<dyn Operands + '_>> {
        let bias = match self.ending {
            Ending::None => None,
            Ending::BiasGelu => Some(Tensor::vector(bias)),
        };
        Ok(Box::new(CpuOperands { w: w.clone(), x: x.clone(), bias, threads: self.threads }))
    }
}

struct CpuOperands {
    w: Tensor,
    x: Tensor,
    bias: Option<Tensor>,
    threads: usize,
}

impl CpuOperands {
    /// A result that no call has written.
    fn poisoned(&self) -> Result<Tensor> {
        let (n, m) = (self.w.rows(), self.x.columns());
        Ok(Tensor::from_f32(self.w.dtype(), n, m, &vec![f32::NAN; n * m])?)
    }
}

impl Operands for CpuOperands {
    fn dense(&self) -> Result<Box<dyn Run>> {
        let y = self.poisoned()?.values().clone();
        Ok(Box::new(CpuDense {
            w: self.w.clone(),
            x: self.x.clone(),
            bias: self.bias.clone(),
            y,
            threads: self.threads,
        }))
    }

    fn sparse(&self, layers: &[Layer]) -> Result<Box<dyn Run>> {
        let layer = layers[0].clone();
        Ok(Box::new(CpuSparse { layer, x: self.x.clone(), bias: self.bias.clone(), y: self.poisoned()? }))
    }
}

struct CpuDense {
    w: Tensor,
    x: Tensor,
    bias: Option<Tensor>,
    y: Values,
    threads: usize,
}

impl Run for CpuDense {
    fn time(&mut self, calls: u32) -> Result<Duration> {
        let (n, m) = (self.w.rows(), self.x.columns());
        let bias = self.bias.as_ref().map(Tensor::to_f32);
        let epilogue = match &bias {
            Some(bias) => Epilogue::new([cpu::EpilogueOp::Bias(bias), cpu::EpilogueOp::Gelu]),
            None => Epilogue::none(),
        };
        let start = Instant::now();
        for _ in 0..calls {
            let y = match &mut self.y {
                Values::F32(v) => MatMut::packed(v, n, m),
                Values::F16(v) => MatMut::packed(v, n, m),
                Values::BF16(v) => MatMut::packed(v, n, m),
            };
            cpu::dense(view(&self.w)?, view(&self.x)?, y?, &epilogue, self.threads)?;
        }
        Ok(start.elapsed())
    }

    fn result(&self) -> Result<Tensor> {
        Ok(Tensor::new(self.w.rows(), self.x.columns(), self.y.clone())?)
    }

    fn kernel(&self) -> String {
        "dense gemm".into()
    }
}

fn view(tensor: &Tensor) -> Result<MatRef<'_>> {
    let (rows, columns) = (tensor.rows(), tensor.columns());
    Ok(match tensor.values() {
        Values::F32(v) => MatRef::packed(v, rows, columns),
        Values::F16(v) => MatRef::packed(v, rows, columns),
        Values::BF16(v) => MatRef::packed(v, rows, columns),
    }?)
}

struct CpuSparse {
    layer: Layer,
    x: Tensor,
    bias: Option<Tensor>,
    y: Tensor,
}

impl Run for CpuSparse {
    fn time(&mut self, calls: u32) -> Result<Duration> {
        let operands: Vec<_> = self.bias.iter().map(|bias| (BIAS, bias)).collect();
        let start = Instant::now();
        for _ in 0..calls {
            self.layer.run_into(&self.x, &operands, &mut self.y)?;
        }
        Ok(start.elapsed())
    }

    fn result(&self) -> Result<Tensor> {
        Ok(self.y.clone())
    }

    fn kernel(&self) -> String {
        self.layer.kernel(self.x.columns())
    }
}
