//! What the conformance tests of all backends share: programs, shapes, data and tolerances.

pub mod oracle;

use fractal::cuda::{Buffer, DeviceInputs, download_tensor, upload_tensor};
use fractal::dsl::{EpilogueOp, Factor};
use fractal::pattern::{Pattern, PatternSpec};
use fractal::{DType, Device, Error, Gemm, Layer, Layout, Magnitude, Program, Pruned, Tensor, prune_with_residue};
use oracle::{Step, masked_gemm};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Every pattern of the design's table by name, and nests without a name as DSL text.
pub const PATTERNS: &[&str] = &[
    "dense",
    "ew",
    "vw:16",
    "2:4",
    "perm-2:4",
    "bw:32x16",
    "bw-global:32x16",
    "tw:32",
    "tw:128",
    "tw-global:32",
    "tw2:32",
    "tvw:32",
    "vnm:16",
    "perm-vnm:16",
    "shfl-bw:32x16",
    "shfl-vw:32",
    "hybrid:64x32/16x8",
    // Rows and columns in found orders.
    "permute(k); permute(n); let (no, ni) = split(n, 8); skip(k, per = no, keep = 30%);",
    // A ragged level with 2 of 4 inside.
    "let (no, ni) = split(n, 16); skip(k, per = no, keep = ragged 50%); let (ko, ki) = split(k, 4); \
     skip(ki, per = (no, ni, ko), keep = 50%);",
    // Three levels of columns.
    "let (no, ni) = split(n, 16); let (k0, kr) = split(k, 64); let (k1, k2) = split(kr, 8); \
     skip(k0, per = no, keep = 75%); skip(k1, per = (no, k0), keep = 50%); skip(k2, per = (no, k0, k1), keep = 50%);",
    // A spatial skip inside a reduction loop: no GPU kernel, but right everywhere else.
    "let (ko, ki) = split(k, 16); skip(n, per = ko, keep = 40%);",
];

/// Patterns with a residue: tiles, tiles that share blocks, 2 of 4, single rows, blocks, everything but a few.
pub const RESIDUES: &[&str] = &[
    "tw:32+5%",
    "tw:128+2%",
    "tw-global:32+5%",
    "tw2:32+5%",
    "tvw:32+4%",
    "2:4+3%",
    "ew+5%",
    "bw:32x16+6%",
    "shfl-vw:32+5%",
];

/// (n, k, m): each of 1, 3, 17, 130 and 1000 in each place, and pairs of them.
pub const SHAPES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (3, 17, 130),
    (17, 3, 1),
    (130, 17, 3),
    (17, 130, 17),
    (1, 1000, 3),
    (1000, 1, 17),
    (3, 130, 1000),
    (130, 130, 130),
    (1000, 17, 1),
    (17, 1000, 130),
    (130, 1000, 17),
    (1000, 130, 3),
    (130, 3, 1000),
    (64, 128, 8),
];

/// The first GPU; without one prints `[SKIP]`, or panics if `FRACTAL_REQUIRE_CUDA=1`.
pub fn cuda_or_skip() -> Option<Device> {
    match Device::cuda(0) {
        Ok(device) => Some(device),
        Err(error) if std::env::var_os("FRACTAL_REQUIRE_CUDA").is_some_and(|v| v == "1") => {
            panic!("FRACTAL_REQUIRE_CUDA=1, but there is no CUDA device: {error}")
        }
        Err(error) => {
            println!("[SKIP] no CUDA device: {error}");
            None
        }
    }
}

/// Few tokens, as in decoding: sums long enough that every warp takes several turns, and many rows.
pub const FEW_TOKENS: &[(usize, usize, usize)] = &[
    (40, 3100, 1),
    (130, 2500, 2),
    (33, 4200, 3),
    (64, 3100, 4),
    (130, 2000, 8),
    (40, 3100, 12),
    (128, 3100, 16),
    (70, 2500, 24),
    (20, 3100, 31),
    (130, 3100, 32),
    (4300, 70, 16),
];

/// Enough rows and tokens that kernels for large results run, with tails.
pub const LARGE: &[(usize, usize, usize)] = &[(4200, 200, 1032), (2180, 330, 2200)];

pub fn pattern(text: &str, n: usize, k: usize, keep: f64, dtype: DType) -> Pattern {
    match text.parse::<PatternSpec>() {
        Ok(spec) => spec.pattern(n, k, spec.fixed_keep().unwrap_or(keep)).unwrap_or_else(|e| panic!("{text}: {e}")),
        Err(_) => {
            let program = Program::for_pattern_text(text, n, k, dtype).unwrap_or_else(|e| panic!("{text}: {e}"));
            program.pattern(n, k).unwrap_or_else(|e| panic!("{text}: {e}"))
        }
    }
}

/// The weight pruned to its pattern, with the residue that the pattern's text asks for.
pub fn pruned(text: &str, pattern: &Pattern, weight: &Tensor) -> Pruned {
    let share = text.parse::<PatternSpec>().map_or(0.0, |spec| spec.share());
    prune_with_residue(pattern, weight, &Magnitude, share).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// An epilogue that differs from case to case, with every step in one of them.
fn epilogue(case: usize) -> Vec<EpilogueOp> {
    let (bias, residual) = (EpilogueOp::Bias("bias".into()), EpilogueOp::Residual("rest".into()));
    match case % 6 {
        0 => vec![],
        1 => vec![bias, EpilogueOp::Gelu],
        2 => vec![bias, EpilogueOp::Relu, residual],
        3 => vec![EpilogueOp::Scale(Factor(0.25)), EpilogueOp::Silu],
        4 => vec![residual, bias],
        _ => vec![EpilogueOp::Relu, EpilogueOp::Scale(Factor(-1.5))],
    }
}

/// The unit roundoff of a stored result: 2^-p for a significand of p bits.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::from(f32::EPSILON) / 2.0,
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
    }
}

/// How far a result may be from the exact one, whose terms have this magnitude together: f32 sums in any order, where each
/// addition rounds once (the square root holds for random signs, with room), and one rounding to the storage type.
pub fn allowed(dtype: DType, k: usize, exact: f64, magnitude: f64) -> f64 {
    let sums = (4.0 + 4.0 * (k as f64).sqrt()) * f64::from(f32::EPSILON) / 2.0 * magnitude;
    1.5 * sums + rounding(dtype) * (exact.abs() * 1.01) + 1e-7
}

/// How far, relative to it, an exact result is from what a GPU's kernel rounds: GELU of 16 bits, where it comes last, is up to a
/// quarter of a unit in the last place off (`epilogue.cuh`), half of the unit roundoff.
pub fn short_gelu(dtype: DType, epilogue: &[EpilogueOp]) -> f64 {
    let is_short = dtype != DType::F32 && epilogue.last() == Some(&EpilogueOp::Gelu);
    if is_short { 0.5 * rounding(dtype) } else { 0.0 }
}

/// A GEMM with an epilogue and layouts that differ from case to case.
pub fn gemm(pattern: &Pattern, dtype: DType, case: usize) -> Gemm {
    let layout = if case % 5 == 4 { Layout::TokenMajor } else { Layout::FeatureMajor };
    Gemm::new(pattern.clone(), dtype).with_epilogue(&epilogue(case)).with_layouts(layout, layout)
}

/// What the layer makes of `y`. On a GPU, what `y` held is uploaded first, so that an element that no kernel writes shows.
fn run_on(layer: &Layer, x: &Tensor, operands: &[(&str, &Tensor)], mut y: Tensor) -> Result<Tensor, Error> {
    let Some(weight) = layer.cuda() else {
        layer.run_into(x, operands, &mut y)?;
        return Ok(y);
    };
    let stream = weight.stream();
    let (rows, columns, dtype) = (y.rows(), y.columns(), y.dtype());
    let [x, y] = [x, &y].map(|tensor| upload_tensor(stream, tensor));
    let (x, y) = (x?, y?);
    let named = |names: &[String]| -> Result<Vec<Buffer>, Error> {
        let operands = names.iter().flat_map(|name| operands.iter().find(|(n, _)| n == name));
        operands.map(|(_, tensor)| Ok(upload_tensor(stream, tensor)?)).collect()
    };
    let (bias, residual) = (named(layer.gemm().bias())?, named(layer.gemm().residual())?);
    let m = if layer.gemm().output() == Layout::TokenMajor { rows } else { columns };
    let inputs = DeviceInputs { x: &x, y: &y, bias: bias.iter().collect(), residual: residual.iter().collect(), m };
    weight.launch(stream, &inputs)?;
    download_tensor(stream, &y, dtype, rows, columns)
}

/// Runs one case of a pattern by name or DSL text.
pub fn check(device: &Device, text: &str, dtype: DType, shape: (usize, usize, usize), case: usize) {
    check_pattern(device, text, &pattern(text, shape.0, shape.1, 0.25, dtype), dtype, shape.2, case);
}

/// Runs one case on a device and compares every element with the oracle.
pub fn check_pattern(device: &Device, text: &str, pattern: &Pattern, dtype: DType, m: usize, case: usize) {
    check_gemm(device, text, &gemm(pattern, dtype, case), m, case);
}

/// Runs a GEMM with the epilogue of `case` and compares every element with the oracle.
pub fn check_gemm(device: &Device, text: &str, gemm: &Gemm, m: usize, case: usize) -> Layer {
    let (pattern, dtype) = (gemm.pattern(), gemm.dtype());
    let (n, k) = (pattern.n(), pattern.k());
    let mut rng = StdRng::seed_from_u64(rand::random());
    let mut random = |len: usize| (0..len).map(|_| rng.random_range(-1.0f32..1.0)).collect::<Vec<f32>>();
    let tensor =
        |rows, columns, data: &[f32]| Tensor::from_f32(dtype, rows, columns, data).expect("as long as its shape");
    let w = tensor(n, k, &random(n * k));
    let x = tensor(k, m, &random(k * m));
    let (bias, rest) = (random(n), tensor(n, m, &random(n * m)));
    let ops = epilogue(case);
    let token_major = gemm.output() == Layout::TokenMajor;
    let at = format!("{text} {dtype} n {n} k {k} m {m} on {}", device.name());

    let pruned = pruned(text, pattern, &w);
    let mask = pruned.mask();
    let layer = device.compile(gemm).and_then(|kernel| kernel.load(&pruned)).unwrap_or_else(|e| panic!("{at}: {e}"));
    let (bias_tensor, turn) =
        (Tensor::vector(&bias), |t: &Tensor| if token_major { t.transposed() } else { t.clone() });
    let operands: Vec<(&str, Tensor)> = ops
        .iter()
        .filter_map(|op| match op {
            EpilogueOp::Bias(_) => Some(("bias", bias_tensor.clone())),
            EpilogueOp::Residual(_) => Some(("rest", turn(&rest))),
            _ => None,
        })
        .collect();
    let operands: Vec<(&str, &Tensor)> = operands.iter().map(|(name, t)| (*name, t)).collect();
    let poison = turn(&tensor(n, m, &vec![f32::NAN; n * m]));
    let run = || run_on(&layer, &turn(&x), &operands, poison.clone()).unwrap_or_else(|e| panic!("{at}: {e}"));
    let (y, again) = (run(), run());
    let (found, again) = (turn(&y).to_f32(), turn(&again).to_f32());
    let same = found.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
    assert!(same, "{at}: two runs differ");

    // Of large results, a sample of rows: the oracle is slow.
    let rows: Vec<usize> =
        if n * k * m <= 20_000_000 { (0..n).collect() } else { (0..n).step_by(n / 24).chain([n - 1]).collect() };
    let of_rows = |data: &[f32], columns: usize| -> Vec<f32> {
        rows.iter().flat_map(|r| data[r * columns..(r + 1) * columns].to_vec()).collect()
    };
    let steps: Vec<Step> = ops
        .iter()
        .map(|op| match op {
            EpilogueOp::Bias(_) => Step::Bias(of_rows(&bias, 1)),
            EpilogueOp::Residual(_) => Step::Residual(of_rows(&rest.to_f32(), m)),
            EpilogueOp::Relu => Step::Relu,
            EpilogueOp::Gelu => Step::Gelu,
            EpilogueOp::Silu => Step::Silu,
            EpilogueOp::Scale(factor) => Step::Scale(factor.0),
        })
        .collect();
    let short_gelu = if layer.cuda().is_some() { short_gelu(dtype, &ops) } else { 0.0 };
    let kept = |r: usize, c: usize| mask.contains(rows[r], c);
    let expected = masked_gemm(&of_rows(&w.to_f32(), k), &kept, &x.to_f32(), (rows.len(), k, m), &steps);
    for (at_element, value) in of_rows(&found, m).into_iter().enumerate() {
        let (exact, magnitude) = (expected.y[at_element], expected.magnitude[at_element]);
        let allowed = allowed(dtype, k, exact, magnitude) + short_gelu * exact.abs();
        let error = (f64::from(value) - exact).abs();
        assert!(
            error <= allowed,
            "{at}: row {} token {} is {value}, expected {exact}; off by {error:e} of {allowed:e}",
            rows[at_element / m],
            at_element % m
        );
    }
    layer
}

/// Rows of X that no weight keeps hold NaN and infinities, which must not reach the result.
pub fn check_unkept_activations(device: &Device, text: &str, dtype: DType, (n, k, m): (usize, usize, usize)) {
    let mut rng = StdRng::seed_from_u64(rand::random());
    let pattern = pattern(text, n, k, 0.1, dtype);
    let w: Vec<f32> =
        (0..n * k).map(|at| rng.random_range(0.5f32..1.0) * if at % k % 7 == 3 { 1e-3 } else { 1.0 }).collect();
    let w = Tensor::from_f32(dtype, n, k, &w).expect("as long as its shape");
    let pruned = pruned(text, &pattern, &w);
    let mask = pruned.mask();
    let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let kept: Vec<bool> = (0..k).map(|c| (0..n).any(|r| mask.contains(r, c))).collect();
    let x: Vec<f32> = (0..k * m).map(|at| if kept[at / m] { 1.0 } else { bad[at % 3] }).collect();
    let x = Tensor::from_f32(dtype, k, m, &x).expect("as long as its shape");
    let layer = device.compile(&Gemm::new(pattern, dtype)).and_then(|kernel| kernel.load(&pruned)).expect("it loads");
    let y = layer.run(&x, &[]).expect("it runs");
    assert!(y.is_finite(), "{text} {dtype} on {}: activations that are dropped reached the result", device.name());
}

/// An infinity reaches the rows that keep its column, by their pattern or as a single element, and no other.
pub fn check_infinity(device: &Device, text: &str, dtype: DType, (n, k, m): (usize, usize, usize)) {
    let mut rng = StdRng::seed_from_u64(rand::random());
    let pattern = pattern(text, n, k, 0.25, dtype);
    let w: Vec<f32> = (0..n * k).map(|_| rng.random_range(0.5f32..1.0)).collect();
    let w = Tensor::from_f32(dtype, n, k, &w).expect("as long as its shape");
    let pruned = pruned(text, &pattern, &w);
    let mask = pruned.mask();
    let layer = device.compile(&Gemm::new(pattern, dtype)).and_then(|kernel| kernel.load(&pruned)).expect("it loads");
    for column in [0, k / 3, k - 1] {
        let x: Vec<f32> = (0..k * m).map(|at| if at / m == column { f32::INFINITY } else { 1.0 }).collect();
        let x = Tensor::from_f32(dtype, k, m, &x).expect("as long as its shape");
        let y = layer.run(&x, &[]).expect("it runs").to_f32();
        for (at, v) in y.into_iter().enumerate() {
            let (row, token) = (at / m, at % m);
            let kept = mask.contains(row, column);
            let at = format!("{text} {dtype} on {}: row {row} token {token} of column {column}", device.name());
            assert_eq!(v == f32::INFINITY, kept, "{at} is {v}");
            assert!(kept || v.is_finite(), "{at} is {v}");
        }
    }
}
