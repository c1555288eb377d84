//! A dense model and a few sentences -> how far their embeddings move when one layer changes.
//!
//! What enters a block is kept: layers that are asked about in the order in which they run cost the blocks behind them only.

use std::ops::Range;

use rayon::prelude::*;

use super::bert::{part_len, pool, spans};
use super::{Activations, BertModel, ModelError, NewWeights, Profile};

/// The dense model's embeddings, and its state in front of a block.
pub(super) struct Reference<'a> {
    dense: &'a BertModel,
    parts: Vec<Part>,
    /// The block that [`Part::x`] enters.
    block: usize,
}

/// Sentences that run together.
struct Part {
    sentences: Vec<Vec<u32>>,
    spans: Vec<Range<usize>>,
    x: Activations,
    embeddings: Vec<Vec<f32>>,
}

impl<'a> Reference<'a> {
    pub(super) fn new(dense: &'a BertModel, sentences: &[Vec<u32>]) -> Result<Self, ModelError> {
        let sentences = dense.check_sentences(sentences)?;
        let mut parts = Vec::new();
        let mut rest = &sentences[..];
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(part_len(rest));
            let (spans, sentences) = (spans(part), part.to_vec());
            let x = entering(dense, &sentences, &spans);
            let embeddings = embeddings(dense, 0, &spans, &x)?;
            parts.push(Part { sentences, spans, x, embeddings });
            rest = behind;
        }
        Ok(Self { dense, parts, block: 0 })
    }

    /// 1 - the mean cosine of the embeddings to the dense ones when the layer `name` alone has other weights; at least 0, which it is
    /// without sentences.
    pub(super) fn loss(&mut self, name: &str, new: NewWeights) -> Result<f64, ModelError> {
        let mut alone = self.dense.clone();
        alone.set_weight(name, new.weights, new.bias)?;
        let holds = |block: &super::block::Block| block.linears().iter().any(|linear| linear.name == name);
        self.go_to(self.dense.blocks.iter().position(holds).unwrap_or(0))?;
        let (mut cosines, mut count) = (0.0, 0);
        for part in &self.parts {
            let moved = embeddings(&alone, self.block, &part.spans, &part.x)?;
            for (a, b) in part.embeddings.iter().zip(&moved) {
                cosines += a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
                count += 1;
            }
        }
        Ok(if count > 0 { (1.0 - cosines / f64::from(count)).max(0.0) } else { 0.0 })
    }

    /// Brings all parts in front of a block.
    fn go_to(&mut self, block: usize) -> Result<(), ModelError> {
        for part in &mut self.parts {
            let mut from = self.block;
            if block < from {
                part.x = entering(self.dense, &part.sentences, &part.spans);
                from = 0;
            }
            self.dense.run_blocks(from..block, &part.spans, &mut part.x, &mut Profile::default(), None)?;
        }
        self.block = block;
        Ok(())
    }
}

/// What enters the first block.
fn entering(model: &BertModel, sentences: &[Vec<u32>], spans: &[Range<usize>]) -> Activations {
    let mut x = model.look_up(sentences, spans.last().map_or(0, |span| span.end));
    model.embedding_norm.apply(&mut x, None);
    x
}

/// What the model makes of `x` from a block on.
fn embeddings(
    model: &BertModel,
    block: usize,
    spans: &[Range<usize>],
    x: &Activations,
) -> Result<Vec<Vec<f32>>, ModelError> {
    let mut x = x.clone();
    model.run_blocks(block..model.blocks.len(), spans, &mut x, &mut Profile::default(), None)?;
    Ok(spans.par_iter().map(|span| pool(&x, span)).collect())
}
