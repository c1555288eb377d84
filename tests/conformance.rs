//! One suite for every backend: all patterns, types and odd shapes against the oracle, on poisoned results and fresh data.
//!
//! A backend joins with one line at the end of this file.

mod support;

use fractal::cuda::{Gpu, KernelPlan, TableShape};
use fractal::sched::Form;
use fractal::{DType, Device, Magnitude, Tensor, prune};
use rayon::prelude::*;
use support::{FEW_TOKENS, LARGE, PATTERNS, SHAPES, check, check_unkept_activations, cuda_or_skip, gemm, pattern};

/// Runs all cases whose multiply-adds stay below `most`; a slow backend takes fewer of the large ones.
fn all_cases(device: &Device, dtype: DType, most: usize) {
    let mut ran = 0;
    for (p, text) in PATTERNS.iter().enumerate() {
        for (s, &(n, k, m)) in SHAPES.iter().enumerate() {
            if n * k * m <= most {
                check(device, text, dtype, (n, k, m), p + s);
                ran += 1;
            }
        }
    }
    assert!(ran >= PATTERNS.len() * 8, "only {ran} cases ran");
}

macro_rules! conformance {
    ($backend:ident, $device:expr, $most:expr) => {
        mod $backend {
            use super::*;

            #[test]
            fn f32() {
                let Some(device) = $device else { return };
                all_cases(&device, DType::F32, $most);
            }

            #[test]
            fn f16() {
                let Some(device) = $device else { return };
                all_cases(&device, DType::F16, $most);
            }

            #[test]
            fn bf16() {
                let Some(device) = $device else { return };
                all_cases(&device, DType::BF16, $most);
            }

            #[test]
            fn unkept_activations_do_not_leak() {
                let Some(device) = $device else { return };
                PATTERNS.par_iter().for_each(|text| {
                    for dtype in DType::ALL {
                        for m in [33, 5] {
                            check_unkept_activations(&device, text, dtype, (70, 90, m));
                        }
                    }
                });
            }

            #[test]
            fn few_tokens() {
                let Some(device) = $device else { return };
                // At once: nearly every case compiles a kernel of its own.
                let patterns = ["tw:128", "bw:32x16", "dense", "vw:16", "tw:64"];
                (0..patterns.len() * FEW_TOKENS.len()).into_par_iter().for_each(|case| {
                    let (p, s) = (case % patterns.len(), case / patterns.len());
                    let (n, k, m) = FEW_TOKENS[s];
                    if n * k * m <= $most {
                        check(&device, patterns[p], DType::ALL[1 + (p + s) % 2], (n, k, m), p + s);
                    }
                });
            }

            #[test]
            fn large() {
                let Some(device) = $device else { return };
                for (p, text) in PATTERNS.iter().enumerate() {
                    for (s, &(n, k, m)) in LARGE.iter().enumerate().filter(|(_, (n, k, m))| n * k * m <= $most) {
                        check(&device, text, DType::ALL[(p + s) % 3], (n, k, m), p + s);
                        check(&device, text, DType::ALL[1 + (p + s) % 2], (n, k, m), p + s + 1);
                        check_unkept_activations(&device, text, DType::ALL[1 + (p + s) % 2], (n, 90, m));
                    }
                }
            }
        }
    };
}

conformance!(interpreter, Some(Device::interpreter(Form::Condensed)), 400_000);
conformance!(interpreter_scalar, Some(Device::interpreter(Form::Scalar)), 400_000);
conformance!(cpu, Some(Device::cpu()), usize::MAX);
conformance!(cuda, cuda_or_skip(), usize::MAX);

/// Part of the name of an H200's kernel; pattern, type, (n, k, m) and number of a case that runs it. The number says which
/// epilogue and layouts it has (`support::gemm`).
type Family = (&'static str, &'static str, DType, (usize, usize, usize), usize);

/// Small enough for compute-sanitizer.
const FAMILIES: &[Family] = &[
    ("gemm_ffma_f32", "tw:128", DType::F32, (260, 300, 264), 1),
    ("gemm_ffma_f32", "tw:32", DType::F32, (70, 90, 33), 4),
    ("gemm_ffma_f32", "ew", DType::F32, (130, 140, 12), 2),
    ("mma_sync_f16", "bw:32x16", DType::F16, (130, 170, 130), 2),
    ("mma_sync_bf16", "tw:128", DType::BF16, (260, 300, 129), 9),
    ("mma_sp_f16", "2:4", DType::F16, (130, 200, 75), 1),
    ("mma_sp_bf16", "vnm:16", DType::BF16, (130, 200, 130), 3),
    ("decode", "tw:128", DType::BF16, (300, 700, 1), 1),
    ("decode", "bw:32x16", DType::F16, (130, 500, 8), 2),
    ("decode", "tw:64", DType::BF16, (400, 700, 32), 4),
    ("wgmma_f16_128x", "tw:128", DType::F16, (4200, 300, 1032), 1),
    ("resident", "tw:128", DType::F16, (2100, 700, 1032), 1),
    ("resident4_boxes64", "bw:128x64", DType::BF16, (2100, 600, 1032), 3),
    ("share2_runs", "tw:128", DType::BF16, (4200, 8200, 2048), 1),
    ("share2_boxes64_runs", "bw:128x64", DType::F16, (4200, 8200, 2048), 2),
    ("boxes16", "bw:64x16", DType::F16, (200, 300, 520), 1),
    ("wgmma_bf16_128x", "bw:128x64", DType::BF16, (260, 300, 1000), 2),
    ("wgmma_f16_64x", "tw:64", DType::F16, (200, 300, 520), 2),
    ("wgmma_f16", "shfl-vw:32", DType::F16, (260, 300, 264), 9),
    ("covered", "ew", DType::F16, (260, 300, 264), 5),
    ("split", "tw:128", DType::F16, (256, 3000, 264), 1),
    ("wgmma_sp_f16_128x", "tvw:128", DType::F16, (4200, 300, 1032), 3),
    ("wgmma_sp_bf16", "2:4", DType::BF16, (260, 3000, 136), 5),
    ("wgmma_sp_f16_64x", "vnm:64", DType::F16, (200, 300, 520), 2),
];

/// Results that boxes have stored are turned: compute-sanitizer's initcheck takes what the copy engine stores for not set.
const TURNED: &[Family] = &[
    ("wgmma_f16_64x128x64_runs", "tw:64", DType::F16, (200, 300, 520), 4),
    ("wgmma_sp_bf16_128x64x64_split4_boxes64_runs", "2:4", DType::BF16, (260, 3000, 136), 9),
];

#[test]
fn each_family_of_kernels_has_a_case() {
    for &(expected, text, dtype, (n, k, m), case) in FAMILIES.iter().chain(TURNED) {
        let w: Vec<f32> = (0..n * k).map(|at| (at * 7919 % 1009) as f32 / 1009.0 - 0.5).collect();
        let w = Tensor::from_f32(dtype, n, k, &w).expect("as long as its shape");
        let pattern = pattern(text, n, k, 0.25, dtype);
        let pruned = prune(&pattern, &w, &Magnitude).expect("a pattern prunes its own shape");
        let plan = KernelPlan::new(&gemm(&pattern, dtype, case), 90).expect("it is planned");
        let (least, tables) = plan.lay_out(&pruned).expect("it is laid out");
        let name = plan.choose(&TableShape::new(&least, &tables, [n, k]), m, Gpu::H200).name();
        assert!(name.contains(expected), "{text} {dtype} {n}/{k}/{m} runs {name}, expected {expected}");
    }
}

#[test]
fn each_family_on_cuda() {
    let Some(device) = cuda_or_skip() else { return };
    for &(_, text, dtype, shape, case) in FAMILIES {
        check(&device, text, dtype, shape, case);
    }
}

#[test]
fn turned_results_on_cuda() {
    let Some(device) = cuda_or_skip() else { return };
    for &(_, text, dtype, shape, case) in TURNED {
        check(&device, text, dtype, shape, case);
    }
}
