//! What the tuner has found out about one pattern with one schedule, and what it holds for.

use fractal_dsl::{DType, Directive, EpilogueOp, Layout};
use fractal_sched::KernelRequest;
use serde::{Deserialize, Serialize};

/// Everything that a measurement depends on besides pattern and schedule: a record holds where all of it is the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Version of Fractal, since its kernels change.
    pub fractal: String,
    /// The device by its full name, as `NVIDIA H200` or `cpu, 2 threads`.
    pub device: String,
    /// Driver and compiler, as `driver 580.159.04, NVRTC 13.0`; empty on a CPU.
    pub versions: String,
    /// Type of operands.
    pub dtype: DType,
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Tokens.
    pub m: usize,
    /// What follows the product.
    pub epilogue: Vec<EpilogueOp>,
    /// Layout of X and of Y.
    pub layouts: (Layout, Layout),
    /// SHA-256 of weights and of their scores, in hexadecimal.
    pub weights: String,
}

/// One line of the database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// What it holds for.
    pub context: Context,
    /// The statements that make the pattern.
    pub pattern: Vec<Directive>,
    /// What was asked of the kernel.
    pub request: KernelRequest,
    /// Importance kept over all importance.
    pub retained: f64,
    /// Elements kept over all.
    pub density: f64,
    /// Microseconds that the cost model expected.
    pub expected: f64,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// A right result.
    Timed {
        /// Microseconds a call, median.
        microseconds: f64,
        /// The kernel's name.
        kernel: String,
        /// Greatest error over greatest magnitude, against f64.
        error: f64,
    },
    /// No result, or a wrong one.
    Failed {
        /// What happened.
        reason: String,
    },
}

impl Record {
    /// Microseconds a call, of what ran and was right.
    pub fn microseconds(&self) -> Option<f64> {
        match &self.outcome {
            Outcome::Timed { microseconds, .. } => Some(*microseconds),
            Outcome::Failed { .. } => None,
        }
    }
}
