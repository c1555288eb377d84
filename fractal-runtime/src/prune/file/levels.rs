//! One level of a selection <-> the tensors that hold it.

use super::container::{View, Views};
use super::error::LayerFault;
use super::write::NamedView;
use fractal_dsl::pattern::{IndexArray, Kept, Level, Pattern, Selection, Step};
use safetensors::Dtype;
use std::borrow::Cow;

/// The name of a tensor of level `number` of a layer.
fn name(layer: &str, what: &str, number: usize) -> String {
    format!("{layer}.fractal.{what}.{number}")
}

/// What a skip may keep.
struct Room {
    regions: usize,
    /// Iterations of the skipped axis.
    len: usize,
    /// The most in a region.
    most: usize,
    /// Whether a region keeps that many unless it lacks them.
    full: bool,
}

impl Room {
    fn of(pattern: &Pattern, step: usize) -> Option<Room> {
        let Step::Skip { axis, per, .. } = &pattern.steps()[step] else { return None };
        let (len, most) = (pattern.axis(*axis).len, pattern.kept_per_region(step));
        Some(Room { regions: pattern.regions(per), len, most: most.unwrap_or(len), full: most.is_some() })
    }
}

/// The tensors of a selection that fits its pattern.
pub(super) fn write(layer: &str, pattern: &Pattern, selection: &Selection) -> Vec<NamedView<'static>> {
    let mut tensors = Vec::new();
    for (number, (step, level)) in selection.of_steps(pattern).enumerate() {
        match (level, Room::of(pattern, step)) {
            (Level::Kept(kept), Some(room)) => tensors.extend(write_kept(layer, number, kept, &room)),
            (Level::Order(order), _) => {
                tensors.push((name(layer, "order", number), entries(&IndexArray::below(order.len(), order))));
            }
            (Level::Kept(_), None) => unreachable!("a selection has a level of each step's kind"),
        }
    }
    tensors
}

/// As bits where that takes no more than a list, and says as much: it has no order within a region.
fn write_kept(layer: &str, number: usize, kept: &Kept, room: &Room) -> Vec<NamedView<'static>> {
    let counts: Vec<u32> = kept.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let list = IndexArray::below(room.len, &kept.kept);
    let even = room.full && counts.iter().all(|&count| count as usize == room.most);
    let counts = (!even).then(|| IndexArray::below(room.most + 1, &counts));
    let bytes = list.bytes().len() + counts.as_ref().map_or(0, |counts| counts.bytes().len());
    let rises = (0..kept.regions()).all(|region| kept.region(region).is_sorted_by(|a, b| a < b));
    if rises && (room.regions * room.len).div_ceil(8) <= bytes {
        let mut bits = vec![0; room.regions * room.len];
        for region in 0..kept.regions() {
            kept.region(region).iter().for_each(|&iteration| bits[region * room.len + iteration as usize] = 1);
        }
        return vec![(name(layer, "bits", number), entries(&IndexArray::below(2, &bits)))];
    }
    let mut tensors = vec![(name(layer, "kept", number), entries(&list))];
    tensors.extend(counts.map(|counts| (name(layer, "counts", number), entries(&counts))));
    tensors
}

/// The bytes of packed entries.
pub(super) fn entries(array: &IndexArray) -> View<'static> {
    let bytes = array.bytes().to_vec();
    View { dtype: Dtype::U8, shape: vec![bytes.len()], bytes: Cow::Owned(bytes) }
}

/// Takes a layer's levels out of `views`. The pattern's sizes were found to be within the limits; the selection remains to
/// be checked.
pub(super) fn read(layer: &str, pattern: &Pattern, views: &mut Views<'_>) -> Result<Selection, LayerFault> {
    let mut levels = Vec::new();
    for (step, kind) in pattern.steps().iter().enumerate() {
        let number = levels.len();
        match (kind, Room::of(pattern, step)) {
            (_, Some(room)) => levels.push(Level::Kept(read_kept(layer, number, &room, views)?)),
            (Step::Permute { axis, .. }, _) => {
                let len = pattern.axis(*axis).len;
                levels.push(Level::Order(array(name(layer, "order", number), len, len, views)?.iter().collect()));
            }
            _ => {}
        }
    }
    Ok(Selection { levels })
}

fn read_kept(layer: &str, number: usize, room: &Room, views: &mut Views<'_>) -> Result<Kept, LayerFault> {
    let mut kept = Kept { offsets: vec![0], kept: Vec::new() };
    let bits = name(layer, "bits", number);
    if views.contains_key(&bits) {
        let array = array(bits, 2, room.regions * room.len, views)?;
        let mut bits = array.iter();
        for _ in 0..room.regions {
            let kept_ones = (0..room.len as u32).zip(&mut bits).filter(|(_, bit)| *bit == 1);
            kept.kept.extend(kept_ones.map(|(iteration, _)| iteration));
            kept.offsets.push(place(kept.kept.len())?);
        }
        return Ok(kept);
    }
    let counts = name(layer, "counts", number);
    if views.contains_key(&counts) || !room.full {
        let array = array(counts.clone(), room.most + 1, room.regions, views)?;
        let mut all = 0;
        for (region, count) in array.iter().enumerate() {
            if count as usize > room.most {
                return Err(LayerFault::Count { tensor: counts, region, most: room.most, found: count });
            }
            all += count as usize;
            kept.offsets.push(place(all)?);
        }
    } else {
        let offsets = (1..=room.regions).map(|region| place(region * room.most));
        kept.offsets.extend(offsets.collect::<Result<Vec<u32>, _>>()?);
    }
    let all = kept.offsets.last().map_or(0, |&all| all as usize);
    kept.kept = array(name(layer, "kept", number), room.len, all, views)?.iter().collect();
    Ok(kept)
}

/// A place among all kept iterations of a skip.
fn place(at: usize) -> Result<u32, LayerFault> {
    u32::try_from(at).map_err(|_| LayerFault::Field {
        field: "pattern",
        expected: format!("fewer than {} kept iterations in one skip", u32::MAX),
        found: at.to_string(),
    })
}

/// Takes a tensor of `len` entries below `bound`; whether they are remains to be checked.
pub(super) fn array(tensor: String, bound: usize, len: usize, views: &mut Views<'_>) -> Result<IndexArray, LayerFault> {
    let view = views.remove(&tensor).ok_or_else(|| LayerFault::Missing { tensor: tensor.clone() })?;
    let bits = IndexArray::bits_for(bound);
    let array = IndexArray::from_bytes(bound, len, &view.bytes);
    array.filter(|_| view.dtype == Dtype::U8 && view.shape.len() == 1).ok_or_else(|| LayerFault::Tensor {
        tensor,
        expected: format!(
            "U8 [{}], {len} entries of {bits} bits and zeros after them",
            (len * bits as usize).div_ceil(8)
        ),
        found: format!("{} {:?}", view.dtype, view.shape),
    })
}
