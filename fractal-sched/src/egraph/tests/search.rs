//! Searches as users run them.

use super::{named, saturate};
use crate::egraph::{Limits, Pair, Roofline, Search, Stop, Target};
use crate::{EpilogueStep, Form, KernelRequest};
use fractal_dsl::pattern::{AxisId, Keep, Pattern, PatternBuilder};
use fractal_dsl::{DType, Intrinsic, Layout, Program};
use std::time::{Duration, Instant};

fn search(pattern: &Pattern) -> Search {
    Search::new(pattern, DType::F16, &[], Target::h200())
}

/// Rows and columns each in three loops, blocks of both skipped.
fn three_levels() -> Pattern {
    let mut b = PatternBuilder::new(1024, 1024).unwrap();
    let (n0, rest) = b.split(AxisId::N, 256).unwrap();
    let (n1, n2) = b.split(rest, 32).unwrap();
    let (k0, rest) = b.split(AxisId::K, 32).unwrap();
    let (k1, k2) = b.split(rest, 4).unwrap();
    b.reorder(&[n0, n1, k0, k1, k2, n2]).unwrap();
    let k0 = b.skip(k0, &[n0, n1], Keep::Count(14)).unwrap();
    b.skip(k1, &[n0, n1, k0], Keep::Count(5)).unwrap();
    b.build()
}

#[test]
fn three_levels_saturate_in_time() {
    let pattern = three_levels();
    let begin = Instant::now();
    let mut found = search(&pattern).run();
    let saturated = begin.elapsed();
    let candidates = found.candidates(&Roofline::h200(DType::F16), 4096, 20);
    let patterns = found.patterns().len();
    println!(
        "{:?}: {} nodes, {} classes, {} rounds in {saturated:?}; {:?} with candidates; {patterns} patterns",
        found.stop,
        found.nodes,
        found.classes,
        found.iterations,
        begin.elapsed(),
    );
    assert_eq!((&found.stop, candidates.len()), (&Stop::Saturated, 20));
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(found.nodes < 20_000, "{}", found.nodes);
}

#[test]
fn why_a_search_stopped_is_data() {
    let pattern = three_levels();
    let limits = Limits { iterations: 2, ..Limits::default() };
    assert_eq!(search(&pattern).limits(limits).run().stop, Stop::Iterations(2));
    let limits = Limits { nodes: 100, ..Limits::default() };
    assert_eq!(search(&pattern).limits(limits).run().stop, Stop::Nodes(100));
    let limits = Limits { time: Duration::from_nanos(1), ..Limits::default() };
    assert!(matches!(search(&pattern).limits(limits).run().stop, Stop::Time(_)));
    assert_eq!(serde_json::to_string(&Stop::Nodes(100)).unwrap(), r#"{"nodes":100}"#);
}

#[test]
fn candidates_differ_and_come_in_order() {
    for name in ["dense", "tw:128", "tvw:64", "bw:128x64", "ew", "bw-global:64x64"] {
        let mut found = search(&named(name, 1024, 1024, 0.25)).run();
        let candidates = found.candidates(&Roofline::h200(DType::F16), 1024, 30);
        assert_eq!(candidates.len(), 30, "{name}");
        assert!(candidates.windows(2).all(|pair| pair[0].cost <= pair[1].cost), "{name}");
        for (at, a) in candidates.iter().enumerate() {
            assert!(a.rules.contains(&"pipeline"), "{name}: {:?}", a.rules);
            assert!(candidates[..at].iter().all(|b| (a.request, a.facts) != (b.request, b.facts)), "{name}");
            let json = serde_json::to_value(a).unwrap();
            assert!(json["cost"].is_number() && json["request"]["stages"].is_number());
        }
    }
}

#[test]
fn two_of_four_runs_on_sparse_tensor_cores() {
    let mut found = search(&named("tvw:128", 4096, 1024, 0.25)).run();
    let best = &found.candidates(&Roofline::h200(DType::F16), 4096, 1)[0];
    assert_eq!(best.request.intrinsic, Some(Intrinsic::WgmmaSp));
    assert!(best.rules.contains(&"tensorize-wgmma-sp"));
}

#[test]
fn a_skip_of_nothing_and_an_order_for_nobody_fall_away() {
    // Every row keeps all columns, in an order of its own rows: dense, written badly.
    let mut b = PatternBuilder::new(512, 512).unwrap();
    let shuffled = b.permute(AxisId::N).unwrap();
    b.skip(AxisId::K, &[shuffled], Keep::Count(512)).unwrap();
    let pattern = b.build();
    let mut found = search(&pattern).also(&Pattern::dense(512, 512).unwrap()).run();
    let best = found.candidates(&Roofline::h200(DType::F16), 1024, 1).remove(0);
    assert_eq!(best.pattern, Pattern::dense(512, 512).unwrap());
    assert!(best.rules.starts_with(&["skip-of-nothing"]) || best.rules.contains(&"permuted-loop"), "{:?}", best.rules);
    let (own, dense) = (found.original().clone(), Pair::of(&Pattern::dense(512, 512).unwrap()));
    let steps = found.explain(&own, &dense).unwrap();
    let names: Vec<&str> = steps.iter().map(|s| s.rule.name).collect();
    assert!(names.contains(&"skip-of-nothing") && names.contains(&"permuted-loop"), "{names:?}");
    assert_eq!(steps.last().unwrap().after, "(run (nest n k) open)");
    assert!(found.explain(&own, &own).unwrap().is_empty());
}

#[test]
fn what_admits_other_masks_is_never_equal() {
    let pattern = named("tw:64", 256, 256, 0.25);
    for other in ["tw:128", "bw:64x8", "tvw:64", "dense", "vw:16"] {
        let other = named(other, 256, 256, 0.25);
        let mut found = search(&pattern).also(&other).run();
        let own = found.original().clone();
        assert_eq!(found.explain(&own, &Pair::of(&other)), None, "{:?}", other.steps());
    }
}

#[test]
fn what_other_loops_mention_is_not_taken_away() {
    let applied = |pattern: &Pattern, rule: &str| saturate(pattern, None).applied.contains_key(rule);
    // Groups of shuffled rows keep columns: the order decides which rows share a group.
    assert!(!applied(&named("shfl-vw:16", 64, 64, 0.25), "permuted-loop"));
    // Rows are kept for each four kept columns, which a selection may list in any order.
    let grouped = |first: usize, second: usize| {
        let mut b = PatternBuilder::new(16, 16).unwrap();
        let mut kept = b.skip(AxisId::K, &[], Keep::Count(first)).unwrap();
        if second < first {
            kept = b.skip(kept, &[], Keep::Count(second)).unwrap();
        }
        let (group, _) = b.split(kept, 4).unwrap();
        b.skip(AxisId::N, &[group], Keep::Count(8)).unwrap();
        b.build()
    };
    assert!(!applied(&grouped(16, 16), "skip-of-nothing"));
    assert!(!applied(&grouped(12, 8), "skip-of-skip"));
    // Rows are kept for each group of permuted columns.
    let mut b = PatternBuilder::new(16, 16).unwrap();
    let permuted = b.permute(AxisId::K).unwrap();
    let (group, within) = b.split(permuted, 4).unwrap();
    b.skip(within, &[AxisId::N, group], Keep::Count(2)).unwrap();
    let pattern = b.build();
    assert!(!applied(&pattern, "permuted-loop") && !applied(&pattern, "skip-of-permuted"));
}

#[test]
fn tiles_that_are_split_otherwise_are_equal() {
    // tw:64 of n = 256, with the rows split by 16 first: regions of 4 times 16.
    let mut b = PatternBuilder::new(256, 256).unwrap();
    let (rest, n2) = b.split(AxisId::N, 16).unwrap();
    let (n0, n1) = b.split(rest, 4).unwrap();
    let k = b.skip(AxisId::K, &[n0], Keep::Count(64)).unwrap();
    b.reorder(&[n0, k, n1, n2]).unwrap();
    let other = b.build();
    let pattern = named("tw:64", 256, 256, 0.25);
    let mut found = search(&pattern).also(&other).run();
    let own = found.original().clone();
    let steps = found.explain(&own, &Pair::of(&other)).expect("both keep 64 columns for each 64 rows");
    assert!(steps.iter().any(|s| s.rule.name == "outer-of-outer"), "{steps:?}");
}

#[test]
fn what_the_program_fixes_stays() {
    let fixed = KernelRequest { intrinsic: Some(Intrinsic::MmaSync), tokens: Some(64), ..KernelRequest::default() };
    let mut found = search(&named("tw:128", 1024, 1024, 0.25)).request(fixed).run();
    let candidates = found.candidates(&Roofline::h200(DType::F16), 1024, 100);
    assert!(!candidates.is_empty());
    for candidate in candidates {
        assert_eq!((candidate.request.intrinsic, candidate.request.tokens), (fixed.intrinsic, fixed.tokens));
    }
}

#[test]
fn token_major_operands_are_turned_for_hopper_alone() {
    let pattern = named("tw:128", 1024, 1024, 0.25);
    let mut found = search(&pattern).layout(Layout::TokenMajor).run();
    for candidate in found.candidates(&Roofline::h200(DType::F16), 1024, 200) {
        let hopper = candidate.request.intrinsic.is_some_and(|i| i.is_arch_specific());
        assert!(candidate.turned || !hopper, "{:?}", candidate.request);
    }
}

#[test]
fn patterns_that_are_illegal_on_gpus_run_element_by_element() {
    let mut b = PatternBuilder::new(64, 64).unwrap();
    b.skip(AxisId::N, &[AxisId::K], Keep::Count(16)).unwrap();
    let pattern = b.build();
    assert!(search(&pattern).run().candidates(&Roofline::h200(DType::F16), 64, 5).is_empty());
    let target = Target { scalar: true, ..Target::h200() };
    let mut found = Search::new(&pattern, DType::F16, &[EpilogueStep::Relu], target).run();
    let candidates = found.candidates(&Roofline::h200(DType::F16), 64, 5);
    assert_eq!((candidates[0].form, candidates[0].request), (Form::Scalar, KernelRequest::default()));
}

#[test]
fn directives_replay_to_the_candidate() {
    for name in ["dense", "tw:128", "tvw:64", "bw:64x16", "vnm:64:2:8", "ew", "shfl-bw:64x64", "hybrid:64x64/8x8"] {
        let mut found = saturate(&named(name, 256, 256, 0.25), None);
        for candidate in found.candidates(&Roofline::h200(DType::F16), 1024, 40) {
            let lines: Vec<String> = candidate.directives().iter().map(|d| format!("{d};")).collect();
            let program = Program::for_pattern_text(&lines.join(" "), 256, 256, DType::F16);
            let program = program.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(program.pattern(256, 256).unwrap(), candidate.pattern, "{name}\n{program}");
            let resident = candidate.request.resident.filter(|&resident| resident);
            assert_eq!(KernelRequest::of(&program), Ok(KernelRequest { resident, ..candidate.request }), "{name}");
        }
    }
}
