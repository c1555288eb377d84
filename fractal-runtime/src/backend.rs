//! What every backend offers, and the reference one. [`Gemm`] -> [`Compiled`] -> (with a packed weight) [`Loaded`].

use crate::cuda::CudaWeight;
use crate::error::Error;
use crate::gemm::Gemm;
use crate::prune::Pruned;
use crate::tensor::Tensor;
use fractal_dsl::Layout;
use fractal_sched::{EpilogueStep, Form, LoopIr, Operands, Schedule, Tables, apply_epilogue, interpret, lower, verify};
use std::sync::Arc;

/// A place where sparse GEMMs run.
pub trait Backend: Send + Sync {
    /// What a table calls it: `cpu`, `interpreter`, …
    fn name(&self) -> &'static str;

    /// Compiles a GEMM for every weight of its pattern and every number of tokens.
    ///
    /// # Errors
    /// Where this backend cannot run it.
    fn compile(&self, gemm: &Gemm) -> Result<Arc<dyn Compiled>, Error>;
}

/// A compiled GEMM.
pub trait Compiled: Send + Sync {
    /// Brings a packed weight to the device, once.
    ///
    /// # Errors
    /// Where the weight is not of this GEMM's pattern, or does not fit the device.
    fn load(&self, weight: &Pruned) -> Result<Arc<dyn Loaded>, Error>;
}

/// The operands of one call, in the layouts of [`Loaded::layouts`], their shapes checked.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// X.
    pub x: &'a Tensor,
    /// Bias vectors of n entries.
    pub bias: Vec<&'a [f32]>,
    /// Residual matrices, laid out as Y.
    pub residual: Vec<&'a Tensor>,
    /// Tokens.
    pub m: usize,
}

/// A compiled GEMM with its weight.
pub trait Loaded: Send + Sync {
    /// Writes all of `y`, whatever it held.
    ///
    /// # Errors
    /// Where the device fails.
    fn run(&self, inputs: &Inputs<'_>, y: &mut Tensor) -> Result<(), Error>;

    /// The kernel that runs for m tokens, and why where it is not the pattern's own.
    fn kernel(&self, m: usize) -> String;

    /// What really runs for m tokens: on a GPU the kernel as compiled, its instructions counted in the machine code.
    ///
    /// # Errors
    /// A kernel that does not compile.
    fn explain(&self, m: usize) -> Result<String, Error> {
        Ok(format!("{}\n", self.kernel(m)))
    }

    /// The layouts of X and of Y (and residuals) that [`Loaded::run`] works on.
    fn layouts(&self) -> (Layout, Layout) {
        (Layout::FeatureMajor, Layout::FeatureMajor)
    }

    /// The weight on a GPU, for calls on device buffers and streams.
    fn cuda(&self) -> Option<&CudaWeight> {
        None
    }
}

/// Runs LoopIr element by element: slow and exact, the measure of the other backends.
#[derive(Clone, Copy, Debug)]
pub struct Interpreter {
    /// The form to lower to; patterns that have no condensed form take the scalar one.
    pub form: Form,
}

/// Lowers and verifies; a pattern without a condensed form takes the scalar one.
pub(crate) fn lower_checked(gemm: &Gemm, form: Form, m_tile: usize) -> Result<LoopIr, Error> {
    let form = if gemm.pattern().gpu_violations().is_empty() { form } else { Form::Scalar };
    let ir = lower(gemm.pattern(), &Schedule { form, m_tile, epilogue: gemm.steps().to_vec() })?;
    verify(&ir).map_err(Error::Verify)?;
    Ok(ir)
}

impl Backend for Interpreter {
    fn name(&self) -> &'static str {
        "interpreter"
    }

    fn compile(&self, gemm: &Gemm) -> Result<Arc<dyn Compiled>, Error> {
        // An odd token tile, so that tiles and tails are both met.
        let lowered = |gemm: &Gemm| lower_checked(gemm, self.form, 7).map(Arc::new);
        let plain = lowered(&gemm.clone().with_steps(&[]))?;
        Ok(Arc::new(Interpreted { ir: lowered(gemm)?, plain, steps: gemm.steps().to_vec() }))
    }
}

struct Interpreted {
    ir: Arc<LoopIr>,
    /// Without the epilogue, which a residue comes before.
    plain: Arc<LoopIr>,
    steps: Vec<EpilogueStep>,
}

impl Compiled for Interpreted {
    fn load(&self, weight: &Pruned) -> Result<Arc<dyn Loaded>, Error> {
        let (ir, steps) = match weight.residue() {
            None => (&self.ir, Vec::new()),
            Some(_) => (&self.plain, self.steps.clone()),
        };
        Ok(Arc::new(InterpretedWeight { ir: Arc::clone(ir), steps, weight: weight.clone() }))
    }
}

struct InterpretedWeight {
    ir: Arc<LoopIr>,
    /// What follows a residue; else the loops have it.
    steps: Vec<EpilogueStep>,
    weight: Pruned,
}

impl Loaded for InterpretedWeight {
    fn run(&self, inputs: &Inputs<'_>, y: &mut Tensor) -> Result<(), Error> {
        let packed = self.weight.packed();
        let x = inputs.x.to_f32();
        let residual: Vec<Vec<f32>> = inputs.residual.iter().map(|r| r.to_f32()).collect();
        let operands = Operands {
            values: &packed.values,
            x: &x,
            m: inputs.m,
            bias: inputs.bias.clone(),
            residual: residual.iter().map(Vec::as_slice).collect(),
        };
        let mut result = interpret(&self.ir, &Tables::of(packed), &operands)?;
        if let Some(residue) = self.weight.residue() {
            for (row, column, value) in residue.elements() {
                let (sums, x) = (&mut result[row * inputs.m..], &x[column * inputs.m..][..inputs.m]);
                sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += value * x);
            }
            for (at, value) in result.iter_mut().enumerate() {
                let (row, token) = (at / inputs.m, at % inputs.m);
                let ended = |v, step: &EpilogueStep| apply_epilogue(*step, v, row, token, &operands);
                *value = self.steps.iter().try_fold(*value, ended)?;
            }
        }
        *y = Tensor::from_f32(y.dtype(), y.rows(), y.columns(), &result)?;
        Ok(())
    }

    fn kernel(&self, _m: usize) -> String {
        "interpreter".into()
    }
}
