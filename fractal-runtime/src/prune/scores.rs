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

/// By how much a loss changes, to first order, where a weight w of gradient g becomes 0: |w g| (Molchanov et al.,
/// Importance Estimation for Neural Network Pruning, 2019, eq. 3 before it is squared).
///
/// The loss needs a slope: the distance of a model's embeddings to themselves has none. Of a sentence embedder, the
/// gradients of [`contrastive`](crate::model::contrastive) have one, and so has the mean of squared gradients of
/// [`probe`](crate::model::probe).
#[derive(Clone, Debug)]
pub struct Taylor {
    /// Absolute values of the gradients, row-major.
    gradients: Vec<f32>,
}

impl Taylor {
    /// From the gradients \[n, k\] of the loss by the weights, row-major.
    ///
    /// # Errors
    /// [`PruneError`] where there are not n k gradients, or one is not finite.
    pub fn new(gradients: Vec<f32>, n: usize, k: usize) -> Result<Self, PruneError> {
        check_gradients(&gradients, n, k, "a finite number", f32::is_finite)?;
        Ok(Self { gradients: gradients.into_iter().map(f32::abs).collect() })
    }

    /// From the means of squared gradients over batches: the scores are the root mean square of w g, where gradients of
    /// opposite signs do not cancel.
    ///
    /// # Errors
    /// As [`new`](Self::new); also for a negative mean.
    pub fn from_squares(squares: Vec<f32>, n: usize, k: usize) -> Result<Self, PruneError> {
        let fits = |value: f32| value.is_finite() && value >= 0.0;
        check_gradients(&squares, n, k, "a finite mean square of at least 0", fits)?;
        Ok(Self { gradients: squares.into_iter().map(f32::sqrt).collect() })
    }
}

fn check_gradients(
    values: &[f32],
    n: usize,
    k: usize,
    expected: &'static str,
    fits: impl Fn(f32) -> bool,
) -> Result<(), PruneError> {
    if n.checked_mul(k) != Some(values.len()) {
        return Err(PruneError::GradientLength { expected: n.saturating_mul(k), found: values.len() });
    }
    match values.iter().position(|&value| !fits(value)) {
        Some(at) => Err(PruneError::Gradient { n: at / k, k: at % k, value: values[at], expected }),
        None => Ok(()),
    }
}

impl Importance for Taylor {
    fn scores(&self, weights: &[f32], _n: usize, _k: usize) -> Result<Vec<f32>, PruneError> {
        if weights.len() != self.gradients.len() {
            return Err(PruneError::GradientLength { expected: weights.len(), found: self.gradients.len() });
        }
        Ok(weights.iter().zip(&self.gradients).map(|(w, g)| (w * g).abs()).collect())
    }
}

/// A number for each input.
fn check_inputs(values: &[f32], expected: &str) -> Result<(), PruneError> {
    match values.iter().position(|value| !(value.is_finite() && *value >= 0.0)) {
        Some(at) => {
            Err(PruneError::Calibration { expected: expected.into(), found: format!("{} of input {at}", values[at]) })
        }
        None => Ok(()),
    }
}

/// Scores of a weight and what is known of its input.
fn by_inputs(
    weights: &[f32],
    n: usize,
    k: usize,
    inputs: &[f32],
    score: impl Fn(f32, f32) -> f32,
) -> Result<Vec<f32>, PruneError> {
    if inputs.len() != k {
        let expected = format!("a value for each of {k} inputs");
        return Err(PruneError::Calibration { expected, found: inputs.len().to_string() });
    }
    let mut scores = Vec::with_capacity(n * k);
    // A score may leave f32; any greater one is as important.
    let one = |(w, input): (&f32, &f32)| score(*w, *input).min(f32::MAX);
    weights.chunks_exact(k).for_each(|row| scores.extend(row.iter().zip(inputs).map(one)));
    Ok(scores)
}

/// Scores computed elsewhere, one for each weight.
#[derive(Clone, Debug)]
pub struct Given(pub Vec<f32>);

impl Importance for Given {
    fn scores(&self, _weights: &[f32], _n: usize, _k: usize) -> Result<Vec<f32>, PruneError> {
        Ok(self.0.clone())
    }
}

/// w^2 times a factor of its input: what dropping the weight adds to the layer's error while its row's other weights make up for it
/// (Hassibi and Stork, Optimal brain surgeon, 1993, eq. 5), by [`SecondOrder::curvature`](crate::SecondOrder::curvature).
#[derive(Clone, Debug, PartialEq)]
pub struct Curvature {
    factors: Vec<f32>,
}

impl Curvature {
    /// By the factor of each input, \[k\].
    ///
    /// # Errors
    /// [`PruneError::Calibration`] for a factor that is negative or not finite.
    pub fn new(factors: Vec<f32>) -> Result<Curvature, PruneError> {
        check_inputs(&factors, "finite factors of at least 0")?;
        Ok(Curvature { factors })
    }

    /// The factor of each input, \[k\].
    pub fn factors(&self) -> &[f32] {
        &self.factors
    }
}

impl Importance for Curvature {
    fn scores(&self, weights: &[f32], n: usize, k: usize) -> Result<Vec<f32>, PruneError> {
        by_inputs(weights, n, k, &self.factors, |w, factor| w * w * factor)
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
        check_inputs(&norms, "finite norms of at least 0")?;
        Ok(ActivationAware { norms })
    }
}

impl Importance for ActivationAware {
    fn scores(&self, weights: &[f32], n: usize, k: usize) -> Result<Vec<f32>, PruneError> {
        by_inputs(weights, n, k, &self.norms, |w, norm| w.abs() * norm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_order_scores() {
        let weights = [1.0, -2.0, 0.0, 4.0, 0.5, -1.0];
        let taylor = Taylor::new(vec![0.5, 0.25, -3.0, -1.0, 0.0, -2.0], 2, 3).unwrap();
        assert_eq!(taylor.scores(&weights, 2, 3).unwrap(), [0.5, 0.5, 0.0, 4.0, 0.0, 2.0]);
        let squares = Taylor::from_squares(vec![0.25, 0.0625, 9.0, 1.0, 0.0, 4.0], 2, 3).unwrap();
        assert_eq!(squares.scores(&weights, 2, 3).unwrap(), taylor.scores(&weights, 2, 3).unwrap());
    }

    #[test]
    fn gradients_that_do_not_fit_are_refused() {
        let text = |result: Result<Taylor, PruneError>| result.unwrap_err().to_string();
        let expected = "prune: expected 6 gradients, one for each weight, found 5";
        assert_eq!(text(Taylor::new(vec![0.0; 5], 2, 3)), expected);
        let expected = "prune: the gradient of the weight at (1, 1) is NaN; expected a finite number";
        assert_eq!(text(Taylor::new(vec![0.0, 0.0, 0.0, 0.0, f32::NAN, 0.0], 2, 3)), expected);
        let expected = "prune: the gradient of the weight at (0, 1) is -1; expected a finite mean square of at least 0";
        assert_eq!(text(Taylor::from_squares(vec![0.0, -1.0], 1, 2)), expected);
        let taylor = Taylor::new(vec![0.0; 6], 2, 3).unwrap();
        let error = taylor.scores(&[0.0; 4], 2, 2).unwrap_err();
        assert_eq!(error.to_string(), "prune: expected 4 gradients, one for each weight, found 6");
        assert!(Taylor::new(vec![], 0, 0).is_ok() && Taylor::new(vec![], usize::MAX, 2).is_err());
    }
}
