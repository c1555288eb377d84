//! The elements restored on top of a pattern <-> the tensors that hold them.

use super::container::Views;
use super::error::LayerFault;
use super::levels::{array, entries};
use super::write::NamedView;
use crate::prune::PruneError;
use crate::prune::residue::Places;
use fractal_dsl::pattern::{IndexArray, Mask};

/// The name of a residue's tensor of a layer.
pub(super) fn name(layer: &str, what: &str) -> String {
    format!("{layer}.fractal.residue.{what}")
}

/// How many elements each row has, and their columns.
pub(super) fn write(layer: &str, places: &Places, k: usize) -> [NamedView<'static>; 2] {
    let counts = entries(&IndexArray::below(k + 1, &places.counts()));
    [(name(layer, "counts"), counts), (name(layer, "columns"), entries(&IndexArray::below(k, places.columns())))]
}

/// Takes the places of a layer's residue out of `views`, where it has one. They are elements that the pattern drops, which keeps `kept`.
///
/// # Errors
/// Lists that do not fit each other or the weight, or places that are kept already.
pub(super) fn read(
    layer: &str,
    (n, k): (usize, usize),
    views: &mut Views<'_>,
    kept: impl FnOnce() -> Result<Mask, LayerFault>,
) -> Result<Option<Places>, LayerFault> {
    let (counts, columns) = (name(layer, "counts"), name(layer, "columns"));
    if !views.contains_key(&counts) && !views.contains_key(&columns) {
        return Ok(None);
    }
    let wrong =
        |tensor: &str, expected: String, found: String| LayerFault::Tensor { tensor: tensor.into(), expected, found };
    let mut offsets = vec![0u32];
    let mut all = 0u32;
    for (row, count) in array(counts.clone(), k + 1, n, views)?.iter().enumerate() {
        if count as usize > k {
            return Err(wrong(&counts, format!("at most {k} elements in row {row}"), count.to_string()));
        }
        let more = || wrong(&counts, "fewer than 2^32 elements".into(), format!("more up to row {row}"));
        all = all.checked_add(count).ok_or_else(more)?;
        offsets.push(all);
    }
    if all == 0 {
        return Err(wrong(&counts, "elements, or no such tensor".into(), "none".into()));
    }
    let list = array(columns.clone(), k, all as usize, views)?.iter().collect();
    let places = Places::new(k, offsets, list).map_err(|error| match error {
        PruneError::Residue { expected, found } => wrong(&columns, expected, found),
        other => wrong(&columns, "a residue".into(), other.to_string()),
    })?;
    let kept = kept()?;
    if let Some((row, column)) = places.iter().find(|&(row, column)| kept.contains(row, column)) {
        let found = format!("({row}, {column}), which it keeps");
        return Err(wrong(&columns, "elements that the pattern drops".into(), found));
    }
    Ok(Some(places))
}
