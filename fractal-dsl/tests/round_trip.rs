//! Random programs survive text and JSON; random text never panics; checker and PatternIR agree.

use fractal_dsl::pattern::{AxisKind, Keep, Ratio};
use fractal_dsl::{DType, Dim, Dimension, Directive, Intrinsic, Layout, Level, Memory, Program, ProgramBuilder};
use proptest::prelude::*;

/// A random number at each call, from bytes that proptest can shrink.
#[derive(Debug)]
struct Dice(Vec<u16>, usize);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.1 += 1;
        self.0.get(self.1 - 1).map_or(0, |&byte| byte as usize) % n
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

fn keep(dice: &mut Dice) -> Keep {
    match dice.below(6) {
        0 => Keep::Count(1 + dice.below(20)),
        1 => Keep::Of { kept: 2, of: 4 },
        2 => Keep::Ragged(Ratio::percent(12.5).unwrap()),
        3 => Keep::RaggedCount(1 + dice.below(40)),
        _ => Keep::Ratio(Ratio::new((1 + dice.below(10_000)) as f64 / 10_000.0).unwrap()),
    }
}

/// A program of random parts, most of which fit together: names of loops are mostly live, numbers mostly in range.
fn program(dice: &mut Dice) -> ProgramBuilder {
    let dtype = dice.pick(&DType::ALL);
    let layout = |dice: &mut Dice| dice.pick(&[Layout::FeatureMajor, Layout::TokenMajor]);
    let name = dice.pick(&["", "FfnUp", "r#struct", "Größe"]);
    let mut builder = Program::builder(name, dtype);
    let dim = |dice: &mut Dice| match dice.below(4) {
        0 => Dim::Runtime,
        1 => Dim::Const("4 * config::HIDDEN".into()),
        _ => Dim::Fixed(1 + dice.below(300)),
    };
    builder = builder.m(dim(dice)).n(dim(dice)).k(dim(dice));
    if dice.below(2) == 0 {
        builder = builder.docs(dice.pick(&["One line.", "Two\n\n  lines \"quoted\" \\ ", "", "/ slash\n * star */"]));
    }
    let (n, k, m) = dice.pick(&[("n", "k", "m"), ("row", "red", "tok"), ("r#in", "k", "r#type")]);
    builder = builder.axes(n, k, m).input("x", dtype, layout(dice)).output("y", dice.pick(&DType::ALL), layout(dice));
    for _ in 0..dice.below(5) {
        builder = match dice.below(6) {
            0 => builder.bias("bias", DType::F32),
            1 => builder.residual("skip", dtype, Layout::TokenMajor),
            2 => builder.relu(),
            3 => builder.gelu(),
            4 => builder.silu(),
            _ => builder.scale(dice.pick(&[0.5, -1.0, 1e-20, 3.4e38, 0.1, -0.0])),
        };
    }
    let mut live = vec![n.to_owned(), k.to_owned()];
    for step in 0..dice.below(8) {
        let one = |dice: &mut Dice, live: &[String]| live[dice.below(live.len())].clone();
        let axis = one(dice, &live);
        let directive = match dice.below(12) {
            0..=3 => {
                let (outer, inner) = (format!("o{step}"), format!("i{step}"));
                live.retain(|name| *name != axis);
                live.extend([outer.clone(), inner.clone()]);
                Directive::Split { axis, factor: dice.pick(&[1, 2, 4, 7, 16]), outer, inner }
            }
            4..=6 => {
                let others: Vec<String> = live.iter().filter(|name| **name != axis).cloned().collect();
                let per = (dice.below(2) == 0).then(|| others.into_iter().filter(|_| dice.below(2) == 0).collect());
                Directive::Skip { axis, per, keep: keep(dice) }
            }
            7 => {
                let b = one(dice, &live);
                let out = format!("j{step}");
                live.retain(|name| *name != axis && *name != b);
                live.push(out.clone());
                Directive::Join { a: axis, b, out }
            }
            8 => Directive::Reorder { loops: live.iter().rev().cloned().collect() },
            9 => Directive::Permute { axis },
            10 => match dice.below(8) {
                0 => Directive::Tile { axis: m.into(), size: 64 },
                1 => Directive::Condense { operand: "x".into(), run: dice.pick(&[None, Some(16)]) },
                2 => Directive::Bind { axis, level: Level::Warp },
                3 => Directive::Stage { operand: "w".into(), memory: Memory::Shared },
                4 => Directive::Resident { operand: "w".into() },
                5 => Directive::Cluster { axis: m.into(), size: 2 },
                6 => Directive::Cluster { axis: k.into(), size: 4 },
                _ => Directive::Pipeline { depth: 3 },
            },
            _ => {
                let loops = vec![n.to_owned(), m.to_owned(), k.to_owned()];
                Directive::Tensorize { loops, intrinsic: dice.pick(&Intrinsic::ALL) }
            }
        };
        builder = builder.directive(directive);
    }
    builder
}

fn dice() -> impl Strategy<Value = Dice> {
    prop::collection::vec(any::<u16>(), 0..120).prop_map(|bytes| Dice(bytes, 0))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn text_and_json(mut dice in dice()) {
        if let Ok(program) = program(&mut dice).build() {
            prop_assert_eq!(Program::parse_unbound(&program.to_string()), Ok(program.clone()));
            prop_assert_eq!(Program::from_json(&program.to_json()), Ok(program.clone()));
            prop_assert_eq!(program.with_directives(program.directives().to_vec()), Ok(program.clone()));
        }
    }

    /// What the checker accepts for unknown sizes, PatternIR accepts for sizes that are large and divide.
    #[test]
    fn the_checker_knows_what_pattern_ir_refuses(mut dice in dice()) {
        let Ok(program) = program(&mut dice).n(Dim::Runtime).k(Dim::Runtime).build() else { return Ok(()) };
        let ragged_late = |d: &Directive| matches!(d, Directive::Skip { keep: Keep::RaggedCount(_) | Keep::Of { .. } | Keep::Count(_), .. });
        let counts = program.directives().iter().any(ragged_late);
        if !counts && !program.directives().iter().any(|d| matches!(d, Directive::Join { .. })) {
            prop_assert!(program.pattern(448, 896).is_ok(), "{}", program);
        }
    }

    /// The checker's tensor-core rule is PatternIR's.
    #[test]
    fn the_checker_knows_what_tensor_cores_refuse(mut dice in dice()) {
        let builder = program(&mut dice).n(64).k(32);
        let Ok(plain) = builder.clone().build() else { return Ok(()) };
        if plain.directives().iter().any(|d| matches!(d, Directive::Tensorize { .. })) || plain.weight().dtype == DType::F32 {
            return Ok(());
        }
        let axes = plain.axes();
        let loops = vec![axes.n.clone(), axes.m.clone(), axes.k.clone()];
        let tensor = builder.directive(Directive::Tensorize { loops, intrinsic: Intrinsic::MmaSync }).build();
        let order = |text: &str| text.contains("does not run on tensor cores");
        let refused = tensor.as_ref().err().is_some_and(|errors| order(&errors.to_string()));
        let violations = plain.pattern(64, 32).expect("it was checked with these sizes").gpu_violations();
        prop_assert_eq!(refused, !violations.is_empty(), "{}\n{:?}", plain, violations);
    }

    #[test]
    fn random_text_never_panics(text in ".{0,200}") {
        let _ = Program::parse(&text);
        let _ = Program::for_pattern_text(&text, 64, 64, DType::F32);
        let _ = Program::from_json(&text);
    }

    #[test]
    fn random_tokens_never_panic(tokens in prop::collection::vec(0usize..TOKENS.len(), 0..80), whole in any::<bool>()) {
        let soup: Vec<&str> = tokens.into_iter().map(|token| TOKENS[token]).collect();
        let soup = soup.join(" ");
        let body = "weight w: bf16[N, K]; input x: bf16[K, M]; output y: bf16[N, M]; y[n, m] += w[n, k] * x[k, m];";
        let text = if whole { format!("<M, N = 64, K> {{ {body} schedule {{ {soup} }} }}") } else { soup.clone() };
        if let Err(errors) = Program::parse(&text) {
            prop_assert!(!errors.as_slice().is_empty());
            prop_assert!(!errors.to_string().is_empty());
        }
        let _ = Program::for_pattern_text(&soup, 64, 64, DType::F32);
    }

    /// A whole program with one token dropped, doubled or replaced.
    #[test]
    fn damaged_programs_never_panic(at in 0usize..400, how in 0usize..3, token in 0usize..TOKENS.len()) {
        let mut words: Vec<&str> = WHOLE.split(' ').collect();
        let at = at % words.len();
        match how {
            0 => { words.remove(at); }
            1 => words.insert(at, words[at]),
            _ => words[at] = TOKENS[token],
        }
        let _ = Program::parse(&words.join(" ")).map_err(|errors| errors.to_string());
    }
}

const TOKENS: [&str; 64] = [
    "let",
    "split",
    "join",
    "skip",
    "reorder",
    "permute",
    "tile",
    "tensorize",
    "condense",
    "bind",
    "stage",
    "pipeline",
    "keep",
    "per",
    "of",
    "ragged",
    "n",
    "k",
    "m",
    "no",
    "ni",
    "ko",
    "ki",
    "nk",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    ",",
    ";",
    ":",
    "=",
    "+",
    "+=",
    "*",
    "%",
    "^",
    "-",
    "0",
    "1",
    "4",
    "64",
    "50",
    "6.25",
    "1e400",
    "99999999999999999999999999999999999999999",
    "\"text\"",
    "'c'",
    "r#in",
    "in",
    "gemm",
    "weight",
    "schedule",
    "wgmma_sp",
    "mma_sync",
    "block",
    "shared",
    "y",
    "w",
    "x",
];

const WHOLE: &str = "/** doc */ gemm Up < M , N = 4096 , K = { 4 * 256 } > { weight w : bf16 [ N , K ] ; input x : bf16 [ K , M ] ; \
    output y : bf16 [ N , M ] ; y [ n , m ] += w [ n , k ] * x [ k , m ] ; y = gelu ( y + bias [ n ] ) * 0.5 ; \
    schedule { let ( no , ni ) = split ( n , 128 ) ; skip ( k , per = no , keep = 50 % ) ; \
    let ( ko , ki ) = split ( k , 4 ) ; skip ( ki , per = ( n , ko ) , keep = 2 of 4 ) ; tensorize ( ni , m , k , wgmma_sp ) ; \
    condense ( x ) ; bind ( no , block ) ; stage ( x , shared ) ; pipeline ( 3 ) ; tile ( m , 256 ) ; } }";

#[test]
fn the_damaged_program_is_whole_at_first() {
    let program = Program::parse(WHOLE).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(program.dim(Dimension::K).fixed(), Some(1024));
    let kinds: Vec<_> = program.pattern(4096, 1024).unwrap().axes().iter().map(|axis| axis.kind).collect();
    assert!(!kinds.contains(&AxisKind::Mixed));
}

#[test]
fn deep_and_long_text_is_an_error_or_fine() {
    let deep = format!("<M, N = {}4{}, K>", "(".repeat(100_000), ")".repeat(100_000));
    assert!(Program::parse(&deep).unwrap_err().to_string().contains("nest deeper than 64 levels"));
    let body = "weight w: f32[N, K]; input x: f32[K, M]; output y: f32[N, M]; y[n, m] += w[n, k] * x[k, m];";
    let long = format!("<M, N, K> {body} y = y{};", " + b[n]".repeat(100_000));
    assert!(Program::parse(&long).unwrap_err().to_string().contains("the expression is too long"));
    let many = format!("<M, N, K> {body} {}", "y = relu(y);".repeat(65));
    assert!(Program::parse(&many).unwrap_err().to_string().contains("at most 64 steps"));
    let sum = format!("<M, N = 1{}, K> {body}", " + 1".repeat(2000));
    assert_eq!(Program::parse(&sum).unwrap().dim(Dimension::N).fixed(), Some(2001));
    let splits: String = (0..200).map(|i| format!("let (n{}, i{i}) = split(n{i}, 1);", i + 1)).collect();
    let chain = Program::for_pattern_text(&format!("let (n0, z) = split(n, 1); {splits}"), 8, 8, DType::F32).unwrap();
    assert_eq!(chain.replay(8, 8).unwrap().loops("n").len(), 202);
}

/// Every split by one less than the length pads to nearly twice: regions are more than a number holds.
#[test]
fn splits_that_pad_without_end_do_not_overflow() {
    let mut text = String::from("let (a80, b80) = split(k, 80);");
    let mut loops = vec!["a80".to_owned()];
    for len in (2..80).rev() {
        text += &format!("let (a{len}, b{len}) = split(b{}, {len});", len + 1);
        loops.push(format!("a{len}"));
    }
    text += &format!("skip(n, per = ({}), keep = ragged 50%);", loops.join(", "));
    let program = Program::for_pattern_text(&text, 8, 81, DType::F32).unwrap_or_else(|errors| panic!("{errors}"));
    let pattern = program.pattern(8, 81).unwrap();
    assert_eq!(pattern.regions(&pattern.order()[..79]), usize::MAX);
}

#[test]
fn what_is_loaded_is_checked() {
    let program = Program::builder("A", DType::F32).split("n", 4, "no", "ni").build().unwrap();
    let json = program.to_json();
    for (from, to) in [
        ("\"factor\": 4", "\"factor\": 0"),
        ("\"no\"", "\"n); skip(k\""),
        ("\"A\"", "\"struct\""),
        ("\"A\"", "\"A<M, N, K> { } gemm B\""),
        ("\"runtime\"", "\"sometimes\""),
        ("\"f32\"", "\"f64\""),
        ("\"factor\"", "\"by\""),
    ] {
        assert!(json.contains(from));
        let changed = json.replacen(from, to, 1);
        assert!(Program::from_json(&changed).is_err(), "{from} -> {to}");
    }
    assert!(serde_json::from_str::<Program>(&json.replace("\"factor\": 4", "\"factor\": 0")).is_err());
    assert!(Program::builder("A", DType::F32).scale(f32::NAN).build().is_err());
    assert!(Program::builder("A", DType::F32).scale(f32::INFINITY).build().is_err());
    assert!(Program::builder("A", DType::F32).n(0).build().is_err());
    assert!(Program::builder("A", DType::F32).n(Dim::Const("> 3".into())).build().is_err());
}

/// Most of the random programs must be right ones, or the properties above say little.
#[test]
fn random_programs_are_often_right() {
    use rand_bytes::bytes;
    let right = (0..400).filter(|&seed| program(&mut Dice(bytes(seed), 0)).build().is_ok()).count();
    assert!(right > 80, "{right} of 400");
}

mod rand_bytes {
    /// 120 numbers of a small generator (Knuth's MMIX constants).
    pub fn bytes(seed: u64) -> Vec<u16> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 48) as u16
        };
        (0..120).map(|_| next()).collect()
    }
}
