//! Gradient of LayerNorm (Ba et al., Layer Normalization, 2016), on feature-major activations.
//!
//! With v = (x - mean) scale and y = gamma v + beta: d gamma = sum over tokens of dy v, d beta = sum of dy, and
//! dx = scale (h - mean(h) - v mean(h v)) for h = gamma dy, the means over a token's features.

use rayon::prelude::*;

use super::super::Activations;
use super::super::norm::{LayerNorm, Normed, TOKEN_BLOCK};
use super::NormGradient;
use super::sums::{sum, sum_of_products};

impl LayerNorm {
    /// Replaces dy by dx, and adds to the gradient of gamma and beta.
    pub(super) fn backward(&self, normed: &Normed, dy: &mut Activations, gradient: &mut NormGradient) {
        let tokens = dy.tokens();
        if tokens == 0 {
            return;
        }
        // Sums of each token first, then rows: both passes write disjoint contiguous memory.
        let mut mean = vec![0f32; tokens];
        let mut mean_product = vec![0f32; tokens];
        let blocks = mean.par_chunks_mut(TOKEN_BLOCK).zip(mean_product.par_chunks_mut(TOKEN_BLOCK));
        blocks.enumerate().for_each(|(block, (mean, mean_product))| {
            let (first, gamma) = (block * TOKEN_BLOCK, &self.gamma);
            pulp::Arch::new().dispatch(Means { normed: &normed.values, dy, gamma, first, mean, mean_product });
        });
        let rows = dy.as_mut_slice().par_chunks_mut(tokens).with_min_len(16);
        let parameters = self.gamma.par_iter().zip(&mut gradient.gamma).zip(&mut gradient.beta);
        rows.zip(parameters).enumerate().for_each(|(feature, (row, ((&gamma, d_gamma), d_beta)))| {
            let (normed, scale) = (normed.values.row(feature), &normed.scale[..]);
            let (mean, mean_product) = (&mean[..], &mean_product[..]);
            pulp::Arch::new().dispatch(Row { row, normed, scale, mean, mean_product, gamma, d_gamma, d_beta });
        });
    }
}

/// The means of gamma dy and of gamma dy v over the features of a block of tokens, which come as zeros.
struct Means<'a> {
    normed: &'a Activations,
    dy: &'a Activations,
    gamma: &'a [f32],
    first: usize,
    mean: &'a mut [f32],
    mean_product: &'a mut [f32],
}

impl pulp::WithSimd for Means<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { normed, dy, gamma, first, mean, mean_product } = self;
        let tokens = first..first + mean.len();
        for (feature, gamma) in gamma.iter().enumerate() {
            let values = dy.row(feature)[tokens.clone()].iter().zip(&normed.row(feature)[tokens.clone()]);
            for (((dy, v), sum), product) in values.zip(mean.iter_mut()).zip(mean_product.iter_mut()) {
                let h = gamma * dy;
                *sum += h;
                *product += h * v;
            }
        }
        let inverse = 1.0 / gamma.len() as f32;
        mean.iter_mut().chain(mean_product).for_each(|sum| *sum *= inverse);
    }
}

/// One feature of all tokens.
struct Row<'a> {
    row: &'a mut [f32],
    normed: &'a [f32],
    scale: &'a [f32],
    mean: &'a [f32],
    mean_product: &'a [f32],
    gamma: f32,
    d_gamma: &'a mut f32,
    d_beta: &'a mut f32,
}

impl pulp::WithSimd for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { row, normed, scale, mean, mean_product, gamma, d_gamma, d_beta } = self;
        *d_gamma += sum_of_products(row, normed);
        *d_beta += sum(row);
        let token = scale.iter().zip(mean).zip(mean_product);
        for ((dy, v), ((scale, mean), mean_product)) in row.iter_mut().zip(normed).zip(token) {
            *dy = scale * (gamma * *dy - mean - v * mean_product);
        }
    }
}
