//! Every instruction set of this machine against a naive f64 product.

use super::execute::execute_in;
use super::plan::{PlanError, ROW_BLOCK, Tile, TilePlan, Values};
use super::raw::Isa;
use super::*;
use fractal_dsl::DType;
use half::{bf16, f16};
use rand::prelude::*;

/// A random plan and its dense W.
struct Case {
    plan: TilePlan,
    w: Vec<f32>,
}

fn round(dtype: DType, v: f32) -> f32 {
    match dtype {
        DType::F32 => v,
        DType::F16 => f16::from_f32(v).to_f32(),
        DType::BF16 => bf16::from_f32(v).to_f32(),
    }
}

/// Tiles of `heights` rows in random order, each position kept with probability `keep`; rows left over are in no tile.
fn random_plan(rng: &mut StdRng, n: usize, k: usize, heights: &[usize], keep: f64, dtype: DType) -> Case {
    let mut order: Vec<u32> = (0..n as u32).collect();
    order.shuffle(rng);
    let mut w = vec![0.0; n * k];
    let mut plan =
        TilePlan { n, k, dtype, tiles: Vec::new(), rows: Vec::new(), ks: Vec::new(), values: Values::zeros(dtype, 0) };
    let mut entries = Vec::new();
    let mut total = 0;
    for &height in heights {
        let r0 = plan.rows.len();
        let rows: Vec<u32> = order[r0.min(n)..(r0 + height).min(n)].to_vec();
        let ks: Vec<u32> = (0..k as u32).filter(|_| rng.random_bool(keep)).collect();
        let k0 = plan.ks.len();
        plan.rows.extend(&rows);
        plan.ks.extend(&ks);
        let tile = Tile { rows: r0 as u32..plan.rows.len() as u32, ks: k0 as u32..plan.ks.len() as u32, values: total };
        for (r, &row) in rows.iter().enumerate() {
            for (kk, &pos) in ks.iter().enumerate() {
                let v = round(dtype, rng.random_range(-1.0..1.0));
                w[row as usize * k + pos as usize] = v;
                entries.push((tile.value_index(r, kk), v));
            }
        }
        total += rows.len() * ks.len();
        plan.tiles.push(tile);
    }
    plan.values = Values::zeros(dtype, total);
    for (at, v) in entries {
        plan.values.set(at, v);
    }
    Case { plan, w }
}

fn store(dtype: DType, v: &[f32]) -> Values {
    let mut out = Values::zeros(dtype, v.len());
    for (i, &v) in v.iter().enumerate() {
        out.set(i, v);
    }
    out
}

fn view(v: &Values, rows: usize, cols: usize, stride: usize) -> MatRef<'_> {
    MatRef::new(v.elements(), rows, cols, stride).unwrap()
}

fn view_mut(v: &mut Values, rows: usize, cols: usize, stride: usize) -> MatMut<'_> {
    match v {
        Values::F32(v) => MatMut::new(v, rows, cols, stride),
        Values::F16(v) => MatMut::new(v, rows, cols, stride),
        Values::BF16(v) => MatMut::new(v, rows, cols, stride),
    }
    .unwrap()
}

fn get(v: &Values, i: usize) -> f64 {
    match v {
        Values::F32(v) => f64::from(v[i]),
        Values::F16(v) => v[i].to_f64(),
        Values::BF16(v) => v[i].to_f64(),
    }
}

fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-6,
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
    }
}

/// erf in f64 by the series of positive terms (Abramowitz and Stegun 7.1.6), which does not cancel.
fn erf64(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for i in 1..300 {
        term *= 2.0 * x * x / f64::from(2 * i + 1);
        sum += term;
    }
    sum * (-x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI
}

fn reference_op(op: &EpilogueOp<'_>, y: f64, row: usize, residual: f64) -> f64 {
    match op {
        EpilogueOp::Bias(b) => y + f64::from(b[row]),
        EpilogueOp::Residual(_) => y + residual,
        EpilogueOp::Relu => y.max(0.0),
        EpilogueOp::Gelu => 0.5 * y * (1.0 + erf64(y * std::f64::consts::FRAC_1_SQRT_2)),
        EpilogueOp::Silu => y / (1.0 + (-y).exp()),
        EpilogueOp::Scale(s) => y * f64::from(*s),
    }
}

/// Runs `case` with m columns in every instruction set and checks each element and what lies between the rows.
fn check(rng: &mut StdRng, case: &Case, m: usize, gap: usize, ops: &[&str], threads: usize) {
    let TilePlan { n, k, dtype, .. } = case.plan;
    let stride = m + gap;
    let x32: Vec<f32> = (0..k * stride).map(|_| round(dtype, rng.random_range(-1.0..1.0))).collect();
    let res32: Vec<f32> = (0..n * stride).map(|_| round(dtype, rng.random_range(-1.0..1.0))).collect();
    let bias: Vec<f32> = (0..n).map(|_| rng.random_range(-1.0..1.0)).collect();
    let (x, res) = (store(dtype, &x32), store(dtype, &res32));
    let plan = case.plan.clone().validate().unwrap();
    let ops: Vec<EpilogueOp<'_>> = ops
        .iter()
        .map(|op| match *op {
            "bias" => EpilogueOp::Bias(&bias),
            "residual" => EpilogueOp::Residual(view(&res, n, m, stride)),
            "relu" => EpilogueOp::Relu,
            "gelu" => EpilogueOp::Gelu,
            "silu" => EpilogueOp::Silu,
            _ => EpilogueOp::Scale(0.5),
        })
        .collect();
    let epilogue = Epilogue::new(ops.iter().copied());
    let mut expected = vec![0.0; n * m];
    for r in 0..n {
        for c in 0..m {
            let mut y = 0.0;
            for p in 0..k {
                y += f64::from(case.w[r * k + p]) * f64::from(x32[p * stride + c]);
            }
            for op in &ops {
                y = reference_op(op, y, r, f64::from(res32[r * stride + c]));
            }
            expected[r * m + c] = y;
        }
    }
    for isa in Isa::available() {
        let mut y = store(dtype, &vec![f32::NAN; n * stride]);
        let view_x = view(&x, k, m, stride);
        execute_in(isa, &plan, view_x, view_mut(&mut y, n, m, stride), &epilogue, threads).unwrap();
        for r in 0..n {
            for c in 0..m {
                let (got, want) = (get(&y, r * stride + c), expected[r * m + c]);
                let tolerance = unit(dtype) * want.abs() + 1e-6 * (k as f64).sqrt().max(4.0);
                assert!((got - want).abs() <= tolerance, "{isa:?} n{n} k{k} m{m} ({r}, {c}): {got} for {want}");
            }
            for c in m..stride {
                assert!(get(&y, r * stride + c).is_nan(), "the gap after row {r} was written");
            }
        }
    }
}

#[test]
fn random_tiles_match_reference() {
    let mut rng = StdRng::seed_from_u64(1);
    let heights: [&[usize]; 6] =
        [&[128, 64, 7, 150], &[1; 90], &[16, 16, 3, 1, 40], &[200], &[], &[33, 1, 1, 2, 17, 5]];
    for (i, &(k, m)) in
        [(1, 1), (3, 3), (17, 17), (130, 1), (300, 2), (64, 8), (65, 9), (130, 130), (40, 1000), (257, 49), (1000, 5)]
            .iter()
            .enumerate()
    {
        for (j, heights) in heights.iter().enumerate() {
            let dtype = DType::ALL[(i + j) % 3];
            let n = heights.iter().sum::<usize>() + [0, 9][i % 2];
            let keep = [0.25, 1.0, 0.0, 0.6][(i + j) % 4];
            let case = random_plan(&mut rng, n, k, heights, keep, dtype);
            check(&mut rng, &case, m, [0, 5][j % 2], &[], 1 + i % 3);
        }
    }
}

#[test]
fn epilogues_match_reference() {
    let mut rng = StdRng::seed_from_u64(2);
    let all: [&[&str]; 7] = [
        &["bias"],
        &["residual"],
        &["relu"],
        &["bias", "gelu"],
        &["silu", "scale"],
        &["bias", "gelu", "residual", "scale", "relu"],
        &["scale", "scale", "residual", "bias", "silu"],
    ];
    for dtype in DType::ALL {
        for ops in all {
            for m in [1, 7, 50] {
                let case = random_plan(&mut rng, 60, 70, &[40, 1, 1, 4], 0.3, dtype);
                check(&mut rng, &case, m, 2, ops, 2);
            }
        }
    }
}

#[test]
fn no_columns_no_rows_no_reduction() {
    let mut rng = StdRng::seed_from_u64(3);
    for (n, k, m, heights) in [(8, 8, 0, &[8][..]), (0, 8, 8, &[]), (8, 0, 8, &[4]), (0, 0, 0, &[])] {
        let case = random_plan(&mut rng, n, k, heights, 0.5, DType::F32);
        check(&mut rng, &case, m, 0, &["bias", "relu"], 2);
    }
}

#[test]
fn same_bits_for_any_thread_count() {
    let mut rng = StdRng::seed_from_u64(4);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(7).build().unwrap();
    for (heights, m) in [(&[128, 128, 44][..], 500), (&[1; 300], 500), (&[128, 128, 44], 3), (&[1; 300], 1)] {
        let case = random_plan(&mut rng, 300, 400, heights, 0.25, DType::F32);
        let plan = case.plan.validate().unwrap();
        let x: Vec<f32> = (0..400 * m).map(|_| rng.random_range(-1.0..1.0)).collect();
        let mut results = Vec::new();
        for threads in [1, 2, 3, 7, 7] {
            let mut y = vec![f32::NAN; 300 * m];
            let (view_x, view_y) = (MatRef::packed(&x, 400, m).unwrap(), MatMut::packed(&mut y, 300, m).unwrap());
            pool.install(|| execute(&plan, view_x, view_y, &Epilogue::none(), threads)).unwrap();
            results.push(y.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
        }
        assert!(results.windows(2).all(|r| r[0] == r[1]));
    }
}

#[test]
fn unkept_rows_of_x_do_not_reach_y() {
    let mut rng = StdRng::seed_from_u64(5);
    for (heights, m) in [(&[64, 64][..], 100), (&[1; 128], 100), (&[64, 64], 4), (&[1; 128], 1)] {
        let mut case = random_plan(&mut rng, 128, 96, heights, 0.0, DType::F32);
        // Every tile keeps the even positions, weight 1.
        let kept: Vec<u32> = (0..96).step_by(2).collect();
        case.plan.values = Values::F32(vec![1.0; 128 * kept.len()]);
        case.plan.ks = kept;
        let mut at = 0;
        for tile in &mut case.plan.tiles {
            tile.ks = 0..48;
            tile.values = at;
            at += tile.rows.len() * 48;
        }
        let plan = case.plan.validate().unwrap();
        let x: Vec<f32> = (0..96 * m)
            .map(|i| match i / m % 4 {
                1 => f32::NAN,
                3 => f32::INFINITY,
                _ => 1.0,
            })
            .collect();
        for isa in Isa::available() {
            let mut y = vec![f32::NAN; 128 * m];
            let (view_x, view_y) = (MatRef::packed(&x, 96, m).unwrap(), MatMut::packed(&mut y, 128, m).unwrap());
            execute_in(isa, &plan, view_x, view_y, &Epilogue::none(), 2).unwrap();
            assert!(y.iter().all(|&v| v == 48.0));
        }
    }
}

#[test]
fn special_values_survive() {
    let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e38, -1e38];
    for isa in Isa::available() {
        let mut y = x;
        raw::gelu(isa, &mut y);
        assert!(y[0].is_nan() && y[1] == f32::INFINITY && y[2] == 0.0 && y[4] == 1e38 && y[5] == 0.0);
        let mut y = x;
        raw::relu(isa, &mut y);
        assert!(y[0].is_nan() && y[1] == f32::INFINITY && y[2] == 0.0);
        let mut y = x;
        raw::silu(isa, &mut y);
        assert!(y[0].is_nan() && y[1] == f32::INFINITY && y[4] == 1e38);
    }
}

#[test]
fn conversions_agree_with_half() {
    let mut floats: Vec<f32> = (0..=u16::MAX).map(|b| f16::from_bits(b).to_f32()).collect();
    floats.extend((0..=u16::MAX).map(|b| bf16::from_bits(b).to_f32()));
    let near: Vec<f32> = floats.iter().flat_map(|f| [*f * 1.0004, *f * 1.002, f.next_up()]).collect();
    floats.extend(near);
    for isa in Isa::available() {
        let mut f = vec![f16::ZERO; floats.len()];
        let mut b = vec![bf16::ZERO; floats.len()];
        raw::narrow_f16(isa, &floats, &mut f);
        raw::narrow_bf16(isa, &floats, &mut b);
        let (mut f_wide, mut b_wide) = (floats.clone(), floats.clone());
        raw::widen_f16(isa, &f, &mut f_wide);
        raw::widen_bf16(isa, &b, &mut b_wide);
        for (i, &v) in floats.iter().enumerate() {
            if v.is_nan() {
                assert!(f[i].is_nan() && b[i].is_nan() && f_wide[i].is_nan() && b_wide[i].is_nan());
                continue;
            }
            assert_eq!(f[i], f16::from_f32_const(v), "{v:e}");
            assert_eq!(b[i], bf16::from_f32(v), "{v:e}");
            assert_eq!((f_wide[i], b_wide[i]), (f[i].to_f32(), b[i].to_f32()));
        }
    }
}

#[test]
fn dense_matches_tiles() {
    let mut rng = StdRng::seed_from_u64(6);
    for dtype in DType::ALL {
        let case = random_plan(&mut rng, 50, 60, &[50], 1.0, dtype);
        let w = store(dtype, &case.w);
        let bias = vec![0.25; 50];
        let epilogue = Epilogue::new([EpilogueOp::Bias(&bias), EpilogueOp::Gelu]);
        let x: Vec<f32> = (0..60 * 40).map(|_| round(dtype, rng.random_range(-1.0..1.0))).collect();
        let x = store(dtype, &x);
        let plan = case.plan.validate().unwrap();
        let mut a = store(dtype, &vec![f32::NAN; 50 * 37]);
        let mut b = a.clone();
        let view_x = view(&x, 60, 37, 40);
        execute(&plan, view_x, view_mut(&mut a, 50, 37, 37), &epilogue, 2).unwrap();
        dense(view(&w, 50, 60, 60), view_x, view_mut(&mut b, 50, 37, 37), &epilogue, 2).unwrap();
        for i in 0..50 * 37 {
            assert!((get(&a, i) - get(&b, i)).abs() <= 2.0 * unit(dtype) * get(&a, i).abs() + 1e-5);
        }
    }
}

fn small_plan() -> TilePlan {
    TilePlan {
        n: 4,
        k: 4,
        dtype: DType::F32,
        tiles: vec![Tile { rows: 0..2, ks: 0..2, values: 0 }],
        rows: vec![0, 3],
        ks: vec![1, 3],
        values: Values::F32(vec![1.0; 4]),
    }
}

#[test]
fn bad_plans_are_told_apart() {
    let error = |change: fn(&mut TilePlan)| {
        let mut plan = small_plan();
        change(&mut plan);
        plan.validate().unwrap_err()
    };
    assert!(small_plan().validate().is_ok());
    assert_eq!(error(|p| p.n = usize::MAX), PlanError::TooLarge { what: "n", got: usize::MAX });
    assert_eq!(error(|p| p.dtype = DType::F16), PlanError::DType { expected: DType::F16, got: DType::F32 });
    assert_eq!(error(|p| p.rows[1] = 4), PlanError::Row { tile: 0, row: 4, n: 4 });
    assert_eq!(error(|p| p.rows[1] = 0), PlanError::RowTwice { tile: 0, row: 0 });
    assert_eq!(error(|p| p.ks[1] = 4), PlanError::Kept { tile: 0, position: 4, k: 4 });
    assert_eq!(error(|p| p.ks[1] = 1), PlanError::Order { tile: 0, previous: 1, got: 1 });
    let range = |list, start, end, len| PlanError::Range { tile: 0, list, start, end, len };
    assert_eq!(error(|p| p.tiles[0].rows.end = 3), range("rows", 0, 3, 2));
    assert_eq!(error(|p| p.tiles[0].ks.end = 3), range("ks", 0, 3, 2));
    assert_eq!(error(|p| p.tiles[0].values = 1), range("values", 1, 5, 4));
    assert_eq!(error(|p| p.tiles[0].values = usize::MAX), range("values", usize::MAX, usize::MAX, 4));
}

#[test]
fn bad_operands_are_told_apart() {
    let plan = small_plan().validate().unwrap();
    let (x, mut y, h) = (vec![0.0f32; 12], vec![0.0f32; 12], vec![f16::ZERO; 12]);
    let mut run = |x: MatRef<'_>, rows, epilogue: &Epilogue<'_>| {
        execute(&plan, x, MatMut::packed(&mut y, rows, 3).unwrap(), epilogue, 1).unwrap_err()
    };
    let good = MatRef::packed(&x, 4, 3).unwrap();
    let none = Epilogue::none();
    let shape = |operand, expected, got| ExecuteError::Shape { operand, expected, got };
    assert_eq!(run(MatRef::packed(&x, 3, 3).unwrap(), 4, &none), shape("x", (4, 3), (3, 3)));
    assert_eq!(run(good, 3, &none), shape("y", (4, 3), (3, 3)));
    let bias = Epilogue::new([EpilogueOp::Bias(&[0.0; 3])]);
    assert_eq!(run(good, 4, &bias), shape("bias", (4, 1), (3, 1)));
    let residual = Epilogue::new([EpilogueOp::Residual(MatRef::packed(&h, 4, 3).unwrap())]);
    let dtype = |operand| ExecuteError::DType { operand, expected: DType::F32, got: DType::F16 };
    assert_eq!(run(good, 4, &residual), dtype("residual"));
    assert_eq!(run(MatRef::packed(&h, 4, 3).unwrap(), 4, &none), dtype("x"));
    assert_eq!(
        MatRef::new(&x, 4, 3, 4).unwrap_err(),
        ViewError::Length { rows: 4, cols: 3, stride: 4, expected: 15, got: 12 }
    );
    assert_eq!(MatRef::new(&x, 4, 3, 2).unwrap_err(), ViewError::Stride { stride: 2, cols: 3 });
}

#[test]
fn values_are_blocked_by_rows() {
    let tile = Tile { rows: 0..ROW_BLOCK as u32 + 3, ks: 0..5, values: 100 };
    assert_eq!(tile.value_index(0, 0), 100);
    assert_eq!(tile.value_index(1, 2), 100 + 2 * ROW_BLOCK + 1);
    assert_eq!(tile.value_index(ROW_BLOCK + 1, 2), 100 + 5 * ROW_BLOCK + 2 * 3 + 1);
}

#[test]
fn cost_prefers_what_ran_faster() {
    let tiles = |rows, kept, m| {
        let shape = cost::PlanShape { n: 1024, k: 1024, rows, kept };
        cost::seconds(&cost::Work::Tiles(shape), m, DType::F32, 2)
    };
    let all = 1 << 20;
    for m in [64, 512, 4096] {
        let dense = cost::seconds(&cost::Work::Dense { n: 1024, k: 1024 }, m, DType::F32, 2);
        assert!(tiles(8, all / 4, m) < dense / 2.0, "low tiles at 75 % against dense");
        assert!(tiles(1, all / 2, m) > dense, "2:4 by rows against dense");
        assert!(tiles(1, all / 16, m) < dense, "rows at 93.75 % against dense");
    }
}
