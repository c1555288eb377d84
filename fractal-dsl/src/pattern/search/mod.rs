//! Scores -> selection, with the patterns' own searches: what a skip keeps is chosen for what the skips below leave of it.
//!
//! Which search helps shows in the steps, whatever a pattern's name. Each begins where the greedy choice ends, and the result
//! is taken where it retains more.
//!
//! | file | before | what is chosen |
//! |---|---|---|
//! | `channel` | `permute`, split, a skip inside the groups (`perm-2:4`) | the order that lets groups keep most |
//! | `tile_vector` | a skip, a split of what it leaves, a skip inside (`tvw`) | kept columns, and which of them share a group |
//! | `vnm` | a skip, a skip of what it leaves (`vnm`) | the columns of each block |
//! | `shuffle` | a choice of rows, split, a skip that a group's rows share (`shfl-vw`, `tw2`) | rows, and which of them share a group |
//! | `groups` | | exchanges of columns between groups, which the three share |
//! | `units` | | scores by (iteration, context) of such steps |

mod channel;
mod groups;
mod shuffle;
mod tile_vector;
mod units;
mod vnm;

pub(super) use groups::Random;
pub(super) use units::{Below, Shared, everything, split_of};

use super::permute::find_order;
use super::project::{Projection, choices_after, choose, choose_best};
use super::selection::is_choice;
use super::walk::Walk;
use super::{AxisId, Keep, Kept, Level, Pattern, PatternError, Selection, Step};
use serde::{Deserialize, Serialize};

/// How long [`Pattern::search`] looks for a better selection. More effort is worth less the larger the weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// No search: each skip in turn keeps the iterations with the greatest sums. One to four seconds for 16384 x 4096.
    Greedy,
    /// Up to ten seconds for 16384 x 4096 on two cores.
    Quick,
    /// Several times as long as `Quick`.
    Thorough,
}

impl Pattern {
    /// Chooses what to keep by importance: each skip keeps the iterations with the greatest sum of scores over the elements
    /// that the skips before it left, of equal ones the lower; and, with more effort than [`Effort::Greedy`], for what the
    /// skips after it will leave of them. More effort than greedy never retains less than greedy. The same scores give
    /// the same selection.
    ///
    /// `scores` is row-major [n, k], greater meaning more important. Every full region keeps exactly its count; a region
    /// with fewer iterations than that (a tail) keeps them all. A ragged skip keeps its count over all regions together.
    /// Where a later skip works inside groups of what is left, a region's iterations may be listed in any order.
    ///
    /// # Errors
    /// [`PatternError::Shape`], and [`PatternError::Score`] for a score that is not finite.
    pub fn search(&self, scores: &[f32], effort: Effort) -> Result<Selection, PatternError> {
        self.check_scores(scores)?;
        let (plain, ordered) = self.greedy(scores);
        let mut found = Vec::new();
        if effort > Effort::Greedy {
            let search = |greedy| Search { pattern: self, scores, effort, greedy };
            let plain = search(Some(&plain.selection));
            found.extend(plain.helps().then(|| plain.run(false)));
            if self.steps.iter().any(|step| matches!(step, Step::Permute { .. })) {
                found.push(search(ordered.as_ref().map(|ordered| &ordered.selection)).run(true));
            }
        }
        // Orders are heuristics, and so is much of the search: nothing may lose importance against what is simpler.
        let mut best = plain;
        for other in ordered.into_iter().chain(found) {
            if other.retained > best.retained && same_counts(&other.selection, &best.selection) {
                best = other;
            }
        }
        Ok(best.selection)
    }
}

/// Whether every skip keeps as many iterations in one selection as in the other.
fn same_counts(a: &Selection, b: &Selection) -> bool {
    a.levels.iter().zip(&b.levels).all(|pair| match pair {
        (Level::Kept(a), Level::Kept(b)) => a.kept.len() == b.kept.len(),
        _ => true,
    })
}

/// A search for one pattern, or for what is left of it below a skip.
struct Search<'a> {
    pattern: &'a Pattern,
    scores: &'a [f32],
    effort: Effort,
    /// The greedy choices of this pattern, where they are known: the first is as good here.
    greedy: Option<&'a Selection>,
}

impl<'a> Search<'a> {
    /// Whether some skip may be chosen for what follows it.
    fn helps(&self) -> bool {
        let skips = |step: &Step| matches!(step, Step::Skip { .. });
        self.pattern.steps.iter().filter(|step| skips(step)).count() > 1
    }

    /// All steps, with orders found or as they are.
    fn run(&self, orders: bool) -> Projection {
        let mut levels = Vec::new();
        let retained = self.steps(&mut Walk::new(self.pattern), 0, orders, false, &mut levels);
        let retained = retained.unwrap_or_else(|| self.scores.iter().map(|&s| f64::from(s)).sum());
        Projection { selection: Selection { levels }, retained }
    }

    /// The levels of the steps from `from` on, and what the last skip keeps. The walk goes to the end where `through` is set.
    fn steps(
        &self,
        walk: &mut Walk<'_>,
        from: usize,
        orders: bool,
        through: bool,
        levels: &mut Vec<Level>,
    ) -> Option<f64> {
        let mut retained = None;
        for (number, step) in self.pattern.steps.iter().enumerate().skip(from) {
            let level = match step {
                Step::Skip { .. } => {
                    let (kept, sum) = self.skip(walk, number);
                    retained = Some(sum);
                    Level::Kept(kept)
                }
                Step::Permute { axis, out } if orders => Level::Order(self.order(walk, number, *axis, *out)),
                Step::Permute { .. } => everything(self.pattern, number),
                _ => continue,
            };
            if through || choices_after(self.pattern, number) {
                walk.choose(number, &level);
            }
            levels.push(level);
        }
        retained
    }

    fn order(&self, walk: &mut Walk<'_>, number: usize, axis: AxisId, out: AxisId) -> Vec<u32> {
        match Below::in_groups(self.pattern, number) {
            Some(below) => channel::order(walk, self, number, axis, &below),
            None => {
                let order = match self.greedy.and_then(|greedy| greedy.levels.first()) {
                    Some(Level::Order(order)) if !self.pattern.steps[..number].iter().any(is_choice) => order.clone(),
                    _ => find_order(walk, self.pattern, number, axis, out, self.scores),
                };
                match Shared::of(self.pattern, number) {
                    Some(shared) => shuffle::regroup(walk, self, number, &shared, &order, order.len()),
                    None => order,
                }
            }
        }
    }

    /// What the skip at `number` keeps, and its sum where it is the last.
    fn skip(&self, walk: &Walk<'_>, number: usize) -> (Kept, f64) {
        if let Some(below) = Below::in_groups(self.pattern, number) {
            let (kept, sum) = self.greedy(walk, number);
            return (tile_vector::kept(walk, self, number, &below, kept), sum);
        }
        if let Some(below) = Below::whole(self.pattern, number) {
            let (kept, sum) = self.greedy(walk, number);
            return (vnm::kept(walk, self, number, &below, kept), sum);
        }
        if let (Some(shared), Step::Skip { axis, per, .. }) =
            (Shared::of(self.pattern, number), &self.pattern.steps[number])
            && per.is_empty()
        {
            let (kept, sum) = self.greedy(walk, number);
            let count = kept.kept.len();
            // The rows that are kept, and after them those that are not.
            let mut rows = kept.kept.clone();
            let dropped = (0..self.pattern.axis(*axis).len as u32).filter(|row| rows.binary_search(row).is_err());
            let dropped: Vec<u32> = dropped.collect();
            rows.extend(dropped);
            let list = shuffle::regroup(walk, self, number, &shared, &rows, count);
            return (Kept { offsets: kept.offsets, kept: list }, sum);
        }
        match self.below(walk, number) {
            Some(totals) => {
                let Step::Skip { axis, keep, .. } = &self.pattern.steps[number] else { unreachable!("a skip") };
                self.chosen(&totals, *axis, *keep, number)
            }
            None => self.greedy(walk, number),
        }
    }

    /// The greedy choice of the skip at `number`, and its sum where it is the last.
    fn greedy(&self, walk: &Walk<'_>, number: usize) -> (Kept, f64) {
        let first = !self.pattern.steps[..number].iter().any(is_choice);
        let last = !self.pattern.steps[number + 1..].iter().any(|step| matches!(step, Step::Skip { .. }));
        match self.greedy.and_then(|greedy| greedy.levels.first()) {
            Some(Level::Kept(kept)) if first && !last => (kept.clone(), 0.0),
            _ => choose_best(walk, self.pattern, number, self.scores),
        }
    }

    /// Which iterations of each region of the skip at `number` have elements: `region * len + iteration`.
    fn there(&self, walk: &Walk<'_>, number: usize) -> Vec<bool> {
        let Step::Skip { axis, per, .. } = &self.pattern.steps[number] else { unreachable!("a skip") };
        let mut there = vec![false; self.pattern.regions(per) * self.pattern.axis(*axis).len];
        // All of them, where no split left a tail and nothing was dropped before.
        let before = self.pattern.steps[..number].iter().any(|step| matches!(step, Step::Skip { .. }));
        if !before && !per.iter().chain([axis]).any(|&a| self.pattern.axis(a).tail) {
            there.fill(true);
            return there;
        }
        let (mut walk, mut places) = (walk.clone(), Vec::new());
        for n in 0..self.pattern.n {
            walk.row(n, number);
            walk.places(per, *axis, &mut places);
            (0..self.pattern.k).filter(|&k| walk.alive(k)).for_each(|k| there[places[k]] = true);
        }
        there
    }

    fn chosen(&self, totals: &[f64], axis: AxisId, keep: Keep, number: usize) -> (Kept, f64) {
        choose(totals, self.pattern.axis(axis).len, keep, self.pattern.kept_per_region(number))
    }

    /// For the skip at `number`, the sums of what the skips below it would leave of each iteration, if it kept them all.
    /// `None` where there are none below, or where they work on what it leaves.
    fn below(&self, walk: &Walk<'_>, number: usize) -> Option<Vec<f64>> {
        let steps = &self.pattern.steps;
        let Step::Skip { axis, per, out, .. } = &steps[number] else { return None };
        let later = &steps[number + 1..];
        let works_on_it = |step: &Step| match step {
            Step::Split { axis, .. } | Step::Permute { axis, .. } | Step::Skip { axis, .. } => axis == out,
            Step::Join { a, b, .. } => a == out || b == out,
        };
        if later.iter().any(works_on_it) || !later.iter().any(|step| matches!(step, Step::Skip { .. })) {
            return None;
        }
        let pattern = self.pattern.without(number)?;
        let search = Search { pattern: &pattern, greedy: None, ..*self };
        let mut finer = walk.over(&pattern, number);
        search.steps(&mut finer, number, true, true, &mut Vec::new());
        let mut totals = vec![f64::NEG_INFINITY; self.pattern.regions(per) * self.pattern.axis(*axis).len];
        let (k, mut places) = (self.pattern.k, Vec::new());
        let mut walk = walk.clone();
        for n in 0..self.pattern.n {
            walk.row(n, number);
            walk.places(per, *axis, &mut places);
            finer.row(n, pattern.steps.len());
            for (at, &score) in self.scores[n * k..][..k].iter().enumerate() {
                if walk.alive(at) {
                    let total = &mut totals[places[at]];
                    let score = if finer.alive(at) { f64::from(score) } else { 0.0 };
                    *total = if *total == f64::NEG_INFINITY { score } else { *total + score };
                }
            }
        }
        Some(totals)
    }
}
