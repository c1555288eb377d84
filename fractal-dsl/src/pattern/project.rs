//! Scores -> selection: greedy, from coarse to fine, in the order of the pattern's skips. `search` does better.

use super::permute::find_order;
use super::search::Below;
use super::selection::{check_len, is_choice};
use super::walk::{RowValues, Walk};
use super::{AxisId, AxisKind, Effort, Keep, Kept, Level, Mask, Pattern, PatternError, Selection, Step};
use rayon::prelude::*;

/// The total of an iteration that holds no element.
const MISSING: f64 = f64::NEG_INFINITY;

/// Elements that one thread walks at a time.
const ELEMENTS: usize = 1 << 16;

/// A selection and the sum of scores that it keeps.
#[derive(Clone, Debug)]
pub(super) struct Projection {
    pub(super) selection: Selection,
    pub(super) retained: f64,
}

impl Pattern {
    /// Chooses what to keep by importance, with [`Effort::Quick`]: see [`Pattern::search`].
    ///
    /// # Errors
    /// [`PatternError::Shape`], and [`PatternError::Score`] for a score that is not finite.
    pub fn project(&self, scores: &[f32]) -> Result<Selection, PatternError> {
        self.search(scores, Effort::Quick)
    }

    pub(super) fn check_scores(&self, scores: &[f32]) -> Result<(), PatternError> {
        check_len("scores", scores.len(), self.n, self.k)?;
        match scores.iter().position(|s| !s.is_finite()) {
            Some(at) => Err(PatternError::Score { n: at / self.k, k: at % self.k, value: scores[at] }),
            None => Ok(()),
        }
    }

    /// Each skip in turn keeps the iterations with the greatest sum of scores over the elements that the skips before it
    /// left; of equal iterations the lower one. In the order that is there, and, where a permutation is no matter of the
    /// skips below it alone, in one that brings alike iterations together.
    pub(super) fn greedy(&self, scores: &[f32]) -> (Projection, Option<Projection>) {
        let orders = |(number, step): (usize, &Step)| {
            matches!(step, Step::Permute { .. }) && Below::in_groups(self, number).is_none()
        };
        let ordered = self.steps.iter().enumerate().any(orders).then(|| self.greedy_in_order(scores, true));
        (self.greedy_in_order(scores, false), ordered)
    }

    fn greedy_in_order(&self, scores: &[f32], permute: bool) -> Projection {
        let mut walk = Walk::new(self);
        let mut levels = Vec::new();
        let mut retained = None;
        for (number, step) in self.steps.iter().enumerate() {
            let level = match step {
                Step::Skip { .. } => {
                    let (kept, sum) = choose_best(&walk, self, number, scores);
                    retained = Some(sum);
                    Level::Kept(kept)
                }
                Step::Permute { axis, out } if permute && Below::in_groups(self, number).is_none() => {
                    Level::Order(find_order(&mut walk, self, number, *axis, *out, scores))
                }
                Step::Permute { axis, .. } => Level::Order((0..self.axis(*axis).len as u32).collect()),
                _ => continue,
            };
            if choices_after(self, number) {
                walk.choose(number, &level);
            }
            levels.push(level);
        }
        let retained = retained.unwrap_or_else(|| scores.iter().map(|&s| f64::from(s)).sum());
        Projection { selection: Selection { levels }, retained }
    }

    /// The mask of a selection.
    ///
    /// # Errors
    /// [`PatternError::Selection`] where the selection does not fit this pattern.
    pub fn mask(&self, selection: &Selection) -> Result<Mask, PatternError> {
        selection.check(self)?;
        let mut walk = Walk::through(self, selection);
        let mut mask = Mask::empty(self.n, self.k);
        for n in 0..self.n {
            walk.row(n, self.steps.len());
            (0..self.k).filter(|&k| walk.alive(k)).for_each(|k| mask.insert(n, k));
        }
        Ok(mask)
    }
}

/// Whether more is chosen after step `number`: what no step asks for need not be turned over.
pub(super) fn choices_after(pattern: &Pattern, number: usize) -> bool {
    pattern.steps[number + 1..].iter().any(is_choice)
}

/// The iterations with the greatest sums of scores, as the skip at step `number` counts them, and the sum over all of those.
pub(super) fn choose_best(walk: &Walk<'_>, pattern: &Pattern, number: usize, scores: &[f32]) -> (Kept, f64) {
    let Step::Skip { axis, per, keep, .. } = &pattern.steps[number] else { unreachable!("step {number} is a skip") };
    if let Some(found) = choose_in_rows(walk, pattern, number, scores) {
        return found;
    }
    let totals = totals(&mut walk.clone(), pattern, number, per, *axis, scores);
    choose(&totals, pattern.axis(*axis).len, *keep, pattern.kept_per_region(number))
}

/// The same where no region has elements of two rows, and regions come in the order of rows: a few rows at a time.
fn choose_in_rows(walk: &Walk<'_>, pattern: &Pattern, number: usize, scores: &[f32]) -> Option<(Kept, f64)> {
    let Step::Skip { axis, per, keep, .. } = &pattern.steps[number] else { return None };
    let most = pattern.kept_per_region(number)?;
    let spatial = per.iter().take_while(|&&p| pattern.axis(p).kind == AxisKind::Spatial).count();
    let (rows, columns) = per.split_at(spatial);
    if rows.is_empty() || columns.iter().chain([axis]).any(|&a| pattern.axis(a).kind != AxisKind::Reduction) {
        return None;
    }
    let (len, regions) = (pattern.axis(*axis).len, pattern.regions(columns));
    let chunk = ELEMENTS.div_ceil(pattern.k);
    struct Part {
        /// Kept iterations, and how many of each region from `first * regions` on.
        kept: Vec<u32>,
        counts: Vec<u32>,
        first: usize,
        sum: f64,
    }
    let part = |number_of_chunk: usize| -> Option<Part> {
        let mut walk = walk.clone();
        let mut places = Vec::new();
        let mut totals = vec![MISSING; regions * len];
        let mut part = Part { kept: Vec::new(), counts: Vec::new(), first: 0, sum: 0.0 };
        let from = number_of_chunk * chunk;
        for n in from..(from + chunk).min(pattern.n) {
            walk.row(n, number);
            if walk.first_alive().is_none() {
                continue;
            }
            let row = rows.iter().try_fold(0, |flat, &a| match walk.axis(a) {
                RowValues::One(v) => Some(flat * pattern.axis(a).len + *v as usize),
                RowValues::Each(_) => None,
            })?;
            if part.counts.is_empty() {
                part.first = row;
            }
            if row * regions < part.first * regions + part.counts.len() {
                return None;
            }
            part.counts.resize((row - part.first) * regions, 0);
            walk.flat(columns.iter().chain([axis]), &mut places);
            totals.fill(MISSING);
            for (k, &score) in scores[n * pattern.k..][..pattern.k].iter().enumerate() {
                if walk.alive(k) {
                    add(&mut totals[places[k]], score);
                }
            }
            let (kept, sum) = choose(&totals, len, *keep, Some(most));
            part.sum += sum;
            part.counts.extend(kept.offsets.windows(2).map(|w| w[1] - w[0]));
            part.kept.extend(kept.kept);
        }
        Some(part)
    };
    // Whether it can be done shows in the first rows.
    let first = part(0)?;
    let others: Option<Vec<Part>> = (1..pattern.n.div_ceil(chunk)).into_par_iter().map(part).collect();
    let all = pattern.regions(per);
    let mut offsets = Vec::with_capacity(all + 1);
    offsets.push(0);
    let (mut kept, mut sum, mut last) = (Vec::new(), 0.0, 0);
    for part in std::iter::once(first).chain(others?) {
        let begin = part.first * regions;
        if part.counts.is_empty() {
            continue;
        }
        if begin + 1 < offsets.len() {
            return None;
        }
        offsets.resize(begin + 1, last);
        for count in part.counts {
            last += count;
            offsets.push(last);
        }
        kept.extend(part.kept);
        sum += part.sum;
    }
    offsets.resize(all + 1, last);
    Some((Kept { offsets, kept }, sum))
}

fn add(total: &mut f64, score: f32) {
    *total = if *total == MISSING { f64::from(score) } else { *total + f64::from(score) };
}

/// Sums of scores, `region * len + iteration`, over the elements that are alive before step `number`.
pub(super) fn totals(
    walk: &mut Walk<'_>,
    pattern: &Pattern,
    number: usize,
    per: &[AxisId],
    axis: AxisId,
    scores: &[f32],
) -> Vec<f64> {
    let mut totals = vec![MISSING; pattern.regions(per) * pattern.axis(axis).len];
    let mut places = Vec::new();
    for n in 0..pattern.n() {
        walk.row(n, number);
        walk.places(per, axis, &mut places);
        for (k, &score) in scores[n * pattern.k()..][..pattern.k()].iter().enumerate() {
            if walk.alive(k) {
                add(&mut totals[places[k]], score);
            }
        }
    }
    totals
}

/// The iterations to keep, ascending in each region, and the sum of their totals.
pub(super) fn choose(totals: &[f64], len: usize, keep: Keep, per_region: Option<usize>) -> (Kept, f64) {
    let regions = totals.len() / len;
    let mut offsets = Vec::with_capacity(regions + 1);
    offsets.push(0);
    let (mut kept, mut sum) = (Vec::new(), 0.0);
    let mut candidates: Vec<usize> = Vec::new();
    match per_region {
        Some(most) => {
            for region in 0..regions {
                candidates.clear();
                candidates.extend((region * len..(region + 1) * len).filter(|&at| totals[at] != MISSING));
                keep_best(&mut candidates, totals, most);
                kept.extend(candidates.iter().map(|at| (at % len) as u32));
                sum += candidates.iter().map(|&at| totals[at]).sum::<f64>();
                offsets.push(kept.len() as u32);
            }
        }
        None => {
            candidates.extend((0..totals.len()).filter(|&at| totals[at] != MISSING));
            let most = match keep {
                Keep::Ragged(ratio) => ratio.of(candidates.len()),
                Keep::RaggedCount(count) => count,
                _ => unreachable!("only ragged skips have no count per region"),
            };
            keep_best(&mut candidates, totals, most);
            sum += candidates.iter().map(|&at| totals[at]).sum::<f64>();
            let mut best = candidates.iter().peekable();
            for region in 0..regions {
                while let Some(at) = best.next_if(|&&at| at < (region + 1) * len) {
                    kept.push((at % len) as u32);
                }
                offsets.push(kept.len() as u32);
            }
        }
    }
    (Kept { offsets, kept }, sum)
}

/// Leaves the `most` greatest of `candidates`, in ascending order of place.
fn keep_best(candidates: &mut Vec<usize>, totals: &[f64], most: usize) {
    if candidates.len() > most {
        let by_score = |a: &usize, b: &usize| totals[*b].total_cmp(&totals[*a]).then(a.cmp(b));
        if most > 0 {
            candidates.select_nth_unstable_by(most - 1, by_score);
        }
        candidates.truncate(most);
        candidates.sort_unstable();
    }
}
