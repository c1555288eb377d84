//! What keeps a weight from being pruned.

use crate::tensor::TensorError;
use fractal_dsl::pattern::PatternError;
use thiserror::Error;

/// Why a weight could not be pruned.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PruneError {
    /// The weight's shape is not the pattern's.
    #[error("prune: the weight is {found_n}x{found_k}; the pattern is for {n}x{k}")]
    Shape {
        /// Rows of the weight.
        found_n: usize,
        /// Columns of the weight.
        found_k: usize,
        /// Rows of the pattern.
        n: usize,
        /// Columns of the pattern.
        k: usize,
    },
    /// A weight that is NaN or an infinity.
    #[error("prune: the weight at ({n}, {k}) is {value}; expected a finite number: mend the checkpoint")]
    NotFinite {
        /// Row.
        n: usize,
        /// Column.
        k: usize,
        /// The weight.
        value: f32,
    },
    /// A negative score.
    #[error(
        "prune: the score of the weight at ({n}, {k}) is {value}; expected one of at least 0, such as its absolute value"
    )]
    Negative {
        /// Row.
        n: usize,
        /// Column.
        k: usize,
        /// The score.
        value: f32,
    },
    /// A residue of less than nothing, or of everything.
    #[error("prune: a residue of {found} of the elements; expected a part from 0 to below 1")]
    Share {
        /// The part.
        found: f64,
    },
    /// Lists that are no residue.
    #[error("prune: residue: expected {expected}, found {found}")]
    Residue {
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The scores do not fit, or the pattern is at fault.
    #[error("prune: {0}")]
    Pattern(#[from] PatternError),
    /// The dense weight could not be made.
    #[error("prune: {0}")]
    Tensor(#[from] TensorError),
    /// Scores that could not be computed.
    #[error("prune: importance: {0}")]
    Importance(Box<dyn std::error::Error + Send + Sync>),
}
