//! What can go wrong between a model directory and its embeddings, each case with what was expected, what was found and
//! how to mend it.

use std::path::PathBuf;

use super::LinearError;

/// A model that could not be read or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file could not be read.
    #[error("cannot read {}: {source}; check that the path exists and is readable", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// config.json is no JSON, or lacks a field.
    #[error("{}: {source}; expected the config.json of a BERT model", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why parsing stopped.
        source: serde_json::Error,
    },
    /// A field of config.json has a value that this encoder cannot run.
    #[error("config field `{field}`: expected {expected}, found {got}")]
    Config {
        /// The field's name in config.json.
        field: &'static str,
        /// The admissible values.
        expected: String,
        /// The value found.
        got: String,
    },
    /// The file holds fewer or more bytes than its header declares.
    #[error("{}: expected {expected} bytes by its header, found {got}; the file is damaged or was not downloaded whole: fetch it again", path.display())]
    FileLength {
        /// The file.
        path: PathBuf,
        /// Bytes that header and tensors take.
        expected: u64,
        /// Bytes in the file.
        got: u64,
    },
    /// The safetensors header cannot be read.
    #[error("{} is no valid safetensors file: {source}; fetch it again, or convert the checkpoint to safetensors", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The reader's answer.
        source: safetensors::SafeTensorError,
    },
    /// A tensor that the model needs is not in the file.
    #[error("{}: expected a tensor `{name}`, found {found}; this loader reads checkpoints of BERT encoders", path.display())]
    MissingTensor {
        /// The tensor's name.
        name: String,
        /// The file.
        path: PathBuf,
        /// What the file holds in its place.
        found: String,
    },
    /// A tensor has another shape than the config implies.
    #[error(
        "tensor `{name}`: expected shape {expected:?} by config.json, found {got:?}; config.json and weights must be of one model"
    )]
    TensorShape {
        /// The tensor's name.
        name: String,
        /// The shape by the config.
        expected: Vec<usize>,
        /// The shape in the file.
        got: Vec<usize>,
    },
    /// A tensor has an element type that is not read.
    #[error("tensor `{name}`: expected F32, F16 or BF16, found {got}; convert the checkpoint to one of these")]
    TensorDtype {
        /// The tensor's name.
        name: String,
        /// The element type in the file.
        got: String,
    },
    /// A tensor holds a NaN or an infinity.
    #[error("tensor `{name}`: entry {at:?} is {value}; expected finite numbers: mend the checkpoint")]
    TensorNotFinite {
        /// The tensor's name.
        name: String,
        /// Where the first one is, outermost axis first.
        at: Vec<usize>,
        /// What it is.
        value: f32,
    },
    /// No linear layer has this name.
    #[error("no linear layer is named `{name}`; the names are {}", known.join(", "))]
    UnknownLinear {
        /// The name asked for.
        name: String,
        /// All names.
        known: Vec<String>,
    },
    /// No LayerNorm has this name.
    #[error("no LayerNorm is named `{name}`; the names are {}", known.join(", "))]
    UnknownNorm {
        /// The name asked for.
        name: String,
        /// All names.
        known: Vec<String>,
    },
    /// Values for a parameter are too few or too many.
    #[error("parameter `{name}`: expected {expected} values, found {got}")]
    ParameterLength {
        /// The parameter, as in a checkpoint: the layer's name and `.weight` or `.bias`.
        name: String,
        /// How many the parameter has.
        expected: usize,
        /// How many were given.
        got: usize,
    },
    /// A value for a parameter is NaN or an infinity.
    #[error("parameter `{name}`: value {at} is {value}; expected finite numbers")]
    ParameterNotFinite {
        /// The parameter, as in a checkpoint.
        name: String,
        /// Index of the first one, row-major.
        at: usize,
        /// What it is.
        value: f32,
    },
    /// A replacement operator has another shape than the layer.
    #[error("linear layer `{name}`: expected an operator of n, k = {expected:?}, found {got:?}")]
    OperatorShape {
        /// The layer.
        name: String,
        /// \[n, k\] of the layer.
        expected: [usize; 2],
        /// \[n, k\] of the operator.
        got: [usize; 2],
    },
    /// A layer runs an operator whose weight the model does not know, so that it has no gradient.
    #[error(
        "linear layer `{name}` runs `{operator}`; expected its dense weight: set the weight that the operator stands for"
    )]
    NotDense {
        /// The layer.
        name: String,
        /// What it runs.
        operator: String,
    },
    /// Embeddings, targets or gradients that do not go together.
    #[error("loss: expected {expected} {what}, found {got}")]
    LossLength {
        /// What was counted.
        what: &'static str,
        /// How many there must be.
        expected: usize,
        /// How many there are.
        got: usize,
    },
    /// A gradient by an embedding is NaN or an infinity.
    #[error("loss: the gradient by the embedding of sentence {sentence} is not finite")]
    LossNotFinite {
        /// Index in the batch.
        sentence: usize,
    },
    /// A target embedding holds a NaN or an infinity.
    #[error("the target of sentence {sentence} is not finite")]
    TargetNotFinite {
        /// Index among the sentences.
        sentence: usize,
    },
    /// A setting of a loss or of training that cannot be.
    #[error("setting `{name}`: expected {expected}, found {got}")]
    Setting {
        /// The field's or argument's name.
        name: &'static str,
        /// The admissible values.
        expected: &'static str,
        /// The value found.
        got: String,
    },
    /// A mask has another shape than the layer that it is for.
    #[error("linear layer `{name}`: expected a mask of n, k = {expected:?}, found {got:?}")]
    MaskShape {
        /// The layer.
        name: String,
        /// \[n, k\] of the layer.
        expected: [usize; 2],
        /// \[n, k\] of the mask.
        got: [usize; 2],
    },
    /// Training left the numbers that f32 can hold.
    #[error("distill: the loss is not finite in epoch {epoch}; a lower learning rate may help")]
    Diverged {
        /// The epoch, from 1 on.
        epoch: usize,
    },
    /// A loss of the caller's own could not be computed.
    #[error("loss: {0}")]
    Loss(Box<dyn std::error::Error + Send + Sync>),
    /// A linear operator failed while the model ran.
    #[error("linear layer `{name}`: {source}")]
    Operator {
        /// The layer.
        name: String,
        /// The operator's answer.
        source: LinearError,
    },
    /// A sentence without tokens has no mean.
    #[error("sentence {sentence} has no tokens; expected at least one (a tokenizer adds [CLS] and [SEP])")]
    EmptySentence {
        /// Index in the batch.
        sentence: usize,
    },
    /// A token id is not in the vocabulary.
    #[error(
        "sentence {sentence}, token {position}: expected an id below {vocab_size}, found {got}; tokenizer and model must belong together"
    )]
    TokenRange {
        /// Index in the batch.
        sentence: usize,
        /// Index in the sentence.
        position: usize,
        /// The id found.
        got: u32,
        /// The model's vocabulary size.
        vocab_size: usize,
    },
}
