//! Models that run end to end on packed weights.
//!
//! Stage: (config, safetensors, token ids) -> sentence embeddings. Every prunable matrix of a model is a [`LinearOp`]
//! with a name, so that a pruning recipe can read the dense weight and put a sparse operator in its place.
//!
//! Activations are feature-major, X\[features, tokens\], with the tokens of all sentences of a batch side by side and
//! no padding: layers chain without a transpose, and a gather of features is a gather of contiguous memory.

mod activations;
mod alone;
mod attention;
mod bert;
mod block;
mod calibrate;
mod config;
mod error;
mod gradient;
mod linear;
mod norm;
mod parameters;
mod product;
mod prune;
mod sparse;
mod stored;
#[cfg(test)]
mod tests;
mod weights;

pub use activations::Activations;
pub use bert::{BertModel, MAX_BATCH_TOKENS, Profile};
pub use calibrate::{CalibrateError, NewWeights};
pub use config::BertConfig;
pub use error::ModelError;
pub use gradient::{
    Adam, AdamSettings, AdamStep, DistillSettings, Epoch, Gradients, LinearGradient, Loss, NormGradient, Schedule,
    TEMPERATURE, contrastive, cosine, distill, probe, relation,
};
pub use linear::{DenseLinear, Epilogue, EpilogueKind, LinearError, LinearOp, Nonlinearity, check_shapes};
pub use parameters::DenseWeight;
pub use prune::{LayerPlan, PrunedModel};
pub use sparse::SparseLinear;
pub use weights::{Tensor, Weights};
