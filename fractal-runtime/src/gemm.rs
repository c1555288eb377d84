//! What a backend compiles: one sparse GEMM with everything that is known before there are weights.

use fractal_dsl::pattern::{Pattern, PatternError};
use fractal_dsl::{DType, EpilogueOp, Layout, Program, ShapeError};
use fractal_sched::{EpilogueStep, KernelRequest};
use thiserror::Error;

/// A sparse GEMM Y[n, m] = epilogue(W[n, k] X[k, m]): pattern, storage type, layouts and epilogue.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemm {
    pattern: Pattern,
    dtype: DType,
    input: Layout,
    output: Layout,
    steps: Vec<EpilogueStep>,
    bias: Vec<String>,
    residual: Vec<String>,
    request: KernelRequest,
    /// The program's name and its schedule, statement by statement, where it comes from one.
    source: Option<(String, Vec<String>)>,
}

/// Why a program is no GEMM that can be compiled.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GemmError {
    /// A program whose operands differ in type.
    #[error("`{operand}` is {found}, but the weight is {expected}; give weight, input and output one type")]
    MixedTypes {
        /// The operand.
        operand: String,
        /// Its type.
        found: DType,
        /// The weight's type.
        expected: DType,
    },
    /// The schedule does not fit the dimensions.
    #[error(transparent)]
    Program(#[from] ShapeError),
    /// The pattern is at fault.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A statement of the schedule that no kernel follows.
    #[error("schedule: {0}")]
    Schedule(String),
}

impl Gemm {
    /// The plain product with this pattern, feature-major on both sides.
    pub fn new(pattern: Pattern, dtype: DType) -> Gemm {
        Gemm {
            pattern,
            dtype,
            input: Layout::FeatureMajor,
            output: Layout::FeatureMajor,
            steps: Vec::new(),
            bias: Vec::new(),
            residual: Vec::new(),
            request: KernelRequest::default(),
            source: None,
        }
    }

    /// The same with an epilogue, applied in order.
    #[must_use]
    pub fn with_epilogue(mut self, epilogue: &[EpilogueOp]) -> Gemm {
        for op in epilogue {
            let step = match op {
                EpilogueOp::Bias(name) => EpilogueStep::Bias(number(&mut self.bias, name)),
                EpilogueOp::Residual(name) => EpilogueStep::Residual(number(&mut self.residual, name)),
                EpilogueOp::Relu => EpilogueStep::Relu,
                EpilogueOp::Gelu => EpilogueStep::Gelu,
                EpilogueOp::Silu => EpilogueStep::Silu,
                EpilogueOp::Scale(factor) => EpilogueStep::Scale(factor.0.to_bits()),
            };
            self.steps.push(step);
        }
        self
    }

    /// The same with these layouts of X and Y.
    #[must_use]
    pub fn with_layouts(mut self, input: Layout, output: Layout) -> Gemm {
        (self.input, self.output) = (input, output);
        self
    }

    /// The same product with another pattern.
    #[must_use]
    pub(crate) fn with_pattern(mut self, pattern: Pattern) -> Gemm {
        self.pattern = pattern;
        self
    }

    /// The same with these steps, whose operands have no names.
    #[must_use]
    pub(crate) fn with_steps(mut self, steps: &[EpilogueStep]) -> Gemm {
        self.steps = steps.to_vec();
        let operands = |kind: &str, number: fn(&EpilogueStep) -> Option<usize>| {
            let most = steps.iter().filter_map(number).max().map_or(0, |most| most + 1);
            (0..most).map(|at| format!("{kind}{at}")).collect()
        };
        self.bias = operands("bias", |step| if let EpilogueStep::Bias(at) = step { Some(*at) } else { None });
        self.residual =
            operands("residual", |step| if let EpilogueStep::Residual(at) = step { Some(*at) } else { None });
        self
    }

    /// The same, run on a GPU by a kernel that is asked for; the CPU takes no notice.
    #[must_use]
    pub fn with_request(mut self, request: KernelRequest) -> Gemm {
        self.request = request;
        self
    }

    /// The same, run by the kernel that these statements ask for, on axes n, m, k and operands w, x:
    /// `tile(m, 128); tensorize(n, m, k, mma_sync)`. They are checked after the pattern's own, and replace what was asked before.
    ///
    /// # Errors
    /// [`GemmError::Schedule`]: everything that is wrong with the statements.
    pub fn with_schedule(self, statements: &str) -> Result<Gemm, GemmError> {
        let told = |error: &dyn std::fmt::Display| GemmError::Schedule(format!("`{statements}`: {error}"));
        let (n, k) = (self.pattern.n(), self.pattern.k());
        let program = Program::for_pattern(&self.pattern, self.dtype).map_err(|error| told(&error))?;
        let known = program.directives().len();
        let own: String = program.directives().iter().map(|directive| format!("{directive}; ")).collect();
        let program =
            Program::for_pattern_text(&format!("{own}{statements}"), n, k, self.dtype).map_err(|error| told(&error))?;
        let added = &program.directives()[program.directives().len().min(known)..];
        if let Some(directive) = added.iter().find(|directive| directive.is_pattern()) {
            return Err(told(&format!(
                "`{directive}` changes the pattern; expected statements about the kernel alone"
            )));
        }
        let request = KernelRequest::of(&program).map_err(|error| told(&error))?;
        Ok(self.with_request(request))
    }

    /// What `program` computes for a weight of n x k, and how its schedule says.
    ///
    /// # Errors
    /// [`GemmError::Program`] where n and k are not the program's, [`GemmError::MixedTypes`], [`GemmError::Schedule`].
    pub fn of(program: &Program, n: usize, k: usize) -> Result<Gemm, GemmError> {
        let dtype = program.weight().dtype;
        for operand in [program.input(), program.output()] {
            if operand.dtype != dtype {
                let operand_name = operand.name.clone();
                return Err(GemmError::MixedTypes { operand: operand_name, found: operand.dtype, expected: dtype });
            }
        }
        let request = KernelRequest::of(program).map_err(GemmError::Schedule)?;
        let gemm = Gemm::new(program.pattern(n, k)?, dtype).with_epilogue(program.epilogue()).with_request(request);
        let name = program.name().unwrap_or("sparse_gemm!").to_string();
        let lines = program.directives().iter().map(|directive| format!("{directive};")).collect();
        let source = Some((name, lines));
        Ok(Gemm { source, ..gemm.with_layouts(program.input().layout(), program.output().layout()) })
    }

    /// The name of the program that this comes from, and the statements of its schedule as the user wrote them.
    pub fn source(&self) -> Option<(&str, &[String])> {
        self.source.as_ref().map(|(name, lines)| (name.as_str(), lines.as_slice()))
    }

    /// What is asked of the kernel that runs it on a GPU.
    pub fn request(&self) -> &KernelRequest {
        &self.request
    }

    /// The pattern of the weight.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Storage type of W, X and Y.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Layout of X.
    pub fn input(&self) -> Layout {
        self.input
    }

    /// Layout of Y and of residuals.
    pub fn output(&self) -> Layout {
        self.output
    }

    /// The epilogue, its operands by number.
    pub fn steps(&self) -> &[EpilogueStep] {
        &self.steps
    }

    /// Names of the bias operands, by number.
    pub fn bias(&self) -> &[String] {
        &self.bias
    }

    /// Names of the residual operands, by number.
    pub fn residual(&self) -> &[String] {
        &self.residual
    }
}

fn number(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|n| n == name).unwrap_or_else(|| {
        names.push(name.to_string());
        names.len() - 1
    })
}
