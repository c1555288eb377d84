//! Y\[n, m\] = epilogue(W\[n, k\] X\[k, m\]): the operator that pruning replaces, and its dense form.

use std::error::Error;
use std::sync::Arc;

use rayon::prelude::*;

use super::Activations;
use super::product::{Destination, Threads, View, ViewMut, multiply};
use crate::math;

/// A linear operator on feature-major activations. Implementations are shared between threads and models.
pub trait LinearOp: Send + Sync {
    /// Output features.
    fn n(&self) -> usize;

    /// Input features.
    fn k(&self) -> usize;

    /// Writes all of `y`\[n, m\] from `x`\[k, m\]; what `y` held before is not read. An operator that cannot fuse the
    /// epilogue calls [`Epilogue::apply`] on the product.
    fn forward(&self, x: &Activations, y: &mut Activations, epilogue: &Epilogue<'_>) -> Result<(), LinearError>;

    /// One line for tables and logs: the kernel, its pattern or tile, its dtype.
    fn describe(&self) -> String;
}

/// What is fused behind a product P: `nonlinearity(P + bias) + residual`, each part optional, in this order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// One value per output feature.
    pub bias: Option<&'a [f32]>,
    /// Applied after the bias.
    pub nonlinearity: Option<Nonlinearity>,
    /// Shape \[n, m\], added last.
    pub residual: Option<&'a Activations>,
}

/// Which parts an [`Epilogue`] has: what a kernel is compiled for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EpilogueKind {
    /// Whether a bias is added.
    pub bias: bool,
    /// What is applied after the bias.
    pub nonlinearity: Option<Nonlinearity>,
    /// Whether a residual is added.
    pub residual: bool,
}

/// An elementwise function of the feed-forward layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Nonlinearity {
    /// x/2 (1 + erf(x/sqrt(2))), the exact form that BERT was trained with.
    Gelu,
    /// max(x, 0).
    Relu,
}

/// A linear operator that could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinearError {
    /// An operand's shape does not fit the operator.
    #[error("operand `{operand}`: expected shape {expected:?}, found {got:?}")]
    Shape {
        /// `x`, `y`, `bias` or `residual`.
        operand: &'static str,
        /// The shape that fits.
        expected: Vec<usize>,
        /// The shape given.
        got: Vec<usize>,
    },
    /// A buffer's length does not fit its shape.
    #[error("a buffer of shape {expected:?} does not have {got} values")]
    Length {
        /// The shape.
        expected: [usize; 2],
        /// The buffer's length.
        got: usize,
    },
    /// The device or library behind the operator failed.
    #[error(transparent)]
    Backend(Box<dyn Error + Send + Sync>),
}

impl Epilogue<'_> {
    /// The parts that are there.
    pub fn kind(&self) -> EpilogueKind {
        let (bias, residual) = (self.bias.is_some(), self.residual.is_some());
        EpilogueKind { bias, nonlinearity: self.nonlinearity, residual }
    }

    /// Applies the epilogue in place to the product `y`, in parallel over features. Shapes must fit ([`check_shapes`]).
    pub fn apply(&self, y: &mut Activations) {
        let tokens = y.tokens();
        if tokens == 0 || (self.bias.is_none() && self.nonlinearity.is_none() && self.residual.is_none()) {
            return;
        }
        y.as_mut_slice().par_chunks_mut(tokens).with_min_len(8).enumerate().for_each(|(feature, row)| {
            let row = EpilogueRow {
                row,
                bias: self.bias.map_or(0.0, |bias| bias[feature]),
                nonlinearity: self.nonlinearity,
                residual: self.residual.map(|r| r.row(feature)),
            };
            pulp::Arch::new().dispatch(row);
        });
    }
}

impl Nonlinearity {
    /// Writes the function of `z` to `y` of the same shape, bit for bit what an epilogue makes of a product plus bias.
    pub(super) fn apply(self, z: &Activations, y: &mut Activations) {
        let tokens = z.tokens();
        if tokens == 0 {
            return;
        }
        y.as_mut_slice().par_chunks_mut(tokens).with_min_len(8).enumerate().for_each(|(feature, row)| {
            row.copy_from_slice(z.row(feature));
            pulp::Arch::new().dispatch(EpilogueRow { row, bias: 0.0, nonlinearity: Some(self), residual: None });
        });
    }
}

/// The epilogue of one feature.
struct EpilogueRow<'a> {
    row: &'a mut [f32],
    bias: f32,
    nonlinearity: Option<Nonlinearity>,
    residual: Option<&'a [f32]>,
}

impl pulp::WithSimd for EpilogueRow<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { row, bias, nonlinearity, residual } = self;
        match nonlinearity {
            None => row.iter_mut().for_each(|v| *v += bias),
            Some(Nonlinearity::Gelu) => row.iter_mut().for_each(|v| *v = math::gelu(*v + bias)),
            Some(Nonlinearity::Relu) => row.iter_mut().for_each(|v| *v = (*v + bias).max(0.0)),
        }
        if let Some(residual) = residual {
            row.iter_mut().zip(residual).for_each(|(v, r)| *v += r);
        }
    }
}

/// Checks the operands of [`LinearOp::forward`] against an operator of shape \[n, k\].
pub fn check_shapes(
    n: usize,
    k: usize,
    x: &Activations,
    y: &Activations,
    epilogue: &Epilogue<'_>,
) -> Result<(), LinearError> {
    let check = |operand, expected: &[usize], got: &[usize]| {
        if expected == got {
            Ok(())
        } else {
            Err(LinearError::Shape { operand, expected: expected.to_vec(), got: got.to_vec() })
        }
    };
    let m = x.tokens();
    check("x", &[k, m], &x.shape())?;
    check("y", &[n, m], &y.shape())?;
    if let Some(bias) = epilogue.bias {
        check("bias", &[n], &[bias.len()])?;
    }
    if let Some(residual) = epilogue.residual {
        check("residual", &[n, m], &residual.shape())?;
    }
    Ok(())
}

/// The dense operator: one parallel GEMM on all cores, then the epilogue. A clone shares the weight.
#[derive(Clone)]
pub struct DenseLinear {
    weight: Arc<[f32]>,
    n: usize,
    k: usize,
}

impl DenseLinear {
    /// Shares a row-major weight \[n, k\].
    pub fn new(weight: Arc<[f32]>, n: usize, k: usize) -> Result<Self, LinearError> {
        if n.checked_mul(k) != Some(weight.len()) {
            return Err(LinearError::Length { expected: [n, k], got: weight.len() });
        }
        Ok(Self { weight, n, k })
    }

    /// The weight, row-major \[n, k\].
    pub fn weight(&self) -> &[f32] {
        &self.weight
    }

    /// \[n, k\].
    pub(super) fn shape(&self) -> [usize; 2] {
        [self.n, self.k]
    }

    /// The weight to change in place; clones keep the old one.
    pub(super) fn weight_mut(&mut self) -> &mut [f32] {
        Arc::make_mut(&mut self.weight)
    }

    /// Another weight of the same length; clones keep the old one.
    pub(super) fn set_weight(&mut self, weight: Arc<[f32]>) {
        debug_assert_eq!(weight.len(), self.weight.len());
        self.weight = weight;
    }
}

impl LinearOp for DenseLinear {
    fn n(&self) -> usize {
        self.n
    }

    fn k(&self) -> usize {
        self.k
    }

    fn forward(&self, x: &Activations, y: &mut Activations, epilogue: &Epilogue<'_>) -> Result<(), LinearError> {
        check_shapes(self.n, self.k, x, y, epilogue)?;
        let m = x.tokens();
        let y_view = ViewMut::new(y.as_mut_slice(), self.n, m, m);
        let (w, x) = (View::new(&self.weight, self.n, self.k, self.k), View::new(x.as_slice(), self.k, m, m));
        multiply(y_view, w, x, Destination::Overwritten, Threads::All);
        epilogue.apply(y);
        Ok(())
    }

    fn describe(&self) -> String {
        format!("dense f32 [{}, {}]", self.n, self.k)
    }
}
