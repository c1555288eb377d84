//! A pruned and packed weight.

use super::PruneError;
use crate::tensor::Tensor;
use fractal_dsl::DType;
use fractal_dsl::pattern::{Packed, Pattern, Selection};

/// A pruned weight: what was kept, packed, and how much it matters.
#[derive(Clone, Debug, PartialEq)]
pub struct Pruned {
    pub(super) pattern: Pattern,
    pub(super) selection: Selection,
    pub(super) packed: Packed<f32>,
    pub(super) dtype: DType,
    pub(super) retained: f64,
    pub(super) kept: usize,
}

impl Pruned {
    /// The pattern.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// The same weight in another pattern that keeps the same, as the e-graph finds them. What this one knows of orders and
    /// groups, which a mask does not tell, goes along.
    ///
    /// # Errors
    /// [`PruneError::Pattern`] where the other pattern does not admit what is kept.
    pub fn with_pattern(&self, pattern: &Pattern) -> Result<Pruned, PruneError> {
        let selection = pattern.adopt(&self.pattern, &self.selection)?;
        let packed = pattern.pack(&selection, &self.packed.unpack())?;
        Ok(Pruned { pattern: pattern.clone(), selection, packed, ..*self })
    }

    /// What every skip kept.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// The packed weight, its values as f32 (each exactly one of [`Pruned::dtype`]).
    pub fn packed(&self) -> &Packed<f32> {
        &self.packed
    }

    /// The pattern in the form in which the weight is packed.
    pub fn packed_pattern(&self) -> &Pattern {
        &self.packed.pattern
    }

    /// Storage type of the values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Importance kept over all importance.
    pub fn retained(&self) -> f64 {
        self.retained
    }

    /// Kept elements.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Dropped elements over all.
    pub fn sparsity(&self) -> f64 {
        1.0 - self.kept as f64 / (self.pattern.n() * self.pattern.k()) as f64
    }

    /// Bytes of the packed weight, index vectors included.
    pub fn packed_bytes(&self) -> usize {
        self.packed.bytes(self.dtype.bytes())
    }

    /// Bytes of the dense weight.
    pub fn dense_bytes(&self) -> usize {
        self.pattern.n() * self.pattern.k() * self.dtype.bytes()
    }

    /// The dense weight [n, k], zero where nothing is kept.
    pub fn dense(&self) -> Tensor {
        Tensor::from_f32(self.dtype, self.pattern.n(), self.pattern.k(), &self.packed.unpack())
            .expect("an unpacked weight has n*k elements")
    }
}
