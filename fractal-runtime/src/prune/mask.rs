//! What was kept of a weight, without the weight: to be stored, and to prune other weights of the shape alike.

use super::residue::Places;
use super::{PruneError, Pruned, Residue, checked, pruned_from};
use crate::tensor::Tensor;
use fractal_dsl::pattern::{Mask, Pattern, Selection};

/// A pattern and what every skip of it kept, and the elements that a residue restores on top of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrunedMask {
    pub(super) pattern: Pattern,
    pub(super) selection: Selection,
    pub(super) restored: Option<Places>,
}

impl PrunedMask {
    /// A selection of a pattern.
    ///
    /// # Errors
    /// [`PruneError::Pattern`] for one that pruning could not have made: an index out of range, a region that keeps more
    /// or fewer iterations than it should.
    pub fn new(pattern: Pattern, selection: Selection) -> Result<PrunedMask, PruneError> {
        selection.check_filled(&pattern)?;
        Ok(PrunedMask { pattern, selection, restored: None })
    }

    /// The pattern.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// What every skip kept.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Row and column of each element that is restored on top of the pattern.
    pub fn restored(&self) -> impl Iterator<Item = (usize, usize)> {
        self.restored.iter().flat_map(Places::iter)
    }

    /// The kept elements, by the pattern or restored.
    pub fn mask(&self) -> Mask {
        let mut mask = self.of_pattern();
        self.restored().for_each(|(n, k)| mask.insert(n, k));
        mask
    }

    fn of_pattern(&self) -> Mask {
        self.pattern.mask(&self.selection).expect("the selection was checked against the pattern")
    }

    /// Packs what the mask keeps of `weight` [n, k], restored elements as a residue; [`Pruned::retained`] is its part of all
    /// absolute values.
    ///
    /// # Errors
    /// [`PruneError::Shape`], [`PruneError::NotFinite`].
    pub fn prune(&self, weight: &Tensor) -> Result<Pruned, PruneError> {
        let weights = checked(&self.pattern, weight)?;
        let pruned = pruned_from(&self.pattern, self.selection.clone(), &self.of_pattern(), &weights, weight.dtype())?;
        let Some(places) = &self.restored else { return Ok(pruned) };
        let residue = places.residue_of(&weights, self.pattern.k());
        let sizes: Vec<f32> = weights.iter().map(|w| w.abs()).collect();
        Ok(pruned.restore(residue, &sizes))
    }
}

impl From<&Pruned> for PrunedMask {
    fn from(pruned: &Pruned) -> PrunedMask {
        let (pattern, selection) = (pruned.pattern.clone(), pruned.selection.clone());
        PrunedMask { pattern, selection, restored: pruned.residue().map(Residue::places).cloned() }
    }
}
