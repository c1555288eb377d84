//! Pruning: importance of each weight -> what the pattern keeps -> packed weight.
//!
//! | file | what it does |
//! |---|---|
//! | `budget` | what each layer of a model keeps |
//! | `method` | one of the methods below, by name |
//! | `scores` | weights and what is known about their inputs -> scores |
//! | `second_order/` | weights and statistics of their inputs -> the mask and the kept weights of least error |
//! | `pruned` | what was kept, packed |
//! | `mask` | what was kept, without the weight |
//! | `file` | pruned weights and masks <-> safetensors files |
//! | `residue` | single elements restored on top of a pattern |
//! | `error` | what can go wrong |

pub mod budget;
mod error;
mod file;
mod mask;
mod method;
mod pruned;
mod residue;
mod scores;
mod second_order;

pub use error::PruneError;
pub use file::{LayerFault, PrunedFile, PrunedFileError, RawTensor, RawType, ReadLimits, StoredWeight};
pub use mask::PrunedMask;
pub use method::Method;
pub use pruned::Pruned;
pub use residue::{Residue, prune_with_residue};
pub use scores::{ActivationAware, Curvature, Given, Magnitude, Taylor};
pub use second_order::{LayerStatistics, Reconstructed, SecondOrder};

use crate::tensor::Tensor;
use fractal_dsl::DType;
use fractal_dsl::pattern::{Mask, Pattern, Selection};

/// How much each weight matters.
pub trait Importance {
    /// Scores of the weights [n, k], row-major: one for each weight, finite and not negative, greater meaning more important.
    /// What is retained is a sum of them over the sum of all.
    ///
    /// # Errors
    /// Whatever keeps the scores from being computed.
    fn scores(&self, weights: &[f32], n: usize, k: usize) -> Result<Vec<f32>, PruneError>;
}

/// Prunes `weight` [n, k] to `pattern` by `importance`.
///
/// # Errors
/// [`PruneError`].
pub fn prune(pattern: &Pattern, weight: &Tensor, importance: &dyn Importance) -> Result<Pruned, PruneError> {
    let weights = checked(pattern, weight)?;
    let scores = importance.scores(&weights, pattern.n(), pattern.k())?;
    prune_by(pattern, &weights, weight.dtype(), &scores)
}

/// Prunes finite weights [n, k] by their scores.
pub(crate) fn prune_by(pattern: &Pattern, weights: &[f32], dtype: DType, scores: &[f32]) -> Result<Pruned, PruneError> {
    if let Some(at) = scores.iter().position(|&score| score < 0.0) {
        let k = pattern.k().max(1);
        return Err(PruneError::Negative { n: at / k, k: at % k, value: scores[at] });
    }
    let selection = pattern.project(scores)?;
    let mask = pattern.mask(&selection)?;
    let sum = |scores: &[f32]| scores.iter().map(|&s| f64::from(s)).sum::<f64>();
    let all = sum(scores);
    let retained = if all == 0.0 { 1.0 } else { sum(&mask.apply(scores)?) / all };
    let packed = pattern.pack(&selection, weights)?;
    Ok(Pruned { pattern: pattern.clone(), selection, packed, dtype, retained, kept: mask.count(), residue: None })
}

/// Packs a weight that is pruned already: `mask` tells which elements are kept.
///
/// # Errors
/// [`PruneError::Pattern`] where the pattern does not admit the mask.
pub fn pack_masked(pattern: &Pattern, weight: &Tensor, mask: &Mask) -> Result<Pruned, PruneError> {
    let weights = checked(pattern, weight)?;
    pruned_from(pattern, pattern.admits(mask)?, mask, &weights, weight.dtype())
}

/// Packs what `mask` keeps, as `selection` places it.
fn pruned_from(
    pattern: &Pattern,
    selection: Selection,
    mask: &Mask,
    weights: &[f32],
    dtype: DType,
) -> Result<Pruned, PruneError> {
    let kept = mask.apply(weights)?;
    let sum = |weights: &[f32]| weights.iter().map(|w| f64::from(w.abs())).sum::<f64>();
    let (all, retained) = (sum(weights), sum(&kept));
    let packed = pattern.pack(&selection, &kept)?;
    let retained = if all == 0.0 { 1.0 } else { retained / all };
    let (pattern, kept) = (pattern.clone(), mask.count());
    Ok(Pruned { pattern, selection, packed, dtype, retained, kept, residue: None })
}

/// The elements of a weight that has the pattern's shape and is finite. A NaN that is kept would reach every token.
fn checked(pattern: &Pattern, weight: &Tensor) -> Result<Vec<f32>, PruneError> {
    let (n, k) = (pattern.n(), pattern.k());
    if (weight.rows(), weight.columns()) != (n, k) {
        return Err(PruneError::Shape { found_n: weight.rows(), found_k: weight.columns(), n, k });
    }
    let weights = weight.to_f32();
    match weights.iter().position(|w| !w.is_finite()) {
        Some(at) => Err(PruneError::NotFinite { n: at / k, k: at % k, value: weights[at] }),
        None => Ok(weights),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_are_not_finite_are_refused_however_they_are_scored() {
        let pattern = Pattern::dense(2, 3).unwrap();
        let all = Mask::from_fn(2, 3, |_, _| true);
        for dtype in DType::ALL {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let weight = Tensor::from_f32(dtype, 2, 3, &[1.0, 2.0, 3.0, 4.0, bad, 6.0]).unwrap();
                let expected =
                    format!("prune: the weight at (1, 1) is {bad}; expected a finite number: mend the checkpoint");
                for result in [
                    prune(&pattern, &weight, &Magnitude),
                    prune(&pattern, &weight, &Given(vec![1.0; 6])),
                    pack_masked(&pattern, &weight, &all),
                ] {
                    assert_eq!(result.unwrap_err().to_string(), expected, "{dtype}");
                }
            }
        }
    }

    #[test]
    fn negative_scores_are_refused() {
        let pattern = Pattern::dense(2, 3).unwrap();
        let weight = Tensor::zeros(DType::F32, 2, 3);
        let error = prune(&pattern, &weight, &Given(vec![0.0, 1.0, 2.0, 3.0, 4.0, -0.5])).unwrap_err();
        assert!(error.to_string().starts_with("prune: the score of the weight at (1, 2) is -0.5; expected one of"));
        prune(&pattern, &weight, &Given(vec![-0.0; 6])).unwrap();
    }
}
