//! Weights <-> packed values and index vectors, in the layout that [`Format`] describes.

use super::selection::{check_len, choice_steps, flat};
use super::walk::{RowValues, Walk};
use super::{AxisId, Format, IndexLevel, Kept, Level, Pattern, PatternError, Selection, Step};

/// Unsigned integers of 1, 2, 4, 8, 16 or 32 bits, packed from the low bits of each byte up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexArray {
    bits: u8,
    len: usize,
    data: Vec<u8>,
}

impl IndexArray {
    fn new(bits: u8, len: usize, fill: u32) -> IndexArray {
        let mut array = IndexArray { bits, len, data: vec![0; (len * bits as usize).div_ceil(8)] };
        if fill != 0 {
            (0..len).for_each(|at| array.set(at, fill));
        }
        array
    }

    /// The narrowest entries that tell `values` values apart, in bits.
    pub fn bits_for(values: usize) -> u8 {
        [1, 2, 4, 8, 16].into_iter().find(|&bits| values <= 1 << bits).unwrap_or(32)
    }

    /// These entries, each below `bound`, as narrow as that allows.
    ///
    /// # Panics
    /// Where an entry is not below `bound`.
    pub fn below(bound: usize, entries: &[u32]) -> IndexArray {
        let mut array = IndexArray::new(IndexArray::bits_for(bound), entries.len(), 0);
        for (at, &entry) in entries.iter().enumerate() {
            assert!((entry as usize) < bound, "entry {entry} of an array of entries below {bound}");
            array.set(at, entry);
        }
        array
    }

    /// Entries below `bound` out of the bytes that [`IndexArray::bytes`] gave; `None` unless they are just as many as `len`
    /// entries take and hold nothing behind the last one. Whether entries lie below `bound` is not looked at.
    pub fn from_bytes(bound: usize, len: usize, bytes: &[u8]) -> Option<IndexArray> {
        let bits = IndexArray::bits_for(bound);
        let used = len.checked_mul(bits as usize)?;
        let rest = bytes.last().filter(|_| !used.is_multiple_of(8)).map_or(0, |last| last >> (used % 8));
        let fits = bytes.len() == used.div_ceil(8) && rest == 0;
        fits.then(|| IndexArray { bits, len, data: bytes.to_vec() })
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bits an entry.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// The packed entries, little-endian.
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// Entry `at`.
    ///
    /// # Panics
    /// Where `at` is not below [`IndexArray::len`].
    #[inline]
    pub fn get(&self, at: usize) -> u32 {
        match self.bits {
            8 => u32::from(self.data[at]),
            16 => u32::from(u16::from_le_bytes([self.data[2 * at], self.data[2 * at + 1]])),
            32 => u32::from_le_bytes(self.data[4 * at..4 * at + 4].try_into().expect("4 bytes")),
            bits => {
                assert!(at < self.len, "entry {at} of {}", self.len);
                let bit = at * bits as usize;
                u32::from(self.data[bit / 8] >> (bit % 8)) & ((1 << bits) - 1)
            }
        }
    }

    /// The entries in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len).map(|at| self.get(at))
    }

    fn set(&mut self, at: usize, value: u32) {
        match self.bits {
            8 => self.data[at] = value as u8,
            16 => self.data[2 * at..2 * at + 2].copy_from_slice(&(value as u16).to_le_bytes()),
            32 => self.data[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes()),
            bits => {
                let (bit, mask) = (at * bits as usize, ((1u32 << bits) - 1) as u8);
                let byte = &mut self.data[bit / 8];
                *byte = *byte & !(mask << (bit % 8)) | ((value as u8 & mask) << (bit % 8));
            }
        }
    }
}

/// The index vector of one skip or permutation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedLevel {
    /// What it means.
    pub level: IndexLevel,
    /// The entries.
    pub index: IndexArray,
}

/// A packed weight: values in the order of the format's loops, and the index vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed<T> {
    /// The pattern in the form in which it is executed ([`Pattern::executed`]).
    pub pattern: Pattern,
    /// Its format.
    pub format: Format,
    /// Of a ragged format: where each region's iterations of the ragged loop begin, one more entry than regions.
    pub offsets: Vec<u32>,
    /// One index vector a skip or permutation.
    pub levels: Vec<PackedLevel>,
    /// Kept values; zero in places that no element fills.
    pub values: Vec<T>,
}

impl Pattern {
    /// Packs the weights that `selection` keeps. `weights` is row-major [n, k].
    ///
    /// # Errors
    /// [`PatternError::Shape`], [`PatternError::Selection`].
    pub fn pack<T: Copy + Default>(&self, selection: &Selection, weights: &[T]) -> Result<Packed<T>, PatternError> {
        check_len("weights", weights.len(), self.n, self.k)?;
        selection.check(self)?;
        let pattern = self.executed();
        let selection = self.executed_selection(selection);
        let format = pattern.format_of_executed();
        let offsets = offsets(&format, &selection, &pattern);
        let regions = Regions { pattern: &pattern, format: &format, offsets: &offsets };
        let levels = selection
            .levels
            .iter()
            .zip(&format.indices)
            .map(|(choice, level)| PackedLevel { level: level.clone(), index: regions.index(choice, level) });
        let levels = levels.collect();
        let slots = format.slots.unwrap_or_else(|| {
            let block = format.ragged.as_ref().map_or(0, |r| r.block);
            offsets.last().map_or(0, |&all| all as usize) * block
        });
        let mut values = vec![T::default(); slots];
        let mut walk = Walk::through(&pattern, &selection);
        let mut row_slots = Vec::new();
        for n in 0..pattern.n {
            regions.row_slots(&mut walk, n, &mut row_slots);
            for (k, &slot) in row_slots.iter().enumerate().filter(|(_, slot)| **slot != NO_SLOT) {
                values[slot] = weights[n * pattern.k + k];
            }
        }
        Ok(Packed { format, offsets, levels, values, pattern })
    }
}

impl Pattern {
    /// Calls `row(n, slots)` with the place of each of a row's elements among the packed values, `None` for dropped ones.
    /// The selection must have been checked.
    pub(super) fn each_row_of_slots(&self, selection: &Selection, mut row: impl FnMut(usize, &[Option<usize>])) {
        let (pattern, selection) = (self.executed(), self.executed_selection(selection));
        let format = pattern.format_of_executed();
        let offsets = offsets(&format, &selection, &pattern);
        let regions = Regions { pattern: &pattern, format: &format, offsets: &offsets };
        let mut walk = Walk::through(&pattern, &selection);
        let (mut slots, mut there) = (Vec::new(), Vec::new());
        for n in 0..pattern.n {
            regions.row_slots(&mut walk, n, &mut slots);
            there.clear();
            there.extend(slots.iter().map(|&slot| (slot != NO_SLOT).then_some(slot)));
            row(n, &there);
        }
    }
}

impl<T: Copy + Default> Packed<T> {
    /// The dense weights, row-major [n, k], zero where nothing is kept.
    pub fn unpack(&self) -> Vec<T> {
        let selection = self.selection();
        let (n, k) = (self.pattern.n, self.pattern.k);
        let mut weights = vec![T::default(); n * k];
        let mut walk = Walk::through(&self.pattern, &selection);
        let regions = Regions { pattern: &self.pattern, format: &self.format, offsets: &self.offsets };
        let mut row_slots = Vec::new();
        for row in 0..n {
            regions.row_slots(&mut walk, row, &mut row_slots);
            for (column, &slot) in row_slots.iter().enumerate().filter(|(_, slot)| **slot != NO_SLOT) {
                weights[row * k + column] = self.values[slot];
            }
        }
        weights
    }
}

impl<T> Packed<T> {
    /// The choices that the index vectors hold, as a selection of [`Packed::pattern`].
    pub fn selection(&self) -> Selection {
        let regions = Regions { pattern: &self.pattern, format: &self.format, offsets: &self.offsets };
        let levels =
            choice_steps(&self.pattern).zip(&self.levels).map(|(step, packed)| match &self.pattern.steps[step] {
                Step::Permute { .. } => Level::Order(packed.index.iter().collect()),
                _ => {
                    let mut kept = Kept { offsets: vec![0], kept: Vec::new() };
                    for region in 0..self.pattern.regions(&packed.level.per) {
                        if let Some((base, count)) = regions.place(&packed.level, region) {
                            let entries = (base..base + count).map(|at| packed.index.get(at));
                            kept.kept.extend(entries.filter(|&entry| Some(entry) != packed.level.pad));
                        }
                        kept.offsets.push(kept.kept.len() as u32);
                    }
                    Level::Kept(kept)
                }
            });
        Selection { levels: levels.collect() }
    }

    /// Bytes of values, index vectors and offsets together, with `element` bytes a value.
    pub fn bytes(&self, element: usize) -> usize {
        let indices: usize = self.levels.iter().map(|l| l.index.bytes().len()).sum();
        self.values.len() * element + indices + self.offsets.len() * size_of::<u32>()
    }

    /// The same packed weight with every value converted.
    pub fn map<U>(self, f: impl FnMut(T) -> U) -> Packed<U> {
        Packed {
            pattern: self.pattern,
            format: self.format,
            offsets: self.offsets,
            levels: self.levels,
            values: self.values.into_iter().map(f).collect(),
        }
    }
}

/// The slot of an element that is not kept.
const NO_SLOT: usize = usize::MAX;

fn offsets(format: &Format, selection: &Selection, pattern: &Pattern) -> Vec<u32> {
    let Some(ragged) = &format.ragged else { return Vec::new() };
    let mut offsets = vec![0u32];
    for (_, level) in selection.of_steps(pattern).filter(|(step, _)| *step == ragged.step) {
        if let Level::Kept(kept) = level {
            for region in 0..kept.regions() {
                let iterations = kept.region(region).len().div_ceil(ragged.chunk) as u32;
                offsets.push(offsets[region] + iterations);
            }
        }
    }
    offsets
}

/// Numbers regions and slots.
struct Regions<'a> {
    pattern: &'a Pattern,
    format: &'a Format,
    offsets: &'a [u32],
}

impl Regions<'_> {
    /// Where the entries of a region begin in the index vector, and how many there are; `None` for a region that a
    /// ragged skip leaves without any.
    fn place(&self, level: &IndexLevel, region: usize) -> Option<(usize, usize)> {
        let Some(kept) = level.kept else {
            let chunk = self.format.ragged.as_ref().map_or(1, |r| r.chunk);
            let (from, to) = (self.offsets[region] as usize * chunk, self.offsets[region + 1] as usize * chunk);
            return Some((from, to - from));
        };
        let region = match &self.format.ragged {
            Some(ragged) if level.under_ragged => {
                let mut values = vec![0; level.per.len()];
                let mut rest = region;
                for (value, &axis) in values.iter_mut().zip(&level.per).rev() {
                    let len = self.pattern.axis(axis).len;
                    *value = rest % len;
                    rest /= len;
                }
                let value = |axis: AxisId| {
                    let at = level.per.iter().position(|&p| p == axis);
                    values[at.expect("a region under the ragged loop names its axes")]
                };
                let outer_region = flat(self.pattern, &ragged.per, |a| Some(value(a)))?;
                let tile = self.offsets[outer_region] as usize + value(ragged.outer);
                if tile >= self.offsets[outer_region + 1] as usize {
                    return None;
                }
                let others: Vec<AxisId> =
                    level.per.iter().copied().filter(|p| *p != ragged.outer && !ragged.per.contains(p)).collect();
                tile * self.pattern.regions(&others) + flat(self.pattern, &others, |a| Some(value(a)))?
            }
            _ => region,
        };
        Some((region * kept, kept))
    }

    fn index(&self, choice: &Level, level: &IndexLevel) -> IndexArray {
        let kept = match choice {
            Level::Order(order) => {
                let mut index = IndexArray::new(level.bits, order.len(), 0);
                order.iter().enumerate().for_each(|(at, &old)| index.set(at, old));
                return index;
            }
            Level::Kept(kept) => kept,
        };
        let all = self.offsets.last().map_or(0, |&all| all as usize);
        let entries = match (level.kept, &self.format.ragged) {
            (None, Some(ragged)) => all * ragged.chunk,
            (Some(count), Some(ragged)) if level.under_ragged => {
                let others: Vec<AxisId> =
                    level.per.iter().copied().filter(|p| *p != ragged.outer && !ragged.per.contains(p)).collect();
                all * self.pattern.regions(&others) * count
            }
            (count, _) => self.pattern.regions(&level.per) * count.unwrap_or(0),
        };
        let mut index = IndexArray::new(level.bits, entries, level.pad.unwrap_or(0));
        for region in 0..kept.regions() {
            if let Some((base, _)) = self.place(level, region) {
                kept.region(region).iter().enumerate().for_each(|(at, &iteration)| index.set(base + at, iteration));
            }
        }
        index
    }

    /// The slot of each element of a row.
    fn row_slots(&self, walk: &mut Walk<'_>, n: usize, slots: &mut Vec<usize>) {
        let (pattern, format) = (self.pattern, self.format);
        walk.row(n, pattern.steps.len());
        slots.clear();
        slots.resize(pattern.k, 0);
        for l in format.loops.iter().filter(|l| l.stride > 0) {
            // Dropped elements get any number here, and none below.
            match walk.axis(l.axis) {
                RowValues::One(v) => {
                    let part = (*v as usize).wrapping_mul(l.stride);
                    slots.iter_mut().for_each(|slot| *slot = slot.wrapping_add(part));
                }
                RowValues::Each(vs) => {
                    let parts = vs.iter().map(|&v| (v as usize).wrapping_mul(l.stride));
                    slots.iter_mut().zip(parts).for_each(|(slot, part)| *slot = slot.wrapping_add(part));
                }
            }
        }
        for (k, slot) in slots.iter_mut().enumerate() {
            *slot = if walk.alive(k) { *slot } else { NO_SLOT };
        }
        if let Some(ragged) = &format.ragged {
            for (k, slot) in slots.iter_mut().enumerate().filter(|(_, slot)| **slot != NO_SLOT) {
                let region = flat(pattern, &ragged.per, |a| Some(walk.axis(a).at(k) as usize));
                *slot += self.offsets[region.expect("alive")] as usize * ragged.block;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::IndexArray;

    #[test]
    fn entries_come_back_from_their_bytes() {
        for bound in [1, 2, 3, 4, 5, 16, 17, 256, 257, 65_536, 65_537] {
            for len in [0, 1, 2, 3, 7, 8, 9] {
                let entries: Vec<u32> = (0..len).map(|at| ((at * 7 + bound - 1) % bound) as u32).collect();
                let array = IndexArray::below(bound, &entries);
                assert_eq!(array.iter().collect::<Vec<_>>(), entries);
                assert_eq!(IndexArray::from_bytes(bound, len, array.bytes()), Some(array.clone()));
                assert_eq!(IndexArray::from_bytes(bound, len, &[array.bytes(), &[0]].concat()), None);
                if let Some((_, shorter)) = array.bytes().split_last() {
                    assert_eq!(IndexArray::from_bytes(bound, len, shorter), None);
                }
            }
        }
        assert_eq!(IndexArray::from_bytes(2, 3, &[0b1000]), None);
        assert_eq!(IndexArray::from_bytes(1 << 20, usize::MAX, &[]), None);
    }
}
