//! What keeps a file of pruned weights from being written or read.

use fractal_dsl::pattern::PatternError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

use super::metadata::FORMAT;

/// A file of pruned weights that could not be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PrunedFileError {
    /// The file could not be read.
    #[error("cannot read {}: {source}; check that the path exists and is a readable file", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The file could not be written; what was at the path before is still there.
    #[error("cannot write {}: {source}; check that its folder exists and can be written", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The file holds fewer or more bytes than its header declares.
    #[error("{}: expected {expected} bytes by its header, found {found}; the file is damaged or was not copied whole: fetch it again", .path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes that header and tensors take.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },
    /// The header is none of a safetensors file.
    #[error("{} is no valid safetensors file: {reason}; the file is damaged: fetch it again", .path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What was expected and what was found.
        reason: String,
    },
    /// A safetensors file that says nothing about pruning.
    #[error("{}: expected the key `fractal` in `__metadata__`, found {found}; a plain checkpoint has to be pruned first", .path.display())]
    Plain {
        /// The file.
        path: PathBuf,
        /// The keys that there are.
        found: String,
    },
    /// Another format.
    #[error("{}: expected format {FORMAT}, found {found}; read the file with the version of fractal that wrote it, or a newer one", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format in the file.
        found: u64,
    },
    /// The description of the layers cannot be read.
    #[error("{}: `fractal` in `__metadata__`: {reason}; the file is damaged: write it again", .path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// What was expected and what was found.
        reason: String,
    },
    /// A layer is not what its description says.
    #[error("{}: layer `{layer}`: {fault}", .path.display())]
    Layer {
        /// The file.
        path: PathBuf,
        /// The layer.
        layer: String,
        /// What is wrong with it.
        fault: LayerFault,
    },
    /// A tensor of a layer that is not there.
    #[error("{}: expected tensors of the layers alone under names with `.fractal.`, found `{tensor}`, which no layer needs; the file is damaged: write it again", .path.display())]
    Stray {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// What is to be written has a name that the format needs itself, or that is there twice.
    #[error("{what} `{name}`: expected a name that {expected}; give it another one")]
    Name {
        /// What has the name.
        what: &'static str,
        /// The name.
        name: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A tensor whose bytes are not those of its shape.
    #[error("tensor of type {dtype} and shape {shape:?}: expected {expected} bytes, found {found}")]
    Raw {
        /// The type of its elements.
        dtype: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes that the shape takes, or the greatest number where it takes more or none that are whole.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A pattern that cannot be written as text.
    #[error("layer `{layer}`: its pattern is not what its own text says: {reason}")]
    Unwritable {
        /// The layer.
        layer: String,
        /// What was expected and what was found.
        reason: String,
    },
}

/// What is wrong with a layer of a file.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum LayerFault {
    /// A field of its description that is missing, too much, or out of range.
    #[error("`{field}`: expected {expected}, found {found}; the file is damaged: write it again")]
    Field {
        /// The field.
        field: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The text of its pattern is none.
    #[error("`pattern`: expected the statements of a pattern for its n and k, found:\n{reason}")]
    Text {
        /// What is wrong with it.
        reason: String,
    },
    /// It would take more memory than a file of that length should.
    #[error(
        "a {n}x{k} weight of this pattern takes {found} entries in memory; expected at most {limit} for a file of this \
         length: raise `ReadLimits::entries` if it comes from a source that you trust"
    )]
    TooLarge {
        /// Rows.
        n: usize,
        /// Columns.
        k: usize,
        /// Entries that it takes, or the greatest number where there are more.
        found: usize,
        /// Entries that are left to it.
        limit: usize,
    },
    /// A tensor is not there.
    #[error("expected a tensor `{tensor}`, found none; the file is damaged: write it again")]
    Missing {
        /// Its name.
        tensor: String,
    },
    /// A tensor of another type or shape, or a residue's lists that name elements which cannot be restored.
    #[error("tensor `{tensor}`: expected {expected}, found {found}; the file is damaged: write it again")]
    Tensor {
        /// Its name.
        tensor: String,
        /// The type, shape or entries expected.
        expected: String,
        /// Those found.
        found: String,
    },
    /// A region with more entries than it may keep.
    #[error(
        "tensor `{tensor}`: expected at most {most} kept iterations in region {region}, found {found}; the file is damaged: write it again"
    )]
    Count {
        /// The tensor's name.
        tensor: String,
        /// The region.
        region: usize,
        /// The most that it may keep.
        most: usize,
        /// What it keeps.
        found: u32,
    },
    /// An index out of range, twice in a region, or in padding; regions that keep too few.
    #[error("{0}; the file is damaged: write it again")]
    Selection(PatternError),
    /// A NaN or an infinity. It would reach every token.
    #[error("tensor `{tensor}`: entry {at:?} is {value}; expected finite numbers: mend the checkpoint")]
    NotFinite {
        /// The tensor's name.
        tensor: String,
        /// Where the first one is, outermost axis first.
        at: Vec<usize>,
        /// What it is.
        value: f32,
    },
    /// A value in a place that no element fills.
    #[error(
        "tensor `{tensor}`: entry {at} is {value}; expected 0 in a place that no weight fills: write the file again"
    )]
    Padding {
        /// The tensor's name.
        tensor: String,
        /// The place.
        at: usize,
        /// What is there.
        value: f32,
    },
    /// A dense weight that is not zero where the selection drops it.
    #[error("the weight at ({n}, {k}) is {value}; expected 0, for it was pruned: apply the mask again after training")]
    Dropped {
        /// Row.
        n: usize,
        /// Column.
        k: usize,
        /// What is there.
        value: f32,
    },
    /// A mask that is another one than the selection makes.
    #[error(
        "tensor `{tensor}`: entry ({n}, {k}) is {found}; expected {expected}, as the selection says: write the file again"
    )]
    Mask {
        /// The tensor's name.
        tensor: String,
        /// Row.
        n: usize,
        /// Column.
        k: usize,
        /// 1 where it is kept.
        expected: u8,
        /// What is there.
        found: u8,
    },
}
