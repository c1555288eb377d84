//! A layer's weights, pattern and statistics -> pruned by the method asked for.

use super::second_order::{LayerStatistics, Reconstructed, SecondOrder};
use super::{ActivationAware, Importance, Magnitude, PruneError, Pruned, Taylor, checked, prune_by};
use crate::tensor::Tensor;
use fractal_dsl::pattern::{Mask, Pattern};

/// How a layer is pruned.
#[derive(Clone, Debug)]
pub enum Method {
    /// The greatest weights stay as they are.
    Magnitude,
    /// The greatest products of weight and gradient stay as they are.
    Taylor(Taylor),
    /// The greatest products of weight and input norm stay as they are.
    ActivationAware,
    /// Mask and kept weights of least error.
    SecondOrder(SecondOrder),
}

impl Method {
    /// Prunes `weight` \[n, k\] to `pattern`.
    ///
    /// # Errors
    /// [`PruneError`].
    pub fn prune(
        &self,
        pattern: &Pattern,
        weight: &Tensor,
        statistics: LayerStatistics,
    ) -> Result<Reconstructed, PruneError> {
        self.prune_within(pattern, weight, statistics, None)
    }

    /// The same where all but `within` was dropped before: none of that is kept unless the pattern cannot be filled otherwise.
    ///
    /// # Errors
    /// As [`Method::prune`]; [`PruneError::Shape`] for a mask of another shape.
    pub fn prune_within(
        &self,
        pattern: &Pattern,
        weight: &Tensor,
        statistics: LayerStatistics,
        within: Option<&Mask>,
    ) -> Result<Reconstructed, PruneError> {
        let by = |importance: &dyn Importance, statistics| {
            super::second_order::measured(scored(pattern, weight, importance, within)?, weight, statistics)
        };
        match self {
            Method::Magnitude => by(&Magnitude, statistics),
            Method::Taylor(taylor) => by(taylor, statistics),
            Method::ActivationAware => by(&ActivationAware::new(statistics.input_norms())?, statistics),
            Method::SecondOrder(settings) => settings.prune_within(pattern, weight, statistics, within),
        }
    }
}

/// Prunes by scores, those of what was dropped before being 0.
fn scored(
    pattern: &Pattern,
    weight: &Tensor,
    importance: &dyn Importance,
    within: Option<&Mask>,
) -> Result<Pruned, PruneError> {
    let Some(within) = within else { return super::prune(pattern, weight, importance) };
    fits(pattern, within)?;
    let weights = checked(pattern, weight)?;
    let scores = importance.scores(&weights, pattern.n(), pattern.k())?;
    let left = within.apply(&scores)?;
    let pruned = prune_by(pattern, &weights, weight.dtype(), &left)?;
    let sum = |scores: &[f32]| scores.iter().map(|&score| f64::from(score)).sum::<f64>();
    let all = sum(&scores);
    let retained = if all > 0.0 { pruned.retained() * sum(&left) / all } else { 1.0 };
    Ok(pruned.with_retained(retained))
}

/// Whether a mask is one of the pattern's weights.
pub(super) fn fits(pattern: &Pattern, mask: &Mask) -> Result<(), PruneError> {
    let (n, k) = (pattern.n(), pattern.k());
    match (mask.n(), mask.k()) == (n, k) {
        true => Ok(()),
        false => Err(PruneError::Shape { found_n: mask.n(), found_k: mask.k(), n, k }),
    }
}
