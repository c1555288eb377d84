//! A dense model and calibration sentences -> a pruned one, layer by layer in the order in which they run.
//!
//! The dense model and the one that is being pruned run side by side, a block at a time. Each layer's statistics are those of the inputs
//! that it gets behind the layers pruned so far, and its wanted results those of the dense model, less what reaches the sum past the
//! layer: so a layer makes up for the errors before it. Kept between layers: what enters the block, for all sentences.

use std::error::Error;
use std::ops::Range;

use super::attention::attention;
use super::block::{Block, Linear};
use super::{Activations, BertModel, DenseWeight, ModelError};
use crate::prune::{LayerStatistics, PruneError};

/// Tokens of a part, about: what is computed inside a block is kept for one part at a time.
const PART_TOKENS: usize = 4096;

/// What became of a layer: weights \[n, k\], zero where they are dropped, and a bias \[n\] where it is another.
#[derive(Clone, Debug, PartialEq)]
pub struct NewWeights {
    /// Row-major.
    pub weights: Vec<f32>,
    /// Where it changes.
    pub bias: Option<Vec<f32>>,
}

/// Whatever keeps one layer from being pruned.
pub(super) type AnyError = Box<dyn Error + Send + Sync>;

/// A calibration that did not come to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The model cannot run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Activations that cannot be summed up.
    #[error("layer `{layer}`: {source}")]
    Statistics {
        /// The layer.
        layer: String,
        /// Why.
        source: PruneError,
    },
    /// A layer that was not pruned.
    #[error("layer `{layer}`: {source}")]
    Layer {
        /// The layer.
        layer: String,
        /// Why.
        source: AnyError,
    },
}

/// Sentences that run together.
struct Part {
    spans: Vec<Range<usize>>,
    /// What enters the block: of the dense model, and of the pruned one.
    dense: Activations,
    pruned: Activations,
    /// What attention made of it.
    context: Activations,
    /// What leaves the attention's half of the block.
    dense_attended: Activations,
    attended: Activations,
}

impl BertModel {
    /// Prunes layer by layer: `prune` gets a layer's name, its dense weight and the statistics of its inputs, and gives its new weights,
    /// or `None` to leave it as it is.
    ///
    /// # Errors
    /// [`CalibrateError`].
    pub fn calibrate(
        &self,
        sentences: &[Vec<u32>],
        mut prune: impl FnMut(&str, DenseWeight<'_>, LayerStatistics) -> Result<Option<NewWeights>, AnyError>,
    ) -> Result<BertModel, CalibrateError> {
        let mut model = self.clone();
        let mut parts = self.parts(sentences)?;
        let heads = self.config().num_attention_heads;
        for number in 0..self.blocks.len() {
            let dense = &self.blocks[number];
            let mut layer = |model: &mut BertModel, linear: &Linear, statistics| -> Result<(), CalibrateError> {
                let name = &linear.name;
                let told = |source| CalibrateError::Layer { layer: name.clone(), source };
                if let Some(new) = prune(name, self.weight(name)?, statistics).map_err(told)? {
                    model.set_weight(name, new.weights, new.bias)?;
                }
                Ok(())
            };

            // These share their inputs, and so the sums over them.
            let (inputs, hidden) = ([&dense.query, &dense.key, &dense.value], dense.query.bias.len());
            let mut statistics = LayerStatistics::new(3 * hidden, hidden);
            for part in &parts {
                let mut wanted = Activations::zeros(3 * hidden, part.dense.tokens());
                for (linear, wanted) in
                    inputs.into_iter().zip(wanted.as_mut_slice().chunks_exact_mut(hidden * part.dense.tokens()))
                {
                    wanted.copy_from_slice(linear.plain(&part.dense)?.as_slice());
                }
                add(&mut statistics, &dense.query, &part.pruned, &wanted)?;
            }
            for (number, linear) in inputs.into_iter().enumerate() {
                let own = statistics.of_results(number * hidden..(number + 1) * hidden);
                layer(&mut model, linear, own.map_err(|source| statistics_error(linear, source))?)?;
            }

            let mut statistics = statistics_of(&dense.attention_output);
            for part in &mut parts {
                let context = dense.attend(heads, &part.spans, &part.dense)?;
                part.dense_attended = dense.attention_output.added(&context, &part.dense)?;
                part.context = model.blocks[number].attend(heads, &part.spans, &part.pruned)?;
                let wanted = difference(&part.dense_attended, &part.pruned);
                add(&mut statistics, &dense.attention_output, &part.context, &wanted)?;
                dense.attention_norm.apply(&mut part.dense_attended, None);
            }
            layer(&mut model, &dense.attention_output, statistics)?;

            let mut statistics = statistics_of(&dense.intermediate);
            for part in &mut parts {
                let own = &model.blocks[number];
                part.attended = own.attention_output.added(&part.context, &part.pruned)?;
                own.attention_norm.apply(&mut part.attended, None);
                let wanted = dense.intermediate.plain(&part.dense_attended)?;
                add(&mut statistics, &dense.intermediate, &part.attended, &wanted)?;
            }
            layer(&mut model, &dense.intermediate, statistics)?;

            let mut statistics = statistics_of(&dense.output);
            for part in &mut parts {
                let wide = self.wide(dense, &part.dense_attended)?;
                part.dense = dense.output.added(&wide, &part.dense_attended)?;
                let wide = self.wide(&model.blocks[number], &part.attended)?;
                let wanted = difference(&part.dense, &part.attended);
                add(&mut statistics, &dense.output, &wide, &wanted)?;
                dense.output_norm.apply(&mut part.dense, None);
            }
            layer(&mut model, &dense.output, statistics)?;
            for part in &mut parts {
                let own = &model.blocks[number];
                let wide = self.wide(own, &part.attended)?;
                part.pruned = own.output.added(&wide, &part.attended)?;
                own.output_norm.apply(&mut part.pruned, None);
            }
        }
        Ok(model)
    }

    fn parts(&self, sentences: &[Vec<u32>]) -> Result<Vec<Part>, ModelError> {
        let mut parts = Vec::new();
        let mut rest = sentences.iter().enumerate().peekable();
        while rest.peek().is_some() {
            let (mut together, mut tokens) = (Vec::new(), 0);
            while let Some((index, sentence)) = rest.next_if(|(_, s)| tokens == 0 || tokens + s.len() <= PART_TOKENS) {
                let sentence = self.check_sentence(index, sentence)?;
                tokens += sentence.len();
                together.push(sentence);
            }
            let mut spans = Vec::with_capacity(together.len());
            together.iter().fold(0, |begin, sentence| {
                spans.push(begin..begin + sentence.len());
                begin + sentence.len()
            });
            let mut x = self.look_up(&together, tokens);
            self.embedding_norm.apply(&mut x, None);
            let none = Activations::default;
            let pruned = x.clone();
            parts.push(Part { spans, dense: x, pruned, context: none(), dense_attended: none(), attended: none() });
        }
        Ok(parts)
    }

    /// What enters the feed-forward half's second layer.
    fn wide(&self, block: &Block, attended: &Activations) -> Result<Activations, ModelError> {
        let mut wide = Activations::zeros(self.config().intermediate_size, attended.tokens());
        block.intermediate.forward(attended, &mut wide, Some(self.nonlinearity), None)?;
        Ok(wide)
    }
}

impl Block {
    /// The attention's weighted sums.
    fn attend(&self, heads: usize, spans: &[Range<usize>], x: &Activations) -> Result<Activations, ModelError> {
        let (q, k, v) = (self.query.plain(x)?, self.key.plain(x)?, self.value.plain(x)?);
        let mut context = Activations::zeros(x.features(), x.tokens());
        attention(heads, spans, &q, &k, &v, &mut context);
        Ok(context)
    }
}

impl Linear {
    /// W x + b.
    fn plain(&self, x: &Activations) -> Result<Activations, ModelError> {
        let mut y = Activations::zeros(self.bias.len(), x.tokens());
        self.forward(x, &mut y, None, None)?;
        Ok(y)
    }

    /// W x + b + residual.
    fn added(&self, x: &Activations, residual: &Activations) -> Result<Activations, ModelError> {
        let mut y = Activations::zeros(self.bias.len(), x.tokens());
        self.forward(x, &mut y, None, Some(residual))?;
        Ok(y)
    }
}

fn statistics_of(linear: &Linear) -> LayerStatistics {
    use super::LinearOp;
    LayerStatistics::new(linear.dense.n(), linear.dense.k())
}

fn add(
    statistics: &mut LayerStatistics,
    linear: &Linear,
    x: &Activations,
    wanted: &Activations,
) -> Result<(), CalibrateError> {
    statistics.add(x.as_slice(), wanted.as_slice()).map_err(|source| statistics_error(linear, source))
}

fn statistics_error(linear: &Linear, source: PruneError) -> CalibrateError {
    CalibrateError::Statistics { layer: linear.name.clone(), source }
}

fn difference(a: &Activations, b: &Activations) -> Activations {
    let mut difference = a.clone();
    difference.as_mut_slice().iter_mut().zip(b.as_slice()).for_each(|(a, b)| *a -= b);
    difference
}
