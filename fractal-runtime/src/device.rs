//! Devices, kernels compiled for them, and layers: a kernel with its weight.

use crate::backend::{Backend, Compiled, Inputs, Interpreter, Loaded};
use crate::cpu::CpuBackend;
use crate::cuda::{CudaBackend, CudaDevice, CudaWeight};
use crate::error::Error;
use crate::gemm::Gemm;
use crate::prune::Pruned;
use crate::tensor::Tensor;
use fractal_dsl::Layout;
use fractal_sched::Form;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Where sparse GEMMs run.
#[derive(Clone)]
pub struct Device {
    backend: Arc<dyn Backend>,
    why: String,
}

impl Device {
    /// The CPU, on all its cores.
    pub fn cpu() -> Device {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        Device::cpu_with_threads(threads)
    }

    /// The CPU, on at most this many cores.
    pub fn cpu_with_threads(threads: usize) -> Device {
        Device { backend: Arc::new(CpuBackend::new(threads)), why: format!("{threads} threads") }
    }

    /// The best device there is; [`Device::why`] tells why it was chosen.
    pub fn auto() -> Device {
        match Device::cuda(0) {
            Ok(device) => device,
            Err(error) => {
                let cpu = Device::cpu();
                let why = format!("{}; no GPU: {error}", cpu.why);
                Device { why, ..cpu }
            }
        }
    }

    /// The NVIDIA GPU of this number.
    ///
    /// # Errors
    /// No driver, no such GPU, no compiler for it: what was looked for and what to install.
    pub fn cuda(index: usize) -> Result<Device, Error> {
        let device = CudaDevice::open(index)?;
        device.compiler()?;
        let info = device.info();
        let why = format!("{} ({})", info.name, info.arch);
        Ok(Device { backend: Arc::new(CudaBackend::new(device)), why })
    }

    /// The reference interpreter, which lowers to `form`.
    pub fn interpreter(form: Form) -> Device {
        Device { backend: Arc::new(Interpreter { form }), why: format!("{form:?} form") }
    }

    /// A device of one's own.
    pub fn new(backend: Arc<dyn Backend>) -> Device {
        Device { backend, why: String::new() }
    }

    /// The backend's name.
    pub fn name(&self) -> &'static str {
        self.backend.name()
    }

    /// What it runs on and why it was chosen.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Compiles a GEMM.
    ///
    /// # Errors
    /// Where this device cannot run it, or one name means two operands of the epilogue.
    pub fn compile(&self, gemm: &Gemm) -> Result<Kernel, Error> {
        if let Some(operand) = gemm.bias().iter().find(|name| gemm.residual().contains(name)) {
            return Err(Error::TwoRoles { operand: operand.clone() });
        }
        Ok(Kernel { compiled: self.backend.compile(gemm)?, gemm: Arc::new(gemm.clone()) })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.why)
    }
}

impl FromStr for Device {
    type Err = Error;

    /// `cpu`, `cuda`, `cuda:1` or `auto`.
    fn from_str(text: &str) -> Result<Device, Error> {
        let unknown = || Error::Device {
            asked: text.into(),
            reason: "expected `cpu`, `auto`, `cuda` or `cuda:` and the number of a GPU".into(),
        };
        match text {
            "cpu" => Ok(Device::cpu()),
            "auto" => Ok(Device::auto()),
            "cuda" => Device::cuda(0),
            other => {
                let index = other.strip_prefix("cuda:").and_then(|index| index.parse().ok()).ok_or_else(unknown)?;
                Device::cuda(index)
            }
        }
    }
}

/// A GEMM compiled for a device: serves every weight of its pattern and every number of tokens.
#[derive(Clone)]
pub struct Kernel {
    compiled: Arc<dyn Compiled>,
    gemm: Arc<Gemm>,
}

impl Kernel {
    /// What it computes.
    pub fn gemm(&self) -> &Gemm {
        &self.gemm
    }

    /// Brings a weight to the device.
    ///
    /// # Errors
    /// [`Error::OtherPattern`], [`Error::DType`], and where the weight does not fit the device.
    pub fn load(&self, weight: &Pruned) -> Result<Layer, Error> {
        if weight.pattern() != self.gemm.pattern() {
            return Err(Error::OtherPattern);
        }
        if weight.dtype() != self.gemm.dtype() {
            let (expected, found) = (self.gemm.dtype(), weight.dtype());
            return Err(Error::DType { operand: "weight".into(), expected, found });
        }
        Ok(Layer { loaded: self.compiled.load(weight)?, gemm: Arc::clone(&self.gemm) })
    }
}

/// A kernel with its weight, ready to run.
#[derive(Clone)]
pub struct Layer {
    loaded: Arc<dyn Loaded>,
    gemm: Arc<Gemm>,
}

impl Layer {
    /// What it computes.
    pub fn gemm(&self) -> &Gemm {
        &self.gemm
    }

    /// The kernel that runs for m tokens, and why where it is not the pattern's own.
    pub fn kernel(&self, m: usize) -> String {
        self.loaded.kernel(m)
    }

    /// What really runs for m tokens: on a GPU the kernel as compiled, with its instructions counted in the machine code, what
    /// the schedule asked for and what runs.
    ///
    /// # Errors
    /// A kernel that does not compile.
    pub fn explain(&self, m: usize) -> Result<String, Error> {
        self.loaded.explain(m)
    }

    /// Y of the activations `x` and the epilogue's operands by name. X is [k, m], or [m, k] where the GEMM says so;
    /// likewise Y, and residuals as Y. A bias is a column of n f32 values.
    ///
    /// # Errors
    /// An operand that is missing, unknown, given twice, or of another shape or type; a device that fails.
    pub fn run(&self, x: &Tensor, operands: &[(&str, &Tensor)]) -> Result<Tensor, Error> {
        let m = if self.gemm.input() == Layout::FeatureMajor { x.columns() } else { x.rows() };
        let (rows, columns) = self.result_shape(m);
        let mut y = Tensor::zeros(self.gemm.dtype(), rows, columns);
        self.run_into(x, operands, &mut y)?;
        Ok(y)
    }

    fn result_shape(&self, m: usize) -> (usize, usize) {
        let n = self.gemm.pattern().n();
        if self.gemm.output() == Layout::FeatureMajor { (n, m) } else { (m, n) }
    }

    /// As [`Layer::run`], into a result that is there; every element of it is written.
    ///
    /// # Errors
    /// As [`Layer::run`]; `y` is untouched where an operand is refused.
    pub fn run_into(&self, x: &Tensor, operands: &[(&str, &Tensor)], y: &mut Tensor) -> Result<(), Error> {
        let gemm = &*self.gemm;
        let (n, k) = (gemm.pattern().n(), gemm.pattern().k());
        let feature_major = gemm.input() == Layout::FeatureMajor;
        let m = if feature_major { x.columns() } else { x.rows() };
        let (x_shape, x_layout) = if feature_major { ((k, m), "k x m") } else { ((m, k), "m x k") };
        check("x", x, x_shape, x_layout)?;
        let y_layout = if gemm.output() == Layout::FeatureMajor { "n x m" } else { "m x n" };
        check("y", y, self.result_shape(m), y_layout)?;
        for (operand, tensor) in [("x", x), ("y", &*y)] {
            if tensor.dtype() != gemm.dtype() {
                let (expected, found) = (gemm.dtype(), tensor.dtype());
                return Err(Error::DType { operand: operand.into(), expected, found });
            }
        }
        let needed = || gemm.bias().iter().chain(gemm.residual()).cloned().collect::<Vec<_>>();
        if let Some((unknown, _)) = operands.iter().find(|(name, _)| !needed().iter().any(|n| n == name)) {
            return Err(Error::Unknown { operand: (*unknown).into(), needed: needed() });
        }
        for (operand, _) in operands {
            let times = operands.iter().filter(|(name, _)| name == operand).count();
            if times > 1 {
                return Err(Error::Repeated { operand: (*operand).into(), times });
            }
        }
        let find = |name: &String| {
            let found = operands.iter().find(|(n, _)| n == name).map(|(_, tensor)| *tensor);
            found.ok_or_else(|| Error::Missing { operand: name.clone(), needed: needed() })
        };
        let mut bias = Vec::new();
        for name in gemm.bias() {
            let tensor = find(name)?;
            check(name, tensor, (n, 1), "n x 1")?;
            bias.push(tensor.to_f32());
        }
        let mut residual = Vec::new();
        for name in gemm.residual() {
            let tensor = find(name)?;
            check(name, tensor, self.result_shape(m), y_layout)?;
            if tensor.dtype() != gemm.dtype() {
                let (expected, found) = (gemm.dtype(), tensor.dtype());
                return Err(Error::DType { operand: name.clone(), expected, found });
            }
            residual.push(tensor);
        }
        // A kernel that cannot read or write a token-major edge costs one transpose there.
        let (x_native, y_native) = self.loaded.layouts();
        let turned_x = (x_native != gemm.input()).then(|| x.transposed());
        let turn_y = y_native != gemm.output();
        let turned: Vec<Tensor> = if turn_y { residual.iter().map(|r| r.transposed()).collect() } else { Vec::new() };
        let inputs = Inputs {
            x: turned_x.as_ref().unwrap_or(x),
            bias: bias.iter().map(Vec::as_slice).collect(),
            residual: if turn_y { turned.iter().collect() } else { residual },
            m,
        };
        if turn_y {
            let mut result = Tensor::zeros(gemm.dtype(), y.columns(), y.rows());
            self.loaded.run(&inputs, &mut result)?;
            *y = result.transposed();
            Ok(())
        } else {
            self.loaded.run(&inputs, y)
        }
    }

    /// The weight on a GPU, for calls on device buffers and streams; `None` on other devices.
    pub fn cuda(&self) -> Option<&CudaWeight> {
        self.loaded.cuda()
    }
}

fn check(operand: &str, tensor: &Tensor, expected: (usize, usize), layout: &'static str) -> Result<(), Error> {
    let found = (tensor.rows(), tensor.columns());
    if found == expected { Ok(()) } else { Err(Error::Shape { operand: operand.into(), expected, layout, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Magnitude, prune};
    use fractal_dsl::pattern::Pattern;
    use fractal_dsl::{DType, EpilogueOp};

    #[test]
    fn an_operand_has_one_tensor_and_one_role() {
        let pattern = Pattern::dense(2, 3).unwrap();
        let gemm = |ops: &[EpilogueOp]| Gemm::new(pattern.clone(), DType::F32).with_epilogue(ops);
        let (bias, residual) = (EpilogueOp::Bias("b".into()), EpilogueOp::Residual("b".into()));
        let error = Device::cpu().compile(&gemm(&[bias.clone(), residual])).err().unwrap();
        assert_eq!(error.to_string(), "operand `b` is a bias and a residual of the same epilogue; give them two names");
        let pruned = prune(&pattern, &Tensor::zeros(DType::F32, 2, 3), &Magnitude).unwrap();
        let layer = Device::cpu().compile(&gemm(&[bias])).and_then(|kernel| kernel.load(&pruned)).unwrap();
        let (x, b) = (Tensor::zeros(DType::F32, 3, 1), Tensor::vector(&[1.0, 2.0]));
        assert_eq!(layer.run(&x, &[("b", &b)]).unwrap().to_f32(), [1.0, 2.0]);
        let error = layer.run(&x, &[("b", &b), ("b", &b)]).unwrap_err();
        assert_eq!(error.to_string(), "operand `b` is given 2 times; give it once");
    }

    #[test]
    fn rows_longer_than_a_block_of_the_cpu_are_multiplied() {
        for (n, m) in [(1, 1), (3, 8)] {
            let k = 131_073;
            let pattern = Pattern::dense(n, k).unwrap();
            let w = Tensor::from_f32(DType::F32, n, k, &vec![0.5; n * k]).unwrap();
            let pruned = prune(&pattern, &w, &Magnitude).unwrap();
            let layer = Device::cpu_with_threads(2)
                .compile(&Gemm::new(pattern, DType::F32))
                .and_then(|kernel| kernel.load(&pruned))
                .unwrap();
            let x = Tensor::from_f32(DType::F32, k, m, &vec![2.0; k * m]).unwrap();
            assert_eq!(layer.run(&x, &[]).unwrap().to_f32(), vec![k as f32; n * m]);
        }
    }
}
