//! Lowering and the interpreter against a naive masked GEMM, bit for bit on integers.

#[path = "../../fractal-dsl/tests/common/mod.rs"]
mod common;

use common::pattern_and_scores;
use fractal_dsl::pattern::{Named, Pattern};
use fractal_sched::{EpilogueStep, Form, LowerError, Operands, Schedule, Tables, interpret, lower, verify};
use proptest::prelude::*;

/// Y[n, m] = sum over k of w[n, k] x[k, m], exact in i64; knows no IR.
fn oracle(w: &[f32], x: &[f32], n: usize, k: usize, m: usize) -> Vec<f32> {
    let mut y = vec![0i64; n * m];
    for row in 0..n {
        for column in 0..k {
            for token in 0..m {
                y[row * m + token] += w[row * k + column] as i64 * x[column * m + token] as i64;
            }
        }
    }
    y.into_iter().map(|v| v as f32).collect()
}

fn integers(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 59) as i64 - 16) as f32
        })
        .collect()
}

fn schedule(form: Form, m_tile: usize) -> Schedule {
    Schedule { form, m_tile, epilogue: vec![] }
}

/// Runs the pattern in every form it has and compares; returns how many forms there were.
fn check(pattern: &Pattern, scores: &[f32], m: usize, m_tile: usize) -> usize {
    let (n, k) = (pattern.n(), pattern.k());
    let (w, x) = (integers(n * k, 7), integers(k * m, 9));
    let selection = pattern.project(scores).unwrap();
    let packed = pattern.pack(&selection, &w).unwrap();
    let expected = oracle(&pattern.mask(&selection).unwrap().apply(&w).unwrap(), &x, n, k, m);
    let mut forms = 0;
    for form in [Form::Scalar, Form::Condensed] {
        let ir = match lower(pattern, &schedule(form, m_tile)) {
            Ok(ir) => ir,
            Err(LowerError::NotCondensable { .. }) if form == Form::Condensed => continue,
            Err(error) => panic!("{error}"),
        };
        verify(&ir).unwrap_or_else(|e| panic!("{e:?}\n{ir}"));
        let operands = Operands { values: &packed.values, x: &x, m, ..Operands::default() };
        let y = interpret(&ir, &Tables::of(&packed), &operands).unwrap_or_else(|e| panic!("{e}\n{ir}"));
        assert_eq!(y, expected, "{form:?}\n{ir}");
        forms += 1;
    }
    forms
}

#[test]
fn every_named_pattern_at_odd_sizes() {
    for name in [
        "dense",
        "ew",
        "vw:16",
        "2:4",
        "perm-2:4",
        "bw:16x8",
        "bw-global:16x8",
        "tw:16",
        "tw-global:16",
        "tw2:16",
        "tvw:16",
        "vnm:8",
        "perm-vnm:8",
        "shfl-bw:16x8",
        "shfl-vw:16",
        "hybrid:32x16/8x4",
    ] {
        let named: Named = name.parse().unwrap();
        let keep = named.fixed_keep().unwrap_or(0.25);
        for (n, k, m) in [(1, 1, 1), (3, 17, 5), (17, 3, 1), (64, 48, 8), (130, 70, 3), (40, 130, 17)] {
            let pattern = named.pattern(n, k, keep).unwrap_or_else(|e| panic!("{name}: {e}"));
            let forms = check(&pattern, &integers(n * k, 3).iter().map(|s| s.abs()).collect::<Vec<_>>(), m, 4);
            assert_eq!(forms, 2, "{name}: every named pattern is legal on GPUs");
        }
    }
}

#[test]
fn rows_that_are_dropped_still_get_their_epilogue() {
    let pattern = "tw2:2".parse::<Named>().unwrap().pattern(8, 8, 0.25).unwrap();
    let w = integers(64, 1);
    let packed = pattern.pack(&pattern.project(&w.iter().map(|v| v.abs()).collect::<Vec<_>>()).unwrap(), &w).unwrap();
    let epilogue = vec![EpilogueStep::Scale(2.0f32.to_bits()), EpilogueStep::Bias(0), EpilogueStep::Relu];
    let bias: Vec<f32> = (0..8).map(|n| n as f32 * 1000.0).collect();
    let zero = vec![0.0; 24];
    for form in [Form::Scalar, Form::Condensed] {
        let ir = lower(&pattern, &Schedule { form, m_tile: 2, epilogue: epilogue.clone() }).unwrap();
        verify(&ir).unwrap();
        let operands = Operands { values: &packed.values, x: &zero, m: 3, bias: vec![&bias], ..Operands::default() };
        let y = interpret(&ir, &Tables::of(&packed), &operands).unwrap();
        let expected: Vec<f32> = (0..24).map(|at| bias[at / 3]).collect();
        assert_eq!(y, expected);
    }
}

#[test]
fn unkept_activations_never_reach_the_result() {
    let pattern = "tvw:4".parse::<Named>().unwrap().pattern(10, 37, 0.25).unwrap();
    let w: Vec<f32> = integers(370, 5).iter().map(|v| v + 0.5).collect();
    let selection = pattern.project(&w.iter().map(|v| v.abs()).collect::<Vec<_>>()).unwrap();
    let mask = pattern.mask(&selection).unwrap();
    let packed = pattern.pack(&selection, &w).unwrap();
    let used: Vec<bool> = (0..37).map(|k| (0..10).any(|n| mask.contains(n, k))).collect();
    assert!(used.contains(&false));
    let x: Vec<f32> = used.iter().map(|u| if *u { 1.0 } else { f32::NAN }).collect();
    for form in [Form::Scalar, Form::Condensed] {
        let ir = lower(&pattern, &schedule(form, 8)).unwrap();
        let operands = Operands { values: &packed.values, x: &x, m: 1, ..Operands::default() };
        let y = interpret(&ir, &Tables::of(&packed), &operands).unwrap();
        assert!(y.iter().all(|v| v.is_finite()), "{ir}");
    }
}

#[test]
fn no_tokens_give_no_result() {
    let pattern = "tw:4".parse::<Named>().unwrap().pattern(8, 8, 0.5).unwrap();
    assert_eq!(check(&pattern, &integers(64, 2), 0, 4), 2);
    let error = lower(&pattern, &schedule(Form::Condensed, 0)).unwrap_err();
    assert_eq!(error, LowerError::EmptyTile);
}

#[test]
fn a_spatial_skip_inside_a_reduction_loop_has_no_condensed_form() {
    use fractal_dsl::pattern::{AxisId, Keep, PatternBuilder};
    let mut b = PatternBuilder::new(8, 8).unwrap();
    b.skip(AxisId::N, &[AxisId::K], Keep::Count(2)).unwrap();
    let error = lower(&b.build(), &schedule(Form::Condensed, 4)).unwrap_err();
    assert!(error.to_string().contains("skips a spatial loop inside a reduction loop"), "{error}");
}

#[test]
fn verify_finds_what_leaves_its_operand() {
    use fractal_sched::loop_ir::{Expr, Stmt};
    let pattern = "tw:4".parse::<Named>().unwrap().pattern(10, 8, 0.5).unwrap();
    let good = lower(&pattern, &schedule(Form::Condensed, 4)).unwrap();
    // Without its guard, the last tile's rows run past n = 10.
    fn drop_guards(stmts: &[Stmt]) -> Vec<Stmt> {
        let mut out = Vec::new();
        for stmt in stmts {
            match stmt {
                Stmt::If { body, .. } => out.extend(drop_guards(body)),
                Stmt::For { var, extent, bind, body } => {
                    out.push(Stmt::For { var: *var, extent: extent.clone(), bind: *bind, body: drop_guards(body) });
                }
                other => out.push(other.clone()),
            }
        }
        out
    }
    let mut bad = good.clone();
    bad.body = drop_guards(&good.body);
    let errors = verify(&bad).unwrap_err();
    assert_eq!(errors[0].to_string(), "verify: row of Y ranges over 0..=11; expected 0..10");
    let mut longer = good.clone();
    if let Some(Stmt::For { extent, .. }) = longer.body.first_mut() {
        *extent = Expr::Int(4);
    }
    let errors: Vec<String> = verify(&longer).unwrap_err().iter().map(|e| e.to_string()).collect();
    assert!(
        errors.iter().any(|e| e.starts_with("verify: a place in Index(0) ranges over 0..=15; expected 0..12")),
        "{errors:?}"
    );
}

#[test]
fn printed_loops_are_as_before() {
    let mut text = String::new();
    for (name, n, k, keep, form) in [
        ("tw:128", 300, 64, 0.25, Form::Condensed),
        ("tw-global:128", 256, 64, 0.25, Form::Condensed),
        ("tvw:64", 128, 70, 0.25, Form::Condensed),
        ("2:4", 16, 64, 0.5, Form::Scalar),
        ("ew", 16, 64, 0.25, Form::Condensed),
        ("shfl-bw:32x16", 64, 64, 0.5, Form::Condensed),
    ] {
        let pattern = name.parse::<Named>().unwrap().pattern(n, k, keep).unwrap();
        let epilogue = vec![EpilogueStep::Bias(0), EpilogueStep::Gelu];
        let ir = lower(&pattern, &Schedule { form, m_tile: 64, epilogue }).unwrap();
        text += &format!("# {name} of {n}x{k} at keep {keep}, {form:?}\n{ir}\n");
    }
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/loop_ir.txt");
    if std::env::var_os("FRACTAL_RENEW_GOLDENS").is_some() {
        std::fs::write(golden, &text).unwrap();
    }
    let expected = std::fs::read_to_string(golden).unwrap_or_default();
    assert!(text == expected, "LoopIr's text changed; renew with FRACTAL_RENEW_GOLDENS=1\n{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_patterns_agree_with_the_oracle(
        (pattern, scores) in pattern_and_scores(), m in 0usize..9, m_tile in 1usize..6,
    ) {
        prop_assert!(check(&pattern, &scores, m, m_tile) >= 1);
    }
}
