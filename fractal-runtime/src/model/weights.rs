//! safetensors file -> named f32 tensors, of checked shape.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use super::ModelError;
use crate::prune::RawTensor;

/// A safetensors file in memory; tensors are converted to f32 as they are asked for.
pub struct Weights {
    path: PathBuf,
    bytes: Vec<u8>,
    entries: BTreeMap<String, Entry>,
    prefix: String,
}

struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

/// A row-major f32 tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The extents, outermost first.
    pub shape: Vec<usize>,
    /// The values, the last axis contiguous.
    pub data: Vec<f32>,
}

impl Weights {
    /// Reads a safetensors file. It is read whole rather than mapped: a map needs `unsafe`, and a file cut short while
    /// the model loads would kill the process.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let bytes = std::fs::read(path).map_err(|source| ModelError::Io { path: path.into(), source })?;
        Self::from_bytes(bytes, path)
    }

    /// Takes the bytes of a safetensors file; `path` appears in errors only.
    pub fn from_bytes(bytes: Vec<u8>, path: &Path) -> Result<Self, ModelError> {
        let (header, metadata) =
            SafeTensors::read_metadata(&bytes).map_err(|source| header_error(source, &bytes, path))?;
        // The header proper follows its own length, a u64.
        let data_start = header + size_of::<u64>();
        let entries = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| {
                let (start, end) = info.data_offsets;
                let entry =
                    Entry { dtype: info.dtype, shape: info.shape.clone(), bytes: data_start + start..data_start + end };
                (name, entry)
            })
            .collect();
        Ok(Self { path: path.into(), bytes, entries, prefix: String::new() })
    }

    /// The names of all tensors, as in the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Every tensor as it is stored; names without the prefix that was stripped.
    pub fn raw(&self) -> impl Iterator<Item = (&str, RawTensor)> {
        self.raw_without(&self.prefix)
    }

    /// Every tensor as it is stored; names without `prefix`.
    pub(super) fn raw_without(&self, prefix: &str) -> impl Iterator<Item = (&str, RawTensor)> {
        self.entries.iter().map(move |(name, entry)| {
            let bytes = self.bytes[entry.bytes.clone()].to_vec();
            let tensor = RawTensor::new(entry.dtype, entry.shape.clone(), bytes);
            let name = name.strip_prefix(prefix).unwrap_or(name);
            (name, tensor.expect("the header was checked against the file"))
        })
    }

    /// Makes names relative to whatever stands before `anchor` in the file (`bert.`, say), so that a checkpoint of a
    /// bare encoder and one with a task head load alike.
    pub fn strip_prefix_before(&mut self, anchor: &str) {
        if let Some(prefix) = self.prefix_before(anchor) {
            self.prefix = prefix;
        }
    }

    /// Whatever stands before `anchor` in the file; the shortest, should the file hold two encoders.
    pub(super) fn prefix_before(&self, anchor: &str) -> Option<String> {
        let before = |name: &String| {
            let prefix = name.strip_suffix(anchor)?;
            (prefix.is_empty() || prefix.ends_with('.')).then(|| prefix.to_owned())
        };
        self.entries.keys().filter_map(before).min_by_key(String::len)
    }

    /// Whether the file holds the tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(&self.full_name(name))
    }

    /// The tensor `name` as f32, of exactly this shape, all of it finite.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let name = self.full_name(name);
        let Some(entry) = self.entries.get(&name) else {
            return Err(self.missing(name));
        };
        if entry.shape != shape {
            return Err(ModelError::TensorShape { name, expected: shape.to_vec(), got: entry.shape.clone() });
        }
        let bytes = &self.bytes[entry.bytes.clone()];
        let data: Vec<f32> = match entry.dtype {
            Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::F16 => bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            Dtype::BF16 => bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            other => {
                return Err(ModelError::TensorDtype { name, got: format!("{other:?}") });
            }
        };
        if let Some(found) = data.iter().position(|v| !v.is_finite()) {
            let (mut at, mut rest) = (vec![0; shape.len()], found);
            for (place, &extent) in at.iter_mut().zip(shape).rev() {
                (*place, rest) = (rest % extent, rest / extent);
            }
            return Err(ModelError::TensorNotFinite { name, at, value: data[found] });
        }
        Ok(Tensor { shape: shape.to_vec(), data })
    }

    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) fn missing(&self, name: String) -> ModelError {
        const SHOWN: usize = 4;
        let mut found: Vec<_> = self.names().take(SHOWN).map(|n| format!("`{n}`")).collect();
        if self.entries.len() > SHOWN {
            found.push(format!("and {} more", self.entries.len() - SHOWN));
        }
        ModelError::MissingTensor {
            name,
            path: self.path.clone(),
            found: if found.is_empty() { "no tensors".into() } else { found.join(", ") },
        }
    }
}

/// A download that stopped is the usual damage, so the lengths are told where the header lets us.
fn header_error(source: SafeTensorError, bytes: &[u8], path: &Path) -> ModelError {
    let got = bytes.len() as u64;
    let length = |expected| ModelError::FileLength { path: path.into(), expected, got };
    let Some(header_len) = bytes.first_chunk::<8>().map(|b| u64::from_le_bytes(*b)) else {
        return length(8);
    };
    match &source {
        SafeTensorError::InvalidHeaderLength => length(header_len.saturating_add(8)),
        SafeTensorError::MetadataIncompleteBuffer => match declared_end(bytes, header_len) {
            Some(end) => length(end),
            None => ModelError::Safetensors { path: path.into(), source },
        },
        _ => ModelError::Safetensors { path: path.into(), source },
    }
}

/// The length of the file by its own header.
fn declared_end(bytes: &[u8], header_len: u64) -> Option<u64> {
    let data_start = header_len.checked_add(8)?;
    let header = bytes.get(8..usize::try_from(data_start).ok()?)?;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).ok()?;
    let end = header.values().filter_map(|tensor| tensor.get("data_offsets")?.get(1)?.as_u64()).max()?;
    data_start.checked_add(end)
}
