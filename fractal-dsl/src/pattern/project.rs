//! Scores -> selection: greedy, from coarse to fine, in the order of the pattern's skips.

use super::permute::find_order;
use super::selection::{check_len, choice_steps};
use super::walk::Walk;
use super::{AxisId, Keep, Kept, Level, Mask, Pattern, PatternError, Selection, Step};

/// The total of an iteration that holds no element.
const MISSING: f64 = f64::NEG_INFINITY;

impl Pattern {
    /// Chooses what to keep by importance: each skip in turn keeps the iterations with the greatest sum of scores over
    /// the elements that the skips before it left. Of equal iterations the lower one stays.
    ///
    /// `scores` is row-major [n, k], greater meaning more important. Every full region keeps exactly its count; a region
    /// with fewer iterations than that (a tail) keeps them all. A ragged skip keeps its count over all regions together.
    ///
    /// # Errors
    /// [`PatternError::Shape`], and [`PatternError::Score`] for a score that is not finite.
    pub fn project(&self, scores: &[f32]) -> Result<Selection, PatternError> {
        check_len("scores", scores.len(), self.n, self.k)?;
        if let Some(at) = scores.iter().position(|s| !s.is_finite()) {
            return Err(PatternError::Score { n: at / self.k, k: at % self.k, value: scores[at] });
        }
        let plain = self.project_in_order(scores, false);
        if !self.steps.iter().any(|s| matches!(s, Step::Permute { .. })) {
            return Ok(plain);
        }
        // A found order is a heuristic: it must not lose importance against the order that is there.
        let ordered = self.project_in_order(scores, true);
        let better = self.retained(&ordered, scores) > self.retained(&plain, scores);
        Ok(if better { ordered } else { plain })
    }

    fn project_in_order(&self, scores: &[f32], permute: bool) -> Selection {
        let mut walk = Walk::new(self);
        let mut levels = Vec::new();
        for (number, step) in self.steps.iter().enumerate() {
            let level = match step {
                Step::Skip { axis, per, keep, .. } => {
                    let totals = totals(&mut walk, self, number, per, *axis, scores);
                    Level::Kept(choose(&totals, self.axis(*axis).len, *keep, self.kept_per_region(number)))
                }
                Step::Permute { axis, out } if permute => {
                    Level::Order(find_order(&mut walk, self, number, *axis, *out, scores))
                }
                Step::Permute { axis, .. } => Level::Order((0..self.axis(*axis).len as u32).collect()),
                _ => continue,
            };
            walk.choose(number, &level);
            levels.push(level);
        }
        Selection { levels }
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

    /// Hands over each row in order: for each column that the steps before `step`, a skip, leave there, the region of that skip and
    /// the iteration, `(column, region, iteration)`. `selection` holds the choices of the steps before, and may hold more.
    ///
    /// # Panics
    /// Where `step` is no skip, or a choice before it is missing or does not fit.
    pub fn for_each_place(
        &self,
        selection: &Selection,
        step: usize,
        mut row: impl FnMut(usize, &[(usize, usize, usize)]),
    ) {
        let Step::Skip { axis, per, .. } = &self.steps[step] else { panic!("step #{step} is no skip") };
        let mut walk = Walk::new(self);
        let before = choice_steps(self).take_while(|&choice| choice < step).count();
        assert!(selection.levels.len() >= before, "{} of {before} choices", selection.levels.len());
        for (choice, level) in choice_steps(self).zip(&selection.levels[..before]) {
            walk.choose(choice, level);
        }
        let len = self.axis(*axis).len;
        let (mut places, mut found) = (Vec::new(), Vec::new());
        for n in 0..self.n {
            walk.row(n, step);
            walk.places(per, *axis, &mut places);
            found.clear();
            let alive = (0..self.k).filter(|&k| walk.alive(k));
            found.extend(alive.map(|k| (k, places[k] / len, places[k] % len)));
            row(n, &found);
        }
    }

    fn retained(&self, selection: &Selection, scores: &[f32]) -> f64 {
        let mut walk = Walk::through(self, selection);
        let mut total = 0.0;
        for n in 0..self.n {
            walk.row(n, self.steps.len());
            let row = &scores[n * self.k..][..self.k];
            total += row.iter().enumerate().filter(|(k, _)| walk.alive(*k)).map(|(_, &s)| f64::from(s)).sum::<f64>();
        }
        total
    }
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
                let total = &mut totals[places[k]];
                *total = if *total == MISSING { f64::from(score) } else { *total + f64::from(score) };
            }
        }
    }
    totals
}

/// The iterations to keep, ascending in each region.
pub(super) fn choose(totals: &[f64], len: usize, keep: Keep, per_region: Option<usize>) -> Kept {
    let regions = totals.len() / len;
    let mut offsets = Vec::with_capacity(regions + 1);
    offsets.push(0);
    let mut kept = Vec::new();
    let mut candidates: Vec<usize> = Vec::new();
    match per_region {
        Some(most) => {
            for region in 0..regions {
                candidates.clear();
                candidates.extend((region * len..(region + 1) * len).filter(|&at| totals[at] != MISSING));
                keep_best(&mut candidates, totals, most);
                kept.extend(candidates.iter().map(|at| (at % len) as u32));
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
            let mut best = candidates.iter().peekable();
            for region in 0..regions {
                while let Some(at) = best.next_if(|&&at| at < (region + 1) * len) {
                    kept.push((at % len) as u32);
                }
                offsets.push(kept.len() as u32);
            }
        }
    }
    Kept { offsets, kept }
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
