//! The GPU as a backend: a GEMM's plan and a pruned weight -> tables on the device, and kernels compiled when first needed.

use super::call::Call;
use super::explain::{check_instruction, explain};
use super::plan::{KernelPlan, MOST_TOKENS, TableShape};
use super::tiles::DeviceTiles;
use super::{Buffer, CudaDevice, CudaError, Kernel, KernelInfo, Options, Source, Stream};
use crate::backend::{Backend, Compiled, Inputs, Loaded};
use crate::cpu::Values;
use crate::error::Error;
use crate::gemm::Gemm;
use crate::prune::Pruned;
use crate::tensor::Tensor;
use fractal_dsl::{DType, Intrinsic, Layout};
use fractal_sched::KernelRequest;
use fractal_sched::codegen::tables::position_words;
use fractal_sched::codegen::{CudaSource, HEADERS, KernelConfig};
use half::{bf16, f16};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// One NVIDIA GPU.
#[derive(Clone, Debug)]
pub struct CudaBackend {
    device: CudaDevice,
}

impl CudaBackend {
    /// On this GPU.
    pub fn new(device: CudaDevice) -> CudaBackend {
        CudaBackend { device }
    }

    /// The GPU.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn compile(&self, gemm: &Gemm) -> Result<Arc<dyn Compiled>, Error> {
        let sm = self.device.info().arch.major * 10 + self.device.info().arch.minor;
        let plan = KernelPlan::new(gemm, sm)?;
        Ok(Arc::new(CudaGemm { plan: Arc::new(plan), device: self.device.clone() }))
    }
}

/// The source of a generated kernel, with its headers.
pub fn source_of(generated: &CudaSource) -> Source {
    let source = Source::new(generated.name.clone(), generated.text.clone());
    HEADERS.iter().fold(source, |source, (name, text)| source.header(*name, *text))
}

struct CudaGemm {
    plan: Arc<KernelPlan>,
    device: CudaDevice,
}

impl Compiled for CudaGemm {
    fn load(&self, weight: &Pruned) -> Result<Arc<dyn Loaded>, Error> {
        let stream = self.device.stream()?;
        Ok(Arc::new(CudaWeight::new(Arc::clone(&self.plan), &self.device, stream, weight)?))
    }
}

/// A weight on the device, and the kernels that have run with it.
pub struct CudaWeight {
    pub(super) plan: Arc<KernelPlan>,
    pub(super) device: CudaDevice,
    stream: Stream,
    pub(super) tables: TableShape,
    pub(super) waste: f64,
    pub(super) values: Buffer,
    pub(super) positions: Option<Buffer>,
    pub(super) columns: Buffer,
    pub(super) begin: Buffer,
    pub(super) row_list: Buffer,
    /// Elements on top of the tiles, and where those of each eight rows begin.
    pub(super) residue: Option<[Buffer; 2]>,
    kernels: Mutex<HashMap<KernelConfig, Kernel>>,
    /// By tokens: what a call needs besides its operands.
    calls: RwLock<HashMap<usize, Arc<Call>>>,
    pub(super) transpose: Mutex<Option<Kernel>>,
}

/// Numbers of tokens whose calls are remembered.
const MOST_CALLS: usize = 4096;

/// The operands of one call on the device, in the GEMM's layouts.
#[derive(Clone, Debug)]
pub struct DeviceInputs<'a> {
    /// X, k times m values of the storage type or more, [k, m] or [m, k] as the GEMM's input layout says.
    pub x: &'a Buffer,
    /// Y, n times m values of the storage type or more, [n, m] or [m, n] as the GEMM's output layout says.
    pub y: &'a Buffer,
    /// Bias vectors of n f32.
    pub bias: Vec<&'a Buffer>,
    /// Residuals, laid out as Y.
    pub residual: Vec<&'a Buffer>,
    /// Tokens.
    pub m: usize,
}

/// Values in their storage type on the device.
fn upload_values(stream: &Stream, values: &[f32], dtype: DType) -> Result<Buffer, CudaError> {
    match dtype {
        DType::F32 => stream.upload(values),
        DType::F16 => stream.upload(&values.iter().map(|&v| f16::from_f32(v).to_bits()).collect::<Vec<u16>>()),
        DType::BF16 => stream.upload(&values.iter().map(|&v| bf16::from_f32(v).to_bits()).collect::<Vec<u16>>()),
    }
}

/// A host matrix on the device.
///
/// # Errors
/// Where the device has no room or fails.
pub fn upload_tensor(stream: &Stream, tensor: &Tensor) -> Result<Buffer, CudaError> {
    match tensor.values() {
        Values::F32(v) => stream.upload(v),
        Values::F16(v) => stream.upload(&v.iter().map(|v| v.to_bits()).collect::<Vec<u16>>()),
        Values::BF16(v) => stream.upload(&v.iter().map(|v| v.to_bits()).collect::<Vec<u16>>()),
    }
}

/// A matrix of the device on the host.
///
/// # Errors
/// Where the device fails, or the buffer is shorter than the matrix.
pub fn download_tensor(
    stream: &Stream,
    buffer: &Buffer,
    dtype: DType,
    rows: usize,
    columns: usize,
) -> Result<Tensor, Error> {
    let values = match dtype {
        DType::F32 => Values::F32(stream.download(buffer)?),
        DType::F16 => Values::F16(stream.download::<u16>(buffer)?.into_iter().map(f16::from_bits).collect()),
        DType::BF16 => Values::BF16(stream.download::<u16>(buffer)?.into_iter().map(bf16::from_bits).collect()),
    };
    Ok(Tensor::new(rows, columns, values)?)
}

impl CudaWeight {
    fn new(plan: Arc<KernelPlan>, device: &CudaDevice, stream: Stream, weight: &Pruned) -> Result<CudaWeight, Error> {
        let (config, tables) = plan.lay_out(weight)?;
        let shape = TableShape::new(&config, &tables, [plan.pattern.n(), plan.pattern.k()]);
        let DeviceTiles { columns, begin, rows: row_list, values, positions, residue, waste } = &tables;
        let sparse = plan.intrinsic == Intrinsic::MmaSp;
        Ok(CudaWeight {
            tables: shape,
            waste: *waste,
            values: upload_values(&stream, values, plan.gemm.dtype())?,
            // At least one step, since there is no map of nothing.
            positions: if sparse {
                let least = if positions.is_empty() { vec![0; position_words(&config)] } else { Vec::new() };
                Some(stream.upload(if positions.is_empty() { &least } else { positions })?)
            } else {
                None
            },
            columns: stream.upload(columns)?,
            begin: stream.upload(begin)?,
            row_list: stream.upload(row_list)?,
            residue: match residue {
                Some(residue) => Some([stream.upload(&residue.words())?, stream.upload(&residue.begin)?]),
                None => None,
            },
            kernels: Mutex::new(HashMap::new()),
            calls: RwLock::new(HashMap::new()),
            transpose: Mutex::new(None),
            device: device.clone(),
            plan,
            stream,
        })
    }

    /// The stream that the weight was loaded on.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Stored over kept elements: what covering the pattern costs.
    pub fn waste(&self) -> f64 {
        self.waste
    }

    /// Elements that it stores and the kernels multiply with.
    pub fn stored(&self) -> usize {
        self.values.bytes() / self.plan.gemm.dtype().bytes()
    }

    /// Bytes of it on the device, lists included.
    pub fn bytes(&self) -> usize {
        let lists = [&self.columns, &self.begin, &self.row_list].map(Buffer::bytes).into_iter().sum::<usize>();
        let residue = self.residue.iter().flatten().map(Buffer::bytes).sum::<usize>();
        self.values.bytes() + self.positions.as_ref().map_or(0, Buffer::bytes) + lists + residue
    }

    /// The configuration that runs for m tokens.
    ///
    /// # Errors
    /// [`Error::Schedule`] where no kernel is what the schedule asks for.
    pub fn config(&self, m: usize) -> Result<KernelConfig, Error> {
        self.plan.choose(&self.tables, m, self.device.info().into())
    }

    /// Every kernel that runs for m tokens and that the schedule admits, in no order.
    pub fn configs(&self, m: usize) -> Vec<KernelConfig> {
        self.plan.configs(&self.tables, m, self.device.info().into())
    }

    /// Those that are asked for, whatever the schedule says.
    pub fn configs_for(&self, request: KernelRequest, m: usize) -> Vec<KernelConfig> {
        self.plan.with_request(request).configs(&self.tables, m, self.device.info().into())
    }

    /// What the choice of a kernel depends on in its tables.
    pub fn tables(&self) -> &TableShape {
        &self.tables
    }

    /// Compiles and loads one of its kernels; what it uses.
    ///
    /// # Errors
    /// A kernel that does not compile.
    pub fn prepare_config(&self, config: &KernelConfig) -> Result<KernelInfo, Error> {
        Ok(self.kernel_for(config)?.info().clone())
    }

    /// Compiles and loads the kernel for m tokens, so that the first call need not; what it uses.
    ///
    /// # Errors
    /// A kernel that does not compile.
    pub fn prepare(&self, m: usize) -> Result<KernelInfo, Error> {
        Ok(self.kernel_for(&self.config(m)?)?.info().clone())
    }

    /// The source of one of its kernels, with its headers.
    ///
    /// # Errors
    /// [`Error::Layout`] of a configuration that is no kernel.
    pub fn source(&self, config: &KernelConfig) -> Result<Source, Error> {
        let generated = self.plan.source(config).map_err(|reason| Error::Layout { kernel: config.name(), reason })?;
        Ok(source_of(&generated))
    }

    /// The GPU that it is on.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    pub(super) fn kernel_for(&self, config: &KernelConfig) -> Result<Kernel, Error> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(config) {
            return Ok(kernel.clone());
        }
        let source = self.source(config)?;
        let kernel = self.device.kernel(&source, &config.name(), &Options::default())?;
        check_instruction(config, kernel.info(), self.device.info().arch)?;
        kernels.insert(config.clone(), kernel.clone());
        Ok(kernel)
    }

    /// What a call for m tokens needs, made when it is first needed.
    fn call(&self, m: usize) -> Result<Arc<Call>, Error> {
        if let Some(call) = self.calls.read().unwrap_or_else(PoisonError::into_inner).get(&m) {
            return Ok(Arc::clone(call));
        }
        let call = Arc::new(self.call_of(&self.config(m)?, m)?);
        let mut calls = self.calls.write().unwrap_or_else(PoisonError::into_inner);
        if calls.len() >= MOST_CALLS {
            calls.clear();
        }
        Ok(Arc::clone(calls.entry(m).or_insert(call)))
    }

    /// Puts one call on a stream; the host does not wait.
    ///
    /// # Errors
    /// A buffer that is too short, a kernel that does not compile or launch.
    pub fn launch(&self, stream: &Stream, inputs: &DeviceInputs<'_>) -> Result<(), Error> {
        if inputs.m == 0 {
            return Ok(());
        }
        self.check_inputs(inputs)?;
        self.put(stream, inputs, &*self.call(inputs.m)?)
    }

    /// Puts one call of one of [`CudaWeight::configs_for`] any request on a stream; the host does not wait.
    ///
    /// # Errors
    /// As [`CudaWeight::launch`], and [`Error::Layout`] of another configuration.
    pub fn launch_config(
        &self,
        stream: &Stream,
        inputs: &DeviceInputs<'_>,
        config: &KernelConfig,
    ) -> Result<(), Error> {
        if inputs.m == 0 {
            return Ok(());
        }
        if !self.configs_for(KernelRequest::of_config(config), inputs.m).contains(config) {
            let reason = format!("expected one of those for this weight and {} tokens", inputs.m);
            return Err(Error::Layout { kernel: config.name(), reason });
        }
        self.check_inputs(inputs)?;
        self.put(stream, inputs, &self.call_of(config, inputs.m)?)
    }

    /// Whether all operands are there and long enough.
    fn check_inputs(&self, inputs: &DeviceInputs<'_>) -> Result<(), Error> {
        let (n, k, m) = (self.plan.pattern.n(), self.plan.pattern.k(), inputs.m);
        if m > MOST_TOKENS {
            return Err(Error::TooManyTokens { m, most: MOST_TOKENS });
        }
        let element = self.plan.gemm.dtype().bytes();
        let bytes_of = |rows: usize| rows.saturating_mul(m).saturating_mul(element);
        let short = |operand: &str, buffer: &Buffer, bytes: usize| {
            let found = buffer.bytes();
            if found >= bytes {
                Ok(())
            } else {
                Err(Error::ShortBuffer { operand: operand.into(), expected: bytes, found })
            }
        };
        short("x", inputs.x, bytes_of(k))?;
        short("y", inputs.y, bytes_of(n))?;
        let gemm = &self.plan.gemm;
        if inputs.bias.len() != gemm.bias().len() || inputs.residual.len() != gemm.residual().len() {
            let needed: Vec<String> = gemm.bias().iter().chain(gemm.residual()).cloned().collect();
            return Err(Error::Missing { operand: "of the epilogue".into(), needed });
        }
        inputs.bias.iter().try_for_each(|b| short("bias", b, n * 4))?;
        inputs.residual.iter().try_for_each(|r| short("residual", r, bytes_of(n)))
    }
}

impl Loaded for CudaWeight {
    fn run(&self, inputs: &Inputs<'_>, y: &mut Tensor) -> Result<(), Error> {
        let m = inputs.m;
        if y.values().is_empty() {
            return Ok(());
        }
        let stream = &self.stream;
        let x = upload_tensor(stream, inputs.x)?;
        let result = stream.alloc(y.values().len() * y.dtype().bytes())?;
        let bias = inputs.bias.iter().map(|b| stream.upload(b)).collect::<Result<Vec<_>, _>>()?;
        let residual = inputs.residual.iter().map(|r| upload_tensor(stream, r)).collect::<Result<Vec<_>, _>>()?;
        let device_inputs =
            DeviceInputs { x: &x, y: &result, bias: bias.iter().collect(), residual: residual.iter().collect(), m };
        self.launch(stream, &device_inputs)?;
        *y = download_tensor(stream, &result, y.dtype(), y.rows(), y.columns())?;
        Ok(())
    }

    fn kernel(&self, m: usize) -> String {
        let name = match self.config(m) {
            Ok(config) => config.name(),
            Err(error) => return format!("none: {error}"),
        };
        if self.waste > 1.02 { format!("{name} (stores {:.2} of what is kept)", self.waste) } else { name }
    }

    fn explain(&self, m: usize) -> Result<String, Error> {
        let (call, config) = (self.call(m)?, self.config(m)?);
        let blocks = call.shape.grid.iter().product();
        Ok(explain(&config, self.plan.gemm.request(), call.kernel.info(), blocks, self.waste))
    }

    fn cuda(&self) -> Option<&CudaWeight> {
        Some(self)
    }

    fn layouts(&self) -> (Layout, Layout) {
        (self.plan.gemm.input(), self.plan.gemm.output())
    }
}
