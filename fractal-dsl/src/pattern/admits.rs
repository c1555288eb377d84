//! Mask -> selection: whether a pattern admits a mask, and the least mask it admits around a given one.

use super::permute::find_order;
use super::walk::Walk;
use super::{AxisId, Kept, Level, Mask, Pattern, PatternError, Selection, Step};
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
        Ok(self.cover_with_uses(mask)?.0)
    }

    /// The selection of a mask that this pattern can keep without any element more, fills aside.
    ///
    /// # Errors
    /// As [`Pattern::cover`], and [`PatternError::Hole`] for an element that is dropped inside a unit that is kept.
    pub fn admits(&self, mask: &Mask) -> Result<Selection, PatternError> {
        let (selection, uses) = self.cover_with_uses(mask)?;
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
    fn cover_with_uses(&self, mask: &Mask) -> Result<(Selection, Uses), PatternError> {
        if (mask.n(), mask.k()) != (self.n, self.k) {
            let found = mask.n() * mask.k();
            return Err(PatternError::Shape { what: "mask", found, expected: self.n * self.k, n: self.n, k: self.k });
        }
        let cover = self.cover_in_order(mask, false);
        let permutes = self.steps.iter().any(|s| matches!(s, Step::Permute { .. }));
        if cover.is_err() && permutes { self.cover_in_order(mask, true) } else { cover }
    }

    fn cover_in_order(&self, mask: &Mask, permute: bool) -> Result<(Selection, Uses), PatternError> {
        let mut walk = Walk::new(self);
        let (mut levels, mut uses) = (Vec::new(), Uses::new());
        for (number, step) in self.steps.iter().enumerate() {
            let level = match step {
                Step::Skip { axis, per, .. } => {
                    let (kept, used) = self.cover_skip(&mut walk, number, per, *axis, mask)?;
                    uses.push((number, used));
                    Level::Kept(kept)
                }
                Step::Permute { axis, out } if permute => {
                    let scores: Vec<f32> = (0..self.n * self.k)
                        .map(|at| f32::from(u8::from(mask.contains(at / self.k, at % self.k))))
                        .collect();
                    Level::Order(find_order(&mut walk, self, number, *axis, *out, &scores))
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
            lists.push(list);
        }
        if let (Some(keep), Some(group)) = (most, self.group_below(number)) {
            self.regroup(walk, number, per, axis, mask, &mut lists, &used, &exists, keep, &group);
        }
        let mut kept = Kept { offsets: vec![0], kept: Vec::new() };
        for list in lists {
            kept.kept.extend(list);
            kept.offsets.push(kept.kept.len() as u32);
        }
        Ok((kept, used))
    }

    /// The skip inside groups of the positions that the skip at `number` leaves, if there is one.
    fn group_below(&self, number: usize) -> Option<Group> {
        let Step::Skip { out, .. } = &self.steps[number] else { return None };
        let later = &self.steps[number..];
        let (factor, outer, inner) = later.iter().find_map(|step| match step {
            Step::Split { axis, factor, outer, inner } if axis == out => Some((*factor, *outer, *inner)),
            _ => None,
        })?;
        // Choices between the two skips are not known yet when the first one's groups are made.
        let is_choice = |s: &Step| matches!(s, Step::Skip { .. } | Step::Permute { .. });
        let step = (number + 1..self.steps.len()).find(|&at| is_choice(&self.steps[at]))?;
        match &self.steps[step] {
            Step::Skip { axis, per, .. } if *axis == inner && per.contains(&outer) => Some(Group {
                factor,
                step,
                most: self.kept_per_region(step)?,
                context: per.iter().copied().filter(|p| *p != outer).collect(),
            }),
            _ => None,
        }
    }

    /// Where a group of compacted positions would use more than its skip keeps, spreads the used positions over more
    /// groups, in order, with fills between.
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
        keep: usize,
        group: &Group,
    ) {
        let len = self.axis(axis).len;
        let mut provisional = Kept { offsets: vec![0], kept: Vec::new() };
        for list in lists.iter() {
            provisional.kept.extend(list);
            provisional.offsets.push(provisional.kept.len() as u32);
        }
        walk.choose(number, &Level::Kept(provisional));
        // The contexts in which each iteration is used: the regions of the finer skip, its group aside.
        let mut contexts: Vec<Vec<usize>> = vec![Vec::new(); lists.len() * len];
        let (mut places, mut finer) = (Vec::new(), Vec::new());
        for n in 0..self.n {
            walk.row(n, group.step);
            walk.places(per, axis, &mut places);
            let (last, rest) = match group.context.split_last() {
                Some((last, rest)) => (Some(*last), rest),
                None => (None, &[][..]),
            };
            match last {
                Some(last) => walk.places(rest, last, &mut finer),
                None => finer = vec![0; self.k],
            }
            for k in (0..self.k).filter(|&k| walk.alive(k) && mask.contains(n, k)) {
                if !contexts[places[k]].contains(&finer[k]) {
                    contexts[places[k]].push(finer[k]);
                }
            }
        }
        for (region, list) in lists.iter_mut().enumerate() {
            let of = |i: u32| &contexts[region * len + i as usize];
            let fits = |members: &[u32]| {
                let mut counts: HashMap<usize, usize> = HashMap::new();
                members.iter().flat_map(|&i| of(i)).all(|&context| {
                    let count = counts.entry(context).or_default();
                    *count += 1;
                    *count <= group.most
                })
            };
            if list.chunks(group.factor).all(fits) {
                continue;
            }
            let mut groups: Vec<Vec<u32>> = vec![Vec::new()];
            for i in (0..len as u32).filter(|&i| used[region * len + i as usize]) {
                let last = groups.last_mut().expect("there is always a group");
                last.push(i);
                if last.len() > group.factor || !fits(last) {
                    last.pop();
                    groups.push(vec![i]);
                }
            }
            let mut fills = (0..len as u32).filter(|&i| {
                let at = region * len + i as usize;
                exists[at] && !used[at]
            });
            let filled: Vec<u32> = groups
                .into_iter()
                .flat_map(|mut members| {
                    let room = group.factor - members.len();
                    members.extend(fills.by_ref().take(room));
                    members
                })
                .collect();
            // Too many groups: the list stays as it was and the finer skip reports the region that exceeds.
            if filled.len() <= keep || filled[keep..].iter().all(|&i| !used[region * len + i as usize]) {
                let mut filled = filled;
                filled.truncate(keep);
                let room = keep - filled.len();
                filled.extend(fills.take(room));
                *list = filled;
            }
        }
    }
}

/// A skip of `most` in each group of `factor` compacted positions.
struct Group {
    factor: usize,
    step: usize,
    most: usize,
    context: Vec<AxisId>,
}
