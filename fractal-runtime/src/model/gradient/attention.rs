//! Gradient of multi-head self-attention. The weights P are computed again, one sentence and head at a time: storing
//! them would take tokens times sentence length for every head of every block.
//!
//! With S = Q' K / sqrt(head size), P = softmax of S's rows, O = V P' (matrices \[head size, tokens\] of a sentence):
//! dV = dO P, dP = dO' V, dS = P (dP - row sums of P dP), dQ = K dS' / sqrt(head size), dK = Q dS / sqrt(head size).

use std::ops::Range;

use rayon::prelude::*;

use super::super::Activations;
use super::super::attention::{LANES, softmax_numerators};
use super::super::product::{Destination, Threads, View, ViewMut, multiply};
use super::sums::sum_of_products;

/// Queries, keys and values of a block, or their gradients: \[heads * head size, tokens\] each.
pub(super) struct Heads<T> {
    pub(super) query: T,
    pub(super) key: T,
    pub(super) value: T,
}

/// Writes all of `gradient`, that of queries, keys and values, from that of the attention's result.
pub(super) fn attention_backward(
    heads: usize,
    sentences: &[Range<usize>],
    forward: &Heads<&Activations>,
    d_out: &Activations,
    gradient: &mut Heads<Activations>,
) {
    let tokens = d_out.tokens();
    let size = d_out.features() / heads;
    let head_len = size * tokens;
    if head_len == 0 {
        return;
    }
    let query = gradient.query.as_mut_slice().par_chunks_mut(head_len);
    let key = gradient.key.as_mut_slice().par_chunks_mut(head_len);
    let value = gradient.value.as_mut_slice().par_chunks_mut(head_len);
    query.zip(key).zip(value).enumerate().for_each_init(Scratch::default, |scratch, (head, ((query, key), value))| {
        let rows = head * head_len..(head + 1) * head_len;
        let forward = Heads {
            query: &forward.query.as_slice()[rows.clone()],
            key: &forward.key.as_slice()[rows.clone()],
            value: &forward.value.as_slice()[rows.clone()],
        };
        let mut gradient = Heads { query, key, value };
        for sentence in sentences {
            scratch.sentence(size, tokens, sentence, &forward, &d_out.as_slice()[rows.clone()], &mut gradient);
        }
    });
}

/// Matrices \[queries, keys\] of one sentence, rows in whole blocks of [`LANES`].
#[derive(Default)]
struct Scratch {
    p: Vec<[f32; LANES]>,
    dp: Vec<[f32; LANES]>,
}

impl Scratch {
    /// One head of one sentence; the slices are \[size, tokens\].
    fn sentence(
        &mut self,
        size: usize,
        tokens: usize,
        sentence: &Range<usize>,
        forward: &Heads<&[f32]>,
        d_out: &[f32],
        gradient: &mut Heads<&mut [f32]>,
    ) {
        let (first, len) = (sentence.start, sentence.len());
        let row = len.div_ceil(LANES);
        let scale = 1.0 / (size as f32).sqrt();
        let [q, k, v, d_out] =
            [forward.query, forward.key, forward.value, d_out].map(|data| View::new(&data[first..], size, len, tokens));
        // Grown only: the products write what is read of them.
        if self.p.len() < len * row {
            self.p.resize(len * row, [0.0; LANES]);
            self.dp.resize(len * row, [0.0; LANES]);
        }
        let (p, dp) = (&mut self.p[..len * row], &mut self.dp[..len * row]);
        let square = (len, len, row * LANES);
        multiply(matrix(p.as_flattened_mut(), square), q.transposed(), k, Destination::Overwritten, Threads::One);
        pulp::Arch::new().dispatch(Softmax { p, row, len, scale });
        multiply(matrix(dp.as_flattened_mut(), square), d_out.transposed(), v, Destination::Overwritten, Threads::One);
        let weights = View::new(p.as_flattened(), len, len, row * LANES);
        let write = (size, len, tokens);
        multiply(matrix(&mut gradient.value[first..], write), d_out, weights, Destination::Overwritten, Threads::One);
        pulp::Arch::new().dispatch(SoftmaxBackward { p, dp, row, len, scale });
        let ds = View::new(dp.as_flattened(), len, len, row * LANES);
        multiply(
            matrix(&mut gradient.query[first..], write),
            k,
            ds.transposed(),
            Destination::Overwritten,
            Threads::One,
        );
        multiply(matrix(&mut gradient.key[first..], write), q, ds, Destination::Overwritten, Threads::One);
    }
}

/// \[rows, columns\], rows `stride` apart.
fn matrix(data: &mut [f32], (rows, columns, stride): (usize, usize, usize)) -> ViewMut<'_> {
    ViewMut::new(data, rows, columns, stride)
}

/// Scores -> attention weights, row by row.
struct Softmax<'a> {
    p: &'a mut [[f32; LANES]],
    row: usize,
    len: usize,
    scale: f32,
}

impl pulp::WithSimd for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        for weights in self.p.chunks_exact_mut(self.row) {
            // As in the forward pass: behind the sentence the weight vanishes.
            weights.as_flattened_mut()[self.len..].fill(f32::NEG_INFINITY);
            let inverse = 1.0 / softmax_numerators(weights, self.scale);
            weights.as_flattened_mut().iter_mut().for_each(|p| *p *= inverse);
        }
    }
}

/// dP -> scale dS, row by row.
struct SoftmaxBackward<'a> {
    p: &'a [[f32; LANES]],
    dp: &'a mut [[f32; LANES]],
    row: usize,
    len: usize,
    scale: f32,
}

impl pulp::WithSimd for SoftmaxBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        for (p, dp) in self.p.chunks_exact(self.row).zip(self.dp.chunks_exact_mut(self.row)) {
            let (p, dp) = (&p.as_flattened()[..self.len], &mut dp.as_flattened_mut()[..self.len]);
            let mean = sum_of_products(p, dp);
            dp.iter_mut().zip(p).for_each(|(dp, p)| *dp = p * (*dp - mean) * self.scale);
        }
    }
}
