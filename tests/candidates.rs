//! Whole candidates of the e-graph compute what their program computes: on the interpreter, the CPU and the GPU, in integers,
//! bit for bit.

#[allow(dead_code)]
mod support;

use fractal::dsl::Layout;
use fractal::pattern::Mask;
use fractal::sched::egraph::{Roofline, Search, Target};
use fractal::sched::{Form, KernelRequest};
use fractal::{DType, Device, Error, Gemm, Tensor, prune};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{cuda_or_skip, pattern};

/// Small whole numbers: every sum is exact in all types.
fn whole(rng: &mut StdRng, rows: usize, columns: usize, dtype: DType) -> Tensor {
    let values: Vec<f32> = (0..rows * columns).map(|_| rng.random_range(-2i32..=2) as f32).collect();
    Tensor::from_f32(dtype, rows, columns, &values).expect("as long as its shape")
}

/// Y[n, m], from the mask and the weight alone.
fn product(w: &[f32], mask: &Mask, x: &[f32], (n, k, m): (usize, usize, usize)) -> Vec<i64> {
    let mut y = vec![0i64; n * m];
    for row in 0..n {
        for column in (0..k).filter(|&column| mask.contains(row, column)) {
            for token in 0..m {
                y[row * m + token] += w[row * k + column] as i64 * x[column * m + token] as i64;
            }
        }
    }
    y
}

const PROGRAMS: &[&str] = &[
    "tw:64",
    "bw:32x16",
    "tvw:32",
    "vnm:32",
    "2:4",
    "perm-2:4",
    "ew",
    "shfl-vw:32",
    "hybrid:64x32/32x8",
    "let (no, ni) = split(n, 40); let (ko, ki) = split(k, 12); let (a, b) = split(ko, 3); skip(b, per = (no, a), keep = 2)",
    "permute(n); let (no, ni) = split(n, 16); let (x1, x2) = split(no, 2); skip(k, per = (x1, x2), keep = 50%)",
];

/// Runs the cheapest candidates of every program; how many ran.
fn candidates_on(device: &Device, gpu: bool) -> usize {
    let mut ran = 0;
    for (case, text) in PROGRAMS.iter().enumerate() {
        let dtype = if gpu { DType::ALL[case % 3] } else { DType::F32 };
        let (n, k, m) = (130 + case % 3, 150 + 2 * case, [40, 24, 33][case % 3]);
        let own = pattern(text, n, k, 0.5, dtype);
        let mut rng = StdRng::seed_from_u64(case as u64);
        let (w, x) = (whole(&mut rng, n, k, dtype), whole(&mut rng, k, m, dtype));
        let scores = fractal::Given((0..n * k).map(|_| rng.random_range(0.0f32..1.0)).collect());
        let pruned = prune(&own, &w, &scores).expect("it prunes");
        let mask = own.mask(pruned.selection()).expect("it fits");
        let expected: Vec<f32> =
            product(&w.to_f32(), &mask, &x.to_f32(), (n, k, m)).into_iter().map(|v| v as f32).collect();
        let layout = if case % 4 == 3 { Layout::TokenMajor } else { Layout::FeatureMajor };
        let mut saturated = Search::new(&own, dtype, &[], Target::h200()).layout(layout).run();
        let turned = |t: &Tensor| if layout == Layout::TokenMajor { t.transposed() } else { t.clone() };
        for candidate in saturated.candidates(&Roofline::h200(dtype), m, 12) {
            let at = format!("{text} as {:?}, {} on {}", candidate.pattern.steps(), candidate.request, device.name());
            // The mask of the program is one that the candidate admits.
            let packed = pruned.with_pattern(&candidate.pattern).unwrap_or_else(|error| panic!("{at}: {error}"));
            let request = if gpu { candidate.request } else { KernelRequest::default() };
            let gemm = Gemm::new(candidate.pattern.clone(), dtype).with_layouts(layout, layout).with_request(request);
            let layer = match device.compile(&gemm).and_then(|kernel| kernel.load(&packed)) {
                Ok(layer) => layer,
                Err(error) => panic!("{at}: {error}"),
            };
            let y = match layer.run(&turned(&x), &[]) {
                Ok(y) => turned(&y).to_f32(),
                // Of this very weight the columns may not come in the boxes that its pattern promises no more than.
                Err(Error::Schedule { reason, .. }) if reason.starts_with("no kernel for this weight") => continue,
                Err(error) => panic!("{at}: {error}"),
            };
            let wrong = y.iter().zip(&expected).position(|(found, expected)| found != expected);
            assert_eq!(wrong.map(|at| (at, y[at], expected[at])), None, "{at}");
            ran += 1;
        }
    }
    ran
}

#[test]
fn interpreter() {
    let ran = candidates_on(&Device::interpreter(Form::Condensed), false);
    assert!(ran >= 5 * PROGRAMS.len(), "{ran} candidates ran");
}

#[test]
fn cpu() {
    let ran = candidates_on(&Device::cpu(), false);
    assert!(ran >= 5 * PROGRAMS.len(), "{ran} candidates ran");
}

#[test]
fn cuda() {
    let Some(device) = cuda_or_skip() else { return };
    let ran = candidates_on(&device, true);
    assert!(ran >= 4 * PROGRAMS.len(), "{ran} candidates ran");
}
