//! How much each weight matters: weights, and what is known about their inputs -> scores.

use super::{Importance, PruneError};

/// The absolute value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Magnitude;

impl Importance for Magnitude {
    fn scores(&self, weights: &[f32], _n: usize, _k: usize) -> Result<Vec<f32>, PruneError> {
        Ok(weights.iter().map(|w| w.abs()).collect())
    }
}

/// Scores computed elsewhere, one for each weight.
#[derive(Clone, Debug)]
pub struct Given(pub Vec<f32>);

impl Importance for Given {
    fn scores(&self, _weights: &[f32], _n: usize, _k: usize) -> Result<Vec<f32>, PruneError> {
        Ok(self.0.clone())
    }
}
