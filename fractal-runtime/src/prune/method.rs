//! A layer's weights, pattern and statistics -> pruned by the method asked for.

use super::second_order::{LayerStatistics, Reconstructed, SecondOrder};
use super::{ActivationAware, Importance, Magnitude, PruneError, Taylor};
use crate::tensor::Tensor;
use fractal_dsl::pattern::Pattern;

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
        let by = |importance: &dyn Importance, statistics| {
            super::second_order::measured(super::prune(pattern, weight, importance)?, weight, statistics)
        };
        match self {
            Method::Magnitude => by(&Magnitude, statistics),
            Method::Taylor(taylor) => by(taylor, statistics),
            Method::ActivationAware => by(&ActivationAware::new(statistics.input_norms())?, statistics),
            Method::SecondOrder(settings) => settings.prune(pattern, weight, statistics),
        }
    }
}
