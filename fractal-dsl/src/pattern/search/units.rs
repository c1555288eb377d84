//! Scores by what one choice and the skip below it know: (pattern, choice, skip) -> a column of scores for each iteration
//! of the choice.

use super::groups::{Columns, LANES};
use crate::pattern::selection::is_choice;
use crate::pattern::walk::Walk;
use crate::pattern::{AxisId, AxisKind, Kept, Level, Pattern, Step};

/// The skip that comes next after a choice, inside groups of what the choice leaves.
///
/// Before: `skip(k, per = no, …)`, split by 4, `skip(ki, per = (no, ni, ko), keep = 2)`. After: groups of 4, `most` = 2, each
/// row of a tile a context.
#[derive(Clone, Debug)]
pub(in crate::pattern) struct Below {
    /// Positions in a group.
    pub(in crate::pattern) factor: usize,
    /// The step of the skip.
    pub(in crate::pattern) step: usize,
    /// How many it keeps of a group, in each context.
    pub(in crate::pattern) most: usize,
    /// The axes whose assignments are its regions, the groups aside.
    pub(in crate::pattern) context: Vec<AxisId>,
}

/// The axis that a step leaves in the place of another.
fn left_by(step: &Step) -> Option<AxisId> {
    match step {
        Step::Skip { out, .. } | Step::Permute { out, .. } => Some(*out),
        _ => None,
    }
}

/// The step of the next choice, which must be a skip: choices between would not be known yet.
fn next_skip(pattern: &Pattern, number: usize) -> Option<usize> {
    let steps = pattern.steps();
    let step = (number + 1..steps.len()).find(|&at| is_choice(&steps[at]))?;
    matches!(steps[step], Step::Skip { .. }).then_some(step)
}

/// How the axis that the choice at `number` leaves is split: factor, outer and inner axis.
pub(in crate::pattern) fn split_of(pattern: &Pattern, number: usize) -> Option<(usize, AxisId, AxisId)> {
    let out = left_by(&pattern.steps()[number])?;
    pattern.steps()[number..].iter().find_map(|step| match step {
        Step::Split { axis, factor, outer, inner } if *axis == out => Some((*factor, *outer, *inner)),
        _ => None,
    })
}

impl Below {
    /// Of the choice at `number`, where groups of what it leaves are made by a split.
    pub(in crate::pattern) fn in_groups(pattern: &Pattern, number: usize) -> Option<Below> {
        let (factor, outer, inner) = split_of(pattern, number)?;
        let step = next_skip(pattern, number)?;
        match &pattern.steps()[step] {
            Step::Skip { axis, per, .. } if *axis == inner && per.contains(&outer) => Some(Below {
                factor,
                step,
                most: pattern.kept_per_region(step)?,
                context: per.iter().copied().filter(|p| *p != outer).collect(),
            }),
            _ => None,
        }
    }

    /// Of the same groups, where another skip drops some of what this one leaves: that one, as if it chose among all.
    pub(in crate::pattern) fn finer(&self, pattern: &Pattern, number: usize) -> Option<Below> {
        let (_, outer, _) = split_of(pattern, number)?;
        let finer = Below::whole(pattern, self.step)?;
        let context: Vec<AxisId> = finer.context.iter().copied().filter(|p| *p != outer).collect();
        (context.len() < finer.context.len()).then_some(Below { factor: self.factor, context, ..finer })
    }

    /// Of the skip at `number`, where the next one drops some of what it leaves, context by context.
    pub(super) fn whole(pattern: &Pattern, number: usize) -> Option<Below> {
        let out = left_by(&pattern.steps()[number])?;
        let step = next_skip(pattern, number)?;
        match &pattern.steps()[step] {
            Step::Skip { axis, per, .. } if *axis == out => Some(Below {
                factor: pattern.axis(out).len,
                step,
                most: pattern.kept_per_region(step)?,
                context: per.clone(),
            }),
            _ => None,
        }
    }
}

/// The skip after a choice that keeps units of another axis for each group of what the choice leaves.
///
/// Before: `permute(n)`, split by 64, `skip(k, per = no, …)`. After: `factor` = 64, the units are the columns.
#[derive(Clone, Debug)]
pub(in crate::pattern) struct Shared {
    /// The axis of the choice.
    pub(in crate::pattern) of: AxisId,
    /// Iterations in a group.
    pub(in crate::pattern) factor: usize,
    /// The step of the skip.
    pub(in crate::pattern) step: usize,
    /// The axis that it skips, and the axes of its regions beside the groups.
    pub(in crate::pattern) axis: AxisId,
    pub(in crate::pattern) others: Vec<AxisId>,
    /// How many it keeps in a region.
    pub(in crate::pattern) most: usize,
}

impl Shared {
    pub(in crate::pattern) fn of(pattern: &Pattern, number: usize) -> Option<Shared> {
        let of = match &pattern.steps()[number] {
            Step::Skip { axis, .. } | Step::Permute { axis, .. } => *axis,
            _ => return None,
        };
        let (factor, outer, inner) = split_of(pattern, number)?;
        let step = next_skip(pattern, number)?;
        match &pattern.steps()[step] {
            Step::Skip { axis, per, .. } if per.contains(&outer) && *axis != inner && !per.contains(&inner) => {
                let others = per.iter().copied().filter(|p| *p != outer).collect();
                Some(Shared { of, factor, step, axis: *axis, others, most: pattern.kept_per_region(step)? })
            }
            _ => None,
        }
    }
}

/// Sums of scores by (region of a choice, its iteration, context of the skip below).
pub(super) struct Units {
    /// Iterations of the choice.
    pub(super) len: usize,
    /// Contexts of a region, padded to whole [`LANES`].
    height: usize,
    values: Vec<f32>,
}

impl Units {
    /// Of the choice at `number`, whose axis is `axis` and whose regions are `per`. Of the contexts, every `stride`-th is
    /// taken. `None` where regions share contexts, or where there are far more places than elements.
    pub(super) fn gather(
        walk: &Walk<'_>,
        pattern: &Pattern,
        number: usize,
        below: &Below,
        stride: usize,
        scores: &[f32],
    ) -> Option<Units> {
        let (axis, per): (AxisId, &[AxisId]) = match &pattern.steps()[number] {
            Step::Skip { axis, per, .. } => (*axis, per),
            Step::Permute { axis, .. } => (*axis, &[]),
            _ => return None,
        };
        if !per.iter().all(|p| below.context.contains(p)) {
            return None;
        }
        let context: Vec<AxisId> = below.context.iter().copied().filter(|p| !per.contains(p)).collect();
        let (len, regions) = (pattern.axis(axis).len, pattern.regions(per));
        let height = pattern.regions(&context).div_ceil(stride).next_multiple_of(LANES);
        if regions * len * height > 4 * pattern.n() * pattern.k() + (1 << 20) {
            return None;
        }
        let mut walk = walk.clone();
        for choice in (number..below.step).filter(|&at| is_choice(&pattern.steps()[at])) {
            walk.choose(choice, &everything(pattern, choice));
        }
        let mut values = vec![0.0; regions * len * height];
        let (mut units, mut contexts) = (Vec::new(), Vec::new());
        // Where a row is one context, most rows of a sample are passed over.
        let rows = context.iter().all(|&a| pattern.axis(a).kind == AxisKind::Spatial);
        for n in 0..pattern.n() {
            walk.row(n, below.step);
            let Some(first) = walk.first_alive() else { continue };
            walk.flat(&context, &mut contexts);
            if rows && !contexts[first].is_multiple_of(stride) {
                continue;
            }
            walk.places(per, axis, &mut units);
            for (k, &score) in scores[n * pattern.k()..][..pattern.k()].iter().enumerate() {
                if walk.alive(k) && contexts[k].is_multiple_of(stride) {
                    values[units[k] * height + contexts[k] / stride] += score;
                }
            }
        }
        Some(Units { len, height, values })
    }

    /// The columns of one region.
    pub(super) fn region(&self, region: usize) -> Columns<'_> {
        let size = self.len * self.height;
        Columns { values: &self.values[region * size..][..size], height: self.height }
    }
}

/// A choice that drops nothing and changes no order.
pub(in crate::pattern) fn everything(pattern: &Pattern, number: usize) -> Level {
    match &pattern.steps()[number] {
        Step::Skip { axis, per, .. } => {
            let (len, regions) = (pattern.axis(*axis).len as u32, pattern.regions(per) as u32);
            Level::Kept(Kept {
                offsets: (0..=regions).map(|r| r * len).collect(),
                kept: (0..regions).flat_map(|_| 0..len).collect(),
            })
        }
        Step::Permute { axis, .. } => Level::Order((0..pattern.axis(*axis).len as u32).collect()),
        _ => unreachable!("only skips and permutations are choices"),
    }
}
