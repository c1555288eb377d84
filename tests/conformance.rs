//! One suite for every backend: all patterns, types and odd shapes against the oracle, on poisoned results and fresh data.
//!
//! A backend joins with one line at the end of this file.

mod support;

use fractal::cuda::{Gpu, KernelPlan, TableShape};
use fractal::sched::Form;
use fractal::sched::codegen::KernelConfig;
use fractal::{DType, Device, Error, Gemm, KernelRequest, Tensor};
use rayon::prelude::*;
use support::{
    FEW_TOKENS, LARGE, PATTERNS, RESIDUES, SHAPES, check, check_gemm, check_infinity, check_unkept_activations,
    cuda_or_skip, gemm, pattern, pruned,
};

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
            fn residues() {
                let Some(device) = $device else { return };
                let cases = RESIDUES.len() * SHAPES.len();
                // At once: nearly every case compiles a kernel of its own.
                (0..cases).into_par_iter().for_each(|case| {
                    let (p, s) = (case % RESIDUES.len(), case / RESIDUES.len());
                    let (n, k, m) = SHAPES[s];
                    if n * k * m <= $most {
                        check(&device, RESIDUES[p], DType::ALL[(p + s) % 3], (n, k, m), p + s);
                        check(&device, RESIDUES[p], DType::ALL[(p + s + 1) % 3], (n, k, m), p + s + 1);
                    }
                });
                let few = ["tw:128+2%", "bw:32x16+6%"];
                (0..few.len() * FEW_TOKENS.len()).into_par_iter().for_each(|case| {
                    let (p, s) = (case % few.len(), case / few.len());
                    let (n, k, m) = FEW_TOKENS[s];
                    if n * k * m <= $most {
                        check(&device, few[p], DType::ALL[1 + (p + s) % 2], (n, k, m), p + s);
                    }
                });
                RESIDUES.par_iter().for_each(|text| {
                    for (dtype, m) in DType::ALL.into_iter().flat_map(|dtype| [33, 5, 72].map(|m| (dtype, m))) {
                        check_unkept_activations(&device, text, dtype, (70, 90, m));
                        check_infinity(&device, text, dtype, (70, 90, m));
                    }
                });
            }

            #[test]
            fn large_residues() {
                let Some(device) = $device else { return };
                for (p, text) in RESIDUES.iter().enumerate() {
                    for (s, &(n, k, m)) in LARGE.iter().enumerate().filter(|(_, (n, k, m))| n * k * m <= $most) {
                        check(&device, text, DType::ALL[(p + s) % 3], (n, k, m), p + s);
                        check(&device, text, DType::ALL[1 + (p + s) % 2], (n, k, m), p + s + 1);
                    }
                }
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
    // Weights of more steps than stages, each of which comes but once.
    ("wgmma_bf16_128x64x64", "tw:128", DType::BF16, (8600, 2500, 32), 1),
    ("wgmma_f16_128x64x64_boxes64", "bw:128x64", DType::F16, (8600, 2560, 24), 2),
    ("resident", "tw:128", DType::F16, (2100, 700, 1032), 1),
    ("resident4_boxes64", "bw:128x64", DType::BF16, (2100, 600, 1032), 3),
    ("resident4", "tw:64", DType::F16, (1300, 700, 3000), 1),
    ("wgmma_bf16_128x256x64_runs", "tw:128", DType::BF16, (4200, 8200, 2048), 1),
    ("wgmma_f16_128x256x64_boxes64_runs", "bw:128x64", DType::F16, (4200, 8200, 2048), 2),
    ("boxes16", "bw:64x16", DType::F16, (200, 300, 520), 1),
    // Blocks whose columns come in an order that many tiles share; of 32 rows, of which those alike share a block.
    ("boxes32_covered", "bw:32x32", DType::F16, (600, 1000, 520), 1),
    ("wgmma_bf16_64x", "bw:64x64", DType::BF16, (600, 1000, 520), 3),
    ("decode", "bw:128x64", DType::BF16, (600, 1000, 8), 2),
    ("wgmma_bf16_128x", "bw:128x64", DType::BF16, (260, 300, 1000), 2),
    ("wgmma_f16_64x", "tw:64", DType::F16, (200, 300, 520), 2),
    ("wgmma_f16", "shfl-vw:32", DType::F16, (260, 300, 264), 9),
    ("covered", "ew", DType::F16, (260, 300, 264), 5),
    ("split", "tw:128", DType::F16, (256, 3000, 264), 1),
    ("wgmma_sp_f16_128x", "tvw:128", DType::F16, (4200, 300, 1032), 3),
    ("wgmma_sp_bf16", "2:4", DType::BF16, (260, 3000, 136), 5),
    ("wgmma_sp_f16_64x", "vnm:64", DType::F16, (200, 300, 520), 2),
    ("wgmma_sp_bf16_64x256x64_resident8", "vnm:64", DType::BF16, (8600, 900, 1032), 1),
    // With a residue; shapes small enough that most columns are met twice.
    ("gemm_ffma_f32", "tw:128+2%", DType::F32, (260, 300, 264), 1),
    ("gemm_ffma_f32", "tw:32+5%", DType::F32, (70, 90, 33), 4),
    ("gemm_ffma_f32", "ew+3%", DType::F32, (130, 140, 12), 2),
    ("mma_sync_f16", "bw:32x16+2%", DType::F16, (130, 170, 130), 2),
    ("mma_sync_bf16", "tw:128+2%", DType::BF16, (260, 300, 129), 9),
    ("mma_sp_f16", "2:4+3%", DType::F16, (130, 200, 75), 1),
    ("decode", "tw:128+2%", DType::BF16, (300, 700, 1), 1),
    ("decode", "bw:32x16+2%", DType::F16, (130, 500, 8), 2),
    ("decode", "tw:64+2%", DType::BF16, (400, 700, 32), 4),
    ("wgmma_f16_128x", "tw:128+2%", DType::F16, (4200, 300, 1032), 1),
    ("resident", "tw:128+2%", DType::F16, (2100, 700, 1032), 1),
    ("resident4_boxes64", "bw:128x64+2%", DType::BF16, (2100, 600, 1032), 3),
    ("wgmma_f16_64x", "tw:64+2%", DType::F16, (200, 300, 520), 2),
    ("covered_residue", "ew+2%", DType::F16, (260, 300, 264), 5),
    ("split", "tw:128+2%", DType::F16, (256, 3000, 264), 1),
    ("wgmma_sp_f16_128x", "tvw:128+2%", DType::F16, (4200, 300, 1032), 3),
    ("wgmma_sp_bf16", "2:4+2%", DType::BF16, (260, 3000, 136), 5),
    ("wgmma_sp_f16_128x", "perm-2:4", DType::F16, (260, 3000, 1032), 5),
    ("wgmma_sp_bf16_64x", "perm-vnm:64", DType::BF16, (200, 300, 520), 2),
    ("mma_sp_f16", "perm-2:4", DType::F16, (130, 200, 75), 1),
];

/// Results that boxes have stored are turned: compute-sanitizer's initcheck takes what the copy engine stores for not set.
const TURNED: &[Family] = &[
    ("wgmma_f16_64x128x64_runs", "tw:64", DType::F16, (200, 300, 520), 4),
    ("wgmma_sp_bf16_128x64x64_split4_boxes64_runs", "2:4", DType::BF16, (260, 3000, 136), 9),
];

/// The kernel that a GPU of this compute capability runs, or why there is none.
fn chosen_config(text: &str, gemm: &Gemm, m: usize, sm: u32) -> Result<KernelConfig, Error> {
    let (n, k, dtype) = (gemm.pattern().n(), gemm.pattern().k(), gemm.dtype());
    let w: Vec<f32> = (0..n * k).map(|at| (at * 7919 % 1009) as f32 / 1009.0 - 0.5).collect();
    let w = Tensor::from_f32(dtype, n, k, &w)?;
    let plan = KernelPlan::new(gemm, sm)?;
    let (least, tables) = plan.lay_out(&pruned(text, gemm.pattern(), &w))?;
    plan.choose(&TableShape::new(&least, &tables, [n, k]), m, Gpu::H200)
}

/// Its name.
fn chosen(text: &str, gemm: &Gemm, m: usize, sm: u32) -> Result<String, Error> {
    Ok(chosen_config(text, gemm, m, sm)?.name())
}

#[test]
fn each_family_of_kernels_has_a_case() {
    for &(expected, text, dtype, (n, k, m), case) in FAMILIES.iter().chain(TURNED) {
        let name = chosen(text, &gemm(&pattern(text, n, k, 0.25, dtype), dtype, case), m, 90).expect("it is chosen");
        assert!(name.contains(expected), "{text} {dtype} {n}/{k}/{m} runs {name}, expected {expected}");
        assert_eq!(name.ends_with("_residue"), text.contains('+'), "{text} runs {name}");
    }
}

/// Part of a kernel's name; pattern, type and shape; the statements that ask for it.
type Asked = (&'static str, &'static str, DType, (usize, usize, usize), &'static str);

/// Each is another kernel than the one that would be chosen. None has token-major operands ([`TURNED`] says why).
const ASKED: &[Asked] = &[
    ("gemm_ffma_f16", "tw:128", DType::F16, (130, 170, 64), "tensorize(n, m, k, ffma)"),
    ("gemm_ffma_f32_32x64x16", "tw:128", DType::F32, (260, 300, 264), "tile(n, 32); tile(m, 64)"),
    ("gemm_mma_sync_f16_128x32x64", "tw:128", DType::F16, (260, 300, 264), "tensorize(n, m, k, mma_sync)"),
    ("gemm_mma_sync_f16_32x16x64", "tw:128", DType::F16, (260, 300, 264), "tile(n, 32); tile(m, 16); pipeline(2)"),
    ("gemm_mma_sync_bf16", "2:4", DType::BF16, (260, 300, 136), "tensorize(n, m, k, mma_sync)"),
    ("gemm_mma_sp_bf16", "2:4", DType::BF16, (260, 300, 136), "tensorize(n, m, k, mma_sp)"),
    ("gemm_mma_sync_bf16_128x16x64_decode", "tw:128", DType::BF16, (300, 700, 4), "tile(m, 16)"),
    ("gemm_wgmma_bf16", "2:4", DType::BF16, (260, 300, 136), "tensorize(n, m, k, wgmma)"),
    ("gemm_wgmma_bf16", "tw:128", DType::BF16, (260, 300, 16), "tensorize(n, m, k, wgmma)"),
    ("gemm_wgmma_sp_f16_64x", "tvw:128", DType::F16, (260, 300, 136), "tile(n, 64); tensorize(n, m, k, wgmma_sp)"),
    ("gemm_wgmma_f16_64x512x64", "tw:128", DType::F16, (260, 300, 1032), "tile(n, 64); tile(m, 512)"),
    ("gemm_wgmma_f16_128x128x64_split4", "tw:128", DType::F16, (260, 900, 264), "tile(m, 128); cluster(k, 4)"),
    ("gemm_wgmma_f16_128x256x64_share2", "tw:128", DType::F16, (260, 3000, 1032), "cluster(m, 2)"),
    ("resident4", "tw:128", DType::F16, (260, 900, 264), "resident(w)"),
    // More tiles than multiprocessors.
    ("64x256x64_resident4", "tw:64", DType::F16, (8600, 900, 1032), "tile(n, 64); resident(w)"),
    ("64x256x64_resident8", "tw:64", DType::BF16, (260, 1900, 264), "resident(w)"),
    (
        "64x256x64_resident4_boxes16",
        "bw:64x16",
        DType::BF16,
        (260, 900, 520),
        "tile(n, 64); condense(x, 16); resident(w)",
    ),
    ("64x256x64_resident4_boxes64", "bw:64x64", DType::F16, (260, 900, 1032), "tile(n, 64); resident(w)"),
    ("64x256x64_resident12", "tw:64", DType::F16, (260, 2900, 520), "resident(w)"),
    ("64x256x64_resident12_boxes64", "bw:64x64", DType::BF16, (260, 2900, 520), "resident(w)"),
    ("64x256x64_resident16", "tw:64", DType::BF16, (260, 3900, 520), "resident(w)"),
    ("64x256x64_resident16", "bw:64x64+2%", DType::F16, (260, 3900, 264), "resident(w)"),
    ("wgmma_sp_f16_128x128x64_resident4", "tvw:128", DType::F16, (260, 500, 264), "resident(w)"),
    ("wgmma_sp_f16_128x128x64_resident8", "tvw:128+2%", DType::F16, (390, 900, 1032), "resident(w)"),
    ("wgmma_sp_bf16_128x128x64_resident8_boxes64", "2:4", DType::BF16, (260, 500, 264), "resident(w)"),
    (
        "wgmma_sp_bf16_64x256x64_resident4",
        "2:4",
        DType::BF16,
        (260, 200, 264),
        "tile(n, 64); condense(x, 1); resident(w)",
    ),
    ("wgmma_sp_f16_64x256x64_resident16_boxes64", "2:4", DType::F16, (260, 900, 520), "tile(n, 64); resident(w)"),
    ("wgmma_sp_f16_64x256x64_resident16", "vnm:64", DType::F16, (330, 1900, 520), "resident(w)"),
    ("wgmma_sp_f16_64x256x64_resident12", "tvw:64", DType::F16, (330, 1500, 520), "resident(w)"),
    ("128x64x64_runs", "bw:128x64", DType::F16, (260, 900, 264), "tile(m, 64); cluster(k, 1); condense(x, 1)"),
    ("boxes16_runs", "bw:128x64", DType::F16, (260, 900, 264), "condense(x, 16)"),
    ("gemm_ffma_f16", "tw:128+2%", DType::F16, (130, 170, 64), "tensorize(n, m, k, ffma)"),
    ("gemm_mma_sync_f16_128x32x64", "tw:128+2%", DType::F16, (260, 300, 264), "tensorize(n, m, k, mma_sync)"),
    ("gemm_mma_sync_f16_32x16x64", "tw:128+2%", DType::F16, (260, 300, 264), "tile(n, 32); tile(m, 16); pipeline(2)"),
    ("gemm_mma_sp_bf16", "2:4+3%", DType::BF16, (260, 300, 136), "tensorize(n, m, k, mma_sp)"),
    ("gemm_wgmma_f16_64x512x64", "tw:128+2%", DType::F16, (260, 300, 1032), "tile(n, 64); tile(m, 512)"),
    ("gemm_wgmma_f16_128x128x64_split4", "tw:128+2%", DType::F16, (260, 900, 264), "tile(m, 128); cluster(k, 4)"),
    ("gemm_wgmma_f16_128x256x64_share2", "tw:128+2%", DType::F16, (260, 3000, 1032), "cluster(m, 2)"),
    ("gemm_wgmma_bf16_128x256x64_share2_boxes64", "bw:128x64", DType::BF16, (260, 3000, 1032), "cluster(m, 2)"),
];

/// The number of a case of [`ASKED`], which says what epilogue it has.
fn number(case: usize) -> usize {
    case / 4 * 5 + case % 4
}

fn asked(text: &str, dtype: DType, (n, k): (usize, usize), schedule: &str, case: usize) -> Gemm {
    let gemm = gemm(&pattern(text, n, k, 0.25, dtype), dtype, case);
    gemm.with_schedule(schedule).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_schedule_chooses_its_kernel() {
    for (at, &(expected, text, dtype, (n, k, m), schedule)) in ASKED.iter().enumerate() {
        let case = number(at);
        let name = chosen(text, &asked(text, dtype, (n, k), schedule, case), m, 90);
        let name = name.unwrap_or_else(|error| panic!("{text} {schedule}: {error}"));
        assert!(name.contains(expected), "{text} {schedule} runs {name}, expected {expected}");
        let open = chosen(text, &gemm(&pattern(text, n, k, 0.25, dtype), dtype, case), m, 90).expect("it is chosen");
        assert_ne!(name, open, "{text} {schedule} is what runs anyway");
    }
}

#[test]
fn every_chosen_kernel_can_be_asked_for() {
    for &(_, text, dtype, (n, k, m), case) in FAMILIES.iter().chain(TURNED) {
        let gemm = gemm(&pattern(text, n, k, 0.25, dtype), dtype, case);
        let config = chosen_config(text, &gemm, m, 90).expect("it is chosen");
        let asked = gemm.with_request(KernelRequest::of_config(&config));
        let again = chosen_config(text, &asked, m, 90).unwrap_or_else(|error| panic!("{}: {error}", config.name()));
        assert_eq!(again, config, "{text} {dtype} {n}/{k}/{m}");
    }
}

#[test]
fn a_schedule_that_no_kernel_follows_is_told() {
    for (text, dtype, (n, k, m), schedule, sm, expected) in [
        (
            "tw:128",
            DType::F16,
            (260, 300, 264),
            "tensorize(n, m, k, wgmma)",
            80,
            "wgmma is of sm_90 alone, and this GPU is sm_80; it runs f16 with ffma, mma_sync, mma_sp",
        ),
        (
            "tw:128",
            DType::F16,
            (260, 300, 264),
            "tensorize(n, m, k, mma_sync)",
            75,
            "mma_sync is of sm_80 and later, and this GPU is sm_75; it runs f16 with ffma",
        ),
        (
            "tw:128",
            DType::F16,
            (260, 300, 12),
            "tensorize(n, m, k, wgmma)",
            90,
            "its copies need a multiple of 8 tokens, found 12; add tokens, or leave the instruction open",
        ),
        (
            "tw:128",
            DType::F16,
            (260, 300, 264),
            "tile(n, 96)",
            90,
            "expected a tile of [16, 32, 64, 128] rows, found 96",
        ),
        (
            "tw:128",
            DType::F16,
            (260, 300, 264),
            "tile(m, 96)",
            90,
            "no kernel for this weight and 264 tokens is so; there are:\n  tile(n, 128); tile(m, 128); tile(k, 64);",
        ),
        (
            "tw:128",
            DType::F16,
            (260, 300, 264),
            "condense(x, 16)",
            90,
            "no kernel for this weight and 264 tokens is so",
        ),
        ("tw:128", DType::F16, (260, 8000, 264), "resident(w)", 90, "asked for resident(w): no kernel for this weight"),
    ] {
        let error = chosen(text, &asked(text, dtype, (n, k), schedule, 0), m, sm).expect_err(schedule).to_string();
        assert!(error.starts_with("schedule: asked for ") && error.contains(expected), "{schedule}: {error}");
    }
}

#[test]
fn asked_kernels_on_cuda() {
    let Some(device) = cuda_or_skip() else { return };
    for (at, &(expected, text, dtype, (n, k, m), schedule)) in ASKED.iter().enumerate() {
        let case = number(at);
        let layer = check_gemm(&device, text, &asked(text, dtype, (n, k), schedule, case), m, case);
        // The machine code holds what the name says: this fails otherwise.
        let told = layer.explain(m).unwrap_or_else(|error| panic!("{text} {schedule}: {error}"));
        assert!(told.contains(expected), "{text} {schedule} runs {told}");
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
