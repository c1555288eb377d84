//! What was kept of a weight, without the weight: to be stored, and to prune other weights of the shape alike.

use super::{PruneError, Pruned, checked, pruned_from};
use crate::tensor::Tensor;
use fractal_dsl::pattern::{Mask, Pattern, Selection};

/// A pattern and what every skip of it kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrunedMask {
    pub(super) pattern: Pattern,
    pub(super) selection: Selection,
}

impl PrunedMask {
    /// A selection of a pattern.
    ///
    /// # Errors
    /// [`PruneError::Pattern`] for one that pruning could not have made: an index out of range, a region that keeps more
    /// or fewer iterations than it should.
    pub fn new(pattern: Pattern, selection: Selection) -> Result<PrunedMask, PruneError> {
        selection.check_filled(&pattern)?;
        Ok(PrunedMask { pattern, selection })
    }

    /// The pattern.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// What every skip kept.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// The kept elements.
    pub fn mask(&self) -> Mask {
        self.pattern.mask(&self.selection).expect("the selection was checked against the pattern")
    }

    /// Packs what the mask keeps of `weight` [n, k]; [`Pruned::retained`] is its part of all absolute values.
    ///
    /// # Errors
    /// [`PruneError::Shape`], [`PruneError::NotFinite`].
    pub fn prune(&self, weight: &Tensor) -> Result<Pruned, PruneError> {
        let weights = checked(&self.pattern, weight)?;
        pruned_from(&self.pattern, self.selection.clone(), &self.mask(), &weights, weight.dtype())
    }
}

impl From<&Pruned> for PrunedMask {
    fn from(pruned: &Pruned) -> PrunedMask {
        PrunedMask { pattern: pruned.pattern.clone(), selection: pruned.selection.clone() }
    }
}
