//! Multi-head self-attention within each sentence of a batch (Vaswani et al., Attention Is All You Need, 2017, eq. 1).
//!
//! The sentences lie side by side without padding, so the mask is their boundaries: a token sees its own sentence only.

use std::ops::Range;

use rayon::prelude::*;

use super::Activations;
use crate::math;

/// Values that one accumulator holds: a multiple of every vector width in use.
pub(super) const LANES: usize = 16;

/// Queries that share each load of a key or value; their accumulators are independent, which hides the latency of adds.
const QUERIES: usize = 4;

/// out\[h, i\] = sum_j softmax_j(q\[., i\] k\[., j\] / sqrt(head size)) v\[h, j\], per head and sentence.
/// All four are \[heads * head size, tokens\]; `sentences` are disjoint token ranges.
pub(super) fn attention(
    heads: usize,
    sentences: &[Range<usize>],
    q: &Activations,
    k: &Activations,
    v: &Activations,
    out: &mut Activations,
) {
    let tokens = q.tokens();
    let head_size = q.features() / heads;
    let head_len = head_size * tokens;
    if head_len == 0 {
        return;
    }
    out.as_mut_slice().par_chunks_mut(head_len).enumerate().for_each_init(Scratch::default, |scratch, (head, out)| {
        let rows = head * head_len..(head + 1) * head_len;
        pulp::Arch::new().dispatch(Head {
            size: head_size,
            tokens,
            sentences,
            q: &q.as_slice()[rows.clone()],
            k: &k.as_slice()[rows.clone()],
            v: &v.as_slice()[rows],
            out,
            scratch,
        });
    });
}

/// One head of all sentences; q, k, v and out are \[size, tokens\].
struct Head<'a> {
    size: usize,
    tokens: usize,
    sentences: &'a [Range<usize>],
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    out: &'a mut [f32],
    scratch: &'a mut Scratch,
}

impl pulp::WithSimd for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        for sentence in self.sentences {
            let span = sentence.clone();
            self.scratch.pack(self.size, self.tokens, span, self.q, self.k, self.v);
            let span = sentence.clone();
            self.scratch.attend(self.size, self.tokens, span, self.out);
        }
    }
}

/// One head of one sentence, copied to where the inner loops read whole blocks, with zeros where a block is not full.
#[derive(Default)]
struct Scratch {
    /// \[len / QUERIES, head size\] blocks of queries
    q: Vec<[f32; QUERIES]>,
    /// \[head size, len / LANES\] blocks of keys
    k: Vec<[f32; LANES]>,
    /// \[len, head size / LANES\] blocks of features
    v: Vec<[f32; LANES]>,
    /// \[QUERIES, len / LANES\] blocks of keys: scores, then attention weights
    p: Vec<[f32; LANES]>,
}

/// Extents of the blocked copies.
#[derive(Clone, Copy)]
struct Blocks {
    queries: usize,
    keys: usize,
    features: usize,
}

impl Blocks {
    fn new(len: usize, head_size: usize) -> Self {
        Self { queries: len.div_ceil(QUERIES), keys: len.div_ceil(LANES), features: head_size.div_ceil(LANES) }
    }
}

impl Scratch {
    #[inline(always)]
    fn pack(&mut self, head_size: usize, tokens: usize, sentence: Range<usize>, q: &[f32], k: &[f32], v: &[f32]) {
        let len = sentence.len();
        let blocks = Blocks::new(len, head_size);
        refill(&mut self.q, blocks.queries * head_size);
        refill(&mut self.k, head_size * blocks.keys);
        refill(&mut self.v, len * blocks.features);
        refill(&mut self.p, QUERIES * blocks.keys);
        for d in 0..head_size {
            let row = d * tokens + sentence.start..d * tokens + sentence.end;
            for (block, queries) in q[row.clone()].chunks(QUERIES).enumerate() {
                self.q[block * head_size + d][..queries.len()].copy_from_slice(queries);
            }
            self.k[d * blocks.keys..(d + 1) * blocks.keys].as_flattened_mut()[..len].copy_from_slice(&k[row.clone()]);
            for (j, value) in v[row].iter().enumerate() {
                self.v[j * blocks.features + d / LANES][d % LANES] = *value;
            }
        }
    }

    #[inline(always)]
    fn attend(&mut self, head_size: usize, tokens: usize, sentence: Range<usize>, out: &mut [f32]) {
        let len = sentence.len();
        let blocks = Blocks::new(len, head_size);
        let scale = 1.0 / (head_size as f32).sqrt();
        for query_block in 0..blocks.queries {
            let q = &self.q[query_block * head_size..(query_block + 1) * head_size];
            for key_block in 0..blocks.keys {
                let keys = self.k[key_block..].iter().step_by(blocks.keys);
                let sum = outer_products(q.iter().copied(), keys);
                for (query, sum) in sum.into_iter().enumerate() {
                    self.p[query * blocks.keys + key_block] = sum;
                }
            }
            let mut totals = [0f32; QUERIES];
            for (weights, total) in self.p.chunks_exact_mut(blocks.keys).zip(&mut totals) {
                // Behind the sentence the weight is e^-87, which no f32 sum of weights with a term of 1 can see.
                weights.as_flattened_mut()[len..].fill(f32::NEG_INFINITY);
                *total = softmax_numerators(weights, scale);
            }
            let first_query = query_block * QUERIES;
            let queries = QUERIES.min(len - first_query);
            for feature_block in 0..blocks.features {
                let row = blocks.keys * LANES;
                let p = self.p.as_flattened();
                let weights = (0..len).map(|j| std::array::from_fn(|query| p[query * row + j]));
                let values = self.v[feature_block..].iter().step_by(blocks.features);
                let sum = outer_products(weights, values);
                let rows = out.chunks_exact_mut(tokens).skip(feature_block * LANES);
                for (lane, row) in rows.take(LANES).enumerate() {
                    let start = sentence.start + first_query;
                    for (query, out) in row[start..start + queries].iter_mut().enumerate() {
                        *out = sum[query][lane] / totals[query];
                    }
                }
            }
        }
    }
}

fn refill<const N: usize>(blocks: &mut Vec<[f32; N]>, len: usize) {
    blocks.clear();
    blocks.resize(len, [0.0; N]);
}

/// sum_i a_i b_i' over the pairs of the two sequences.
#[inline(always)]
fn outer_products<'a>(
    a: impl Iterator<Item = [f32; QUERIES]>,
    b: impl Iterator<Item = &'a [f32; LANES]>,
) -> [[f32; LANES]; QUERIES] {
    let mut sum = [[0f32; LANES]; QUERIES];
    for (a, b) in a.zip(b) {
        for query in 0..QUERIES {
            for lane in 0..LANES {
                sum[query][lane] += a[query] * b[lane];
            }
        }
    }
    sum
}

/// Replaces scores by e^(scale (score - greatest score)) and returns their sum.
#[inline(always)]
pub(super) fn softmax_numerators(scores: &mut [[f32; LANES]], scale: f32) -> f32 {
    let mut greatest = [f32::NEG_INFINITY; LANES];
    for block in scores.iter() {
        for lane in 0..LANES {
            greatest[lane] = greatest[lane].max(block[lane]);
        }
    }
    let greatest = greatest.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = [0f32; LANES];
    for block in scores.iter_mut() {
        for lane in 0..LANES {
            block[lane] = math::exp((block[lane] - greatest) * scale);
            sum[lane] += block[lane];
        }
    }
    sum.iter().sum()
}
