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

/// |w| times the norm of its input feature over calibration tokens (Sun et al., Wanda, 2024, eq. 1, without its comparison by rows).
#[derive(Clone, Debug)]
pub struct ActivationAware {
    norms: Vec<f32>,
}

impl ActivationAware {
    /// By the norm of each input feature, \[k\].
    ///
    /// # Errors
    /// [`PruneError::Calibration`] for a norm that is negative or not finite.
    pub fn new(norms: Vec<f32>) -> Result<ActivationAware, PruneError> {
        match norms.iter().position(|norm| !(norm.is_finite() && *norm >= 0.0)) {
            Some(at) => Err(PruneError::Calibration {
                expected: "finite norms of at least 0".into(),
                found: format!("{} of input {at}", norms[at]),
            }),
            None => Ok(ActivationAware { norms }),
        }
    }
}

impl Importance for ActivationAware {
    fn scores(&self, weights: &[f32], n: usize, k: usize) -> Result<Vec<f32>, PruneError> {
        if self.norms.len() != k {
            let expected = format!("a norm for each of {k} inputs");
            return Err(PruneError::Calibration { expected, found: self.norms.len().to_string() });
        }
        let mut scores = Vec::with_capacity(n * k);
        // The product may leave f32; any greater one is as important.
        let score = |(w, norm): (&f32, &f32)| (w.abs() * norm).min(f32::MAX);
        weights.chunks_exact(k).for_each(|row| scores.extend(row.iter().zip(&self.norms).map(score)));
        Ok(scores)
    }
}

/// |w g|: how much the loss would change, to first order, without the weight (Molchanov et al., Importance estimation for neural
/// network pruning, 2019, section 3.1).
#[derive(Clone, Debug)]
pub struct Taylor {
    gradients: Vec<f32>,
}

impl Taylor {
    /// By the loss' gradient of each weight, \[n, k\], row-major, or its root mean square over batches.
    ///
    /// # Errors
    /// [`PruneError::Calibration`] for a gradient that is not finite.
    pub fn new(gradients: Vec<f32>) -> Result<Taylor, PruneError> {
        match gradients.iter().position(|g| !g.is_finite()) {
            Some(at) => Err(PruneError::Calibration {
                expected: "finite gradients".into(),
                found: format!("{} at {at}", gradients[at]),
            }),
            None => Ok(Taylor { gradients }),
        }
    }
}

impl Importance for Taylor {
    fn scores(&self, weights: &[f32], n: usize, k: usize) -> Result<Vec<f32>, PruneError> {
        if self.gradients.len() != n * k {
            let expected = format!("a gradient for each of {n}*{k} weights");
            return Err(PruneError::Calibration { expected, found: self.gradients.len().to_string() });
        }
        Ok(weights.iter().zip(&self.gradients).map(|(w, g)| (w * g).abs().min(f32::MAX)).collect())
    }
}
