//! The text of generated kernels, as it was before.

use fractal_dsl::pattern::Named;
use fractal_dsl::{DType, Intrinsic, Layout};
use fractal_sched::EpilogueStep;
use fractal_sched::codegen::{Decode, Division, KernelConfig, Provenance, emit, emit_transpose};

#[test]
fn generated_kernels_are_as_before() {
    let base = KernelConfig {
        intrinsic: Intrinsic::Ffma,
        dtype: DType::F32,
        rows: 128,
        tokens: 128,
        step: 16,
        stages: 3,
        split: 1,
        share: 1,
        resident: 0,
        vector: 4,
        decode: None,
        division: Some(Division { rows: 128, warp: (64, 32), groups: 1, columns: 32 }),
        output: Layout::FeatureMajor,
        runs: false,
        column_run: 0,
        stored_zeros: false,
        residue: false,
        epilogue: vec![],
    };
    let slab = Some(Division { rows: 64, warp: (64, 32), groups: 4, columns: 64 });
    let half = KernelConfig { dtype: DType::F16, step: 64, stages: 3, vector: 8, division: None, ..base.clone() };
    let bias_gelu = vec![EpilogueStep::Bias(0), EpilogueStep::Gelu];
    let residual = vec![EpilogueStep::Scale(0.5f32.to_bits()), EpilogueStep::Residual(0), EpilogueStep::Relu];
    for (file, name, keep, config) in [
        ("ffma", "tw:128", 0.25, KernelConfig { epilogue: residual.clone(), ..base.clone() }),
        (
            "ffma_covered",
            "ew",
            0.25,
            KernelConfig { stored_zeros: true, output: Layout::TokenMajor, vector: 1, division: slab, ..base.clone() },
        ),
        (
            "ffma_residue",
            "tw:128",
            0.24,
            KernelConfig { residue: true, stored_zeros: true, epilogue: residual.clone(), ..base.clone() },
        ),
        (
            "mma_sync_residue",
            "tw:128",
            0.24,
            KernelConfig {
                intrinsic: Intrinsic::MmaSync,
                residue: true,
                stored_zeros: true,
                epilogue: bias_gelu.clone(),
                ..half.clone()
            },
        ),
        (
            "mma_sp_residue",
            "2:4",
            0.5,
            KernelConfig { intrinsic: Intrinsic::MmaSp, stages: 4, vector: 2, residue: true, ..half.clone() },
        ),
        (
            "decode_residue",
            "tw:128",
            0.24,
            KernelConfig {
                intrinsic: Intrinsic::MmaSync,
                dtype: DType::BF16,
                tokens: 8,
                stages: 4,
                vector: 1,
                decode: Some(Decode { slab: 16, warps: 16 }),
                residue: true,
                stored_zeros: true,
                ..half.clone()
            },
        ),
        (
            "wgmma_residue",
            "tw:128",
            0.24,
            KernelConfig {
                intrinsic: Intrinsic::Wgmma,
                tokens: 128,
                stages: 4,
                residue: true,
                stored_zeros: true,
                epilogue: bias_gelu.clone(),
                ..half.clone()
            },
        ),
        (
            "wgmma_sp_residue",
            "tvw:128",
            0.24,
            KernelConfig {
                intrinsic: Intrinsic::WgmmaSp,
                dtype: DType::BF16,
                stages: 4,
                split: 2,
                runs: true,
                residue: true,
                ..half.clone()
            },
        ),
        (
            "wgmma_resident_residue",
            "bw:128x64",
            0.24,
            KernelConfig {
                intrinsic: Intrinsic::Wgmma,
                stages: 6,
                resident: 4,
                runs: true,
                column_run: 64,
                residue: true,
                epilogue: residual.clone(),
                ..half.clone()
            },
        ),
        ("mma_sync", "bw:128x64", 0.25, KernelConfig { intrinsic: Intrinsic::MmaSync, ..half.clone() }),
        (
            "decode",
            "tw:128",
            0.25,
            KernelConfig {
                intrinsic: Intrinsic::MmaSync,
                dtype: DType::BF16,
                tokens: 16,
                stages: 4,
                decode: Some(Decode { slab: 32, warps: 8 }),
                epilogue: residual.clone(),
                ..half.clone()
            },
        ),
        ("mma_sp", "2:4", 0.5, KernelConfig { intrinsic: Intrinsic::MmaSp, stages: 4, ..half.clone() }),
        (
            "wgmma",
            "tw:128",
            0.25,
            KernelConfig {
                intrinsic: Intrinsic::Wgmma,
                tokens: 256,
                stages: 4,
                share: 2,
                runs: true,
                epilogue: bias_gelu,
                ..half.clone()
            },
        ),
        (
            "wgmma_split",
            "tw:64",
            0.25,
            KernelConfig {
                intrinsic: Intrinsic::Wgmma,
                rows: 64,
                tokens: 128,
                split: 2,
                stored_zeros: true,
                ..half.clone()
            },
        ),
        (
            "wgmma_resident",
            "bw:128x64",
            0.25,
            KernelConfig {
                intrinsic: Intrinsic::Wgmma,
                stages: 6,
                resident: 4,
                runs: true,
                column_run: 64,
                epilogue: residual.clone(),
                ..half.clone()
            },
        ),
        (
            "wgmma_resident_rows",
            "tw:128",
            0.25,
            KernelConfig { intrinsic: Intrinsic::Wgmma, stages: 4, resident: 8, runs: true, ..half.clone() },
        ),
        (
            "wgmma_resident_half_steps",
            "tw:64",
            0.25,
            KernelConfig {
                intrinsic: Intrinsic::Wgmma,
                rows: 64,
                tokens: 256,
                stages: 5,
                resident: 16,
                runs: true,
                ..half.clone()
            },
        ),
        (
            "wgmma_sp_resident",
            "vnm:64",
            0.25,
            KernelConfig {
                intrinsic: Intrinsic::WgmmaSp,
                rows: 64,
                tokens: 256,
                stages: 4,
                resident: 8,
                runs: true,
                ..half.clone()
            },
        ),
        (
            "wgmma_early_boxes",
            "bw:128x64",
            0.25,
            KernelConfig {
                intrinsic: Intrinsic::Wgmma,
                tokens: 64,
                stages: 8,
                runs: true,
                column_run: 64,
                ..half.clone()
            },
        ),
        (
            "wgmma_sp_boxes",
            "2:4",
            0.5,
            KernelConfig {
                intrinsic: Intrinsic::WgmmaSp,
                tokens: 256,
                stages: 4,
                runs: true,
                column_run: 64,
                ..half.clone()
            },
        ),
        (
            "wgmma_sp_gather",
            "tvw:128",
            0.25,
            KernelConfig { intrinsic: Intrinsic::WgmmaSp, tokens: 256, stages: 4, ..half.clone() },
        ),
        (
            "wgmma_sp",
            "tvw:128",
            0.25,
            KernelConfig { intrinsic: Intrinsic::WgmmaSp, dtype: DType::BF16, stages: 6, epilogue: residual, ..half },
        ),
    ] {
        let pattern = name.parse::<Named>().unwrap().pattern(1024, 1024, keep).unwrap();
        let provenance = Provenance::of_pattern(format!("{name} of a 1024 x 1024 weight"), &pattern);
        let source = emit(&config, &provenance).unwrap();
        assert_eq!(source, emit(&config, &provenance).unwrap(), "the text is deterministic");
        golden(file, &source.text);
    }
    golden("transpose", &emit_transpose(DType::F16).text);
}

fn golden(file: &str, text: &str) {
    let path = format!("{}/tests/goldens/{file}.cu", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("FRACTAL_RENEW_GOLDENS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{file}.cu changed; renew with FRACTAL_RENEW_GOLDENS=1\n{text}");
}

#[test]
fn a_kernel_that_counts_pieces_of_x_in_32_bits_takes_no_more_tokens_than_they_reach() {
    let config = KernelConfig {
        intrinsic: Intrinsic::Wgmma,
        dtype: DType::F16,
        rows: 64,
        tokens: 512,
        step: 64,
        stages: 3,
        split: 1,
        share: 1,
        resident: 0,
        vector: 8,
        decode: None,
        division: None,
        output: Layout::FeatureMajor,
        runs: true,
        column_run: 0,
        stored_zeros: false,
        residue: false,
        epilogue: vec![],
    };
    let source = |config: &KernelConfig| emit(config, &Provenance::default()).unwrap().text;
    assert!(source(&config).contains("unsigned offset[4]"));
    // Nearly 64 GiB of 16-bit elements.
    assert_eq!(config.most_tokens(16384), (1 << 21) - 1);
    assert_eq!(config.most_tokens(0), 8 * (u32::MAX as usize));
    // With 2 of 4 kept, also where weights stay.
    let stays = KernelConfig { intrinsic: Intrinsic::WgmmaSp, tokens: 256, resident: 8, ..config.clone() };
    assert!(source(&stays).contains("unsigned offset[4]"));
    assert_eq!(stays.most_tokens(16384), (1 << 21) - 1);
    // Those with addresses of 64 bits, and the copy engine's boxes.
    for other in [
        KernelConfig { tokens: 256, rows: 128, ..config.clone() },
        KernelConfig { column_run: 64, ..config.clone() },
        KernelConfig { rows: 128, tokens: 128, ..stays.clone() },
        KernelConfig { column_run: 64, ..stays },
        KernelConfig { stored_zeros: true, runs: false, ..config },
    ] {
        assert!(!source(&other).contains("unsigned offset[4]"));
        assert_eq!(other.most_tokens(1), usize::MAX);
    }
}

#[test]
fn configurations_that_are_no_kernels_are_refused() {
    let config = KernelConfig {
        intrinsic: Intrinsic::MmaSync,
        dtype: DType::F32,
        rows: 128,
        tokens: 128,
        step: 32,
        stages: 3,
        split: 1,
        share: 1,
        resident: 0,
        vector: 4,
        decode: None,
        division: None,
        output: Layout::FeatureMajor,
        runs: false,
        column_run: 0,
        stored_zeros: false,
        residue: false,
        epilogue: vec![],
    };
    let error = |config: &KernelConfig| emit(config, &Provenance::default()).unwrap_err();
    assert_eq!(error(&config), "mma_sync: expected f16 or bf16, found f32");
    let ffma = KernelConfig { intrinsic: Intrinsic::Ffma, step: 16, ..config.clone() };
    assert_eq!(error(&ffma), "ffma: expected a division, found none");
    let uneven = Division { rows: 96, warp: (32, 32), groups: 1, columns: 16 };
    assert!(error(&KernelConfig { division: Some(uneven), ..ffma }).starts_with("division: expected warps"));
    let half = KernelConfig { dtype: DType::F16, ..config };
    assert_eq!(error(&KernelConfig { rows: 96, ..half.clone() }), "rows: expected 16, 32, 64 or 128, found 96");
    assert_eq!(
        error(&KernelConfig { vector: 3, ..half.clone() }),
        "vector: expected a power of two of at most 16 bytes, found 3"
    );
    // Numbers with which sizes would overflow or divide by zero.
    let absurd = KernelConfig { vector: 1 << 63, ..half.clone() };
    assert_eq!(error(&absurd), "vector: expected 1 to 8, found 9223372036854775808");
    let wgmma = KernelConfig { intrinsic: Intrinsic::Wgmma, step: 64, vector: 8, ..half.clone() };
    assert_eq!(error(&KernelConfig { split: 0, ..wgmma.clone() }), "split: expected 1 to 4, found 0");
    let crowded = vec![EpilogueStep::Silu, EpilogueStep::Residual(0)];
    assert!(error(&KernelConfig { tokens: 256, epilogue: crowded, ..wgmma }).starts_with("tokens: 256 leave no"));
    let decode = KernelConfig {
        intrinsic: Intrinsic::MmaSync,
        rows: 32,
        tokens: 16,
        decode: Some(Decode { slab: 64, warps: 8 }),
        ..half.clone()
    };
    assert!(error(&decode).starts_with("decode: expected"), "a slab higher than its tile");
    let shared = KernelConfig { split: 2, decode: Some(Decode { slab: 32, warps: 8 }), ..decode };
    assert!(error(&shared).starts_with("decode: expected no split"));
    assert!(
        error(&KernelConfig { intrinsic: Intrinsic::Wgmma, rows: 32, ..half }).starts_with("wgmma: expected 128 rows")
    );
}
