//! The columns of each tile, chosen and grouped for the skip inside groups of them: `tvw`, or any nest that ends so.
//! Input: the greedy lists; output: lists in which each group of `factor` columns stands together.

use super::groups::{Columns, Patience, improve, tidy};
use super::units::Units;
use super::{Below, Effort, Search};
use crate::pattern::Kept;
use crate::pattern::walk::Walk;
use rayon::prelude::*;

/// Lists of the skip at step `number`; `greedy` where regions cannot be told apart.
pub(super) fn kept(walk: &Walk<'_>, search: &Search<'_>, number: usize, below: &Below, greedy: Kept) -> Kept {
    let Some(units) = Units::gather(walk, search.pattern, number, below, 1, search.scores) else { return greedy };
    let there = search.there(walk, number);
    let patience = patience(search);
    let lists: Vec<Vec<u32>> = (0..greedy.regions())
        .into_par_iter()
        .map(|region| {
            let there: Vec<u32> = (0..units.len as u32).filter(|&i| there[region * units.len + i as usize]).collect();
            list(units.region(region), greedy.region(region), &there, below, patience, region as u64)
        })
        .collect();
    Kept { offsets: greedy.offsets, kept: lists.concat() }
}

/// A few seconds for a large weight, and as much for a small one as brings something.
fn patience(search: &Search<'_>) -> Patience {
    let phases = ((1 << 26) / (search.pattern.n() * search.pattern.k())).clamp(4, 16);
    match search.effort {
        Effort::Thorough => Patience { cluster: 128, phases: 4 * phases, escapes: 0 },
        _ => Patience { cluster: 32, phases, escapes: 0 },
    }
}

/// One tile's list.
fn list(columns: Columns<'_>, greedy: &[u32], there: &[u32], below: &Below, patience: Patience, seed: u64) -> Vec<u32> {
    let (factor, most, count) = (below.factor, below.most, greedy.len());
    if count == 0 || most >= factor {
        return greedy.to_vec();
    }
    let in_groups = |list: &[u32]| list.chunks(factor).map(<[u32]>::to_vec).collect::<Vec<_>>();
    let mut groups = in_groups(greedy);
    // Each context keeps the greater scores: columns matter by what they have above the least of those.
    let mut worth = columns.excess(there, &columns.thresholds(greedy, (count * most / factor).max(1)));
    if count < there.len() {
        let mut best = greedy.to_vec();
        for _ in 0..2 {
            best = greatest(there, &worth, count);
            worth = columns.excess(there, &columns.thresholds(&best, (count * most / factor).max(1)));
        }
        let others = in_groups(&best);
        if columns.retained_of_all(&others, most) > columns.retained_of_all(&groups, most) {
            groups = others;
        }
    }
    let mut kept = vec![false; columns.len()];
    groups.iter().flatten().for_each(|&j| kept[j as usize] = true);
    let (spare, worth): (Vec<u32>, Vec<f32>) =
        there.iter().zip(&worth).filter(|(j, _)| !kept[**j as usize]).map(|(j, w)| (*j, *w)).unzip();
    // Of the others, those come in question that matter most.
    let mut spare = greatest(&spare, &worth, spare.len().min(count.max(64)));
    improve(columns, &mut groups, &mut spare, most, patience, seed);
    tidy(&mut groups);
    groups.concat()
}

/// The `count` of `which` that are worth most, ascending.
fn greatest(which: &[u32], worth: &[f32], count: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..which.len()).collect();
    order.sort_unstable_by(|&a, &b| worth[b].total_cmp(&worth[a]).then(a.cmp(&b)));
    let mut best: Vec<u32> = order[..count].iter().map(|&at| which[at]).collect();
    best.sort_unstable();
    best
}
