//! LayerNorm over the features of each token, on feature-major activations.

use rayon::prelude::*;

use super::Activations;

/// Scale and shift of one LayerNorm (Ba et al., Layer Normalization, 2016).
#[derive(Clone, Debug)]
pub(super) struct LayerNorm {
    pub(super) gamma: Vec<f32>,
    pub(super) beta: Vec<f32>,
    pub(super) epsilon: f32,
}

/// Tokens whose statistics one task gathers: wide enough for vectors, small enough to balance.
const TOKEN_BLOCK: usize = 64;

impl LayerNorm {
    /// Normalises each column of `x` in place.
    pub(super) fn apply(&self, x: &mut Activations) {
        let tokens = x.tokens();
        if tokens == 0 {
            return;
        }
        // Statistics first, then rows: both passes write disjoint contiguous memory.
        let mut mean = vec![0f32; tokens];
        let mut scale = vec![0f32; tokens];
        mean.par_chunks_mut(TOKEN_BLOCK).zip(scale.par_chunks_mut(TOKEN_BLOCK)).enumerate().for_each(
            |(block, (mean, scale))| {
                let start = block * TOKEN_BLOCK;
                pulp::Arch::new().dispatch(|| statistics(x, start, self.epsilon, mean, scale));
            },
        );
        x.as_mut_slice().par_chunks_mut(tokens).with_min_len(16).enumerate().for_each(|(feature, row)| {
            let (gamma, beta) = (self.gamma[feature], self.beta[feature]);
            pulp::Arch::new().dispatch(|| {
                for ((v, mean), scale) in row.iter_mut().zip(&mean).zip(&scale) {
                    *v = (*v - mean) * scale * gamma + beta;
                }
            });
        });
    }
}

/// Mean and 1/sqrt(variance + epsilon) of a block of tokens, in two passes so that the variance does not cancel.
#[inline(always)]
fn statistics(x: &Activations, start: usize, epsilon: f32, mean: &mut [f32], scale: &mut [f32]) {
    let width = mean.len();
    let features = x.features();
    let inverse = 1.0 / features as f32;
    for feature in 0..features {
        let row = &x.row(feature)[start..start + width];
        mean.iter_mut().zip(row).for_each(|(sum, v)| *sum += v);
    }
    mean.iter_mut().for_each(|sum| *sum *= inverse);
    for feature in 0..features {
        let row = &x.row(feature)[start..start + width];
        for ((sum, v), mean) in scale.iter_mut().zip(row).zip(mean.iter()) {
            *sum += (v - mean) * (v - mean);
        }
    }
    scale.iter_mut().for_each(|sum| *sum = 1.0 / (*sum * inverse + epsilon).sqrt());
}
