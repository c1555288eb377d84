//! What happens to a finished element before it is stored: bias, residual, activations, scale.

use super::matrix::{Element, MatRef, Typed};
use super::raw::{self, Isa};

/// One step of an epilogue, on an f32 element of Y[n, m].
#[derive(Clone, Copy, Debug)]
pub enum EpilogueOp<'a> {
    /// Adds `bias[row]`; one f32 for each of the n rows.
    Bias(&'a [f32]),
    /// Adds the element of an [n, m] matrix of the plan's storage type.
    Residual(MatRef<'a>),
    /// `max(y, 0)`; NaN stays NaN.
    Relu,
    /// `y * Phi(y)` with the normal distribution's Phi, the erf form (Hendrycks and Gimpel, arXiv:1606.08415).
    Gelu,
    /// `y / (1 + exp(-y))`.
    Silu,
    /// Multiplies by a constant.
    Scale(f32),
}

/// Steps applied in order to each element, in f32, before the one rounding to the storage type.
#[derive(Clone, Debug, Default)]
pub struct Epilogue<'a> {
    /// The steps.
    pub ops: Vec<EpilogueOp<'a>>,
}

impl<'a> Epilogue<'a> {
    /// No step: the product as it is.
    pub fn none() -> Self {
        Epilogue::default()
    }

    /// These steps.
    pub fn new(ops: impl IntoIterator<Item = EpilogueOp<'a>>) -> Self {
        Epilogue { ops: ops.into_iter().collect() }
    }
}

/// [`EpilogueOp`] with the residual's storage type known.
pub(super) enum Step<'a, T> {
    Bias(&'a [f32]),
    Residual(Typed<'a, T>),
    Relu,
    Gelu,
    Silu,
    Scale(f32),
}

impl<'a, T: Element> Step<'a, T> {
    /// `None` for a residual of another storage type.
    pub fn new(op: &EpilogueOp<'a>) -> Option<Self> {
        Some(match *op {
            EpilogueOp::Bias(b) => Step::Bias(b),
            EpilogueOp::Residual(r) => Step::Residual(r.typed()?),
            EpilogueOp::Relu => Step::Relu,
            EpilogueOp::Gelu => Step::Gelu,
            EpilogueOp::Silu => Step::Silu,
            EpilogueOp::Scale(s) => Step::Scale(s),
        })
    }

    /// Applies the step to `sums`, elements `col..` of row `row`; `wide` is scratch.
    pub fn apply(&self, isa: Isa, row: usize, col: usize, sums: &mut [f32], wide: &mut Vec<f32>) {
        match self {
            Step::Bias(bias) => raw::add_scalar(isa, sums, bias[row]),
            Step::Residual(r) => {
                let part = &r.row(row)[col..][..sums.len()];
                if let Some(part) = T::as_f32(part) {
                    return raw::add(isa, sums, part);
                }
                wide.resize(wide.len().max(sums.len()), 0.0);
                T::widen(isa, part, &mut wide[..sums.len()]);
                raw::add(isa, sums, &wide[..sums.len()]);
            }
            Step::Relu => raw::relu(isa, sums),
            Step::Gelu => raw::gelu(isa, sums),
            Step::Silu => raw::silu(isa, sums),
            Step::Scale(s) => raw::scale(isa, sums, *s),
        }
    }
}
