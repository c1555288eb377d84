//! A selection of one pattern -> the selection of an equal pattern that keeps the same, its lists in the same order.
//!
//! A mask alone does not tell which columns share a group of four. The packed order does: along a row, groups follow one
//! another, and so do tiles along the rows.

use super::walk::Walk;
use super::{AxisId, AxisKind, Mask, Pattern, PatternError, Selection};

impl Pattern {
    /// The selection of this pattern that keeps what `selection` of `other` keeps, as [`Pattern::admits`], but with what
    /// `selection` knows of orders and groups.
    ///
    /// # Errors
    /// As [`Pattern::admits`]; [`PatternError::Selection`] where `selection` is none of `other`.
    pub fn adopt(&self, other: &Pattern, selection: &Selection) -> Result<Selection, PatternError> {
        let mask = other.mask(selection)?;
        let ranks = Ranks::of(other, selection);
        self.admits_in(&mask, Some(&ranks)).or_else(|_| self.admits(&mask))
    }
}

/// Where a packed weight has its elements.
pub(super) struct Ranks {
    k: usize,
    /// The first slot of each row.
    rows: Vec<usize>,
    /// Of each element that is kept, how many of its row lie before it.
    places: Vec<u32>,
}

impl Ranks {
    fn of(pattern: &Pattern, selection: &Selection) -> Ranks {
        let (n, k) = (pattern.n, pattern.k);
        let mut ranks = Ranks { k, rows: vec![usize::MAX; n], places: vec![u32::MAX; n * k] };
        pattern.each_row_of_slots(selection, |row, slots| {
            let mut order: Vec<(usize, usize)> =
                slots.iter().enumerate().filter_map(|(k, slot)| slot.map(|slot| (slot, k))).collect();
            order.sort_unstable();
            ranks.rows[row] = order.first().map_or(usize::MAX, |first| first.0);
            for (place, &(_, column)) in order.iter().enumerate() {
                ranks.places[row * k + column] = place as u32;
            }
        });
        ranks
    }

    /// Of each `region * len + iteration` of the choice at step `number`, its first place in the packed order.
    pub(super) fn of_step(
        &self,
        walk: &mut Walk<'_>,
        pattern: &Pattern,
        number: usize,
        per: &[AxisId],
        axis: AxisId,
        mask: &Mask,
    ) -> Vec<usize> {
        let mut ranks = vec![usize::MAX; pattern.regions(per) * pattern.axis(axis).len];
        if pattern.axis(axis).kind == AxisKind::Mixed {
            return ranks;
        }
        let along_rows = pattern.axis(axis).kind == AxisKind::Spatial;
        let mut places = Vec::new();
        for n in 0..pattern.n {
            walk.row(n, number);
            walk.places(per, axis, &mut places);
            for k in (0..self.k).filter(|&k| walk.alive(k) && mask.contains(n, k)) {
                let rank = if along_rows { self.rows[n] } else { self.places[n * self.k + k] as usize };
                let first = &mut ranks[places[k]];
                *first = rank.min(*first);
            }
        }
        ranks
    }
}
