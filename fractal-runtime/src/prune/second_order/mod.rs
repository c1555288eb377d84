//! Second-order pruning: a layer's weights, its pattern and what its inputs are -> the mask and the kept weights of least error.
//!
//! | file | what it does |
//! |---|---|
//! | `statistics` | calibration tokens -> sums |
//! | `problem` | sums -> a least-squares problem; its solution on a mask |
//! | `factor` | Cholesky factors, what is read from an inverse |
//! | `sweep` | N of M in rows: chosen while the other weights make up for it |
//!
//! The pattern without skips inside rows is reached in stages. In each, a unit's score is what dropping it adds to the error while all
//! other weights of its rows make up for it: w' (inverse H)^-1 w over the unit's columns (Hassibi and Stork, Optimal brain surgeon, 1993;
//! LeCun et al. 1989 for its first form), summed over its rows; then the weights that are left are solved for anew.

mod factor;
mod problem;
mod statistics;
mod sweep;

pub use statistics::LayerStatistics;

use super::method::fits;
use super::{Curvature, PruneError, Pruned};
use crate::tensor::Tensor;
use factor::Factor;
use faer::Par;
use fractal_dsl::DType;
use fractal_dsl::pattern::{Effort, Level, Mask, Pattern, Selection, Step};
use half::{bf16, f16};
use problem::{Group, Problem};

/// How second-order pruning goes about it.
#[derive(Clone, Debug, PartialEq)]
pub struct SecondOrder {
    /// Added to the Hessian's diagonal, as a part of its mean: keeps weights near the old ones where inputs tell little.
    pub damping: f64,
    /// Stages from dense to the pattern, at most.
    pub stages: usize,
    /// Whether the layer has a bias that is fitted anew.
    pub bias: bool,
    /// Whether kept weights are fitted anew; otherwise only the mask is second-order.
    pub update: bool,
    /// Floating-point operations a layer that stages and single rows may cost, about.
    pub effort: f64,
}

impl Default for SecondOrder {
    fn default() -> SecondOrder {
        SecondOrder { damping: 0.01, stages: 6, bias: true, update: true, effort: 1e12 }
    }
}

/// A layer after second-order pruning.
#[derive(Clone, Debug)]
pub struct Reconstructed {
    /// The packed weight.
    pub pruned: Pruned,
    /// The fitted bias, \[n\].
    pub bias: Option<Vec<f32>>,
    /// Squared error of the layer's results on the calibration tokens, over their spread (their energy without a bias).
    pub error: f64,
    /// The same for the best weights before anything is dropped.
    pub least: f64,
}

/// A layer that was pruned in another way, with its error.
pub(super) fn measured(
    pruned: Pruned,
    weight: &Tensor,
    statistics: LayerStatistics,
) -> Result<Reconstructed, PruneError> {
    let (weights, kept) = (weight.to_f32(), pruned.dense().to_f32());
    if (statistics.n, statistics.k) != (weight.rows(), weight.columns()) {
        let (n, k) = (weight.rows(), weight.columns());
        return Err(PruneError::Shape { found_n: statistics.n, found_k: statistics.k, n, k });
    }
    let problem = Problem::new(statistics, &weights, SecondOrder::default().damping, false);
    let mut best = vec![0.0; weights.len()];
    problem.solve(&problem.dense(), &mut best, |_, _, _| ());
    let (error, least) = (problem.error(&kept, &weights), problem.error(&best, &weights));
    Ok(Reconstructed { pruned, bias: None, error, least })
}

/// Rounds of conjugate gradients where rows cannot be solved one by one.
const ROUNDS: usize = 30;

impl SecondOrder {
    /// Prunes `weight` \[n, k\] to `pattern`.
    ///
    /// # Errors
    /// [`PruneError`]: shapes that do not fit, weights that are not finite, or kept weights beyond the range of the weight's type.
    pub fn prune(
        &self,
        pattern: &Pattern,
        weight: &Tensor,
        statistics: LayerStatistics,
    ) -> Result<Reconstructed, PruneError> {
        self.prune_within(pattern, weight, statistics, None)
    }

    /// The same where all but `within` was dropped before: none of that is kept unless the pattern cannot be filled otherwise.
    ///
    /// # Errors
    /// As [`SecondOrder::prune`]; [`PruneError::Shape`] for a mask of another shape.
    pub fn prune_within(
        &self,
        pattern: &Pattern,
        weight: &Tensor,
        statistics: LayerStatistics,
        within: Option<&Mask>,
    ) -> Result<Reconstructed, PruneError> {
        within.map_or(Ok(()), |within| fits(pattern, within))?;
        let (problem, weights) = self.problem(pattern, weight, statistics)?;
        let mut best = vec![0.0; weights.len()];
        // Where rows are too many and too long to be solved one by one, dense weights tell what matters.
        let left = within.map(|within| groups(&problem, within)).filter(|groups| cost(groups) <= self.effort);
        let mut scores =
            self.solve(&problem, &left.unwrap_or_else(|| problem.dense()), &mut best, unit_columns(pattern)?);
        if let Some(within) = within {
            scores = within.apply(&scores)?;
        }
        let least = problem.error(&best, &weights);
        let first_scores = scores.clone();
        // Stages of what is shared by rows.
        let finest = finest_of_rows(pattern)?;
        for stage in self.stages(&problem, pattern, finest)? {
            let mut mask = stage.mask(&stage.project(&scores)?)?;
            if let Some(within) = within {
                // A stage that keeps more than is left fills up with what was dropped.
                mask = Mask::from_fn(mask.n(), mask.k(), |n, k| mask.contains(n, k) && within.contains(n, k));
                if mask == *within {
                    continue;
                }
            }
            scores = self.solve(&problem, &groups(&problem, &mask), &mut best, unit_columns(&stage)?);
        }
        let mut selection = pattern.project(&scores)?;
        if let Some(step) = finest {
            if !solved_before(pattern, &selection, step, &best) {
                let mask = coarse_mask(pattern, &selection)?;
                self.solve(&problem, &groups(&problem, &mask), &mut best, 1);
            }
            let kept = sweep::sweep(&problem, pattern, &selection, step, &best, within);
            *selection.levels.last_mut().expect("the finest skip has a level") = Level::Kept(kept);
        }
        let mask = pattern.mask(&selection)?;
        let mut fitted = if self.update { self.fit(&problem, &mask, &best) } else { mask.apply(&weights)? };
        let bias = if self.bias && self.update { problem.bias(&fitted) } else { None };
        round(&mut fitted, weight.dtype(), problem.k)?;
        let error = problem.error(&fitted, &weights);
        let sum = |scores: &[f32]| scores.iter().map(|&s| f64::from(s)).sum::<f64>();
        let (total, kept_scores) = (sum(&first_scores), sum(&mask.apply(&first_scores)?));
        let packed = pattern.pack(&selection, &fitted)?;
        let retained = if total > 0.0 { kept_scores / total } else { 1.0 };
        let (dtype, kept) = (weight.dtype(), mask.count());
        let pruned = Pruned { pattern: pattern.clone(), selection, packed, dtype, retained, kept, residue: None };
        Ok(Reconstructed { pruned, bias, error, least })
    }

    /// What scores of single weights take from the inputs: c\[k\] so that w^2 c is what dropping the weight w of an input adds to the error
    /// while its row's other weights make up for it, over the spread of the layer's results: comparable from layer to layer.
    ///
    /// # Errors
    /// [`PruneError::Calibration`] for a damping that is none.
    pub fn curvature(&self, statistics: LayerStatistics) -> Result<Curvature, PruneError> {
        self.check()?;
        let flat = vec![0.0; statistics.n * statistics.k];
        let problem = Problem::new(statistics, &flat, self.damping, self.bias);
        let columns: Vec<usize> = (0..problem.k).collect();
        let inverse = Factor::of(&problem.hessian, problem.k, &columns, Par::rayon(0)).inverse();
        let spread = problem.spread.max(f64::MIN_POSITIVE);
        let of = |j: usize| (1.0 / inverse.diagonal(j) / spread).clamp(0.0, 1e30) as f32;
        Curvature::new(columns.into_iter().map(of).collect())
    }

    /// How the error grows on the way to `pattern`: hands over density, error and the fitted weights \[n, k\] of each stage, from dense on.
    /// A last choice of N of M in rows counts in the density only.
    ///
    /// # Errors
    /// As [`SecondOrder::prune`].
    pub fn curve(
        &self,
        pattern: &Pattern,
        weight: &Tensor,
        statistics: LayerStatistics,
        mut point: impl FnMut(f64, f64, &[f32]),
    ) -> Result<(), PruneError> {
        let (problem, weights) = self.problem(pattern, weight, statistics)?;
        let mut best = vec![0.0; weights.len()];
        let mut scores = self.solve(&problem, &problem.dense(), &mut best, unit_columns(pattern)?);
        point(1.0, problem.error(&best, &weights), &best);
        let finest = finest_of_rows(pattern)?;
        let ratio = |step| match &pattern.steps()[step] {
            Step::Skip { axis, .. } => {
                pattern.kept_per_region(step).unwrap_or(1) as f64 / pattern.axis(*axis).len as f64
            }
            _ => 1.0,
        };
        let finest_part = finest.map_or(1.0, ratio);
        let mut stages = self.stages(&problem, pattern, finest)?;
        if finest.is_none() {
            stages.push(pattern.clone());
        }
        for stage in stages {
            let mask = stage.mask(&stage.project(&scores)?)?;
            scores = self.solve(&problem, &groups(&problem, &mask), &mut best, unit_columns(&stage)?);
            point(mask.density() * finest_part, problem.error(&best, &weights), &best);
        }
        Ok(())
    }

    /// Whether the pattern's finest skip chooses a few single columns of one row at a time, as 2:4 does.
    pub(crate) fn ends_in_rows(pattern: &Pattern) -> bool {
        finest_of_rows(pattern).is_ok_and(|step| step.is_some())
    }

    fn check(&self) -> Result<(), PruneError> {
        if self.damping > 0.0 && self.damping.is_finite() {
            return Ok(());
        }
        let expected = "damping above 0, such as 0.01".to_string();
        Err(PruneError::Calibration { expected, found: self.damping.to_string() })
    }

    /// The problem, and the old weights.
    fn problem(
        &self,
        pattern: &Pattern,
        weight: &Tensor,
        statistics: LayerStatistics,
    ) -> Result<(Problem, Vec<f32>), PruneError> {
        let weights = super::checked(pattern, weight)?;
        if (statistics.n, statistics.k) != (pattern.n(), pattern.k()) {
            let (n, k) = (pattern.n(), pattern.k());
            return Err(PruneError::Shape { found_n: statistics.n, found_k: statistics.k, n, k });
        }
        self.check()?;
        Ok((Problem::new(statistics, &weights, self.damping, self.bias), weights))
    }

    /// The patterns on the way, the last one left out unless a choice in rows follows it.
    fn stages(&self, problem: &Problem, pattern: &Pattern, finest: Option<usize>) -> Result<Vec<Pattern>, PruneError> {
        let coarse = if finest.is_some() { pattern.coarser() } else { Some(pattern.clone()) };
        let Some(coarse) = coarse.filter(|coarse| coarse.steps().iter().any(|s| matches!(s, Step::Skip { .. }))) else {
            return Ok(Vec::new());
        };
        let parts = self.parts(problem, &coarse)?;
        let on_the_way = parts.into_iter().filter(|&part| part < 1.0 || finest.is_some());
        Ok(on_the_way.filter_map(|part| coarse.at_stage(part)).collect())
    }

    /// Parts of the way at which stages end.
    fn parts(&self, problem: &Problem, coarse: &Pattern) -> Result<Vec<f64>, PruneError> {
        let mask = coarse.mask(&coarse.search(&scattered(problem.n * problem.k), Effort::Greedy)?)?;
        let (tiles, keep) = (groups(problem, &mask).len() as f64, mask.density());
        let cost = |stages: usize| -> f64 {
            let sides = (1..stages).map(|stage| problem.k as f64 * keep.powf(stage as f64 / stages as f64));
            sides.map(|side| tiles * side.powi(3) * 2.0 / 3.0).sum()
        };
        let stages = (1..=self.stages.max(1)).rev().find(|&stages| cost(stages) <= self.effort).unwrap_or(1);
        Ok((1..=stages).map(|stage| stage as f64 / stages as f64).collect())
    }

    /// Solves on the groups; the scores of all weights, 0 for what they drop, by units of so many columns.
    fn solve(&self, problem: &Problem, groups: &[Group], weights: &mut [f32], unit: usize) -> Vec<f32> {
        let k = problem.k;
        let scored = problem.solve(groups, weights, |group, factor, solution| {
            let inverse = factor.inverse();
            let len = group.support.len();
            let mut scores = vec![0.0f32; solution.len()];
            let mut begin = 0;
            while begin < len {
                let of = group.support[begin] / unit;
                let end = begin + group.support[begin..].iter().take_while(|&&j| j / unit == of).count();
                if end - begin == 1 {
                    let diagonal = inverse.diagonal(begin).max(f64::MIN_POSITIVE);
                    for (w, s) in solution.iter().zip(&mut scores).skip(begin).step_by(len) {
                        *s = (f64::from(*w) * f64::from(*w) / diagonal) as f32;
                    }
                } else {
                    let lower = inverse.block(begin..end);
                    let width = end - begin;
                    let mut u = vec![0.0; width];
                    for (w, s) in solution.chunks_exact(len).zip(scores.chunks_exact_mut(len)) {
                        for i in 0..width {
                            let before: f64 = (0..i).map(|p| lower[i * width + p] * u[p]).sum();
                            u[i] = (f64::from(w[begin + i]) - before) / lower[i * width + i];
                            s[begin + i] = (u[i] * u[i]) as f32;
                        }
                    }
                }
                begin = end;
            }
            scores
        });
        let mut all = vec![0.0f32; problem.n * k];
        for (group, scores) in groups.iter().zip(scored) {
            for (row, scores) in group.rows.iter().zip(scores.chunks_exact(group.support.len().max(1))) {
                // A score beyond f32 is as great as any.
                group.support.iter().zip(scores).for_each(|(&j, &s)| all[row * k + j] = s.min(f32::MAX / 1e12));
            }
        }
        all
    }

    /// The best weights on a mask.
    fn fit(&self, problem: &Problem, mask: &Mask, start: &[f32]) -> Vec<f32> {
        let groups = groups(problem, mask);
        if cost(&groups) <= self.effort {
            let mut fitted = vec![0.0; start.len()];
            problem.solve(&groups, &mut fitted, |_, _, _| ());
            return fitted;
        }
        let keep: Vec<bool> = (0..start.len()).map(|at| mask.contains(at / problem.k, at % problem.k)).collect();
        let mut fitted: Vec<f32> = start.iter().zip(&keep).map(|(&w, &keep)| if keep { w } else { 0.0 }).collect();
        problem.descend(&keep, &mut fitted, ROUNDS);
        fitted
    }
}

/// The finest skip where it chooses a few single columns of one row at a time.
fn finest_of_rows(pattern: &Pattern) -> Result<Option<usize>, PruneError> {
    let selection = pattern.search(&vec![1.0; pattern.n() * pattern.k()], Effort::Greedy)?;
    Ok(sweep::finest_of_rows(pattern, &selection))
}

/// Whether `best` is a solution on all that the levels of the selection before `step` keep.
fn solved_before(pattern: &Pattern, selection: &Selection, step: usize, best: &[f32]) -> bool {
    let k = pattern.k();
    let mut same = true;
    pattern.for_each_place(selection, step, |row, places| {
        let there = best[row * k..][..k].iter().filter(|&&w| w != 0.0).count();
        same &= there == places.len() && places.iter().all(|&(column, _, _)| best[row * k + column] != 0.0);
    });
    same
}

/// Floating-point operations that solving on groups takes, about.
fn cost(groups: &[Group]) -> f64 {
    groups.iter().map(|group| (group.support.len() as f64).powi(3) / 3.0).sum()
}

/// The groups of a mask's rows.
fn groups(problem: &Problem, mask: &Mask) -> Vec<Group> {
    problem.groups(|row| (0..problem.k).filter(|&j| mask.contains(row, j)).collect())
}

/// Scores by which no two units are alike, so that rows which need not keep the same columns do not.
fn scattered(len: usize) -> Vec<f32> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 8) as f32).collect()
}

/// What is left before the finest skip.
fn coarse_mask(pattern: &Pattern, selection: &Selection) -> Result<Mask, PruneError> {
    let step = pattern.steps().iter().rposition(|s| matches!(s, Step::Skip { .. }));
    let mut mask = Mask::empty(pattern.n(), pattern.k());
    if let Some(step) = step {
        pattern.for_each_place(selection, step, |row, places| {
            places.iter().for_each(|&(column, _, _)| mask.insert(row, column))
        });
    }
    Ok(mask)
}

/// Columns that the finest skip drops together.
fn unit_columns(pattern: &Pattern) -> Result<usize, PruneError> {
    let Some(step) = pattern.steps().iter().rposition(|s| matches!(s, Step::Skip { .. })) else { return Ok(1) };
    let selection = pattern.search(&vec![1.0; pattern.n() * pattern.k()], Effort::Greedy)?;
    let mut most = 1;
    pattern.for_each_place(&selection, step, |row, places| {
        if row == 0 {
            let mut run = 1;
            for pair in places.windows(2) {
                let same = pair[0].0 + 1 == pair[1].0 && (pair[0].1, pair[0].2) == (pair[1].1, pair[1].2);
                run = if same { run + 1 } else { 1 };
                most = most.max(run);
            }
        }
    });
    Ok(most)
}

/// Rounds weights to their type.
fn round(weights: &mut [f32], dtype: DType, k: usize) -> Result<(), PruneError> {
    for (at, w) in weights.iter_mut().enumerate() {
        let rounded = match dtype {
            DType::F32 => *w,
            DType::F16 => f16::from_f32(*w).to_f32(),
            DType::BF16 => bf16::from_f32(*w).to_f32(),
        };
        if !rounded.is_finite() {
            return Err(PruneError::Range { n: at / k, k: at % k, value: *w, dtype });
        }
        *w = rounded;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
