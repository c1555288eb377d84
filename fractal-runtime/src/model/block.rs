//! One encoder block: six named linear layers, attention and two LayerNorms.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::attention::attention;
use super::norm::{LayerNorm, Normed};
use super::{Activations, BertConfig, DenseLinear, Epilogue, LinearOp, ModelError, Nonlinearity, Profile, Weights};

#[derive(Clone)]
pub(super) struct Block {
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    pub(super) attention_output: Linear,
    pub(super) attention_norm: Arc<LayerNorm>,
    pub(super) intermediate: Linear,
    pub(super) output: Linear,
    pub(super) output_norm: Arc<LayerNorm>,
}

/// A named layer: its dense weight, and the operator that runs in its place where one was put there.
#[derive(Clone)]
pub(super) struct Linear {
    pub(super) name: String,
    pub(super) dense: DenseLinear,
    pub(super) bias: Arc<[f32]>,
    pub(super) replaced: Option<Arc<dyn LinearOp>>,
}

/// What every block of a pass is told alike.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) heads: usize,
    pub(super) nonlinearity: Nonlinearity,
    /// The tokens of each sentence.
    pub(super) spans: &'a [Range<usize>],
}

/// What one block writes, reused by the next.
pub(super) struct Buffers {
    query: Activations,
    key: Activations,
    value: Activations,
    context: Activations,
    attended: Activations,
    wide: Activations,
}

/// What a block leaves to its gradient, besides its input.
pub(super) struct BlockTape {
    pub(super) query: Activations,
    pub(super) key: Activations,
    pub(super) value: Activations,
    pub(super) context: Activations,
    pub(super) attended: Normed,
    /// Before the nonlinearity.
    pub(super) wide: Activations,
    pub(super) output: Normed,
}

impl BlockTape {
    pub(super) fn new(config: &BertConfig, tokens: usize) -> Self {
        let Buffers { query, key, value, context, attended: _, wide } = Buffers::new(config, tokens);
        let normed = || Normed::zeros(config.hidden_size, tokens);
        Self { query, key, value, context, attended: normed(), wide, output: normed() }
    }
}

impl Buffers {
    pub(super) fn new(config: &BertConfig, tokens: usize) -> Self {
        let hidden = || Activations::zeros(config.hidden_size, tokens);
        let wide = Activations::zeros(config.intermediate_size, tokens);
        Self { query: hidden(), key: hidden(), value: hidden(), context: hidden(), attended: hidden(), wide }
    }
}

impl Block {
    pub(super) fn load(weights: &Weights, config: &BertConfig, layer: usize) -> Result<Self, ModelError> {
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        let linear = |part: &str, n, k| Linear::load(weights, name(part), n, k);
        let norm = |part: &str| LayerNorm::load(weights, config, name(part));
        Ok(Self {
            query: linear("attention.self.query", hidden, hidden)?,
            key: linear("attention.self.key", hidden, hidden)?,
            value: linear("attention.self.value", hidden, hidden)?,
            attention_output: linear("attention.output.dense", hidden, hidden)?,
            attention_norm: norm("attention.output.LayerNorm")?,
            intermediate: linear("intermediate.dense", wide, hidden)?,
            output: linear("output.dense", hidden, wide)?,
            output_norm: norm("output.LayerNorm")?,
        })
    }

    pub(super) fn linears(&self) -> [&Linear; 6] {
        [&self.query, &self.key, &self.value, &self.attention_output, &self.intermediate, &self.output]
    }

    pub(super) fn linears_mut(&mut self) -> [&mut Linear; 6] {
        [
            &mut self.query,
            &mut self.key,
            &mut self.value,
            &mut self.attention_output,
            &mut self.intermediate,
            &mut self.output,
        ]
    }

    /// Replaces `x`\[hidden, tokens\] by the block's result. A tape takes what the gradient needs; the result is the
    /// same to the last bit where the operators are dense.
    pub(super) fn forward(
        &self,
        pass: Pass<'_>,
        x: &mut Activations,
        buffers: &mut Buffers,
        profile: &mut Profile,
        mut tape: Option<&mut BlockTape>,
    ) -> Result<(), ModelError> {
        let Pass { heads, nonlinearity, spans } = pass;
        let Buffers { query, key, value, context, attended, wide } = buffers;
        let mut clock = Instant::now();
        let mut lap = || std::mem::replace(&mut clock, Instant::now()).elapsed();

        self.query.forward(x, query, None, None)?;
        self.key.forward(x, key, None, None)?;
        self.value.forward(x, value, None, None)?;
        profile.linear += lap();
        attention(heads, spans, query, key, value, context);
        profile.attention += lap();
        self.attention_output.forward(context, attended, None, Some(x))?;
        profile.linear += lap();
        self.attention_norm.apply(attended, tape.as_deref_mut().map(|tape| &mut tape.attended));
        profile.other += lap();
        match &mut tape {
            None => self.intermediate.forward(attended, wide, Some(nonlinearity), None)?,
            Some(tape) => {
                self.intermediate.forward(attended, &mut tape.wide, None, None)?;
                nonlinearity.apply(&tape.wide, wide);
            }
        }
        self.output.forward(wide, x, None, Some(attended))?;
        profile.linear += lap();
        self.output_norm.apply(x, tape.as_deref_mut().map(|tape| &mut tape.output));
        profile.other += lap();
        if let Some(tape) = tape {
            std::mem::swap(query, &mut tape.query);
            std::mem::swap(key, &mut tape.key);
            std::mem::swap(value, &mut tape.value);
            std::mem::swap(context, &mut tape.context);
        }
        Ok(())
    }
}

impl Linear {
    fn load(weights: &Weights, name: String, n: usize, k: usize) -> Result<Self, ModelError> {
        let weight: Arc<[f32]> = weights.tensor(&format!("{name}.weight"), &[n, k])?.data.into();
        let bias = weights.tensor(&format!("{name}.bias"), &[n])?.data.into();
        let dense =
            DenseLinear::new(weight, n, k).map_err(|source| ModelError::Operator { name: name.clone(), source })?;
        Ok(Self { name, dense, bias, replaced: None })
    }

    /// The operator that runs.
    pub(super) fn op(&self) -> &dyn LinearOp {
        self.replaced.as_deref().unwrap_or(&self.dense)
    }

    pub(super) fn forward(
        &self,
        x: &Activations,
        y: &mut Activations,
        nonlinearity: Option<Nonlinearity>,
        residual: Option<&Activations>,
    ) -> Result<(), ModelError> {
        let epilogue = Epilogue { bias: Some(&self.bias), nonlinearity, residual };
        self.op().forward(x, y, &epilogue).map_err(|source| ModelError::Operator { name: self.name.clone(), source })
    }
}
