//! An order of columns by which groups keep most: `perm-2:4`, `perm-vnm`. Input: a permutation whose groups a skip chooses
//! in; output: `order[new] = old`.
//!
//! Columns are exchanged between groups as long as it gains (Pool & Yu 2021). Of a large weight, some contexts (rows, or
//! blocks of rows) stand for all. The order within a group means nothing: groups and their columns ascend, so that
//! what is read together lies close together.

use super::groups::{Patience, improve, tidy};
use super::units::Units;
use super::{Below, Effort, Search};
use crate::pattern::AxisId;
use crate::pattern::walk::Walk;

/// Scores that stand for all, at most.
const SAMPLE: usize = 1 << 22;

/// So many columns are weighed against each other all at once, with escapes from local optima that cost so many operations.
const SMALL: usize = 256;
const WORK: usize = 1 << 31;

/// The order at the permutation of step `number`. Without scores to tell, the order that is there.
pub(super) fn order(walk: &Walk<'_>, search: &Search<'_>, number: usize, axis: AxisId, below: &Below) -> Vec<u32> {
    let pattern = search.pattern;
    let columns: Vec<u32> = (0..pattern.axis(axis).len as u32).collect();
    let factor = below.factor;
    let sample = if search.effort == Effort::Thorough { 4 * SAMPLE } else { SAMPLE };
    let stride = |below: &Below| (pattern.regions(&below.context) * pattern.k()).div_ceil(sample).max(1);
    // What the last skip leaves is what counts; but all blocks tell more than some rows of them.
    let finer = below.finer(pattern, number).filter(|finer| below.most >= factor || stride(finer) == 1);
    let below = finer.as_ref().unwrap_or(below);
    let stride = stride(below);
    let Some(units) = Units::gather(walk, pattern, number, below, stride, search.scores) else {
        return columns;
    };
    let mut groups: Vec<Vec<u32>> = columns.chunks(factor).map(<[u32]>::to_vec).collect();
    let rounds = if search.effort == Effort::Thorough { 8 } else { 1 };
    let columns = units.region(0);
    let patience = if units.len <= SMALL {
        // About what an escape costs: the exchanges of four groups, a few times.
        let work = 16 * factor * units.len * columns.height;
        Patience { cluster: SMALL, phases: 1, escapes: rounds * (WORK / work).min(4 * units.len) }
    } else {
        Patience { cluster: 64 * rounds, phases: 16 * rounds, escapes: 0 }
    };
    improve(columns, &mut groups, &mut [], below.most, patience, 1);
    tidy(&mut groups);
    groups.concat()
}
