//! Pruned weights and masks <-> safetensors files, which any reader of that format opens.
//!
//! | file | what it does |
//! |---|---|
//! | `container` | named tensors and strings <-> bytes of a safetensors file |
//! | `metadata` | the layers' descriptions <-> JSON; a pattern <-> its statements |
//! | `levels` | a selection <-> tensors |
//! | `residue` | restored elements <-> tensors |
//! | `limits` | what reading may take |
//! | `write` | [`PrunedFile`] -> bytes, a file |
//! | `read` | bytes -> [`PrunedFile`], checked |
//! | `error` | what can go wrong |

mod container;
mod error;
mod levels;
mod limits;
mod metadata;
mod read;
mod residue;
mod write;

pub use error::{LayerFault, PrunedFileError};
pub use limits::ReadLimits;
pub use safetensors::Dtype as RawType;

use super::{Pruned, PrunedMask};
use std::collections::BTreeMap;

/// The layers of a pruned model, and the tensors that were not pruned.
///
/// # The format
///
/// A safetensors file whose `__metadata__` has the key `fractal`, JSON:
///
/// ```json
/// {"format": 1, "layers": {"encoder.up": {
///     "kind": "packed", "n": 4096, "k": 1024, "pattern": ["let (no, ni) = split(n, 128);", "skip(k, per = no, keep = 25%);"],
///     "dtype": "f16", "kept": 1048576, "retained": 0.61}}}
/// ```
///
/// `kind` is `packed`, `dense` or `mask`; the last has no `dtype`, `kept` and `retained`. `kept` may be less than what is
/// selected where a mask needs less than a region keeps; restored elements count. Of each layer there are these tensors, besides those that no layer
/// needs, which are kept as they are:
///
/// | tensor | of | type, shape | holds |
/// |---|---|---|---|
/// | `<layer>.fractal.values` | packed | `dtype`, one axis | values in the order of the loops of [`Pattern::format`], zero in places that no element fills |
/// | `<layer>.weight` | dense | `dtype` \[n, k\] | the weight, zero where it is dropped |
/// | `<layer>.mask` | mask | BOOL \[n, k\] | true where it is kept |
/// | `<layer>.fractal.bits.<i>` | all | U8 | a bit for each iteration of each region of a skip, set where it is kept |
/// | `<layer>.fractal.kept.<i>` | all | U8 | in place of bits: the kept iterations of all regions one after the other |
/// | `<layer>.fractal.counts.<i>` | all | U8 | with `kept`: how many of them each region has, where that is not what the pattern says |
/// | `<layer>.fractal.order.<i>` | all | U8 | of a permutation: `order[new] = old` |
/// | `<layer>.fractal.residue.counts` | all | U8 | where single elements are restored on top of the pattern: how many of them each row has, entries below k + 1 |
/// | `<layer>.fractal.residue.columns` | all | U8 | their columns, row by row, ascending in each, entries below k |
/// | `<layer>.fractal.residue.values` | packed | `dtype`, one axis | their values; `<layer>.weight` of the kind dense holds them in their places, and `<layer>.mask` is true there |
///
/// `<i>` counts the skips and permutations of the pattern from 0. The entries of bits and lists are 1, 2, 4, 8, 16 or 32 bits wide, the
/// narrowest that tells all possible values apart, packed from the low bits of each byte up, and little-endian. Bits or a
/// list: whichever is shorter. Index vectors of the packed format follow from the selection and are not stored.
///
/// Reading believes nothing: a weight that is read is one that pruning could have made. What a forged file can do is to have
/// other weights kept, or other values.
///
/// ```
/// use fractal_dsl::pattern::Named;
/// use fractal_runtime::{Magnitude, PrunedFile, ReadLimits, StoredWeight, Tensor, prune};
/// use fractal_dsl::DType;
///
/// let weight = Tensor::from_f32(DType::F16, 8, 16, &(0..128).map(|v| v as f32).collect::<Vec<_>>())?;
/// let pattern = "2:4".parse::<Named>()?.pattern(8, 16, 0.5)?;
/// let pruned = prune(&pattern, &weight, &Magnitude)?;
///
/// let mut file = PrunedFile::default();
/// file.layers.insert("up".into(), StoredWeight::Packed(pruned));
/// file.notes.insert("importance".into(), "magnitude".into());
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("model.safetensors");
/// file.write(&path)?;
/// assert_eq!(PrunedFile::read(&path)?, file);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Pattern::format`]: fractal_dsl::pattern::Pattern::format
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrunedFile {
    /// The pruned layers by name.
    pub layers: BTreeMap<String, StoredWeight>,
    /// Tensors that were not pruned, by their whole names: biases, embeddings, norms.
    pub others: BTreeMap<String, RawTensor>,
    /// Strings beside `fractal` in `__metadata__`: how it was pruned, say. Some loaders ask for `format` = `pt`.
    pub notes: BTreeMap<String, String>,
}

/// How a layer is stored.
#[derive(Clone, Debug, PartialEq)]
pub enum StoredWeight {
    /// As it is packed: the smallest file, which starts fastest.
    Packed(Pruned),
    /// Dense with zeros under its usual name, so that other programs load it as any weight.
    Dense(Pruned),
    /// What is kept, without the weight.
    Mask(PrunedMask),
}

impl StoredWeight {
    /// The pruned weight; `None` of a mask.
    pub fn pruned(&self) -> Option<&Pruned> {
        match self {
            StoredWeight::Packed(pruned) | StoredWeight::Dense(pruned) => Some(pruned),
            StoredWeight::Mask(_) => None,
        }
    }
}

/// A tensor that is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawTensor {
    dtype: RawType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl RawTensor {
    /// The type of its elements.
    pub fn dtype(&self) -> RawType {
        self.dtype
    }

    /// The extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements, little-endian, the last axis contiguous.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
