//! Bytes -> [`PrunedFile`]. Nothing that a file says is believed: sizes are bounded before anything of them is made, and
//! every layer is one that pruning could have made.

use super::container::{self, View, Views};
use super::error::{LayerFault, PrunedFileError};
use super::limits::{Budget, ReadLimits};
use super::metadata::{Entry, FORMAT, KEY, Kind, Metadata};
use super::write::stored;
use super::{PrunedFile, RawTensor, StoredWeight, levels, residue};
use crate::prune::residue::Places;
use crate::prune::{Pruned, PrunedMask, Residue};
use fractal_dsl::DType;
use half::{bf16, f16};
use safetensors::Dtype;
use serde::Deserialize;
use std::io;
use std::path::Path;

impl PrunedFile {
    /// Reads a file, within [`ReadLimits::default`].
    ///
    /// # Errors
    /// [`PrunedFileError`].
    pub fn read(path: &Path) -> Result<PrunedFile, PrunedFileError> {
        PrunedFile::read_within(path, &ReadLimits::default())
    }

    /// Reads a file. It is read whole rather than mapped: a file cut short meanwhile would kill the process.
    ///
    /// # Errors
    /// [`PrunedFileError`].
    pub fn read_within(path: &Path, limits: &ReadLimits) -> Result<PrunedFile, PrunedFileError> {
        // Devices and pipes may never end.
        let whole = || match std::fs::metadata(path)?.is_file() {
            true => std::fs::read(path),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a file, found something else")),
        };
        let bytes = whole().map_err(|source| PrunedFileError::Read { path: path.into(), source })?;
        PrunedFile::from_bytes(&bytes, path, limits)
    }

    /// Reads the bytes of a file; `path` appears in errors only.
    ///
    /// # Errors
    /// [`PrunedFileError`].
    pub fn from_bytes(bytes: &[u8], path: &Path, limits: &ReadLimits) -> Result<PrunedFile, PrunedFileError> {
        let (mut notes, mut views) = container::read(bytes, path)?;
        let Some(text) = notes.remove(KEY) else {
            let keys: Vec<&str> = notes.keys().map(String::as_str).collect();
            let found = if keys.is_empty() { "none".into() } else { format!("`{}`", keys.join("`, `")) };
            return Err(PrunedFileError::Plain { path: path.into(), found });
        };
        let metadata = metadata(&text, path)?;
        let mut budget = limits.budget(bytes.len());
        let mut file = PrunedFile { notes, ..PrunedFile::default() };
        for (name, entry) in metadata.layers {
            match layer(&name, &entry, &mut views, &mut budget) {
                Ok(weight) => file.layers.insert(name, weight),
                Err(fault) => return Err(PrunedFileError::Layer { path: path.into(), layer: name, fault }),
            };
        }
        if let Some(tensor) = views.keys().find(|name| name.contains(".fractal.")) {
            return Err(PrunedFileError::Stray { path: path.into(), tensor: tensor.clone() });
        }
        let raw = |view: View<'_>| RawTensor { dtype: view.dtype, shape: view.shape, bytes: view.bytes.into_owned() };
        file.others = views.into_iter().map(|(name, view)| (name, raw(view))).collect();
        Ok(file)
    }
}

/// The number of the format comes first: what else there is depends on it.
fn metadata(text: &str, path: &Path) -> Result<Metadata, PrunedFileError> {
    #[derive(Deserialize)]
    struct Numbered {
        format: u64,
    }
    let wrong = |error: serde_json::Error| PrunedFileError::Metadata { path: path.into(), reason: error.to_string() };
    let found = serde_json::from_str::<Numbered>(text).map_err(wrong)?.format;
    if found != FORMAT {
        return Err(PrunedFileError::Format { path: path.into(), found });
    }
    serde_json::from_str(text).map_err(wrong)
}

/// Takes the tensors of a layer out of `views` and checks everything about them.
fn layer(name: &str, entry: &Entry, views: &mut Views<'_>, budget: &mut Budget) -> Result<StoredWeight, LayerFault> {
    let pattern = entry.pattern()?;
    budget.take(&pattern)?;
    let selection = levels::read(name, &pattern, views)?;
    selection.check_filled(&pattern).map_err(LayerFault::Selection)?;
    let kept = || pattern.mask(&selection).map_err(LayerFault::Selection);
    let restored = residue::read(name, (pattern.n(), pattern.k()), views, kept)?;
    let kept = PrunedMask { pattern, selection, restored };
    match entry.kind {
        Kind::Packed => packed(name, entry, kept, views).map(StoredWeight::Packed),
        Kind::Dense => dense(name, entry, kept, views).map(StoredWeight::Dense),
        Kind::Mask => mask(name, entry, kept, views).map(StoredWeight::Mask),
    }
}

fn packed(layer: &str, entry: &Entry, kept: PrunedMask, views: &mut Views<'_>) -> Result<Pruned, LayerFault> {
    let PrunedMask { pattern, selection, restored } = kept;
    let tensor = format!("{layer}.fractal.values");
    let dtype = Entry::field("dtype", entry.dtype)?;
    let view = views.remove(&tensor).ok_or_else(|| LayerFault::Missing { tensor: tensor.clone() })?;
    // Packing this tells which places an element fills, and makes the index vectors anew.
    let all = vec![true; pattern.n() * pattern.k()];
    let filled = pattern.pack(&selection, &all).map_err(LayerFault::Selection)?;
    let values = floats(&tensor, &view, dtype, &[filled.values.len()])?;
    let in_padding = |at: &usize| !filled.values[*at] && values[*at] != 0.0;
    if let Some(at) = (0..values.len()).find(in_padding) {
        return Err(LayerFault::Padding { tensor, at, value: values[at] });
    }
    let residue = match restored {
        Some(places) => Some(restored_values(layer, places, dtype, views)?),
        None => None,
    };
    let most = filled.values.iter().filter(|&&filled| filled).count();
    let more = residue.as_ref().map_or(0, Residue::len);
    let (kept, retained) = checked(entry, nonzero(&values) + more, most + more)?;
    let mut values = values.into_iter();
    // A padding of -0 would compute the same; there is one way to write it.
    let packed = filled.map(|filled| values.next().filter(|_| filled).unwrap_or_default());
    Ok(Pruned { pattern, selection, packed, dtype, retained, kept, residue })
}

fn restored_values(layer: &str, places: Places, dtype: DType, views: &mut Views<'_>) -> Result<Residue, LayerFault> {
    let tensor = residue::name(layer, "values");
    let view = views.remove(&tensor).ok_or_else(|| LayerFault::Missing { tensor: tensor.clone() })?;
    let values = floats(&tensor, &view, dtype, &[places.columns().len()])?;
    Ok(places.with_values(values))
}

fn dense(layer: &str, entry: &Entry, kept: PrunedMask, views: &mut Views<'_>) -> Result<Pruned, LayerFault> {
    let PrunedMask { pattern, selection, restored } = kept;
    let tensor = format!("{layer}.weight");
    let dtype = Entry::field("dtype", entry.dtype)?;
    let view = views.remove(&tensor).ok_or_else(|| LayerFault::Missing { tensor: tensor.clone() })?;
    let weights = floats(&tensor, &view, dtype, &[pattern.n(), pattern.k()])?;
    let some: Vec<Option<f32>> = weights.iter().copied().map(Some).collect();
    let filled = pattern.pack(&selection, &some).map_err(LayerFault::Selection)?;
    drop(some);
    let k = pattern.k();
    let residue = restored.map(|places| places.residue_of(&weights, k));
    let restored = residue.as_ref().map_or(&[][..], Residue::values);
    let selected = filled.values.iter().flatten();
    let least = selected.clone().filter(|&&value| value != 0.0).count();
    if nonzero(&weights) != least + nonzero(restored) {
        let mut mask = pattern.mask(&selection).map_err(LayerFault::Selection)?;
        residue.iter().flat_map(Residue::elements).for_each(|(n, k, _)| mask.insert(n, k));
        let dropped = |at: &usize| weights[*at] != 0.0 && !mask.contains(at / k, at % k);
        if let Some(at) = (0..weights.len()).find(dropped) {
            return Err(LayerFault::Dropped { n: at / k, k: at % k, value: weights[at] });
        }
    }
    let (kept, retained) = checked(entry, least + restored.len(), selected.count() + restored.len())?;
    let packed = filled.map(Option::unwrap_or_default);
    Ok(Pruned { pattern, selection, packed, dtype, retained, kept, residue })
}

fn mask(layer: &str, entry: &Entry, kept: PrunedMask, views: &mut Views<'_>) -> Result<PrunedMask, LayerFault> {
    for (field, there) in
        [("dtype", entry.dtype.is_some()), ("kept", entry.kept.is_some()), ("retained", entry.retained.is_some())]
    {
        if there {
            return Err(LayerFault::Field { field, expected: "none of a mask".into(), found: "a value".into() });
        }
    }
    let tensor = format!("{layer}.mask");
    let view = views.remove(&tensor).ok_or_else(|| LayerFault::Missing { tensor: tensor.clone() })?;
    let (n, k) = (kept.pattern.n(), kept.pattern.k());
    is(&tensor, &view, Dtype::BOOL, &[n, k])?;
    let mask = kept.mask();
    for (at, &found) in view.bytes.iter().enumerate() {
        let expected = u8::from(mask.contains(at / k, at % k));
        if found != expected {
            return Err(LayerFault::Mask { tensor, n: at / k, k: at % k, expected, found });
        }
    }
    Ok(kept)
}

/// `kept` and `retained`. What fills a region that the mask needs no more of does not count as kept, and is zero; so the
/// count lies between that of nonzero values and that of the selection. What a residue restores counts in both.
fn checked(entry: &Entry, nonzero: usize, selected: usize) -> Result<(usize, f64), LayerFault> {
    let kept = Entry::field("kept", entry.kept)?;
    if kept < nonzero || kept > selected {
        let expected = format!("{nonzero} to {selected}, as many as values that are not zero and as are selected");
        return Err(LayerFault::Field { field: "kept", expected, found: kept.to_string() });
    }
    let retained = Entry::field("retained", entry.retained)?;
    if !(0.0..=1.0).contains(&retained) {
        let (expected, found) = ("a number from 0 to 1".into(), retained.to_string());
        return Err(LayerFault::Field { field: "retained", expected, found });
    }
    Ok((kept, retained))
}

fn nonzero(values: &[f32]) -> usize {
    values.iter().filter(|&&value| value != 0.0).count()
}

/// Whether a tensor has this type and shape.
fn is(tensor: &str, view: &View<'_>, dtype: Dtype, shape: &[usize]) -> Result<(), LayerFault> {
    if view.dtype == dtype && view.shape == shape {
        return Ok(());
    }
    Err(LayerFault::Tensor {
        tensor: tensor.into(),
        expected: format!("{dtype} {shape:?}"),
        found: format!("{} {:?}", view.dtype, view.shape),
    })
}

/// Finite values of a type and shape.
fn floats(tensor: &str, view: &View<'_>, dtype: DType, shape: &[usize]) -> Result<Vec<f32>, LayerFault> {
    is(tensor, view, stored(dtype), shape)?;
    let bytes = &view.bytes;
    let values: Vec<f32> = match dtype {
        DType::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        DType::F16 => bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        DType::BF16 => bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
    };
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(at) => {
            let place = if let [_, k] = *shape { vec![at / k, at % k] } else { vec![at] };
            Err(LayerFault::NotFinite { tensor: tensor.into(), at: place, value: values[at] })
        }
    }
}
