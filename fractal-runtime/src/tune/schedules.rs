//! A pattern -> equal patterns with kernels, the cheapest first: the e-graph's candidates, costed by the calibrated model.

use super::calibration::Calibration;
use super::model::Work;
use crate::cuda::{Gpu, KernelPlan, Load, TableShape, Traits};
use crate::gemm::Gemm;
use fractal_dsl::pattern::Pattern;
use fractal_dsl::{DType, Intrinsic};
use fractal_sched::codegen::KernelConfig;
use fractal_sched::egraph::{CostModel, Facts, Search, Target, Tiles};
use fractal_sched::{EpilogueStep, KernelRequest};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// A GPU and what its kernels cost.
#[derive(Debug)]
pub struct Model {
    /// What was learned of the GPU.
    pub calibration: Calibration,
    /// The GPU.
    pub gpu: Gpu,
    /// Its compute capability as a number.
    pub sm: u32,
}

/// What runs, by expectation.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// It admits the masks of the pattern that was asked about, and no others.
    pub pattern: Pattern,
    /// The kernel.
    pub request: KernelRequest,
    /// Microseconds.
    pub expected: f64,
    /// The rules of the e-graph that lead here.
    pub rules: Vec<&'static str>,
}

impl Model {
    /// The least time expected of any kernel for the pattern, with the rows of its tables chosen freely.
    pub fn least(&self, gemm: &Gemm, m: usize) -> f64 {
        let facts = Facts::of(gemm.pattern());
        let Ok(plan) = KernelPlan::new(gemm, self.sm) else { return f64::INFINITY };
        let heights = [32, 64, 128].into_iter();
        let times = heights.filter_map(|rows| {
            let tables = tables(&facts, plan.intrinsic(), rows)?;
            self.cheapest(&plan.configs(&tables, m, self.gpu), &tables, &facts, m)
        });
        times.fold(f64::INFINITY, f64::min)
    }

    fn cheapest(&self, configs: &[KernelConfig], tables: &TableShape, facts: &Facts, m: usize) -> Option<f64> {
        let times = configs.iter().map(|config| {
            let work =
                Work { config: config.clone(), load: tables.load, columns: tables.columns, n: facts.n, k: facts.k, m };
            self.calibration.microseconds(&work, self.gpu)
        });
        times.min_by(f64::total_cmp)
    }

    /// The `most` cheapest pairs of the e-graph for this product and m tokens.
    pub fn plans(&self, gemm: &Gemm, m: usize, most: usize) -> Vec<Planned> {
        let target = Target { sm: self.sm, multiprocessors: self.gpu.sms, ..Target::h200() };
        let search = Search::new(gemm.pattern(), gemm.dtype(), gemm.steps(), target).layout(gemm.output());
        let mut saturated = search.run();
        let cost = Cost { model: self, dtype: gemm.dtype(), steps: gemm.steps(), plans: Mutex::default() };
        let candidates = saturated.candidates(&cost, m, most);
        let planned = candidates.into_iter().map(|candidate| Planned {
            pattern: candidate.pattern,
            request: candidate.request,
            expected: candidate.cost,
            rules: candidate.rules,
        });
        planned.collect()
    }
}

/// The cost model of one search.
struct Cost<'a> {
    model: &'a Model,
    dtype: DType,
    steps: &'a [EpilogueStep],
    /// By pattern and instruction: lowering takes longer than an estimate.
    plans: Mutex<HashMap<(Pattern, Intrinsic), Option<KernelPlan>>>,
}

impl CostModel for Cost<'_> {
    fn cost(&self, pattern: &Pattern, facts: &Facts, request: &KernelRequest, m: usize) -> f64 {
        let (Some(intrinsic), Some(rows)) = (request.intrinsic, request.rows) else { return f64::INFINITY };
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = plans.entry((pattern.clone(), intrinsic)).or_insert_with(|| {
            let request = KernelRequest { intrinsic: Some(intrinsic), ..KernelRequest::default() };
            let gemm = Gemm::new(pattern.clone(), self.dtype).with_steps(self.steps).with_request(request);
            KernelPlan::new(&gemm, self.model.sm).ok()
        });
        let Some(plan) = plan else { return f64::INFINITY };
        let Some(tables) = tables(facts, plan.intrinsic(), rows) else { return f64::INFINITY };
        let configs = plan.with_request(*request).configs(&tables, m, self.model.gpu);
        self.model.cheapest(&configs, &tables, facts, m).unwrap_or(f64::INFINITY)
    }

    fn turn(&self, pattern: &Pattern, m: usize) -> f64 {
        // Two kernels that read and write at a good part of an H200's memory bandwidth.
        let bytes = 2 * (pattern.n() + pattern.k()) * m * self.dtype.bytes();
        4.0 + bytes as f64 / 2.5e6
    }
}

/// The part of all columns that `together` of so many tiles keep, each `kept` of so many runs of columns: as if each had chosen
/// for itself, but what is added to a union is the least that any tile adds. Of N tiles that is some deviations less than the
/// mean, about sqrt(ln(N / 2)) on average over all that join (right to 5 % for what random blocks do).
fn union(kept: f64, runs: f64, tiles: usize, together: usize) -> f64 {
    let best = (tiles.saturating_sub(1) as f64 / 2.0).max(1.0).ln().sqrt();
    (1..together).fold(kept, |union, _| {
        let deviation = (union * (1.0 - union) * kept * (1.0 - kept) / runs.max(1.0)).sqrt();
        union + (kept * (1.0 - union) - best * deviation).max(0.0)
    })
}

/// The tables that a weight of such a pattern will have for blocks of `rows` rows.
fn tables(facts: &Facts, intrinsic: Intrinsic, rows: usize) -> Option<TableShape> {
    let sparse = intrinsic.is_sparse();
    let tiles: Tiles = if sparse { facts.sparse } else { facts.dense }?;
    let step = if intrinsic == Intrinsic::Ffma { 16 } else { 64 };
    let alone = sparse || tiles.rows >= rows || tiles.tiles <= 1;
    let (blocks, mean, longest) = if alone {
        (tiles.tiles * tiles.rows.div_ceil(rows), tiles.mean_columns, tiles.columns as f64)
    } else {
        let together = rows.div_ceil(tiles.rows).min(tiles.tiles);
        let kept = (tiles.mean_columns / facts.k.max(1) as f64).clamp(0.0, 1.0);
        let runs = facts.k as f64 / tiles.column_run.max(1) as f64;
        let union = facts.k as f64 * union(kept, runs, tiles.tiles, together);
        (tiles.tiles.div_ceil(together), union, union)
    };
    // Tiles that differ in length are seldom longer than this.
    let longest = if facts.ragged { longest.min(1.4 * mean) } else { longest.min(mean.max(1.0)) };
    let steps_of = |columns: f64| (columns / step as f64).ceil().max(1.0) as usize;
    let steps =
        if facts.ragged { blocks as f64 * (mean / step as f64 + 0.5) } else { (blocks * steps_of(mean)) as f64 };
    let column_run = [64, 32, 16, 8].into_iter().find(|run| tiles.column_run.is_multiple_of(*run)).unwrap_or(0);
    Some(TableShape {
        rows,
        traits: Traits { runs: tiles.row_run >= 64.min(facts.n), stored_zeros: !alone, column_run, residue: false },
        columns: steps as usize * step,
        load: Load { tiles: blocks, steps: steps as usize, longest: steps_of(longest) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Magnitude, Tensor, prune};
    use fractal_dsl::pattern::Named;

    #[test]
    fn steps_are_expected_as_tables_have_them() {
        let (n, k) = (512, 1024);
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let weight: Vec<f32> = (0..n * k).map(|_| random()).collect();
        let weight = Tensor::from_f32(DType::F16, n, k, &weight).unwrap();
        for name in ["tw:128", "tw:64", "bw:128x64", "bw:64x64", "bw:32x32", "bw:32x16", "bw:16x64", "bw:16x16", "ew"] {
            for keep in [0.25, 0.5] {
                let pattern = name.parse::<Named>().unwrap().pattern(n, k, keep).unwrap();
                let pruned = prune(&pattern, &weight, &Magnitude).unwrap();
                let facts = Facts::of(&pattern);
                for rows in [64, 128] {
                    let request = KernelRequest { rows: Some(rows), ..KernelRequest::default() };
                    let gemm = Gemm::new(pattern.clone(), DType::F16).with_request(request);
                    let plan = KernelPlan::new(&gemm, 90).unwrap();
                    let (_, laid_out) = plan.lay_out(&pruned).unwrap();
                    let found = *laid_out.begin.last().unwrap() as f64;
                    let expected = tables(&facts, plan.intrinsic(), rows).unwrap().load.steps as f64;
                    assert!(
                        (expected / found - 1.0).abs() < 0.13,
                        "{name}, {keep} kept, {rows} rows: expected {expected} steps, found {found}"
                    );
                }
            }
        }
    }
}
