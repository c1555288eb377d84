//! LayerNorm over the features of each token, on feature-major activations.

use std::sync::Arc;

use rayon::prelude::*;

use super::{Activations, BertConfig, ModelError, Weights};

/// Scale and shift of one LayerNorm (Ba et al., Layer Normalization, 2016).
#[derive(Clone, Debug)]
pub(super) struct LayerNorm {
    pub(super) name: String,
    pub(super) gamma: Vec<f32>,
    pub(super) beta: Vec<f32>,
    pub(super) epsilon: f32,
}

/// Tokens whose statistics one task gathers: wide enough for vectors, small enough to balance.
pub(super) const TOKEN_BLOCK: usize = 64;

impl LayerNorm {
    /// Checkpoints converted from TensorFlow call the scale gamma and the shift beta.
    pub(super) fn load(weights: &Weights, config: &BertConfig, name: String) -> Result<Arc<Self>, ModelError> {
        let (mut scale, mut shift) = (format!("{name}.weight"), format!("{name}.bias"));
        if !weights.contains(&scale) && weights.contains(&format!("{name}.gamma")) {
            scale = format!("{name}.gamma");
            shift = format!("{name}.beta");
        }
        Ok(Arc::new(Self {
            gamma: weights.tensor(&scale, &[config.hidden_size])?.data,
            beta: weights.tensor(&shift, &[config.hidden_size])?.data,
            epsilon: config.layer_norm_eps,
            name,
        }))
    }

    /// Normalises each column of `x` in place; `record`, of the same shape, is given what the gradient needs.
    pub(super) fn apply(&self, x: &mut Activations, record: Option<&mut Normed>) {
        let tokens = x.tokens();
        if tokens == 0 {
            return;
        }
        // Statistics first, then rows: both passes write disjoint contiguous memory.
        let mut mean = vec![0f32; tokens];
        let mut scale = vec![0f32; tokens];
        mean.par_chunks_mut(TOKEN_BLOCK).zip(scale.par_chunks_mut(TOKEN_BLOCK)).enumerate().for_each(
            |(block, (mean, scale))| {
                pulp::Arch::new().dispatch(Statistics {
                    x,
                    first: block * TOKEN_BLOCK,
                    epsilon: self.epsilon,
                    mean,
                    scale,
                });
            },
        );
        let normalise = |feature: usize, row: &mut [f32], normed: Option<&mut [f32]>| {
            let (gamma, beta) = (self.gamma[feature], self.beta[feature]);
            pulp::Arch::new().dispatch(NormaliseRow { row, normed, mean: &mean, scale: &scale, gamma, beta });
        };
        let rows = x.as_mut_slice().par_chunks_mut(tokens).with_min_len(16).enumerate();
        match record {
            None => rows.for_each(|(feature, row)| normalise(feature, row, None)),
            Some(record) => {
                let normed = record.values.as_mut_slice().par_chunks_mut(tokens);
                rows.zip(normed).for_each(|((feature, row), normed)| normalise(feature, row, Some(normed)));
                record.scale = scale;
            }
        }
    }

    /// What [`apply`](Self::apply) made of a recorded input, to the last bit.
    pub(super) fn result(&self, normed: &Normed, y: &mut Activations) {
        let tokens = y.tokens();
        if tokens == 0 {
            return;
        }
        y.as_mut_slice().par_chunks_mut(tokens).with_min_len(16).enumerate().for_each(|(feature, row)| {
            let (gamma, beta) = (self.gamma[feature], self.beta[feature]);
            row.iter_mut().zip(normed.values.row(feature)).for_each(|(y, v)| *y = v * gamma + beta);
        });
    }
}

/// What a LayerNorm leaves to its gradient.
pub(super) struct Normed {
    /// (x - mean) scale, \[features, tokens\].
    pub(super) values: Activations,
    /// 1/sqrt(variance + epsilon) of each token.
    pub(super) scale: Vec<f32>,
}

impl Normed {
    pub(super) fn zeros(features: usize, tokens: usize) -> Self {
        Self { values: Activations::zeros(features, tokens), scale: vec![] }
    }
}

/// Mean and 1/sqrt(variance + epsilon) of a block of tokens; `mean` and `scale` come as zeros.
struct Statistics<'a> {
    x: &'a Activations,
    first: usize,
    epsilon: f32,
    mean: &'a mut [f32],
    scale: &'a mut [f32],
}

impl pulp::WithSimd for Statistics<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { x, first, epsilon, mean, scale } = self;
        let tokens = first..first + mean.len();
        let inverse = 1.0 / x.features() as f32;
        for feature in 0..x.features() {
            let row = &x.row(feature)[tokens.clone()];
            mean.iter_mut().zip(row).for_each(|(sum, v)| *sum += v);
        }
        mean.iter_mut().for_each(|sum| *sum *= inverse);
        // A second pass over the values, so that the variance does not cancel.
        for feature in 0..x.features() {
            let row = &x.row(feature)[tokens.clone()];
            for ((sum, v), mean) in scale.iter_mut().zip(row).zip(mean.iter()) {
                *sum += (v - mean) * (v - mean);
            }
        }
        for sum in scale {
            *sum = 1.0 / (*sum * inverse + epsilon).sqrt();
        }
    }
}

/// (x - mean) scale gamma + beta for one feature of all tokens; without gamma and beta in `normed`.
struct NormaliseRow<'a> {
    row: &'a mut [f32],
    normed: Option<&'a mut [f32]>,
    mean: &'a [f32],
    scale: &'a [f32],
    gamma: f32,
    beta: f32,
}

impl pulp::WithSimd for NormaliseRow<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { row, normed, mean, scale, gamma, beta } = self;
        let values = row.iter_mut().zip(mean).zip(scale);
        match normed {
            None => values.for_each(|((v, mean), scale)| *v = (*v - mean) * scale * gamma + beta),
            Some(normed) => values.zip(normed).for_each(|(((v, mean), scale), normed)| {
                *normed = (*v - mean) * scale;
                *v = *normed * gamma + beta;
            }),
        }
    }
}
