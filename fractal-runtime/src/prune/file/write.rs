//! [`PrunedFile`] -> tensors and strings -> bytes, or a file that is there whole or not at all.

use super::container::{self, METADATA, View, Views, size};
use super::error::PrunedFileError;
use super::metadata::{Entry, FORMAT, KEY, Kind, Metadata};
use super::{PrunedFile, RawTensor, StoredWeight, levels, residue};
use crate::prune::{Pruned, PrunedMask, Residue};
use crate::whole_file;
use fractal_dsl::DType;
use half::{bf16, f16};
use safetensors::Dtype;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

/// A tensor and its name.
pub(super) type NamedView<'a> = (String, View<'a>);

impl PrunedFile {
    /// The bytes of the file: equal ones for equal values.
    ///
    /// # Errors
    /// [`PrunedFileError::Name`] for a name that is taken.
    pub fn to_bytes(&self) -> Result<Vec<u8>, PrunedFileError> {
        let (strings, views) = self.parts()?;
        let mut bytes = Vec::new();
        let written = container::write(strings, &views, &mut bytes);
        written.map_err(|source| PrunedFileError::Write { path: "a buffer".into(), source })?;
        Ok(bytes)
    }

    /// Writes the file beside its place and moves it there, so that no reader finds half of it and a failure leaves what
    /// was there. A link stays one: what it leads to is written.
    ///
    /// # Errors
    /// As [`PrunedFile::to_bytes`], and [`PrunedFileError::Write`].
    pub fn write(&self, path: &Path) -> Result<(), PrunedFileError> {
        let (strings, views) = self.parts()?;
        whole_file::replace(path, |out| container::write(strings, &views, out))
            .map_err(|source| PrunedFileError::Write { path: path.into(), source })
    }

    fn parts(&self) -> Result<(BTreeMap<String, String>, Views<'_>), PrunedFileError> {
        let mut views = Views::new();
        let mut layers = BTreeMap::new();
        let mut put = |name: String, view| match views.insert(name.clone(), view) {
            None => Ok(()),
            Some(_) => Err(named("tensor", name, "no layer and no other tensor has")),
        };
        for (name, raw) in &self.others {
            if name == METADATA || name.contains(".fractal.") {
                return Err(named("tensor", name.clone(), "is not `__metadata__` and holds no `.fractal.`"));
            }
            put(name.clone(), raw.view())?;
        }
        for (layer, weight) in &self.layers {
            let of_pruned = |pruned: &Pruned| pruned.residue().map(Residue::places).cloned();
            let (kind, pattern, selection, restored) = match weight {
                StoredWeight::Packed(pruned) => (Kind::Packed, pruned.pattern(), pruned.selection(), of_pruned(pruned)),
                StoredWeight::Dense(pruned) => (Kind::Dense, pruned.pattern(), pruned.selection(), of_pruned(pruned)),
                StoredWeight::Mask(mask) => (Kind::Mask, mask.pattern(), mask.selection(), mask.restored.clone()),
            };
            let unwritable = |reason| PrunedFileError::Unwritable { layer: layer.clone(), reason };
            let mut entry = Entry::new(kind, pattern).map_err(unwritable)?;
            let (tensor, view) = match weight {
                StoredWeight::Packed(pruned) => (format!("{layer}.fractal.values"), packed(pruned)),
                StoredWeight::Dense(pruned) => (format!("{layer}.weight"), dense(pruned)),
                StoredWeight::Mask(mask) => (format!("{layer}.mask"), booleans(mask)),
            };
            put(tensor, view)?;
            if let StoredWeight::Packed(pruned) | StoredWeight::Dense(pruned) = weight {
                entry.dtype = Some(pruned.dtype());
                entry.kept = Some(pruned.kept());
                entry.retained = Some(pruned.retained());
            }
            for (tensor, view) in levels::write(layer, pattern, selection) {
                put(tensor, view)?;
            }
            for (tensor, view) in restored.iter().flat_map(|places| residue::write(layer, places, pattern.k())) {
                put(tensor, view)?;
            }
            if let StoredWeight::Packed(pruned) = weight
                && let Some(residue) = pruned.residue()
            {
                let values = floats(pruned.dtype(), vec![residue.len()], residue.values());
                put(residue::name(layer, "values"), values)?;
            }
            layers.insert(layer.clone(), entry);
        }
        let mut strings = self.notes.clone();
        let text = serde_json::to_string(&Metadata { format: FORMAT, layers });
        let text = text.map_err(|error| PrunedFileError::Write { path: "a buffer".into(), source: error.into() })?;
        match strings.insert(KEY.into(), text) {
            None => Ok((strings, views)),
            Some(_) => Err(named("note", KEY.into(), "is not `fractal`")),
        }
    }
}

fn named(what: &'static str, name: String, expected: &'static str) -> PrunedFileError {
    PrunedFileError::Name { what, name, expected }
}

fn packed(pruned: &Pruned) -> View<'static> {
    let values = &pruned.packed().values;
    floats(pruned.dtype(), vec![values.len()], values)
}

fn dense(pruned: &Pruned) -> View<'static> {
    let (n, k) = (pruned.pattern().n(), pruned.pattern().k());
    floats(pruned.dtype(), vec![n, k], &pruned.unpack())
}

fn booleans(mask: &PrunedMask) -> View<'static> {
    let (n, k) = (mask.pattern().n(), mask.pattern().k());
    let mask = mask.mask();
    let bytes = (0..n).flat_map(|row| (0..k).map(move |column| (row, column)));
    let bytes = bytes.map(|(row, column)| u8::from(mask.contains(row, column))).collect();
    View { dtype: Dtype::BOOL, shape: vec![n, k], bytes: Cow::Owned(bytes) }
}

/// Values that are exactly ones of `dtype`.
fn floats(dtype: DType, shape: Vec<usize>, values: &[f32]) -> View<'static> {
    let bytes: Vec<u8> = match dtype {
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
    };
    View { dtype: stored(dtype), shape, bytes: Cow::Owned(bytes) }
}

/// The type of the container.
pub(super) fn stored(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
    }
}

impl RawTensor {
    /// A tensor of these little-endian bytes, the last axis contiguous.
    ///
    /// # Errors
    /// [`PrunedFileError::Raw`] unless they are as many as type and shape say.
    pub fn new(dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>) -> Result<RawTensor, PrunedFileError> {
        let expected = size(dtype, &shape);
        if expected == Some(bytes.len()) {
            return Ok(RawTensor { dtype, shape, bytes });
        }
        let (dtype, expected, found) = (dtype.to_string(), expected.unwrap_or(usize::MAX), bytes.len());
        Err(PrunedFileError::Raw { dtype, shape, expected, found })
    }

    fn view(&self) -> View<'_> {
        View { dtype: self.dtype, shape: self.shape.clone(), bytes: Cow::Borrowed(&self.bytes) }
    }
}
