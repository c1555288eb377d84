//! Gradients of a loss of the embeddings, and what they are for: importance of weights and training of what is kept.
//!
//! Stage: ([`BertModel`], sentences, gradient of a loss by the embeddings) -> [`Gradients`] of all weights, biases and
//! LayerNorms; the embedding tables are left out, as they are not pruned.
//!
//! | file | what it does |
//! |---|---|
//! | `block`, `attention`, `norm`, `pool` | gradient of each stage of the encoder |
//! | `sums`, `random` | sums in a fixed order; numbers from a seed |
//! | `loss` | losses of embeddings and their gradients |
//! | `adam` | the optimizer and its learning rates |
//! | `distill` | training of what a mask keeps towards the dense model |

mod adam;
mod attention;
mod block;
mod distill;
mod loss;
mod norm;
mod pool;
mod random;
mod sums;

use std::collections::BTreeMap;

use super::bert::{Tape, part_len, pool, spans};
use super::block::{Block, Linear};
use super::norm::LayerNorm;
use super::{BertModel, ModelError, Profile};
use block::{BackwardBuffers, BlockGradient};
use pool::pool_backward;
use rayon::prelude::*;

pub use adam::{Adam, AdamSettings, AdamStep, Schedule};
pub use distill::{DistillSettings, Epoch, distill};
pub use loss::{Loss, TEMPERATURE, contrastive, cosine, probe, relation};

/// The gradient of a loss by every trainable parameter of a model, by the names of
/// [`BertModel::linear_names`] and [`BertModel::norm_names`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradients {
    /// Of the linear layers.
    pub linears: BTreeMap<String, LinearGradient>,
    /// Of the LayerNorms.
    pub norms: BTreeMap<String, NormGradient>,
}

/// The gradient of a linear layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearGradient {
    /// By the weight, \[n, k\] row-major.
    pub weight: Vec<f32>,
    /// By the bias, \[n\].
    pub bias: Vec<f32>,
}

/// The gradient of a LayerNorm.
#[derive(Clone, Debug, PartialEq)]
pub struct NormGradient {
    /// By the scale, one value per feature.
    pub gamma: Vec<f32>,
    /// By the shift, one value per feature.
    pub beta: Vec<f32>,
}

impl Gradients {
    /// Adds `factor` times another one; a parameter that this one has not counts as 0 here.
    ///
    /// # Errors
    /// [`ModelError::ParameterLength`] where a parameter of both has other lengths; nothing is added to it.
    pub fn add(&mut self, factor: f32, other: &Gradients) -> Result<(), ModelError> {
        self.accumulate(other, |sum, g| *sum += factor * g)
    }

    /// Adds `factor` times the squares of another one, as for their mean over batches.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_squares(&mut self, factor: f32, other: &Gradients) -> Result<(), ModelError> {
        self.accumulate(other, |sum, g| *sum += factor * g * g)
    }

    fn accumulate(&mut self, other: &Gradients, f: impl Fn(&mut f32, f32) + Sync) -> Result<(), ModelError> {
        let add = |name: &str, part: &str, sums: &mut [f32], values: &[f32]| {
            let (expected, got) = (sums.len(), values.len());
            if expected != got {
                return Err(ModelError::ParameterLength { name: format!("{name}.{part}"), expected, got });
            }
            sums.par_iter_mut().zip(values).with_min_len(1 << 14).for_each(|(sum, value)| f(sum, *value));
            Ok(())
        };
        for (name, values) in &other.linears {
            let LinearGradient { weight, bias } = self.linears.entry(name.clone()).or_insert_with(|| {
                let zeros = |values: &[f32]| vec![0.0; values.len()];
                LinearGradient { weight: zeros(&values.weight), bias: zeros(&values.bias) }
            });
            add(name, "weight", weight, &values.weight)?;
            add(name, "bias", bias, &values.bias)?;
        }
        for (name, values) in &other.norms {
            let NormGradient { gamma, beta } = self.norms.entry(name.clone()).or_insert_with(|| {
                let zeros = |values: &[f32]| vec![0.0; values.len()];
                NormGradient { gamma: zeros(&values.gamma), beta: zeros(&values.beta) }
            });
            add(name, "weight", gamma, &values.gamma)?;
            add(name, "bias", beta, &values.beta)?;
        }
        Ok(())
    }
}

impl BertModel {
    /// The gradient of a loss of the sentences' embeddings by every weight, bias and LayerNorm.
    ///
    /// `loss` is called once, with the embeddings of all sentences (those of [`embed`](Self::embed), to the last bit),
    /// and gives its gradient by each of them. Sentences of more than [`MAX_BATCH_TOKENS`](super::MAX_BATCH_TOKENS) tokens together are run
    /// forward twice, so that the activations of one part at a time are kept (Gao et al., Scaling Deep Contrastive
    /// Learning Batch Size under Memory Limited Setup, 2021).
    ///
    /// The result depends on the number of threads of the rayon pool only, not on how they are scheduled.
    ///
    /// # Errors
    /// [`ModelError::NotDense`] where a layer runs a [replaced](Self::replace) operator, whose weight the model does not
    /// know; errors of [`embed`](Self::embed), of `loss`, and of a result of `loss` that does not fit.
    pub fn gradients(
        &self,
        sentences: &[Vec<u32>],
        loss: impl FnOnce(&[Vec<f32>]) -> Result<Vec<Vec<f32>>, ModelError>,
    ) -> Result<Gradients, ModelError> {
        self.check_dense()?;
        let sentences = self.check_sentences(sentences)?;
        let mut sums = Sums::zeros(self);
        let first = part_len(&sentences);
        if first == sentences.len() {
            self.part_gradients(&sentences, loss, &mut sums)?;
        } else {
            let gradient = loss(&self.embed(&sentences)?)?;
            check_gradient(&gradient, sentences.len(), self.config().hidden_size)?;
            let (mut rest, mut gradient) = (&sentences[..], &gradient[..]);
            while !rest.is_empty() {
                let (part, behind) = rest.split_at(part_len(rest));
                let (part_gradient, gradient_behind) = gradient.split_at(part.len());
                self.part_gradients(part, |_| Ok(part_gradient.to_vec()), &mut sums)?;
                (rest, gradient) = (behind, gradient_behind);
            }
        }
        Ok(sums.into_gradients(self))
    }

    /// That every layer runs the dense operator of its own weight.
    pub(super) fn check_dense(&self) -> Result<(), ModelError> {
        match self.linears().find(|linear| linear.replaced.is_some()) {
            Some(linear) => Err(ModelError::NotDense { name: linear.name.clone(), operator: linear.op().describe() }),
            None => Ok(()),
        }
    }

    /// Adds the gradients of sentences that are run at once.
    fn part_gradients(
        &self,
        sentences: &[Vec<u32>],
        loss: impl FnOnce(&[Vec<f32>]) -> Result<Vec<Vec<f32>>, ModelError>,
        sums: &mut Sums,
    ) -> Result<(), ModelError> {
        let config = self.config();
        let spans = spans(sentences);
        let tokens = spans.last().map_or(0, |span| span.end);
        let mut tape = Tape::new(config, tokens);
        let x = self.encode(sentences, &spans, &mut Profile::default(), Some(&mut tape))?;
        let embeddings: Vec<Vec<f32>> = spans.par_iter().map(|span| pool(&x, span)).collect();
        let gradient = loss(&embeddings)?;
        check_gradient(&gradient, sentences.len(), config.hidden_size)?;

        let mut d = x;
        pool_backward(&spans, &gradient, &mut d);
        let mut buffers = BackwardBuffers::new(config, tokens);
        let Tape { embedding, mut blocks } = tape;
        for (index, block) in self.blocks.iter().enumerate().rev() {
            let tape = blocks.pop().expect("a tape of every block");
            let input = |x: &mut _| match index.checked_sub(1) {
                Some(before) => self.blocks[before].output_norm.result(&blocks[before].output, x),
                None => self.embedding_norm.result(&embedding, x),
            };
            let sums = &mut sums.blocks[index];
            block.backward(self.pass(&spans), tape, input, &mut d, &mut buffers, sums);
        }
        self.embedding_norm.backward(&embedding, &mut d, &mut sums.embedding_norm);
        Ok(())
    }
}

/// That there is a vector of `hidden` finite values for each sentence.
fn check_gradient(gradient: &[Vec<f32>], sentences: usize, hidden: usize) -> Result<(), ModelError> {
    let length = |what, expected, got| Err(ModelError::LossLength { what, expected, got });
    if gradient.len() != sentences {
        return length("gradients of embeddings", sentences, gradient.len());
    }
    if let Some(wrong) = gradient.iter().find(|row| row.len() != hidden) {
        return length("values of an embedding's gradient", hidden, wrong.len());
    }
    match gradient.iter().position(|row| row.iter().any(|value| !value.is_finite())) {
        Some(sentence) => Err(ModelError::LossNotFinite { sentence }),
        None => Ok(()),
    }
}

/// Gradients as they are summed, block by block.
struct Sums {
    embedding_norm: NormGradient,
    blocks: Vec<BlockGradient>,
}

impl Sums {
    fn zeros(model: &BertModel) -> Self {
        let block = |block: &Block| BlockGradient {
            linears: block.linears().map(LinearGradient::zeros),
            attention_norm: NormGradient::zeros(&block.attention_norm),
            output_norm: NormGradient::zeros(&block.output_norm),
        };
        let blocks = model.blocks.iter().map(block).collect();
        Self { embedding_norm: NormGradient::zeros(&model.embedding_norm), blocks }
    }

    fn into_gradients(self, model: &BertModel) -> Gradients {
        let (mut linears, mut norms) = (vec![], vec![self.embedding_norm]);
        for block in self.blocks {
            linears.extend(block.linears);
            norms.extend([block.attention_norm, block.output_norm]);
        }
        Gradients {
            linears: model.linear_names().into_iter().zip(linears).collect(),
            norms: model.norm_names().into_iter().zip(norms).collect(),
        }
    }
}

impl LinearGradient {
    fn zeros(linear: &Linear) -> Self {
        Self { weight: vec![0.0; linear.dense.weight().len()], bias: vec![0.0; linear.bias.len()] }
    }
}

impl NormGradient {
    fn zeros(norm: &LayerNorm) -> Self {
        Self { gamma: vec![0.0; norm.gamma.len()], beta: vec![0.0; norm.beta.len()] }
    }
}
