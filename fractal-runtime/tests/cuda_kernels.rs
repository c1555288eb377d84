//! Every kernel that the generator can make for the conformance suite, compiled for three architectures without a GPU.

use fractal_dsl::pattern::Named;
use fractal_dsl::{DType, Intrinsic, Layout, Program};
use fractal_runtime::Gemm;
use fractal_runtime::cuda::testing::compiler_or_skip;
use fractal_runtime::cuda::{Arch, KernelPlan, Multiplications, Options, Source, Traits, source_of};
use fractal_sched::EpilogueStep;
use fractal_sched::codegen::{Decode, KernelConfig, Provenance, emit, emit_transpose};
use std::sync::Mutex;

const ARCHS: [Arch; 3] = [Arch::AMPERE, Arch::HOPPER, Arch::BLACKWELL];

fn plan(name: &str, dtype: DType) -> KernelPlan {
    let named: Named = name.parse().unwrap();
    let pattern = named.pattern(256, 256, named.fixed_keep().unwrap_or(0.25)).unwrap();
    KernelPlan::new(&Gemm::new(pattern, dtype), 90).unwrap()
}

#[test]
fn the_instruction_follows_from_pattern_and_type() {
    for (name, half, single) in [
        ("tw:128", Intrinsic::MmaSync, Intrinsic::Ffma),
        ("bw:128x64", Intrinsic::MmaSync, Intrinsic::Ffma),
        ("2:4", Intrinsic::MmaSp, Intrinsic::Ffma),
        ("tvw:64", Intrinsic::MmaSp, Intrinsic::Ffma),
        ("vnm:64:2:8", Intrinsic::MmaSp, Intrinsic::Ffma),
        ("tvw:8", Intrinsic::MmaSync, Intrinsic::Ffma),
        ("ew", Intrinsic::MmaSync, Intrinsic::Ffma),
        ("vw:16", Intrinsic::MmaSync, Intrinsic::Ffma),
    ] {
        assert_eq!(plan(name, DType::BF16).intrinsic(), half, "{name}");
        assert_eq!(plan(name, DType::F32).intrinsic(), single, "{name}");
    }
    let pattern = "tw:64".parse::<Named>().unwrap().pattern(256, 256, 0.25).unwrap();
    let old = KernelPlan::new(&Gemm::new(pattern, DType::F16), 75).unwrap();
    assert_eq!(old.intrinsic(), Intrinsic::Ffma, "before sm_80 there are CUDA cores only");
}

const RUNS: Traits = Traits { runs: true, stored_zeros: false, column_run: 0, residue: false };

#[test]
fn a_kernel_cites_the_statements_of_its_program() {
    let program = Program::parse(
        "gemm feed_forward<M, N = 512, K = 256> {
            weight w: f16[N, K]; input x: f16[K, M]; output y: f16[N, M];
            y[n, m] += w[n, k] * x[k, m];
            schedule { let (no, ni) = split(n, 128); skip(k, per = no, keep = 25%); tensorize(ni, m, k, wgmma); }
        }",
    )
    .unwrap();
    let plan = KernelPlan::new(&Gemm::of(&program, 512, 256).unwrap(), 90).unwrap();
    let config = plan.hopper_config(128, RUNS, 128, [1, 1]).unwrap();
    let text = plan.source(&config).unwrap().text;
    let cited: Vec<&str> = text.lines().take(5).collect();
    assert_eq!(
        cited[..4],
        [
            "// feed_forward, 512 x 256 weight",
            "//   let (no, ni) = split(n, 128);",
            "//   skip(k, per = no, keep = 25%);",
            "//   tensorize(ni, m, k, wgmma);"
        ]
    );
}

/// Every combination of instruction, type and tile; epilogues, vectors and layouts in turn.
fn configs() -> Vec<KernelConfig> {
    let epilogues: [&[EpilogueStep]; 4] = [
        &[],
        &[EpilogueStep::Bias(0), EpilogueStep::Gelu],
        &[EpilogueStep::Bias(0), EpilogueStep::Relu, EpilogueStep::Residual(0)],
        &[EpilogueStep::Scale(0.25f32.to_bits()), EpilogueStep::Silu],
    ];
    let mut configs = Vec::new();
    for (name, dtypes) in [("tw:128", &[DType::F16, DType::BF16]), ("2:4", &[DType::F16, DType::BF16])] {
        for &dtype in dtypes {
            for rows in [16, 32, 64, 128] {
                for tokens in [16, 64, 128] {
                    let at = configs.len();
                    let vector = [16, 8, 4, 2][at % 4] / dtype.bytes();
                    let mut config = plan(name, dtype).config(rows, at % 2 == 1, tokens, vector.max(1));
                    config.epilogue = epilogues[at / 2 % 4].to_vec();
                    config.output = if at % 5 == 4 { Layout::TokenMajor } else { Layout::FeatureMajor };
                    if config.check().is_ok() {
                        configs.push(config);
                    }
                }
            }
        }
    }
    // CUDA cores: every division, with tables of its own height and of 128 rows; 16-bit types on old GPUs only.
    for dtype in [DType::F32, DType::F32, DType::F16, DType::BF16] {
        for rows in [16, 32, 64, 128] {
            for config in plan("tw:128", dtype).ffma_configs(rows, false, 1) {
                let at = configs.len();
                if config.division.is_some_and(|d| d.rows < rows) && (rows < 128 || dtype != DType::F32) {
                    continue;
                }
                configs.push(KernelConfig {
                    stored_zeros: at % 3 == 1,
                    vector: ([16, 16, 8, 16, 4][at % 5] / dtype.bytes()).max(1),
                    output: if at % 7 == 4 { Layout::TokenMajor } else { Layout::FeatureMajor },
                    epilogue: epilogues[at % 4].to_vec(),
                    ..config
                });
            }
        }
    }
    // Whatever Hopper's kernels may be chosen from: all tiles, clusters and ways to store, with crowded epilogues.
    let (bias, residual) = (EpilogueStep::Bias(0), EpilogueStep::Residual(0));
    let crowded: [&[EpilogueStep]; 3] = [
        &[bias, EpilogueStep::Silu, residual],
        &[bias, EpilogueStep::Gelu, residual],
        &[bias, EpilogueStep::Gelu, residual, EpilogueStep::Residual(1)],
    ];
    let traits = [
        RUNS,
        Traits { column_run: 16, ..RUNS },
        Traits { runs: false, ..RUNS },
        Traits { stored_zeros: true, ..RUNS },
        Traits { stored_zeros: true, column_run: 64, ..RUNS },
    ];
    for (name, dtype) in [("tw:128", DType::F16), ("2:4", DType::BF16)] {
        for (rows, traits) in [64, 128].into_iter().flat_map(|rows| traits.map(|traits| (rows, traits))) {
            for config in plan(name, dtype).hopper_configs(rows, traits) {
                for epilogue in epilogues.iter().chain(&crowded) {
                    let config = KernelConfig { epilogue: epilogue.to_vec(), ..config.clone() };
                    configs.extend(config.check().is_ok().then_some(config));
                }
            }
        }
    }
    // The other type differs in its conversions alone.
    let config = plan("tw:128", DType::BF16).hopper_config(128, RUNS, 256, [1, 1]).expect("it fits");
    configs.extend(epilogues.map(|epilogue| KernelConfig { epilogue: epilogue.to_vec(), ..config.clone() }));
    for (dtype, rows, steps) in [
        (DType::F16, 128, 4),
        (DType::BF16, 128, 8),
        (DType::BF16, 64, 4),
        (DType::F16, 64, 8),
        (DType::BF16, 64, 12),
        (DType::F16, 64, 16),
    ] {
        for (at, epilogue) in epilogues.iter().chain(&crowded).enumerate() {
            for runs in [true, false] {
                let traits = Traits { runs, column_run: [0, 64, 8][at % 3], ..RUNS };
                let config = plan("tw:128", dtype).resident_config(rows, traits, steps).expect("it fits");
                let config = KernelConfig { epilogue: epilogue.to_vec(), ..config };
                configs.extend(config.check().is_ok().then_some(config));
            }
        }
    }
    let sparse = [(DType::F16, 128, 4), (DType::BF16, 128, 8), (DType::BF16, 64, 8), (DType::F16, 64, 16)];
    for (dtype, rows, steps) in sparse {
        for epilogue in epilogues.iter().chain(&crowded) {
            for (runs, column_run) in [(true, 0), (true, 64), (false, 0), (false, 64)] {
                let traits = Traits { runs, column_run, ..RUNS };
                let config = plan("2:4", dtype).resident_config(rows, traits, steps).expect("it fits");
                let config = KernelConfig { epilogue: epilogue.to_vec(), ..config };
                configs.extend(config.check().is_ok().then_some(config));
            }
        }
    }
    // Small boxes, where a schedule asks for them; and boxes with the epilogues that the turns above leave out.
    let boxes = Traits { column_run: 64, ..RUNS };
    for (epilogue, steps) in epilogues.iter().flat_map(|epilogue| [(epilogue, 4), (epilogue, 12)]) {
        let config = plan("bw:64x64", DType::BF16).resident_config(64, boxes, steps).expect("it fits");
        configs.extend([64, 16].map(|column_run| KernelConfig {
            column_run,
            epilogue: epilogue.to_vec(),
            ..config.clone()
        }));
    }
    for (at, (tokens, vector)) in
        [8, 16, 32].into_iter().flat_map(|tokens| [1, 2, 4, 8].map(|vector| (tokens, vector))).enumerate()
    {
        // Blocks of 64 rows are for 32 tokens.
        for slab in [16, 32, 64].into_iter().filter(|&slab| slab < 64 || tokens == 32) {
            for warps in [8, 16] {
                let (dtype, zeros) = ([DType::F16, DType::BF16][at % 2], (at + slab / 32) % 2 == 1);
                let config = plan("tw:128", dtype)
                    .decode_config(128, zeros, tokens, vector, Decode { slab, warps })
                    .expect("it fits");
                let output = if warps == 16 { Layout::TokenMajor } else { Layout::FeatureMajor };
                let epilogue = epilogues[(at + slab / 16) % 4].to_vec();
                configs.push(KernelConfig { epilogue, output, ..config });
            }
        }
    }
    configs
}

/// The same with elements on top of the tiles: on Hopper all residents, and of the rest with the epilogues of most and of least
/// registers every other one; elsewhere some.
fn configs_with_residue() -> Vec<KernelConfig> {
    let chosen = |at: usize, config: &KernelConfig| {
        let ends =
            config.epilogue.is_empty() || config.residuals() > 0 && !config.epilogue.contains(&EpilogueStep::Silu);
        let every = config.resident > 0;
        if config.is_hopper() { every || ends && at.is_multiple_of(2) } else { at.is_multiple_of(3) }
    };
    let configs = configs().into_iter().enumerate().filter(|(at, config)| chosen(*at, config));
    let with = configs.map(|(_, config)| KernelConfig { residue: true, ..config });
    with.filter(|config| config.check().is_ok()).collect()
}

fn sources(configs: &[KernelConfig]) -> Vec<(Intrinsic, Source)> {
    assert!(configs.len() > 50, "{}", configs.len());
    let source = |c: &KernelConfig| emit(c, &Provenance::default()).unwrap_or_else(|e| panic!("{c}: {e}"));
    configs.iter().map(|c| (c.intrinsic, source_of(&source(c)))).collect()
}

#[test]
fn every_kernel_compiles_without_spills() {
    let mut sources = sources(&configs());
    sources.extend([DType::F32, DType::F16].map(|dtype| (Intrinsic::Ffma, source_of(&emit_transpose(dtype)))));
    compile(&sources);
}

#[test]
fn every_kernel_with_a_residue_compiles_without_spills() {
    compile(&sources(&configs_with_residue()));
}

fn compile(sources: &[(Intrinsic, Source)]) {
    let Some(compiler) = compiler_or_skip() else { return };
    let work: Vec<_> = sources
        .iter()
        .flat_map(|(intrinsic, source)| ARCHS.map(|arch| (*intrinsic, source, arch)))
        .filter(|(intrinsic, _, arch)| !intrinsic.is_arch_specific() || *arch == Arch::HOPPER)
        .collect();
    let (next, failures) = (Mutex::new(work.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                loop {
                    let Some((intrinsic, source, arch)) = next.lock().unwrap().next() else { return };
                    let compiled = compiler.compile(source, *arch, &Options::default());
                    match compiled {
                        Ok(cubin) => {
                            // The compiler waits for each wgmma where it cannot follow the registers.
                            if cubin.log().contains("are serialized") {
                                let reason =
                                    cubin.log().lines().find(|l| l.contains("are serialized")).unwrap_or_default();
                                failures.lock().unwrap().push(format!("{arch}: {reason}"));
                            }
                            // The instruction that the name tells is the one that was emitted.
                            let Multiplications { ffma, mma, wgmma } = cubin.kernels()[0].multiplications;
                            let emitted = match intrinsic {
                                Intrinsic::Wgmma | Intrinsic::WgmmaSp => wgmma > 0 && mma == 0,
                                Intrinsic::MmaSync | Intrinsic::MmaSp => mma > 0 && wgmma == 0,
                                _ => source.name.starts_with("transpose") || ffma > 0 && mma + wgmma == 0,
                            };
                            if !emitted && *arch != Arch::BLACKWELL {
                                let found = format!("{ffma} FFMA, {mma} HMMA, {wgmma} HGMMA");
                                failures.lock().unwrap().push(format!("{arch} {}: {found}", source.name));
                            }
                            for kernel in cubin.kernels().iter().filter(|k| k.spills()) {
                                let statement = source.text.lines().nth(1).unwrap_or_default();
                                failures.lock().unwrap().push(format!("{arch}: {kernel} {statement}"));
                            }
                        }
                        Err(error) => failures.lock().unwrap().push(format!("{arch} {}: {error}", source.name)),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), work.len(), failures.join("\n"));
    println!("{} cubins without spills", work.len());
}
