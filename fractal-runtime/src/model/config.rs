//! config.json of a BERT checkpoint: JSON text -> checked sizes.

use std::path::Path;

use serde::Deserialize;

use super::{ModelError, Nonlinearity};

/// The sizes of a BERT encoder, named as in config.json. Made by [`BertConfig::from_json`], which checks them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct BertConfig {
    /// Features of a token.
    pub hidden_size: usize,
    /// Features between the two feed-forward layers.
    pub intermediate_size: usize,
    /// Attention heads; they share the hidden size evenly.
    pub num_attention_heads: usize,
    /// Encoder blocks.
    pub num_hidden_layers: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Tokens of the longest sentence.
    pub max_position_embeddings: usize,
    /// Rows of the token type table; all tokens use the first.
    pub type_vocab_size: usize,
    /// Added to the variance in LayerNorm.
    #[serde(default = "default_epsilon")]
    pub layer_norm_eps: f32,
    /// The nonlinearity of the feed-forward layers: `gelu` or `relu`.
    #[serde(default = "default_activation")]
    pub hidden_act: String,
    /// Only `absolute` is read.
    #[serde(default = "default_positions")]
    pub position_embedding_type: String,
}

fn default_epsilon() -> f32 {
    1e-12
}

fn default_activation() -> String {
    "gelu".into()
}

fn default_positions() -> String {
    "absolute".into()
}

impl BertConfig {
    /// Reads and checks the text of a config.json; `path` appears in errors only.
    pub fn from_json(text: &str, path: &Path) -> Result<Self, ModelError> {
        let config: Self =
            serde_json::from_str(text).map_err(|source| ModelError::Json { path: path.into(), source })?;
        config.check()?;
        Ok(config)
    }

    /// The size of one attention head.
    pub fn head_size(&self) -> usize {
        self.hidden_size / self.num_attention_heads
    }

    pub(super) fn nonlinearity(&self) -> Result<Nonlinearity, ModelError> {
        match self.hidden_act.as_str() {
            "gelu" => Ok(Nonlinearity::Gelu),
            "relu" => Ok(Nonlinearity::Relu),
            other => Err(ModelError::Config {
                field: "hidden_act",
                expected: "`gelu` or `relu`".into(),
                got: format!("`{other}`"),
            }),
        }
    }

    fn check(&self) -> Result<(), ModelError> {
        // The largest count for which products of two sizes and four bytes stay far from overflow.
        const LIMIT: usize = 1 << 24;
        let sizes = [
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("num_hidden_layers", self.num_hidden_layers),
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.max_position_embeddings),
            ("type_vocab_size", self.type_vocab_size),
        ];
        for (field, got) in sizes {
            if got == 0 || got > LIMIT {
                return Err(ModelError::Config {
                    field,
                    expected: format!("a number from 1 to {LIMIT}"),
                    got: got.to_string(),
                });
            }
        }
        if !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            return Err(ModelError::Config {
                field: "num_attention_heads",
                expected: format!("a divisor of hidden_size = {}", self.hidden_size),
                got: self.num_attention_heads.to_string(),
            });
        }
        if !(self.layer_norm_eps >= 0.0 && self.layer_norm_eps < 1.0) {
            return Err(ModelError::Config {
                field: "layer_norm_eps",
                expected: "a number from 0 to 1".into(),
                got: self.layer_norm_eps.to_string(),
            });
        }
        if self.position_embedding_type != "absolute" {
            return Err(ModelError::Config {
                field: "position_embedding_type",
                expected: "`absolute`".into(),
                got: format!("`{}`", self.position_embedding_type),
            });
        }
        self.nonlinearity().map(drop)
    }
}
