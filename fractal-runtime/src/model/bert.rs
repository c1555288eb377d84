//! The BERT encoder as a sentence embedder: token ids -> encoder blocks -> mean over tokens -> unit vectors.
//!
//! The network is that of Devlin et al., BERT, 2019 (post-norm blocks); pooling and normalisation are those of
//! Reimers and Gurevych, Sentence-BERT, 2019.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::block::{Block, BlockTape, Buffers, Pass};
use super::norm::{LayerNorm, Normed};
use super::{Activations, BertConfig, ModelError, Nonlinearity, Weights};

/// The tensor that every checkpoint of an encoder has.
pub(super) const WORDS: &str = "embeddings.word_embeddings.weight";

/// Tokens that run through the encoder at once; a larger batch runs in parts, so that memory stays bounded.
pub const MAX_BATCH_TOKENS: usize = 8192;

/// A BERT encoder with replaceable linear layers. A clone shares weights and operators, so a pruned model beside its
/// dense original costs no second copy.
#[derive(Clone)]
pub struct BertModel {
    config: BertConfig,
    pub(super) nonlinearity: Nonlinearity,
    words: Arc<[f32]>,
    /// Position plus first token type: both are the same for every token at a position.
    positions: Arc<[f32]>,
    pub(super) embedding_norm: Arc<LayerNorm>,
    pub(super) blocks: Vec<Block>,
}

/// Where the time of an embedding run went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// In the linear operators, epilogues included.
    pub linear: Duration,
    /// In attention scores, softmax and weighted sums.
    pub attention: Duration,
    /// In embedding look-up, LayerNorm and pooling.
    pub other: Duration,
}

impl Profile {
    /// The sum of all parts.
    pub fn total(&self) -> Duration {
        self.linear + self.attention + self.other
    }
}

impl BertModel {
    /// Loads `config.json` and `model.safetensors` from a directory. `path` may also name the safetensors file itself,
    /// with config.json beside it.
    pub fn load(path: &Path) -> Result<Self, ModelError> {
        let (directory, weights) = if path.is_dir() {
            (path, path.join("model.safetensors"))
        } else {
            (path.parent().unwrap_or(Path::new("")), path.to_owned())
        };
        let config_path = directory.join("config.json");
        let text = std::fs::read_to_string(&config_path)
            .map_err(|source| ModelError::Io { path: config_path.clone(), source })?;
        let config = BertConfig::from_json(&text, &config_path)?;
        Self::from_weights(config, Weights::open(&weights)?)
    }

    /// Builds the model from tensors in memory.
    pub fn from_weights(config: BertConfig, mut weights: Weights) -> Result<Self, ModelError> {
        weights.strip_prefix_before(WORDS);
        let weights = &weights;
        let hidden = config.hidden_size;
        let words = weights.tensor(WORDS, &[config.vocab_size, hidden])?.data;
        let mut positions =
            weights.tensor("embeddings.position_embeddings.weight", &[config.max_position_embeddings, hidden])?.data;
        let types = weights.tensor("embeddings.token_type_embeddings.weight", &[config.type_vocab_size, hidden])?.data;
        for position in positions.chunks_exact_mut(hidden) {
            for (value, token_type) in position.iter_mut().zip(&types) {
                *value += token_type;
            }
        }
        let embedding_norm = LayerNorm::load(weights, &config, "embeddings.LayerNorm".into())?;
        let blocks = (0..config.num_hidden_layers)
            .map(|layer| Block::load(weights, &config, layer))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            nonlinearity: config.nonlinearity()?,
            config,
            words: words.into(),
            positions: positions.into(),
            embedding_norm,
            blocks,
        })
    }

    /// The model's sizes.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// One unit vector of `hidden_size` values per sentence.
    ///
    /// A sentence is its token ids, with the tokenizer's `[CLS]` and `[SEP]` and without padding. One of more than
    /// `max_position_embeddings` tokens keeps its first ones and its last (the `[SEP]`), as a tokenizer that truncates
    /// would give it.
    pub fn embed(&self, sentences: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, ModelError> {
        self.embed_profiled(sentences).map(|(embeddings, _)| embeddings)
    }

    /// As [`embed`](Self::embed), and where the time went.
    pub fn embed_profiled(&self, sentences: &[Vec<u32>]) -> Result<(Vec<Vec<f32>>, Profile), ModelError> {
        let sentences = self.check_sentences(sentences)?;
        let mut profile = Profile::default();
        let mut embeddings = Vec::with_capacity(sentences.len());
        let mut rest = &sentences[..];
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(part_len(rest));
            embeddings.extend(self.embed_part(part, &mut profile)?);
            rest = behind;
        }
        Ok((embeddings, profile))
    }

    pub(super) fn check_sentences(&self, sentences: &[Vec<u32>]) -> Result<Vec<Vec<u32>>, ModelError> {
        sentences.iter().enumerate().map(|(index, tokens)| self.check_sentence(index, tokens)).collect()
    }

    pub(super) fn check_sentence(&self, sentence: usize, tokens: &[u32]) -> Result<Vec<u32>, ModelError> {
        let Some(&last) = tokens.last() else {
            return Err(ModelError::EmptySentence { sentence });
        };
        let vocab_size = self.config.vocab_size;
        if let Some(position) = tokens.iter().position(|&id| id as usize >= vocab_size) {
            return Err(ModelError::TokenRange { sentence, position, got: tokens[position], vocab_size });
        }
        let limit = self.config.max_position_embeddings;
        if tokens.len() <= limit {
            return Ok(tokens.to_vec());
        }
        let mut kept = tokens[..limit - 1].to_vec();
        kept.push(last);
        Ok(kept)
    }

    fn embed_part(&self, sentences: &[Vec<u32>], profile: &mut Profile) -> Result<Vec<Vec<f32>>, ModelError> {
        let spans = spans(sentences);
        let x = self.encode(sentences, &spans, profile, None)?;
        let start = Instant::now();
        let embeddings = spans.par_iter().map(|span| pool(&x, span)).collect();
        profile.other += start.elapsed();
        Ok(embeddings)
    }

    /// The encoder's result \[hidden, tokens\] for sentences side by side. A tape, of as many tokens, takes what the
    /// gradient needs.
    pub(super) fn encode(
        &self,
        sentences: &[Vec<u32>],
        spans: &[Range<usize>],
        profile: &mut Profile,
        mut tape: Option<&mut Tape>,
    ) -> Result<Activations, ModelError> {
        let tokens = spans.last().map_or(0, |span| span.end);
        let start = Instant::now();
        let mut x = self.look_up(sentences, tokens);
        self.embedding_norm.apply(&mut x, tape.as_deref_mut().map(|tape| &mut tape.embedding));
        profile.other += start.elapsed();
        self.run_blocks(0..self.blocks.len(), spans, &mut x, profile, tape)?;
        Ok(x)
    }

    /// Some of the blocks, from what enters the first of them to what leaves the last.
    pub(super) fn run_blocks(
        &self,
        blocks: Range<usize>,
        spans: &[Range<usize>],
        x: &mut Activations,
        profile: &mut Profile,
        mut tape: Option<&mut Tape>,
    ) -> Result<(), ModelError> {
        let mut buffers = Buffers::new(&self.config, x.tokens());
        let pass = self.pass(spans);
        for index in blocks {
            let tape = tape.as_deref_mut().map(|tape| &mut tape.blocks[index]);
            self.blocks[index].forward(pass, x, &mut buffers, profile, tape)?;
        }
        Ok(())
    }

    pub(super) fn pass<'a>(&self, spans: &'a [Range<usize>]) -> Pass<'a> {
        Pass { heads: self.config.num_attention_heads, nonlinearity: self.nonlinearity, spans }
    }

    /// The sum of the embedding tables, feature-major.
    pub(super) fn look_up(&self, sentences: &[Vec<u32>], tokens: usize) -> Activations {
        // A block of features reads whole cache lines of the token-major tables and writes few rows at once.
        const FEATURE_BLOCK: usize = 16;
        let hidden = self.config.hidden_size;
        let mut x = Activations::zeros(hidden, tokens);
        x.as_mut_slice().par_chunks_mut(FEATURE_BLOCK * tokens).enumerate().for_each(|(block, rows)| {
            let first = block * FEATURE_BLOCK;
            let width = rows.len() / tokens;
            let positioned = sentences.iter().flat_map(|s| s.iter().enumerate());
            for (token, (position, &id)) in positioned.enumerate() {
                let word = &self.words[id as usize * hidden + first..][..width];
                let place = &self.positions[position * hidden + first..][..width];
                for feature in 0..width {
                    rows[feature * tokens + token] = word[feature] + place[feature];
                }
            }
        });
        x
    }
}

/// What the encoder leaves to its gradient.
pub(super) struct Tape {
    pub(super) embedding: Normed,
    pub(super) blocks: Vec<BlockTape>,
}

impl Tape {
    pub(super) fn new(config: &BertConfig, tokens: usize) -> Self {
        let blocks = (0..config.num_hidden_layers).map(|_| BlockTape::new(config, tokens)).collect();
        Self { embedding: Normed::zeros(config.hidden_size, tokens), blocks }
    }
}

/// Where each of the sentences lies when their tokens lie side by side.
pub(super) fn spans(sentences: &[Vec<u32>]) -> Vec<Range<usize>> {
    let mut tokens = 0;
    let spans = sentences.iter().map(|sentence| {
        let start = tokens;
        tokens += sentence.len();
        start..tokens
    });
    spans.collect()
}

/// How many of the first sentences fit [`MAX_BATCH_TOKENS`]; at least one.
pub(super) fn part_len(sentences: &[Vec<u32>]) -> usize {
    let mut tokens = 0;
    let fit = sentences
        .iter()
        .take_while(|sentence| {
            tokens += sentence.len();
            tokens <= MAX_BATCH_TOKENS
        })
        .count();
    fit.max(1)
}

/// The least length that the mean over a sentence is divided by, that of the sentence-transformers reference: a zero
/// vector stays zero.
pub(super) const LEAST_NORM: f32 = 1e-12;

/// The mean over a sentence's tokens, scaled to length 1.
pub(super) fn pool(x: &Activations, span: &Range<usize>) -> Vec<f32> {
    let (mut mean, norm) = mean(x, span);
    let scale = 1.0 / norm.max(LEAST_NORM);
    mean.iter_mut().for_each(|v| *v *= scale);
    mean
}

/// The mean over a sentence's tokens, and its length.
pub(super) fn mean(x: &Activations, span: &Range<usize>) -> (Vec<f32>, f32) {
    let inverse = 1.0 / span.len() as f32;
    let mean: Vec<f32> =
        (0..x.features()).map(|feature| x.row(feature)[span.clone()].iter().sum::<f32>() * inverse).collect();
    let norm = mean.iter().map(|v| v * v).sum::<f32>().sqrt();
    (mean, norm)
}
