//! Multi-head self-attention within each sentence of a batch (Vaswani et al., Attention Is All You Need, 2017, eq. 1).
//!
//! The sentences lie side by side without padding, so the mask is their boundaries: a token sees its own sentence only.

use std::ops::Range;

use rayon::prelude::*;

use super::{Activations, math};

/// Values that one accumulator block holds: a multiple of every vector width in use.
const LANES: usize = 16;

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
        let q = &q.as_slice()[rows.clone()];
        let k = &k.as_slice()[rows.clone()];
        let v = &v.as_slice()[rows];
        pulp::Arch::new().dispatch(|| {
            for sentence in sentences {
                scratch.pack(head_size, tokens, sentence.clone(), q, k, v);
                scratch.attend(head_size, tokens, sentence.clone(), out);
            }
        });
    });
}

/// One head of one sentence, copied to where the inner loops read whole blocks of lanes.
#[derive(Default)]
struct Scratch {
    /// \[len, head size\]
    q: Vec<f32>,
    /// \[head size, len / LANES\] blocks, zero behind the sentence
    k: Vec<[f32; LANES]>,
    /// \[len, head size / LANES\] blocks, zero behind the head
    v: Vec<[f32; LANES]>,
    /// One row of attention weights, in blocks
    p: Vec<[f32; LANES]>,
}

impl Scratch {
    #[inline(always)]
    fn pack(&mut self, head_size: usize, tokens: usize, sentence: Range<usize>, q: &[f32], k: &[f32], v: &[f32]) {
        let len = sentence.len();
        let key_blocks = len.div_ceil(LANES);
        let value_blocks = head_size.div_ceil(LANES);
        self.q.clear();
        self.q.resize(len * head_size, 0.0);
        self.k.clear();
        self.k.resize(head_size * key_blocks, [0.0; LANES]);
        self.v.clear();
        self.v.resize(len * value_blocks, [0.0; LANES]);
        self.p.clear();
        self.p.resize(key_blocks, [0.0; LANES]);
        for d in 0..head_size {
            let row = d * tokens + sentence.start..d * tokens + sentence.end;
            for (i, value) in q[row.clone()].iter().enumerate() {
                self.q[i * head_size + d] = *value;
            }
            self.k[d * key_blocks..(d + 1) * key_blocks].as_flattened_mut()[..len].copy_from_slice(&k[row.clone()]);
            for (j, value) in v[row].iter().enumerate() {
                self.v[j * value_blocks + d / LANES][d % LANES] = *value;
            }
        }
    }

    #[inline(always)]
    fn attend(&mut self, head_size: usize, tokens: usize, sentence: Range<usize>, out: &mut [f32]) {
        let len = sentence.len();
        let key_blocks = len.div_ceil(LANES);
        let value_blocks = head_size.div_ceil(LANES);
        let scale = 1.0 / (head_size as f32).sqrt();
        for i in 0..len {
            let q = &self.q[i * head_size..(i + 1) * head_size];
            for (block, scores) in self.p.iter_mut().enumerate() {
                let mut sum = [0f32; LANES];
                for (d, q) in q.iter().enumerate() {
                    let k = &self.k[d * key_blocks + block];
                    for lane in 0..LANES {
                        sum[lane] += q * k[lane];
                    }
                }
                *scores = sum;
            }
            // Behind the sentence the weight is e^-87, which no f32 sum of weights with a term of 1 can see.
            self.p.as_flattened_mut()[len..].fill(f32::NEG_INFINITY);
            let total = softmax_numerators(&mut self.p, scale);
            for block in 0..value_blocks {
                let mut sum = [0f32; LANES];
                for (j, p) in self.p.as_flattened()[..len].iter().enumerate() {
                    let v = &self.v[j * value_blocks + block];
                    for lane in 0..LANES {
                        sum[lane] += p * v[lane];
                    }
                }
                let first = block * LANES;
                for lane in 0..LANES.min(head_size - first) {
                    out[(first + lane) * tokens + sentence.start + i] = sum[lane] / total;
                }
            }
        }
    }
}

/// Replaces scores by e^(scale (score - greatest score)) and returns their sum.
#[inline(always)]
fn softmax_numerators(scores: &mut [[f32; LANES]], scale: f32) -> f32 {
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
