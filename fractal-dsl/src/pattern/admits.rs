//! Mask -> selection: whether a pattern admits a mask, and the least mask it admits around a given one.

use super::adopt::Ranks;
use super::grouped::Groups;
use super::permute::find_order;
use super::search::{Below, Shared, everything, split_of};
use super::selection::is_choice;
use super::walk::Walk;
use super::{AxisId, Kept, Level, Mask, Pattern, PatternError, Selection, Step};
use fixedbitset::FixedBitSet;
use std::collections::HashMap;

/// For the skip at each step: whether the mask uses `region * len + iteration`.
type Uses = Vec<(usize, Vec<bool>)>;

impl Pattern {
    /// The selection whose mask contains `mask` and keeps as little more as this pattern allows.
    ///
    /// Each skip in turn keeps the iterations that the mask uses. A region that uses fewer than its count is filled up
    /// with unused iterations, the lower first; a ragged skip keeps what is used, whatever its count. Where a later
    /// skip works on groups of compacted positions, fills are put so that each group stays within its count. A
    /// permutation is taken as the order there is, or else found anew from the mask.
    ///
    /// # Errors
    /// [`PatternError::Exceeds`] where a region uses more iterations than it may keep; [`PatternError::Shape`].
    pub fn cover(&self, mask: &Mask) -> Result<Selection, PatternError> {
        Ok(self.cover_with_uses(mask, None)?.0)
    }

    /// The selection of a mask that this pattern can keep without any element more, fills aside.
    ///
    /// # Errors
    /// As [`Pattern::cover`], and [`PatternError::Hole`] for an element that is dropped inside a unit that is kept.
    pub fn admits(&self, mask: &Mask) -> Result<Selection, PatternError> {
        self.admits_in(mask, None)
    }

    /// The same, with lists in the order of `ranks`.
    pub(super) fn admits_in(&self, mask: &Mask, ranks: Option<&Ranks>) -> Result<Selection, PatternError> {
        let (selection, uses) = self.cover_with_uses(mask, ranks)?;
        let mut walk = Walk::through(self, &selection);
        let mut places = Vec::new();
        for n in 0..self.n {
            walk.row(n, self.steps.len());
            let mut extra: Vec<usize> = (0..self.k).filter(|&k| walk.alive(k) && !mask.contains(n, k)).collect();
            for (number, uses) in &uses {
                if let (false, Step::Skip { axis, per, .. }) = (extra.is_empty(), &self.steps[*number]) {
                    walk.places(per, *axis, &mut places);
                    extra.retain(|&k| uses[places[k]]);
                }
            }
            if let Some(&k) = extra.first() {
                return Err(PatternError::Hole { n, k });
            }
        }
        Ok(selection)
    }

    /// The cover, and for each skip which iterations the mask uses (the others are fills).
    fn cover_with_uses(&self, mask: &Mask, ranks: Option<&Ranks>) -> Result<(Selection, Uses), PatternError> {
        if (mask.n(), mask.k()) != (self.n, self.k) {
            let found = mask.n() * mask.k();
            return Err(PatternError::Shape { what: "mask", found, expected: self.n * self.k, n: self.n, k: self.k });
        }
        let cover = self.cover_in_order(mask, false, ranks);
        let permutes = self.steps.iter().any(|s| matches!(s, Step::Permute { .. }));
        if cover.is_err() && permutes { self.cover_in_order(mask, true, ranks) } else { cover }
    }

    fn cover_in_order(
        &self,
        mask: &Mask,
        permute: bool,
        ranks: Option<&Ranks>,
    ) -> Result<(Selection, Uses), PatternError> {
        let mut walk = Walk::new(self);
        let (mut levels, mut uses) = (Vec::new(), Uses::new());
        for (number, step) in self.steps.iter().enumerate() {
            let level = match step {
                Step::Skip { axis, per, .. } => {
                    let (kept, used) = self.cover_skip(&mut walk, number, per, *axis, mask, ranks)?;
                    uses.push((number, used));
                    Level::Kept(kept)
                }
                Step::Permute { axis, out } if permute || ranks.is_some() => {
                    Level::Order(self.order_of(&mut walk, number, (*axis, *out), mask, ranks))
                }
                Step::Permute { axis, .. } => Level::Order((0..self.axis(*axis).len as u32).collect()),
                _ => continue,
            };
            walk.choose(number, &level);
            levels.push(level);
        }
        Ok((Selection { levels }, uses))
    }

    fn cover_skip(
        &self,
        walk: &mut Walk<'_>,
        number: usize,
        per: &[AxisId],
        axis: AxisId,
        mask: &Mask,
        ranks: Option<&Ranks>,
    ) -> Result<(Kept, Vec<bool>), PatternError> {
        let len = self.axis(axis).len;
        let regions = self.regions(per);
        let (mut exists, mut used) = (vec![false; regions * len], vec![false; regions * len]);
        let mut places = Vec::new();
        for n in 0..self.n {
            walk.row(n, number);
            walk.places(per, axis, &mut places);
            for (k, &place) in places.iter().enumerate() {
                if walk.alive(k) {
                    exists[place] = true;
                    used[place] |= mask.contains(n, k);
                }
            }
        }
        // Only what is split afterwards has an order that means something; indices ascend elsewhere.
        let ranks = ranks.filter(|_| split_of(self, number).is_some());
        let ranks = ranks.map(|ranks| ranks.of_step(walk, self, number, per, axis, mask));
        let most = self.kept_per_region(number);
        let mut lists = Vec::with_capacity(regions);
        for region in 0..regions {
            let at = |i: &usize| region * len + i;
            let mut list: Vec<u32> = (0..len).filter(|i| used[at(i)]).map(|i| i as u32).collect();
            if let Some(keep) = most {
                if list.len() > keep {
                    return Err(PatternError::Exceeds { step: number, region, used: list.len(), keep });
                }
                let fills = (0..len).filter(|i| exists[at(i)] && !used[at(i)]);
                list.extend(fills.take(keep - list.len()).map(|i| i as u32));
                list.sort_unstable();
            }
            if let Some(ranks) = &ranks {
                list.sort_by_key(|&i| ranks[at(&(i as usize))]);
            }
            lists.push(list);
        }
        if let (Some(_), Some(group)) = (most, Below::in_groups(self, number)) {
            self.regroup(walk, number, per, axis, mask, &mut lists, &used, &exists, &group);
        } else if let (true, [list], Some(shared)) = (ranks.is_none(), &mut lists[..], Shared::of(self, number)) {
            self.gather_alike(walk, number, list, mask, &shared);
        }
        let mut kept = Kept { offsets: vec![0], kept: Vec::new() };
        for list in lists {
            kept.kept.extend(list);
            kept.offsets.push(kept.kept.len() as u32);
        }
        Ok((kept, used))
    }

    /// Where a group of compacted positions would use more than its skip keeps, spreads the used positions over more
    /// groups, in order, with fills between; where that takes too many groups, finds groups in another order.
    #[allow(clippy::too_many_arguments)]
    fn regroup(
        &self,
        walk: &mut Walk<'_>,
        number: usize,
        per: &[AxisId],
        axis: AxisId,
        mask: &Mask,
        lists: &mut [Vec<u32>],
        used: &[bool],
        exists: &[bool],
        group: &Below,
    ) {
        let len = self.axis(axis).len;
        let mut provisional = Kept { offsets: vec![0], kept: Vec::new() };
        for list in lists.iter() {
            provisional.kept.extend(list);
            provisional.offsets.push(provisional.kept.len() as u32);
        }
        walk.choose(number, &Level::Kept(provisional));
        let contexts = self.contexts(walk, per, axis, mask, group);
        for (region, list) in lists.iter_mut().enumerate() {
            let at = |i: &u32| region * len + *i as usize;
            let groups = Groups { used: &contexts[region * len..][..len], factor: group.factor, most: group.most };
            let (users, _): (Vec<u32>, Vec<u32>) = list.iter().partition(|i| used[at(i)]);
            let fills: Vec<u32> = (0..len as u32).filter(|i| exists[at(i)] && !used[at(i)]).collect();
            // Otherwise the list stays as it was and the finer skip reports the region that exceeds.
            if let Some(found) = groups.list(list, &users, &fills) {
                *list = found;
            }
        }
    }

    /// Where a group of a list uses more units than its iterations may share, brings those together that use the same.
    fn gather_alike(&self, walk: &mut Walk<'_>, number: usize, list: &mut Vec<u32>, mask: &Mask, shared: &Shared) {
        walk.choose(number, &everything(self, number));
        let len = self.axis(shared.axis).len;
        let units = self.regions(&shared.others) * len;
        let mut uses = vec![FixedBitSet::with_capacity(units); self.axis(shared.of).len];
        let (mut places, mut members) = (Vec::new(), Vec::new());
        for n in 0..self.n {
            walk.row(n, shared.step);
            walk.places(&shared.others, shared.axis, &mut places);
            walk.flat(&[shared.of], &mut members);
            let used = (0..self.k).filter(|&k| walk.alive(k) && mask.contains(n, k));
            used.for_each(|k| uses[members[k]].insert(places[k]));
        }
        let fits = |group: &[u32]| {
            let mut all = FixedBitSet::with_capacity(units);
            group.iter().for_each(|&i| all.union_with(&uses[i as usize]));
            (0..units / len).all(|region| all.count_ones(region * len..(region + 1) * len) <= shared.most)
        };
        if list.chunks(shared.factor).all(fits) {
            return;
        }
        let mut alike: HashMap<&FixedBitSet, Vec<u32>> = HashMap::new();
        list.iter().for_each(|&i| alike.entry(&uses[i as usize]).or_default().push(i));
        let mut alike: Vec<Vec<u32>> = alike.into_values().collect();
        // Whole groups first; of the short one nothing else comes after.
        alike.sort_unstable_by_key(|class| (!class.len().is_multiple_of(shared.factor), class[0]));
        *list = alike.concat();
    }

    /// Of each `region * len + iteration` of a choice, the contexts that use it, ascending: the regions of the skip in its
    /// groups, the group aside.
    fn contexts(
        &self,
        walk: &mut Walk<'_>,
        per: &[AxisId],
        axis: AxisId,
        mask: &Mask,
        group: &Below,
    ) -> Vec<Vec<usize>> {
        let mut contexts: Vec<Vec<usize>> = vec![Vec::new(); self.regions(per) * self.axis(axis).len];
        let (mut places, mut finer) = (Vec::new(), Vec::new());
        for n in 0..self.n {
            walk.row(n, group.step);
            walk.places(per, axis, &mut places);
            walk.flat(&group.context, &mut finer);
            for k in (0..self.k).filter(|&k| walk.alive(k) && mask.contains(n, k)) {
                let contexts = &mut contexts[places[k]];
                if contexts.last() != Some(&finer[k]) {
                    contexts.push(finer[k]);
                }
            }
        }
        for contexts in &mut contexts {
            contexts.sort_unstable();
            contexts.dedup();
        }
        contexts
    }

    /// An order in which groups keep what the mask uses, by `ranks` if there are some.
    fn order_of(
        &self,
        walk: &mut Walk<'_>,
        number: usize,
        (axis, out): (AxisId, AxisId),
        mask: &Mask,
        ranks: Option<&Ranks>,
    ) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.axis(axis).len as u32).collect();
        let ranks = ranks.map(|ranks| ranks.of_step(walk, self, number, &[], axis, mask));
        if let Some(ranks) = &ranks {
            order.sort_by_key(|&i| ranks[i as usize]);
        }
        let Some(group) = Below::in_groups(self, number) else {
            if ranks.is_some() {
                return order;
            }
            let score = |at: usize| f32::from(u8::from(mask.contains(at / self.k, at % self.k)));
            let scores: Vec<f32> = (0..self.n * self.k).map(score).collect();
            return find_order(walk, self, number, axis, out, &scores);
        };
        // Where another skip follows, it tells more.
        let group = group.finer(self, number).unwrap_or(group);
        let mut walk = walk.clone();
        for choice in (number..group.step).filter(|&at| is_choice(&self.steps[at])) {
            walk.choose(choice, &everything(self, choice));
        }
        let used = self.contexts(&mut walk, &[], axis, mask, &group);
        let groups = Groups { used: &used, factor: group.factor, most: group.most };
        let (users, mut fills): (Vec<u32>, Vec<u32>) = order.iter().partition(|i| !used[**i as usize].is_empty());
        fills.sort_unstable();
        groups.list(&order, &users, &fills).unwrap_or(order)
    }
}
