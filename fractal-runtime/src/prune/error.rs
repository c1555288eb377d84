//! What keeps a weight from being pruned.

use crate::tensor::TensorError;
use fractal_dsl::DType;
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
    /// Calibration data that do not fit the layer, or no setting.
    #[error("prune: calibration: expected {expected}, found {found}")]
    Calibration {
        /// What fits.
        expected: String,
        /// What was given.
        found: String,
    },
    /// A budget that cannot be had.
    #[error("prune: budget: expected {expected}, found {found}")]
    Budget {
        /// What can be had.
        expected: &'static str,
        /// What was asked for.
        found: String,
    },
    /// A weight beyond the range of the type it is to be stored in.
    #[error("prune: the weight {value} is beyond the range of {dtype}: store it in bf16 or f32")]
    Rounded {
        /// The weight.
        value: f32,
        /// The type.
        dtype: DType,
    },
    /// A fitted weight that its type cannot hold.
    #[error(
        "prune: the fitted weight at ({n}, {k}) is {value}, beyond the range of {dtype}: raise the damping, or store it in bf16 or f32"
    )]
    Range {
        /// Row.
        n: usize,
        /// Column.
        k: usize,
        /// The weight.
        value: f32,
        /// The storage type.
        dtype: DType,
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
    /// There is not one gradient for each weight.
    #[error("prune: expected {expected} gradients, one for each weight, found {found}")]
    GradientLength {
        /// Weights.
        expected: usize,
        /// Gradients.
        found: usize,
    },
    /// A gradient that is NaN or an infinity, or a mean square below 0.
    #[error("prune: the gradient of the weight at ({n}, {k}) is {value}; expected {expected}")]
    Gradient {
        /// Row.
        n: usize,
        /// Column.
        k: usize,
        /// The gradient, or the mean of its squares.
        value: f32,
        /// What it may be.
        expected: &'static str,
    },
    /// Scores that could not be computed.
    #[error("prune: importance: {0}")]
    Importance(Box<dyn std::error::Error + Send + Sync>),
}
