//! Gradient of the mean over a sentence's tokens, scaled to length 1.
//!
//! With the mean u and e = u / |u|: du = (de - e (e . de)) / |u|, and each token has du over the number of tokens.

use std::ops::Range;

use rayon::prelude::*;

use super::super::Activations;
use super::super::bert::{LEAST_NORM, mean};

/// Replaces the encoder's result x by its gradient; `d` has a vector for each sentence.
pub(super) fn pool_backward(spans: &[Range<usize>], d: &[Vec<f32>], x: &mut Activations) {
    let tokens = x.tokens();
    if tokens == 0 {
        return;
    }
    let sentences = spans.par_iter().zip(d);
    let per_token: Vec<Vec<f32>> = sentences.map(|(span, d)| sentence_gradient(x, span, d)).collect();
    x.as_mut_slice().par_chunks_mut(tokens).with_min_len(16).enumerate().for_each(|(feature, row)| {
        for (span, d) in spans.iter().zip(&per_token) {
            row[span.clone()].fill(d[feature]);
        }
    });
}

fn sentence_gradient(x: &Activations, span: &Range<usize>, d: &[f32]) -> Vec<f32> {
    let (mut mean, norm) = mean(x, span);
    let scale = 1.0 / norm.max(LEAST_NORM);
    mean.iter_mut().for_each(|v| *v *= scale);
    // A mean of length 0 is divided by a constant.
    let along = if norm > LEAST_NORM { mean.iter().zip(d).map(|(e, d)| e * d).sum() } else { 0.0 };
    let per_token = scale / span.len() as f32;
    mean.iter().zip(d).map(|(e, d)| (d - e * along) * per_token).collect()
}
