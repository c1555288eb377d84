//! Everything that can go wrong between a program and its result.

use crate::cpu;
use crate::cuda::CudaError;
use crate::gemm::GemmError;
use crate::prune::PruneError;
use crate::tensor::TensorError;
use fractal_dsl::DType;
use fractal_sched::{LowerError, VerifyError};
use thiserror::Error;

/// An error of the runtime.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The program is no GEMM that can be compiled.
    #[error(transparent)]
    Gemm(#[from] GemmError),
    /// The weight could not be pruned or packed.
    #[error(transparent)]
    Prune(#[from] PruneError),
    /// A buffer does not have its shape.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The pattern cannot be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The lowered loops may leave their operands: a fault of the compiler.
    #[error("the lowered loops may leave their operands; please report this: {}", .0.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; "))]
    Verify(Vec<VerifyError>),
    /// The loops and the packed weight do not fit.
    #[error(transparent)]
    Execute(#[from] fractal_sched::ExecuteError),
    /// The plan for the CPU is at fault.
    #[error(transparent)]
    Plan(#[from] cpu::PlanError),
    /// The CPU kernel refused its operands.
    #[error(transparent)]
    Cpu(#[from] cpu::ExecuteError),
    /// The GPU, its driver or its compiler.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A weight that cannot be laid out for its kernel.
    #[error("kernel {kernel}: {reason}")]
    Layout {
        /// The kernel.
        kernel: String,
        /// Why.
        reason: String,
    },
    /// A schedule that asks for a kernel which this GPU, this weight or this number of tokens does not have.
    #[error("schedule: asked for {asked}: {reason}; {offered}")]
    Schedule {
        /// The statements.
        asked: String,
        /// What stands against them.
        reason: String,
        /// What there is.
        offered: String,
    },
    /// Machine code without the instruction that its kernel is named for: a fault of the compiler.
    #[error("kernel {kernel}: expected {instruction} in its machine code, found {found}; please report this")]
    OtherInstruction {
        /// The kernel.
        kernel: String,
        /// The machine's name of the instruction.
        instruction: &'static str,
        /// What was counted.
        found: String,
    },
    /// A kernel that does not end.
    #[error("the kernel has no result after {seconds} s; the GPU is of no use to this process: end it and start again")]
    Hangs {
        /// How long it was waited for.
        seconds: u64,
    },
    /// A device buffer that is shorter than its operand.
    #[error("operand `{operand}`: expected a buffer of {expected} bytes, found {found}")]
    ShortBuffer {
        /// The operand.
        operand: String,
        /// Bytes needed.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
    /// More tokens than one launch covers.
    #[error("{m} tokens in one call; expected at most {most}: split the batch")]
    TooManyTokens {
        /// Tokens of the call.
        m: usize,
        /// The most.
        most: usize,
    },
    /// A dimension that the program leaves to the run.
    #[error("compile: {dimension} is known only at run time; call compile_for with the weight's n and k")]
    RuntimeDimension {
        /// N or K.
        dimension: &'static str,
    },
    /// A weight of another pattern than the kernel's.
    #[error("load: the weight was pruned to another pattern than the one compiled; compile for its pattern")]
    OtherPattern,
    /// An operand of another shape.
    #[error("operand `{operand}`: expected {} x {} ({layout}), found {} x {}", .expected.0, .expected.1, .found.0, .found.1)]
    Shape {
        /// The operand.
        operand: String,
        /// Rows and columns expected.
        expected: (usize, usize),
        /// What rows and columns mean.
        layout: &'static str,
        /// Rows and columns found.
        found: (usize, usize),
    },
    /// An operand of another type.
    #[error("operand `{operand}`: expected {expected}, found {found}; convert it or compile for {found}")]
    DType {
        /// The operand.
        operand: String,
        /// The kernel's type.
        expected: DType,
        /// The operand's type.
        found: DType,
    },
    /// An operand that the epilogue needs and the call does not give.
    #[error("operand `{operand}` is missing; the epilogue needs: {}", .needed.join(", "))]
    Missing {
        /// The operand.
        operand: String,
        /// All operands of the epilogue.
        needed: Vec<String>,
    },
    /// An operand that the program does not have.
    #[error("operand `{operand}` is unknown; the epilogue needs: {}", if .needed.is_empty() { "none".to_string() } else { .needed.join(", ") })]
    Unknown {
        /// The operand.
        operand: String,
        /// All operands of the epilogue.
        needed: Vec<String>,
    },
    /// An operand that a call gives more than once.
    #[error("operand `{operand}` is given {times} times; give it once")]
    Repeated {
        /// The operand.
        operand: String,
        /// How often.
        times: usize,
    },
    /// An operand that the epilogue adds both as a vector and as a matrix.
    #[error("operand `{operand}` is a bias and a residual of the same epilogue; give them two names")]
    TwoRoles {
        /// The operand.
        operand: String,
    },
    /// A device that is not there or not known.
    #[error("device `{asked}`: {reason}")]
    Device {
        /// What was asked for.
        asked: String,
        /// Why it cannot be had, and what to do.
        reason: String,
    },
}
