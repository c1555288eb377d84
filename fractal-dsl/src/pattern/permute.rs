//! An order of rows or columns that brings alike ones together (Shfl-BW's shuffle), so that whole blocks fall away.

use super::walk::{RowValues, Walk};
use super::{AxisId, AxisKind, Pattern, Step};

/// Features an iteration is compared by: sums of scores over this many stretches of the other dimension.
const STRETCHES: usize = 256;

/// `order[new] = old` for the permutation at step `number` of `axis` into `out`, from the elements alive before it.
///
/// Groups as long as the next split's factor are filled one after the other: from the heaviest iteration left, with
/// those whose scores lie in the same places. Without a later split every order is as good, and none is made.
pub(crate) fn find_order(
    walk: &mut Walk<'_>,
    pattern: &Pattern,
    number: usize,
    axis: AxisId,
    out: AxisId,
    scores: &[f32],
) -> Vec<u32> {
    let len = pattern.axis(axis).len;
    let group = pattern.steps()[number..].iter().find_map(|step| match step {
        Step::Split { axis, factor, .. } if *axis == out => Some(*factor),
        _ => None,
    });
    let (Some(group), true) = (group, pattern.axis(axis).kind != AxisKind::Mixed) else {
        return (0..len as u32).collect();
    };
    let along_k = pattern.axis(axis).kind == AxisKind::Spatial;
    let other = if along_k { pattern.k() } else { pattern.n() };
    let stretches = STRETCHES.min(other);
    let mut features = vec![0.0f32; len * stretches];
    for n in 0..pattern.n() {
        walk.row(n, number);
        let values: &RowValues = walk.axis(axis);
        for k in (0..pattern.k()).filter(|&k| walk.alive(k)) {
            let stretch = (if along_k { k } else { n }) * stretches / other;
            features[values.at(k) as usize * stretches + stretch] += scores[n * pattern.k() + k];
        }
    }
    group_alike(&features, stretches, group)
}

fn group_alike(features: &[f32], width: usize, group: usize) -> Vec<u32> {
    let feature = |i: u32| &features[i as usize * width..][..width];
    let likeness = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    let mut left: Vec<u32> = (0..(features.len() / width) as u32).collect();
    let weights: Vec<f32> = left.iter().map(|&i| feature(i).iter().sum()).collect();
    let heaviest = |left: &[u32]| {
        let heavier = |a: &&u32, b: &&u32| {
            let (a, b) = (**a, **b);
            weights[a as usize].total_cmp(&weights[b as usize]).then(b.cmp(&a))
        };
        *left.iter().max_by(heavier).expect("more than a group is left")
    };
    let mut order = Vec::with_capacity(left.len());
    while left.len() > group {
        let mut centre = feature(heaviest(&left)).to_vec();
        // The second round starts from what the first group has in common rather than from one member.
        for _ in 0..2 {
            let mut ranked: Vec<(f32, u32)> = left.iter().map(|&i| (likeness(feature(i), &centre), i)).collect();
            ranked.select_nth_unstable_by(group - 1, |a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            // The centre is a sum of floats: their order must not depend on how the best were found.
            ranked[..group].sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            centre.fill(0.0);
            for &(_, i) in &ranked[..group] {
                centre.iter_mut().zip(feature(i)).for_each(|(c, f)| *c += f);
            }
            left.clear();
            left.extend(ranked.iter().map(|&(_, i)| i));
        }
        let mut members: Vec<u32> = left.drain(..group).collect();
        members.sort_unstable();
        order.extend(members);
    }
    left.sort_unstable();
    order.extend(left);
    order
}
