//! The choices that turn a pattern into loops.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How the nest is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// One multiply-add for each kept element and token, in the order of the nest. Every pattern can be lowered so.
    Scalar,
    /// The kept rows of X are condensed into a dense tile, which a tile multiplication uses for all rows that keep the
    /// same columns. Needs a pattern that is legal on GPUs.
    Condensed,
}

/// One step of what follows the multiplication, applied to the f32 accumulator before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EpilogueStep {
    /// Adds the entry of the row: `bias[n]`; the number tells bias operands apart.
    Bias(usize),
    /// Adds an element of a matrix shaped as the result; the number tells residual operands apart.
    Residual(usize),
    /// `max(y, 0)`.
    Relu,
    /// `y * (1 + erf(y / sqrt 2)) / 2`.
    Gelu,
    /// `y / (1 + exp(-y))`.
    Silu,
    /// Multiplies by the f32 of these bits.
    Scale(u32),
}

impl fmt::Display for EpilogueStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EpilogueStep::Bias(operand) => write!(f, "+ bias{operand}[n]"),
            EpilogueStep::Residual(operand) => write!(f, "+ residual{operand}[n, m]"),
            EpilogueStep::Relu => write!(f, "relu"),
            EpilogueStep::Gelu => write!(f, "gelu"),
            EpilogueStep::Silu => write!(f, "silu"),
            EpilogueStep::Scale(bits) => write!(f, "* {}", f32::from_bits(*bits)),
        }
    }
}

/// The schedule of one sparse GEMM.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Schedule {
    /// How the nest is computed.
    pub form: Form,
    /// Tokens a tile, at least 1.
    pub m_tile: usize,
    /// What follows the multiplication, in order.
    pub epilogue: Vec<EpilogueStep>,
}
