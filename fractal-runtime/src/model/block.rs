//! One encoder block: six named linear layers, attention and two LayerNorms.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::attention::attention;
use super::norm::LayerNorm;
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

/// What one block writes, reused by the next.
pub(super) struct Buffers {
    query: Activations,
    key: Activations,
    value: Activations,
    context: Activations,
    attended: Activations,
    wide: Activations,
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

    /// Replaces `x`\[hidden, tokens\] by the block's result.
    pub(super) fn forward(
        &self,
        heads: usize,
        nonlinearity: Nonlinearity,
        spans: &[Range<usize>],
        x: &mut Activations,
        buffers: &mut Buffers,
        profile: &mut Profile,
    ) -> Result<(), ModelError> {
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
        self.attention_norm.apply(attended);
        profile.other += lap();
        self.intermediate.forward(attended, wide, Some(nonlinearity), None)?;
        self.output.forward(wide, x, None, Some(attended))?;
        profile.linear += lap();
        self.output_norm.apply(x);
        profile.other += lap();
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
