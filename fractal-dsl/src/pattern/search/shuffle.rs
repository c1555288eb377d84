//! Which rows share a group that keeps the same columns: `shfl-vw`, `shfl-bw`, and the rows that `tw2` leaves. Input: a choice
//! whose groups the next skip chooses units for; output: groups of rows.
//!
//! As in k-means, two steps take turns, and neither loses: with the rows given, every group keeps its best units; with the
//! units given, two rows change places where each has more in the other's group. Rows that are spare are a group that
//! keeps nothing.

use super::groups::tidy;
use super::units::{Shared, everything};
use super::{Effort, Search};
use crate::pattern::Pattern;
use crate::pattern::selection::is_choice;
use crate::pattern::walk::Walk;
use rayon::prelude::*;

/// Units that stand for all, at most.
const UNITS: usize = 512;
const THOROUGH: usize = 2048;

/// Units that are looked at first: by few, rows change places more freely.
const FIRST: usize = 128;

/// Times that the two steps take turns on as many units.
const ROUNDS: usize = 12;

/// An exchange must gain more than this part of what the rows have: less is rounding.
const ROUNDING: f32 = 1e-6;

/// What each iteration of the choice has in each unit, unit by unit.
struct Features {
    rows: usize,
    values: Vec<f32>,
    /// Units of each region of the skip that chooses them, and how many of those it keeps.
    block: usize,
    most: usize,
}

/// The choice's iterations in a better order, from `begin`, of which those beyond `kept` are spare; a list as long as `kept`.
pub(super) fn regroup(
    walk: &Walk<'_>,
    search: &Search<'_>,
    number: usize,
    shared: &Shared,
    begin: &[u32],
    kept: usize,
) -> Vec<u32> {
    let mut groups: Vec<Vec<u32>> = begin[..kept].chunks(shared.factor).map(<[u32]>::to_vec).collect();
    let mut spare = begin[kept..].to_vec();
    let units = if search.effort == Effort::Thorough { THOROUGH } else { UNITS };
    if let Some(all) = Features::gather(walk, search, number, shared, units) {
        let mut stride = all.units() / FIRST;
        while stride > 1 {
            all.every(stride).improve(&mut groups, &mut spare);
            stride /= 4;
        }
        all.improve(&mut groups, &mut spare);
    }
    tidy(&mut groups);
    groups.concat()
}

impl Features {
    /// `None` where some iteration is not there, so that the choice is not free.
    fn gather(walk: &Walk<'_>, search: &Search<'_>, number: usize, shared: &Shared, most: usize) -> Option<Features> {
        let pattern: &Pattern = search.pattern;
        let axis = shared.of;
        let (rows, len, blocks) =
            (pattern.axis(axis).len, pattern.axis(shared.axis).len, pattern.regions(&shared.others));
        // Of many units in a region some stand for all, of many regions some.
        let stride = (len * blocks).div_ceil(most).min(len.div_ceil(8)).max(1);
        let block = len.div_ceil(stride);
        let block_stride = (block * blocks).div_ceil(most).max(1);
        let count = block * blocks.div_ceil(block_stride);
        let mut values = vec![0.0f32; count * rows];
        let mut there = vec![false; rows];
        let mut walk = walk.clone();
        for choice in (number..shared.step).filter(|&at| is_choice(&pattern.steps()[at])) {
            walk.choose(choice, &everything(pattern, choice));
        }
        let (mut members, mut regions, mut units) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..pattern.n() {
            walk.row(n, shared.step);
            if walk.first_alive().is_none() {
                continue;
            }
            walk.flat(&[axis], &mut members);
            walk.flat(&shared.others, &mut regions);
            walk.flat(&[shared.axis], &mut units);
            for (k, &score) in search.scores[n * pattern.k()..][..pattern.k()].iter().enumerate() {
                if walk.alive(k) {
                    there[members[k]] = true;
                    if units[k].is_multiple_of(stride) && regions[k].is_multiple_of(block_stride) {
                        let unit = regions[k] / block_stride * block + units[k] / stride;
                        values[unit * rows + members[k]] += score;
                    }
                }
            }
        }
        // In the part that is looked at, as large a part is kept.
        let most = ((shared.most * block) as f64 / len as f64).round().max(1.0) as usize;
        there.iter().all(|&there| there).then_some(Features { rows, values, block, most })
    }

    fn units(&self) -> usize {
        self.values.len() / self.rows
    }

    /// Every so many units of each region.
    fn every(&self, stride: usize) -> Features {
        let stride = stride.min(self.block.div_ceil(8)).max(1);
        let some = (0..self.units()).filter(|unit| (unit % self.block).is_multiple_of(stride));
        let values = some.flat_map(|unit| self.unit(unit)).copied().collect();
        Features { values, block: self.block.div_ceil(stride), most: self.most.div_ceil(stride), ..*self }
    }

    fn unit(&self, unit: usize) -> &[f32] {
        &self.values[unit * self.rows..][..self.rows]
    }

    /// The units that a group keeps, and their sum.
    fn best_units(&self, group: &[u32]) -> (Vec<usize>, f64) {
        let units = self.units();
        let total = |unit: usize| {
            let row = self.unit(unit);
            group.iter().map(|&r| f64::from(row[r as usize])).sum::<f64>()
        };
        let totals: Vec<f64> = (0..units).map(total).collect();
        let (mut best, mut sum) = (Vec::new(), 0.0);
        for block in 0..units / self.block {
            let mut order: Vec<usize> = (block * self.block..(block + 1) * self.block).collect();
            order.sort_unstable_by(|&a, &b| totals[b].total_cmp(&totals[a]).then(a.cmp(&b)));
            order.truncate(self.most);
            sum += order.iter().map(|&unit| totals[unit]).sum::<f64>();
            best.extend(order);
        }
        (best, sum)
    }

    /// What every row would have in a group that keeps these units.
    fn with(&self, units: &[usize]) -> Vec<f32> {
        let mut sums = vec![0.0; self.rows];
        for &unit in units {
            sums.iter_mut().zip(self.unit(unit)).for_each(|(sum, v)| *sum += v);
        }
        sums
    }

    fn improve(&self, groups: &mut [Vec<u32>], spare: &mut [u32]) {
        let mut before = f64::NEG_INFINITY;
        for _ in 0..ROUNDS {
            let best: Vec<(Vec<usize>, f64)> = groups.par_iter().map(|group| self.best_units(group)).collect();
            let retained: f64 = best.iter().map(|(_, sum)| sum).sum();
            if retained <= before * (1.0 + 1e-5) {
                return;
            }
            before = retained;
            let has: Vec<Vec<f32>> = best.par_iter().map(|(units, _)| self.with(units)).collect();
            for a in 0..groups.len() {
                let (first, others) = groups.split_at_mut(a + 1);
                for (b, other) in others.iter_mut().enumerate() {
                    exchange(&mut first[a], other, &has[a], Some(&has[a + 1 + b]));
                }
                exchange(&mut first[a], spare, &has[a], None);
            }
        }
    }
}

/// Rows of two groups change places as long as both together gain; `has` is what each row has in either.
fn exchange(a: &mut [u32], b: &mut [u32], has_a: &[f32], has_b: Option<&Vec<f32>>) {
    let in_b = |row: u32| has_b.map_or(0.0, |has| has[row as usize]);
    // What moving a row to the other group gains.
    let gain = |row: u32| in_b(row) - has_a[row as usize];
    let greatest = |rows: &[u32], gain: &dyn Fn(u32) -> f32| {
        let best = (0..rows.len()).max_by(|&x, &y| gain(rows[x]).total_cmp(&gain(rows[y])).then(y.cmp(&x)));
        best.map(|at| (at, gain(rows[at])))
    };
    for _ in 0..a.len().min(b.len()) {
        let (Some((x, leaves)), Some((y, comes))) = (greatest(a, &gain), greatest(b, &|row| -gain(row))) else {
            return;
        };
        let size = has_a[a[x] as usize].abs() + has_a[b[y] as usize].abs();
        if leaves + comes <= ROUNDING * size {
            return;
        }
        std::mem::swap(&mut a[x], &mut b[y]);
    }
}
