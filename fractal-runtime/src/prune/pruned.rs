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

    /// The same, each value rounded to `dtype`.
    ///
    /// # Errors
    /// [`PruneError::Rounded`] for a value beyond its range.
    pub fn stored_as(mut self, dtype: DType) -> Result<Pruned, PruneError> {
        if dtype != DType::F32 {
            let columns = self.packed.values.len();
            let rounded = Tensor::from_f32(dtype, 1, columns, &self.packed.values)?.to_f32();
            if let Some(at) = rounded.iter().position(|v| !v.is_finite()) {
                return Err(PruneError::Rounded { value: self.packed.values[at], dtype });
            }
            self.packed.values = rounded;
        }
        self.dtype = dtype;
        Ok(self)
    }

    /// The same with another share of retained importance: of the scores that chose the mask, where the weights were fitted since.
    #[must_use]
    pub fn with_retained(mut self, retained: f64) -> Pruned {
        self.retained = retained.clamp(0.0, 1.0);
        self
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
