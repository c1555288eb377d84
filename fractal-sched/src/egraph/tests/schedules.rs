//! Closed schedules as a kernel would run them: blocks of rows and tokens, steps, parts of a cluster, on integers.

use super::common::pattern_and_scores;
use super::product::{integers, oracle};
use super::{more, named};
use crate::codegen::KernelConfig;
use crate::egraph::{Candidate, CostModel, Facts, Family, Search, Target, Tiles, rules};
use crate::execute::Slots;
use crate::loop_ir::TileId;
use crate::{EpilogueStep, ExecuteError, Form, KernelRequest, Machine, Operands, Schedule, Tables};
use crate::{apply_epilogue, execute, interpret, lower};
use fractal_dsl::pattern::{Mask, Pattern};
use fractal_dsl::{DType, Intrinsic, Layout};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Rows and columns of the tiles of a weight, as the loops come by them.
#[derive(Default)]
struct Recorder {
    condensed: BTreeMap<TileId, Vec<Option<usize>>>,
    open: BTreeMap<TileId, (Vec<usize>, Vec<Option<usize>>)>,
    done: Vec<(Vec<usize>, Vec<Option<usize>>)>,
}

impl Machine for Recorder {
    fn tile(&mut self, tile: TileId, rows: usize, _: usize) -> Result<(), ExecuteError> {
        self.done.extend(self.open.remove(&tile));
        self.condensed.insert(tile, vec![None; rows]);
        Ok(())
    }

    fn condense(&mut self, tile: TileId, row: usize, k: usize, _: usize, _: usize) -> Result<(), ExecuteError> {
        self.condensed.get_mut(&tile).unwrap()[row] = Some(k);
        Ok(())
    }

    fn mma(&mut self, acc: TileId, _: &Slots, x: TileId) -> Result<(), ExecuteError> {
        let columns = self.condensed[&x].clone();
        self.open.entry(acc).or_default().1.extend(columns);
        Ok(())
    }

    fn mul_add(&mut self, _: TileId, _: usize, _: usize, _: usize, _: usize, _: usize) -> Result<(), ExecuteError> {
        unreachable!("the condensed form multiplies tiles")
    }

    fn store(&mut self, acc: TileId, _: usize, n: usize, _: usize, _: usize) -> Result<(), ExecuteError> {
        if let Some(open) = self.open.get_mut(&acc) {
            open.0.push(n);
        }
        Ok(())
    }
}

type TileOf = (Vec<usize>, Vec<Option<usize>>);

/// The tiles that keep this mask; of a pattern without its two-of-four skip where the instruction does that.
fn tiles(pattern: &Pattern, mask: &Mask, sparse: bool) -> Option<Vec<TileOf>> {
    let own = pattern.executed();
    let selection = pattern.executed_selection(&pattern.admits(mask).ok()?);
    let (tiled, selection) =
        if sparse { (own.coarser()?, own.coarser_selection(&selection)) } else { (own, selection) };
    let packed = tiled.pack(&selection, &vec![1.0f32; mask.n() * mask.k()]).ok()?;
    let ir = lower(&tiled, &Schedule { form: Form::Condensed, m_tile: 1, epilogue: vec![] }).ok()?;
    let mut recorder = Recorder::default();
    execute(&ir, &Tables::of(&packed), 1, &mut recorder).unwrap();
    let mut done = std::mem::take(&mut recorder.done);
    done.extend(recorder.open.into_values());
    Some(done)
}

/// Whether what the facts say of tiles is true of these.
fn check_facts(facts: &Tiles, found: &[TileOf], k: usize, pattern: &Pattern) {
    assert!(found.len() <= facts.tiles, "{} of {facts:?}", found.len());
    for (rows, columns) in found {
        assert!(rows.len() <= facts.rows && columns.len() <= facts.columns, "{facts:?}");
        for run in rows.chunks(facts.row_run) {
            assert!(run.windows(2).all(|pair| pair[1] == pair[0] + 1), "rows {run:?}, {facts:?}");
        }
        let run = facts.column_run;
        for group in columns.chunks(run) {
            let there: Vec<usize> = group.iter().map_while(|c| *c).collect();
            let follow = there.windows(2).all(|pair| pair[1] == pair[0] + 1);
            let first = there.first().is_none_or(|first| first % run == 0);
            let whole = there.len() == group.len() || there.last().is_none_or(|last| last + 1 == k);
            assert!(follow && first && whole, "columns {group:?} of {columns:?}, {facts:?}, {pattern:?}");
        }
    }
}

/// Y of a request on these tiles: what a block of `rows` x `tokens` sums, step by step, each part of a cluster its own.
/// And whether tiles share a block, so that zeros are stored.
fn run_blocks(
    request: &KernelRequest,
    tiles: &[TileOf],
    weights: &[f32],
    x: &[f32],
    [n, k, m]: [usize; 3],
) -> (Vec<i64>, bool) {
    let (rows, tokens, step) = (request.rows.unwrap(), request.tokens.unwrap(), request.step.unwrap());
    let sparse = request.intrinsic.unwrap().is_sparse();
    let mut blocks: Vec<TileOf> = Vec::new();
    let mut open: Option<TileOf> = None;
    let mut zeros = false;
    for (own, columns) in tiles {
        if own.len() >= rows || sparse {
            blocks.extend(open.take());
            blocks.extend(own.chunks(rows).map(|part| (part.to_vec(), columns.clone())));
            continue;
        }
        match &mut open {
            Some((shared, union)) if shared.len() + own.len() <= rows => {
                shared.extend(own);
                zeros = true;
                let all: BTreeSet<usize> = union.iter().chain(columns).copied().flatten().collect();
                *union = all.into_iter().map(Some).collect();
            }
            _ => {
                blocks.extend(open.take());
                open = Some((own.clone(), columns.clone()));
            }
        }
    }
    blocks.extend(open);
    let mut y = vec![0i64; n * m];
    for (own, columns) in &blocks {
        let steps: Vec<&[Option<usize>]> = columns.chunks(step).collect();
        if request.resident == Some(true) {
            let most = KernelConfig::resident_steps(rows, steps.len());
            assert!(most.is_some(), "{} steps of {rows} rows stay", steps.len());
        }
        for first in (0..m).step_by(tokens) {
            for part in steps.chunks(steps.len().div_ceil(request.split.unwrap()).max(1)) {
                for (&row, token) in own.iter().flat_map(|row| (first..m.min(first + tokens)).map(move |t| (row, t))) {
                    let at = |c: &usize| weights[row * k + c] as i64 * x[c * m + token] as i64;
                    y[row * m + token] += part.iter().copied().flatten().flatten().map(at).sum::<i64>();
                }
            }
        }
    }
    (y, zeros)
}

/// Prefers whatever a hash of the request says, so that every kernel is a candidate of some search.
struct Anything(u64);

impl CostModel for Anything {
    fn cost(&self, _: &Pattern, _: &Facts, request: &KernelRequest, _: usize) -> f64 {
        use std::hash::{Hash, Hasher};
        if request.intrinsic.is_none() {
            return 0.0;
        }
        let mut hasher = std::collections::hash_map::DefaultHasher::new();
        (request, self.0).hash(&mut hasher);
        (hasher.finish() >> 11) as f64
    }
}

/// Runs a candidate in every way there is without a GPU; whether its tiles could be made.
fn check(
    candidate: &Candidate,
    kernel: Option<KernelConfig>,
    mask: &Mask,
    epilogue: &[EpilogueStep],
    m: usize,
    seed: u64,
) -> bool {
    let (n, k) = (mask.n(), mask.k());
    let (w, x) = (mask.apply(&integers(n * k, seed)).unwrap(), integers(k * m, seed ^ 5));
    let bias = integers(n, seed ^ 9);
    let expected = oracle(mask, &w, &x, m);
    let Ok(selection) = candidate.pattern.admits(mask) else { return false };
    let packed = candidate.pattern.pack(&selection, &w).unwrap();
    let operands = Operands { values: &packed.values, x: &x, m, bias: vec![&bias], residual: vec![] };
    let finished = |value: f32, at: usize| {
        epilogue.iter().fold(value, |v, &step| apply_epilogue(step, v, at / m, at % m, &operands).unwrap())
    };
    let finish = |sums: &[f32]| -> Vec<f32> { sums.iter().enumerate().map(|(at, &v)| finished(v, at)).collect() };
    let expected = finish(&expected);
    // The loops, with the epilogue in them or behind.
    let inside = if candidate.fused { epilogue.to_vec() } else { Vec::new() };
    let m_tile = candidate.request.tokens.unwrap_or(1);
    let ir = lower(&candidate.pattern, &Schedule { form: candidate.form, m_tile, epilogue: inside }).unwrap();
    let y = interpret(&ir, &Tables::of(&packed), &operands).unwrap();
    assert_eq!(if candidate.fused { y } else { finish(&y) }, expected, "{:?}", candidate.request);
    // The blocks.
    let Some(intrinsic) = candidate.request.intrinsic else { return true };
    let Some(found) = tiles(&candidate.pattern, mask, intrinsic.is_sparse()) else { return false };
    let facts = if intrinsic.is_sparse() { candidate.facts.sparse } else { candidate.facts.dense };
    check_facts(&facts.unwrap(), &found, k, &candidate.pattern);
    if intrinsic.is_sparse() {
        for (rows, columns) in &found {
            for (row, four) in rows.iter().flat_map(|row| columns.chunks(4).map(move |four| (row, four))) {
                assert!(four.iter().flatten().filter(|&&c| mask.contains(*row, c)).count() <= 2);
            }
        }
    }
    let (y, zeros) = run_blocks(&candidate.request, &found, &w, &x, [n, k, m]);
    let config = kernel.expect("what runs on an instruction has a kernel");
    assert!(config.stored_zeros || !zeros, "{config}");
    let y: Vec<f32> = y.into_iter().map(|v| v as f32).collect();
    assert_eq!(finish(&y), expected, "{:?}", candidate.request);
    true
}

fn everything() -> Target {
    Target { scalar: true, apart: true, ..Target::h200() }
}

#[test]
fn every_rule_of_schedules_leads_to_the_same_product() {
    let mut used: BTreeSet<&str> = BTreeSet::new();
    let epilogue = [EpilogueStep::Bias(0), EpilogueStep::Relu];
    let mut checked = 0;
    for (at, (name, n, k)) in [
        ("dense", 130, 200),
        ("tw:64", 192, 300),
        ("tvw:64", 128, 264),
        ("bw:128x16", 256, 256),
        ("bw:32x64", 100, 250),
        ("vnm:32:2:8", 96, 128),
        ("ew", 40, 70),
        ("shfl-bw:64x8", 128, 64),
        ("tw-global:16", 70, 90),
        ("tw2:32", 100, 100),
        ("2:4", 70, 100),
        ("hybrid:32x32/8x8", 96, 96),
    ]
    .into_iter()
    .enumerate()
    {
        let pattern = named(name, n, k, 0.25);
        let scores: Vec<f32> = integers(n * k, 3 + at as u64).iter().map(|s| s.abs()).collect();
        let mask = pattern.mask(&pattern.project(&scores).unwrap()).unwrap();
        for (dtype, layout) in [(DType::F16, Layout::FeatureMajor), (DType::BF16, Layout::TokenMajor)] {
            let search = Search::new(&pattern, dtype, &epilogue, everything()).layout(layout);
            let mut found = search.run();
            for seed in 0..3 {
                for m in [8, 40] {
                    for candidate in found.candidates(&Anything(seed), m, 12) {
                        used.extend(&candidate.rules);
                        checked +=
                            usize::from(check(&candidate, found.kernel(&candidate, m), &mask, &epilogue, m, seed));
                    }
                }
            }
        }
    }
    println!("{checked} candidates");
    assert!(checked > 600, "{checked}");
    let missing: Vec<&str> = rules()
        .iter()
        .filter(|rule| rule.family >= Family::Condense && !used.contains(rule.name))
        .map(|rule| rule.name)
        .collect();
    assert!(missing.is_empty(), "no candidate came by {missing:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150 * more(), failure_persistence: None, ..ProptestConfig::default() })]

    /// Odd sizes, random patterns: candidates of any cost compute what the program computes.
    #[test]
    fn candidates_of_random_patterns_compute_the_same_product(
        (pattern, scores) in pattern_and_scores(), m in 1usize..20, seed in any::<u64>(), f32_ in any::<bool>(),
    ) {
        let mask = pattern.mask(&pattern.project(&scores).unwrap()).unwrap();
        let dtype = if f32_ { DType::F32 } else { DType::F16 };
        let epilogue = [EpilogueStep::Bias(0)];
        let mut found = Search::new(&pattern, dtype, &epilogue, everything()).run();
        for candidate in found.candidates(&Anything(seed), m, 8) {
            check(&candidate, found.kernel(&candidate, m), &mask, &epilogue, m, seed);
        }
    }
}

#[test]
fn every_candidate_is_a_kernel() {
    use crate::codegen::{Provenance, emit};
    for name in ["dense", "tw:128", "tvw:128", "bw:128x64", "vnm:64:2:8", "ew", "bw:32x16"] {
        let pattern = named(name, 512, 512, 0.25);
        let epilogue = [EpilogueStep::Bias(0), EpilogueStep::Gelu];
        let found = Search::new(&pattern, DType::F16, &epilogue, Target::h200()).run();
        let facts = Facts::of(&pattern);
        let provenance = Provenance::of_pattern("a weight".to_string(), &pattern);
        let text = |config: KernelConfig| emit(&config, &provenance).unwrap_or_else(|e| panic!("{config}: {e}"));
        let kernels: BTreeSet<String> = found.kernels(&facts).map(|config| text(config).name).collect();
        println!("{name}: {} kernels", kernels.len());
        assert!(kernels.len() > 20, "{name}: {}", kernels.len());
        assert!(Intrinsic::ALL.iter().filter(|i| kernels.iter().any(|k| k.contains(i.name()))).count() >= 2);
    }
}
