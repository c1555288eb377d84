//! A pruned and packed weight.

use super::{PruneError, Residue};
use crate::tensor::Tensor;
use fractal_dsl::DType;
use fractal_dsl::pattern::{Mask, Packed, Pattern, Selection};

/// A pruned weight: what was kept, packed, and how much it matters. Single elements may be restored on top of the pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct Pruned {
    pub(super) pattern: Pattern,
    pub(super) selection: Selection,
    pub(super) packed: Packed<f32>,
    pub(super) dtype: DType,
    pub(super) retained: f64,
    pub(super) kept: usize,
    pub(super) residue: Option<Residue>,
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
        Ok(Pruned { pattern: pattern.clone(), selection, packed, ..self.clone() })
    }

    /// What every skip kept.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// The elements restored on top of the pattern, where there are any.
    pub fn residue(&self) -> Option<&Residue> {
        self.residue.as_ref()
    }

    /// Which elements are kept, by the pattern or the residue.
    pub fn mask(&self) -> Mask {
        let mut mask = self.pattern.mask(&self.selection).expect("the selection is the pattern's");
        self.residue.iter().flat_map(Residue::elements).for_each(|(n, k, _)| mask.insert(n, k));
        mask
    }

    /// The pattern's part, packed, its values as f32 (each exactly one of [`Pruned::dtype`]).
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
        let rounded = |values: &[f32]| -> Result<Vec<f32>, PruneError> {
            let rounded = Tensor::from_f32(dtype, 1, values.len(), values)?.to_f32();
            match rounded.iter().position(|v| !v.is_finite()) {
                Some(at) => Err(PruneError::Rounded { value: values[at], dtype }),
                None => Ok(rounded),
            }
        };
        if dtype != DType::F32 {
            self.packed.values = rounded(&self.packed.values)?;
            if let Some(residue) = &mut self.residue {
                let values = rounded(residue.values())?;
                *residue = residue.clone().with_values(values);
            }
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

    /// Kept elements, those of the residue included.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Dropped elements over all.
    pub fn sparsity(&self) -> f64 {
        1.0 - self.kept as f64 / (self.pattern.n() * self.pattern.k()) as f64
    }

    /// Bytes of the packed weight and its residue, index vectors included.
    pub fn packed_bytes(&self) -> usize {
        let element = self.dtype.bytes();
        self.packed.bytes(element) + self.residue.as_ref().map_or(0, |residue| residue.bytes(element))
    }

    /// Bytes of the dense weight.
    pub fn dense_bytes(&self) -> usize {
        self.pattern.n() * self.pattern.k() * self.dtype.bytes()
    }

    /// The dense weight [n, k], zero where nothing is kept.
    pub fn dense(&self) -> Tensor {
        let (n, k) = (self.pattern.n(), self.pattern.k());
        Tensor::from_f32(self.dtype, n, k, &self.unpack()).expect("an unpacked weight has n*k elements")
    }

    /// The values of [`Pruned::dense`].
    pub(super) fn unpack(&self) -> Vec<f32> {
        let (mut weights, k) = (self.packed.unpack(), self.pattern.k());
        self.residue.iter().flat_map(Residue::elements).for_each(|(row, column, v)| weights[row * k + column] = v);
        weights
    }
}
