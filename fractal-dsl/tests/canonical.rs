//! Text -> program -> text.

use fractal_dsl::pattern::{Keep, Named};
use fractal_dsl::{DType, Dim, Dimension, Directive, EpilogueOp, Layout, Program};

const FFN: &str = "
    /// Up-projection of a BERT-large FFN.
    pub gemm FfnUp<M, N = 4096, K = 4 * 256> {
        weight w: bf16[N, K];
        input  x: bf16[K, M];
        output y: bf16[N, M];
        y[n, m] += w[n, k] * x[k, m];
        y = gelu(y + bias[n]);
        y = (skip_in[n, m] + y) * -0.5;
        schedule {
            let (no, ni) = split(n, 128);
            skip(k, per = no, keep = 50%);
            let (ko, ki) = split(k, 4);
            skip(ki, per = (n, ko), keep = 2 of 4);
            tensorize(ni, m, k, wgmma_sp);
            condense(x); bind(no, block); stage(x, shared); pipeline(3); tile(m, 256);
        }
    }";

#[test]
fn canonical_text() {
    let program = Program::parse(FFN).unwrap_or_else(|errors| panic!("{errors}"));
    let text = "\
/// Up-projection of a BERT-large FFN.
gemm FfnUp<M, N = 4096, K = 1024> {
    weight w: bf16[N, K];
    input x: bf16[K, M];
    output y: bf16[N, M];
    input bias: f32[N];
    input skip_in: bf16[N, M];
    y[n, m] += w[n, k] * x[k, m];
    y = (gelu(y + bias[n]) + skip_in[n, m]) * -0.5;
    schedule {
        let (no, ni) = split(n, 128);
        skip(k, per = no, keep = 50%);
        let (ko, ki) = split(k, 4);
        skip(ki, per = (n, ko), keep = 2 of 4);
        tensorize(ni, m, k, wgmma_sp);
        condense(x);
        bind(no, block);
        stage(x, shared);
        pipeline(3);
        tile(m, 256);
    }
}
";
    assert_eq!(program.to_string(), text);
    assert_eq!(Program::parse(text).as_ref(), Ok(&program));
    assert_eq!(Program::from_json(&program.to_json()).as_ref(), Ok(&program));
    assert_eq!(program.extras().len(), 2);
    assert_eq!(program.epilogue()[0], EpilogueOp::Bias("bias".into()));
    let replay = program.replay(4096, 1024).unwrap();
    assert_eq!(replay.loops("n").len(), 2);
    assert_eq!(replay.pattern().steps().len(), 4);
}

#[test]
fn expression_form_with_and_without_braces() {
    let body = "weight w: f16[N, K]; input x: f16[M, K]; output y: f16[M, N]; y[t, o] += x[t, i] * w[o, i];";
    let bare = Program::parse(&format!("<M = 1, N, K> {body}")).unwrap_or_else(|errors| panic!("{errors}"));
    let braced = Program::parse(&format!("<K, M = 1, N> {{ {body} }}")).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(bare, braced);
    assert_eq!(bare.name(), None);
    assert_eq!(bare.input().layout(), Layout::TokenMajor);
    assert_eq!(bare.axes().of(Dimension::K), "i");
    assert_eq!(Program::parse(&bare.to_string()).as_ref(), Ok(&bare));
}

#[test]
fn constants_are_bound_by_name_or_dimension() {
    let text = "<M, N = { 4 * HIDDEN }, K = width(3)> weight w: f32[N, K]; input x: f32[K, M]; output y: f32[N, M];
        y[n, m] += w[n, k] * x[k, m]; schedule { skip(k, keep = 100); }";
    let unbound = Program::parse_unbound(text).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(*unbound.dim(Dimension::N), Dim::Const("4 * HIDDEN".into()));
    assert_eq!(Program::parse_unbound(&unbound.to_string()).as_ref(), Ok(&unbound));
    assert_eq!(Program::from_json(&unbound.to_json()).as_ref(), Ok(&unbound));
    let bound = Program::parse_with(text, &[("HIDDEN", 256), ("K", 768)]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(bound.dim(Dimension::N).fixed(), Some(1024));
    assert_eq!(unbound.bind(&[("HIDDEN", 256), ("K", 768)]).as_ref(), Ok(&bound));
    let short = unbound.bind(&[("N", 4), ("K", 99)]).unwrap_err();
    assert_eq!(
        short.as_slice()[0].headline(),
        "keep is out of range: expected at most 99, the iterations of `k`, found 100"
    );
}

#[test]
fn a_bare_schedule_is_a_program() {
    let text = "let (no, ni) = split(n, 128); skip(k, per = no, keep = 25%)";
    let program = Program::for_pattern_text(text, 512, 256, DType::BF16).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(program.directives().len(), 2);
    assert_eq!(Program::parse(&program.to_string()).as_ref(), Ok(&program));
    let dense = Program::for_pattern_text("", 5, 7, DType::F32).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(dense.directives().is_empty());
}

#[test]
fn a_nest_is_a_schedule() {
    let text = "n0:4 n1:8^3 k0:32^28 k1:8^5 k2:4 n2:32";
    let program = Program::for_pattern_text(text, 1024, 1024, DType::F16).unwrap_or_else(|errors| panic!("{errors}"));
    let skip = |axis: &str, kept| Directive::Skip { axis: axis.into(), per: None, keep: Keep::Count(kept) };
    let skips: Vec<_> = program.directives().iter().filter(|d| matches!(d, Directive::Skip { .. })).cloned().collect();
    assert_eq!(skips, [skip("n1", 3), skip("k0", 28), skip("k1", 5)]);
    let pattern = program.pattern(1024, 1024).unwrap();
    assert_eq!(pattern.format().slots, Some(215_040));
    let padded = Program::for_pattern_text("n:10 k0:4^1 k1:3", 10, 11, DType::F16).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(padded.pattern(10, 11).unwrap().order().len(), 3);
}

#[test]
fn named_patterns_print_as_schedules() {
    let keep = |named: Named| named.fixed_keep().unwrap_or(0.25);
    for text in [
        "dense",
        "ew",
        "vw:16",
        "2:4",
        "perm-2:4",
        "bw:16x16",
        "bw-global:16x16",
        "tw:32",
        "tw-global:32",
        "tw2:32",
        "tvw:32",
        "vnm:32:2:8",
        "perm-vnm:32:2:8",
        "shfl-bw:16x16",
        "shfl-vw:32",
        "hybrid:32x32/8x8",
    ] {
        let named: Named = text.parse().unwrap();
        for (n, k) in [(128, 96), (100, 72)] {
            let pattern = named.pattern(n, k, keep(named)).unwrap();
            let program =
                Program::for_pattern(&pattern, DType::BF16).unwrap_or_else(|errors| panic!("{text}: {errors}"));
            assert_eq!(program.pattern(n, k).as_ref(), Ok(&pattern), "{text}: {program}");
            assert_eq!(Program::parse(&program.to_string()).as_ref(), Ok(&program));
        }
    }
}

#[test]
fn a_pattern_takes_the_names_of_its_program() {
    let program = Program::builder("A", DType::F16).axes("i", "n", "no").bias("ii", DType::F32).build().unwrap();
    let pattern = "bw-global:16x16".parse::<Named>().unwrap().pattern(64, 64, 0.5).unwrap();
    let with = program.with_pattern(&pattern).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(with.pattern(64, 64).as_ref(), Ok(&pattern));
    assert_eq!(with.directives()[0].to_string(), "let (io, ii_) = split(i, 16)");
}
