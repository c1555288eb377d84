//! The columns of each block, chosen for the skip that drops some of them row by row: `vnm`. Input: the greedy lists;
//! output: ascending lists.

use super::groups::{Columns, Patience, improve};
use super::units::Units;
use super::{Below, Effort, Search};
use crate::pattern::Kept;
use crate::pattern::walk::Walk;
use rayon::prelude::*;

/// So many ways to choose are all tried: 70 of 4 of 8 columns.
const WAYS: usize = 128;

/// Lists of the skip at step `number`; `greedy` where regions cannot be told apart.
pub(super) fn kept(walk: &Walk<'_>, search: &Search<'_>, number: usize, below: &Below, greedy: Kept) -> Kept {
    let Some(units) = Units::gather(walk, search.pattern, number, below, 1, search.scores) else { return greedy };
    let there = search.there(walk, number);
    let escapes = if search.effort == Effort::Thorough { 64 } else { 0 };
    let lists: Vec<Vec<u32>> = (0..greedy.regions())
        .into_par_iter()
        .map(|region| {
            let there: Vec<u32> = (0..units.len as u32).filter(|&i| there[region * units.len + i as usize]).collect();
            list(units.region(region), greedy.region(region), &there, below.most, escapes)
        })
        .collect();
    Kept { offsets: greedy.offsets, kept: lists.concat() }
}

fn list(columns: Columns<'_>, greedy: &[u32], there: &[u32], most: usize, escapes: usize) -> Vec<u32> {
    let count = greedy.len();
    if most >= count || count == there.len() {
        return greedy.to_vec();
    }
    if ways(there.len(), count) > WAYS {
        let mut group = [greedy.to_vec()];
        let mut spare: Vec<u32> = there.iter().copied().filter(|j| !greedy.contains(j)).collect();
        let patience = Patience { cluster: count, phases: 1, escapes };
        improve(columns, &mut group, &mut spare, most, patience, 1);
        group[0].sort_unstable();
        return group[0].clone();
    }
    let mut best = (columns.retained(greedy, most), greedy.to_vec());
    let mut places: Vec<usize> = (0..count).collect();
    let mut list = greedy.to_vec();
    loop {
        list.iter_mut().zip(&places).for_each(|(to, &at)| *to = there[at]);
        let retained = columns.retained(&list, most);
        if retained > best.0 {
            best.0 = retained;
            best.1.copy_from_slice(&list);
        }
        // The next set of places, in lexicographic order.
        let Some(at) = (0..count).rev().find(|&at| places[at] < there.len() - count + at) else { return best.1 };
        let next = places[at] + 1;
        (at..count).for_each(|to| places[to] = next + to - at);
    }
}

/// Sets of `count` of `len`, or more than [`WAYS`].
fn ways(len: usize, count: usize) -> usize {
    let mut ways = 1usize;
    for i in 0..count.min(len - count) {
        ways = ways * (len - i) / (i + 1);
        if ways > WAYS {
            return ways;
        }
    }
    ways
}
