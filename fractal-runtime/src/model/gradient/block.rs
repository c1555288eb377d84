//! Gradient of one encoder block, its stages in reverse.

use rayon::prelude::*;

use super::super::block::{Block, BlockTape, Linear, Pass};
use super::super::product::{Destination, Threads, View, ViewMut, multiply};
use super::super::{Activations, BertConfig, LinearOp, Nonlinearity};
use super::attention::{Heads, attention_backward};
use super::sums::sum;
use super::{LinearGradient, NormGradient};
use crate::math;

/// Gradients of a block's parameters, in the order of [`Block::linears`] and of the forward pass.
pub(super) struct BlockGradient {
    pub(super) linears: [LinearGradient; 6],
    pub(super) attention_norm: NormGradient,
    pub(super) output_norm: NormGradient,
}

/// What the gradient of one block writes, reused by the next.
pub(super) struct BackwardBuffers {
    /// What a LayerNorm gave to the next layer.
    normed: Activations,
    context: Activations,
    heads: Heads<Activations>,
    wide: Activations,
}

impl BackwardBuffers {
    pub(super) fn new(config: &BertConfig, tokens: usize) -> Self {
        let hidden = || Activations::zeros(config.hidden_size, tokens);
        let heads = Heads { query: hidden(), key: hidden(), value: hidden() };
        let wide = Activations::zeros(config.intermediate_size, tokens);
        Self { normed: hidden(), context: hidden(), heads, wide }
    }
}

impl Block {
    /// Replaces `d`, the gradient of the block's result \[hidden, tokens\], by that of its input, and adds to `gradient`.
    /// `input` writes the block's input, which the tape of the stage before it holds.
    pub(super) fn backward(
        &self,
        pass: Pass<'_>,
        tape: BlockTape,
        input: impl FnOnce(&mut Activations),
        d: &mut Activations,
        buffers: &mut BackwardBuffers,
        gradient: &mut BlockGradient,
    ) {
        let Pass { heads, nonlinearity, spans } = pass;
        let BlockTape { query, key, value, context: attention, attended, wide: mut activated, output } = tape;
        let BackwardBuffers { normed, context, heads: d_heads, wide } = buffers;
        let [query_gradient, key_gradient, value_gradient, attention_gradient, intermediate_gradient, output_gradient] =
            &mut gradient.linears;

        self.output_norm.backward(&output, d, &mut gradient.output_norm);
        self.output.input_gradient(d, wide, Destination::Overwritten);
        nonlinearity_backward(nonlinearity, &mut activated, wide);
        output_gradient.add(d, &activated);
        self.attention_norm.result(&attended, normed);
        intermediate_gradient.add(wide, normed);
        self.intermediate.input_gradient(wide, d, Destination::Added);

        self.attention_norm.backward(&attended, d, &mut gradient.attention_norm);
        attention_gradient.add(d, &attention);
        self.attention_output.input_gradient(d, context, Destination::Overwritten);
        let forward = Heads { query: &query, key: &key, value: &value };
        attention_backward(heads, spans, &forward, context, d_heads);
        input(normed);
        let projections = [
            (&self.query, &d_heads.query, query_gradient),
            (&self.key, &d_heads.key, key_gradient),
            (&self.value, &d_heads.value, value_gradient),
        ];
        for (linear, dy, gradient) in projections {
            gradient.add(dy, normed);
            linear.input_gradient(dy, d, Destination::Added);
        }
    }
}

impl Linear {
    /// dX\[k, m\] = W' dY\[n, m\], or dX + W' dY.
    fn input_gradient(&self, dy: &Activations, dx: &mut Activations, destination: Destination) {
        let (n, k, m) = (self.dense.n(), self.dense.k(), dy.tokens());
        let weight = View::new(self.dense.weight(), n, k, k).transposed();
        let dy = View::new(dy.as_slice(), n, m, m);
        multiply(ViewMut::new(dx.as_mut_slice(), k, m, m), weight, dy, destination, Threads::All);
    }
}

impl LinearGradient {
    /// Adds dY\[n, m\] X\[k, m\]' to the weight's gradient and the row sums of dY to the bias's.
    fn add(&mut self, dy: &Activations, x: &Activations) {
        let (n, k, m) = (dy.features(), x.features(), dy.tokens());
        let (dy_view, x) = (View::new(dy.as_slice(), n, m, m), View::new(x.as_slice(), k, m, m).transposed());
        multiply(ViewMut::new(&mut self.weight, n, k, k), dy_view, x, Destination::Added, Threads::All);
        self.bias.par_iter_mut().with_min_len(16).enumerate().for_each(|(feature, bias)| {
            *bias += pulp::Arch::new().dispatch(|| sum(dy.row(feature)));
        });
    }
}

/// Replaces the nonlinearity's argument z by its result and `d`, the result's gradient, by that of z.
fn nonlinearity_backward(nonlinearity: Nonlinearity, z: &mut Activations, d: &mut Activations) {
    let tokens = z.tokens();
    if tokens == 0 {
        return;
    }
    let rows = z.as_mut_slice().par_chunks_mut(tokens).zip(d.as_mut_slice().par_chunks_mut(tokens));
    rows.with_min_len(8).for_each(|(z, d)| pulp::Arch::new().dispatch(NonlinearityRow { nonlinearity, z, d }));
}

struct NonlinearityRow<'a> {
    nonlinearity: Nonlinearity,
    z: &'a mut [f32],
    d: &'a mut [f32],
}

impl pulp::WithSimd for NonlinearityRow<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let values = self.z.iter_mut().zip(self.d);
        match self.nonlinearity {
            Nonlinearity::Gelu => values.for_each(|(z, d)| {
                *d *= math::gelu_slope(*z);
                *z = math::gelu(*z);
            }),
            Nonlinearity::Relu => values.for_each(|(z, d)| {
                *d = if *z > 0.0 { *d } else { 0.0 };
                *z = z.max(0.0);
            }),
        }
    }
}
