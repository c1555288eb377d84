//! Hopper's generated kernels run without a GPU: their text is compiled as C++ against an emulation of the primitives
//! (`emulator/emulate.h`), reads the tables that a GPU would read, and is compared with the oracle. It knows nothing of
//! speed or of the memory model, but of indices, barriers, buffers, epilogues and what a GPU may do late. A compiler for
//! C++20 is needed (`CXX`, or g++); without one, `[SKIP]`, or a failure with `FRACTAL_REQUIRE_CXX=1`.

#[allow(dead_code, reason = "the conformance suite uses the rest")]
mod support;

use fractal::cuda::{KernelPlan, TableShape, Traits};
use fractal::dsl::EpilogueOp;
use fractal::sched::codegen::{HEADERS, KernelConfig, Parameter, parameters};
use fractal::{DType, Gemm, Tensor};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::oracle::{Step, masked_gemm};
use support::{allowed, pattern, pruned, short_gelu};

/// A kernel takes seconds where threads are many and cores few.
const MOST_TIME: Duration = Duration::from_secs(180);

struct Case {
    pattern: &'static str,
    dtype: DType,
    shape: (usize, usize, usize),
    tokens: usize,
    split: usize,
    share: usize,
    /// Whether the weights stay in shared memory.
    resident: bool,
    epilogue: &'static [&'static str],
    /// Whether X holds infinities.
    infinite: bool,
    /// Whether rows of X come one by one though columns follow one another.
    rows_of_x: bool,
}

const CASES: &[Case] = &[
    case("tw:128", DType::F16, (300, 1100, 328), 256, 1, &["bias", "gelu"]),
    case("bw:128x64", DType::BF16, (200, 640, 136), 128, 1, &["bias", "relu", "residual"]),
    case("tw-global:128", DType::F16, (520, 600, 200), 64, 1, &[]),
    case("tw:64", DType::F16, (130, 500, 520), 512, 1, &["residual"]),
    case("tw:64", DType::BF16, (64, 576, 392), 128, 1, &["silu"]),
    case("tw:128", DType::F16, (200, 900, 72), 128, 2, &["bias"]),
    case("shfl-vw:32", DType::BF16, (300, 260, 136), 128, 4, &["bias"]),
    Case { infinite: true, ..case("ew", DType::F16, (150, 200, 136), 128, 1, &["bias"]) },
    Case { infinite: true, ..case("bw:128x64", DType::BF16, (200, 200, 136), 128, 1, &["bias", "gelu"]) },
    case("bw:128x32", DType::F16, (200, 800, 136), 128, 2, &["bias"]),
    Case { infinite: true, ..case("bw:32x32", DType::F16, (300, 640, 136), 128, 1, &["bias"]) },
    case("bw:64x16", DType::BF16, (130, 500, 392), 256, 1, &["relu"]),
    Case { rows_of_x: true, ..case("bw:128x64", DType::F16, (200, 640, 136), 128, 1, &[]) },
    Case { rows_of_x: true, ..case("2:4", DType::F16, (200, 300, 72), 64, 1, &[]) },
    case("tvw:128", DType::F16, (260, 1030, 136), 128, 1, &["bias", "residual"]),
    case("vnm:64", DType::BF16, (130, 520, 264), 256, 1, &[]),
    case("perm-2:4", DType::F16, (200, 300, 136), 128, 1, &["bias"]),
    case("2:4", DType::F16, (200, 300, 72), 64, 2, &["relu"]),
    Case { share: 2, ..case("tw:128", DType::F16, (300, 1100, 656), 256, 1, &["bias"]) },
    Case { share: 2, ..case("bw:128x64", DType::BF16, (260, 640, 800), 256, 1, &[]) },
    Case { share: 2, infinite: true, ..case("ew", DType::F16, (150, 200, 304), 256, 1, &["bias"]) },
    Case { infinite: true, ..case("tw:128", DType::F16, (200, 700, 520), 256, 1, &["bias"]) },
    case("tw-global:64", DType::BF16, (260, 900, 1040), 512, 1, &["bias", "relu"]),
    case("vnm:64", DType::F16, (200, 300, 648), 512, 1, &["residual"]),
    case("tw:64", DType::F16, (130, 900, 520), 256, 4, &["bias"]),
    resident("tw:128", DType::F16, (300, 700, 1000), &["bias", "gelu"]),
    resident("tw:128", DType::BF16, (600, 200, 520), &["bias", "residual"]),
    resident("bw:128x64", DType::F16, (200, 1800, 264), &[]),
    resident("shfl-vw:128", DType::BF16, (400, 640, 392), &["silu"]),
    case("tw:128+2%", DType::F16, (300, 1100, 328), 256, 1, &["bias", "gelu"]),
    case("tw-global:128+3%", DType::BF16, (300, 300, 136), 64, 1, &[]),
    case("tw:64+2%", DType::BF16, (130, 500, 520), 512, 1, &["residual"]),
    case("tw:128+3%", DType::F16, (200, 900, 72), 128, 2, &["bias"]),
    case("tw:128+3%", DType::BF16, (200, 900, 72), 64, 4, &["bias"]),
    case("bw:128x64+2%", DType::BF16, (200, 640, 136), 128, 1, &["bias", "relu", "residual"]),
    case("2:4+3%", DType::F16, (200, 300, 72), 64, 2, &["relu"]),
    case("tvw:128+2%", DType::BF16, (260, 530, 136), 256, 1, &["silu"]),
    Case { infinite: true, ..case("ew+3%", DType::F16, (150, 200, 136), 128, 1, &["bias"]) },
    Case { share: 2, ..case("tw:128+2%", DType::F16, (300, 600, 656), 256, 1, &["bias"]) },
    // Tiles of 64 rows, more of them than blocks or not; from 12 steps on in stages of half a step.
    resident("tw:64", DType::F16, (200, 1024, 520), &["bias"]),
    resident("tw:64", DType::BF16, (330, 1900, 1032), &["residual"]),
    resident("shfl-vw:64", DType::F16, (330, 2900, 520), &["relu"]),
    resident("tw:64", DType::BF16, (450, 3900, 776), &["bias", "gelu"]),
    resident("tw-global:64", DType::F16, (330, 1300, 264), &[]),
    resident("bw:64x64", DType::F16, (330, 1000, 520), &["bias", "relu"]),
    resident("bw:64x64", DType::BF16, (200, 3072, 776), &[]),
    resident("bw:64x64", DType::F16, (200, 4096, 264), &[]),
    resident("tw:64+2%", DType::BF16, (330, 2900, 264), &["bias"]),
    resident("bw:64x64+2%", DType::F16, (200, 1000, 520), &["residual"]),
    resident("tw:128+2%", DType::F16, (300, 700, 520), &["bias", "gelu"]),
    resident("bw:128x64+2%", DType::BF16, (200, 900, 264), &["residual"]),
    // With 2 of 4 kept: odd and even steps, by rows and by boxes.
    resident("tvw:128", DType::F16, (300, 700, 1000), &["bias", "gelu"]),
    resident("tvw:128", DType::BF16, (600, 300, 392), &["residual"]),
    resident("2:4", DType::F16, (300, 500, 264), &["bias"]),
    resident("2:4", DType::BF16, (200, 300, 520), &[]),
    Case { rows_of_x: true, ..resident("2:4", DType::F16, (200, 300, 392), &["silu"]) },
    resident("vnm:64", DType::F16, (200, 900, 520), &["bias"]),
    resident("vnm:64", DType::BF16, (330, 1990, 1032), &["residual"]),
    resident("perm-2:4", DType::BF16, (130, 400, 264), &["bias"]),
    // The boxes of tiles of 64 rows.
    resident("2:4", DType::F16, (64, 900, 1032), &["bias"]),
    resident("tvw:128+2%", DType::F16, (300, 700, 520), &["bias", "gelu"]),
    resident("2:4+3%", DType::BF16, (200, 300, 264), &["residual"]),
    // One tile of tokens: the weights of all stages come early.
    case("tw:128", DType::BF16, (260, 2600, 32), 64, 1, &["bias"]),
    case("tw-global:128", DType::F16, (300, 1000, 40), 64, 2, &["relu"]),
    case("bw:128x64", DType::F16, (260, 2600, 32), 64, 1, &["bias"]),
    case("bw:128x64", DType::BF16, (700, 600, 40), 64, 1, &[]),
    case("tw-global:128", DType::BF16, (700, 1100, 24), 64, 1, &["relu"]),
    Case { rows_of_x: true, ..case("2:4", DType::F16, (130, 1100, 64), 64, 1, &[]) },
    case("tvw:128", DType::BF16, (130, 1030, 128), 128, 1, &[]),
    // Rows one by one, in steps that lack none and others: of dense tiles, of resident weights, beside stored zeros.
    case("tw:128", DType::F16, (200, 2304, 136), 128, 1, &["bias"]),
    case("tw:128", DType::BF16, (200, 1280, 72), 64, 1, &[]),
    resident("tw:128", DType::F16, (200, 1024, 264), &["bias"]),
    resident("tw:128", DType::BF16, (200, 1800, 264), &[]),
    Case { infinite: true, ..case("ew", DType::F16, (150, 320, 136), 128, 1, &["bias"]) },
    Case { infinite: true, ..case("ew", DType::BF16, (64, 320, 520), 512, 1, &[]) },
];

const fn resident(
    pattern: &'static str,
    dtype: DType,
    shape: (usize, usize, usize),
    epilogue: &'static [&'static str],
) -> Case {
    Case { resident: true, ..case(pattern, dtype, shape, 128, 1, epilogue) }
}

const fn case(
    pattern: &'static str,
    dtype: DType,
    shape: (usize, usize, usize),
    tokens: usize,
    split: usize,
    epilogue: &'static [&'static str],
) -> Case {
    Case {
        pattern,
        dtype,
        shape,
        tokens,
        split,
        share: 1,
        resident: false,
        epilogue,
        infinite: false,
        rows_of_x: false,
    }
}

/// A compiler for C++; without one, the line that says so, or a failure with `FRACTAL_REQUIRE_CXX=1`.
fn compiler_or_skip() -> Option<String> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    if Command::new(&compiler).arg("--version").output().is_ok_and(|o| o.status.success()) {
        return Some(compiler);
    }
    let required = std::env::var_os("FRACTAL_REQUIRE_CXX").is_some_and(|value| value == "1");
    assert!(!required, "no C++ compiler `{compiler}`; set CXX");
    eprintln!("[SKIP] no C++ compiler `{compiler}`; set CXX");
    None
}

#[test]
fn residues_are_summed_in_every_width() {
    passes("residue");
}

#[test]
fn gelu_is_as_near_as_a_16_bit_result_can_tell() {
    passes("epilogue");
}

/// Compiles and runs a program of `tests/emulator` about the kernels' headers.
fn passes(name: &str) {
    let Some(compiler) = compiler_or_skip() else { return };
    let folder = tempfile::tempdir().unwrap();
    write_headers(folder.path());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/emulator/{name}.cpp"));
    let program = folder.path().join(name);
    compile(&compiler, folder.path(), &source, &program, name);
    let found = Command::new(program).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
}

#[test]
fn kernels_are_right_where_everything_comes_as_late_as_it_may() {
    let Some(compiler) = compiler_or_skip() else { return };
    for case in CASES {
        check(case, &compiler);
    }
}

fn check(case: &Case, compiler: &str) {
    let &Case { dtype, shape: (n, k, m), tokens, split, share, .. } = case;
    assert!(m.is_multiple_of(8), "rows of X are whole 16 bytes");
    let mut rng = StdRng::seed_from_u64(rand::random());
    let mut random = |len: usize| (0..len).map(|_| rng.random_range(-1.0f32..1.0)).collect::<Vec<f32>>();
    let tensor = |rows, columns, data: &[f32]| Tensor::from_f32(dtype, rows, columns, data).unwrap();
    let (w, bias, residual) = (tensor(n, k, &random(n * k)), random(n), tensor(n, m, &random(n * m)));
    let mut x = random(k * m);
    if case.infinite {
        x[m + 3] = f32::INFINITY;
        x[k / 2 * m + 70] = f32::NEG_INFINITY;
    }
    let x = tensor(k, m, &x);
    let steps: Vec<EpilogueOp> = case
        .epilogue
        .iter()
        .map(|&step| match step {
            "bias" => EpilogueOp::Bias("bias".into()),
            "residual" => EpilogueOp::Residual("residual".into()),
            "relu" => EpilogueOp::Relu,
            "gelu" => EpilogueOp::Gelu,
            _ => EpilogueOp::Silu,
        })
        .collect();
    let pattern = pattern(case.pattern, n, k, 0.25, dtype);
    let pruned = pruned(case.pattern, &pattern, &w);
    let plan = KernelPlan::new(&Gemm::new(pattern.clone(), dtype).with_epilogue(&steps), 90).unwrap();
    let (least, tables) = plan.lay_out(&pruned).unwrap();
    let found = TableShape::new(&least, &tables, [n, k]).traits;
    let traits = if case.rows_of_x { Traits { column_run: 0, ..found } } else { found };
    let longest = tables.begin.windows(2).map(|tile| (tile[1] - tile[0]) as usize).max().unwrap();
    let config = if case.resident {
        plan.resident_config(least.rows, traits, longest)
    } else {
        plan.hopper_config(least.rows, traits, tokens, [split, share])
    };
    let config = config.unwrap_or_else(|| panic!("{}: no kernel", case.pattern));
    let at = format!("{} {n}/{k}/{m} {}", case.pattern, config.name());

    let items = tables.blocks() * m.div_ceil(config.tokens * share);
    let grid = if split > 1 { items * split } else { items.min(3) * share };
    let words = |v: &[i32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let residue = tables.residue.clone().unwrap_or_default();
    let operands: Vec<Vec<u8>> = vec![
        words(&[n as i32, m as i32, tables.blocks() as i32, 2, grid as i32, k as i32]),
        halves(dtype, &x.to_f32()),
        halves(dtype, &tables.values),
        words(&tables.positions.iter().map(|&p| p as i32).collect::<Vec<_>>()),
        words(&tables.columns),
        words(&tables.begin),
        words(&tables.rows),
        bias.iter().flat_map(|v| v.to_le_bytes()).collect(),
        halves(dtype, &residual.to_f32()),
        residue.words().iter().flat_map(|word| word.to_le_bytes()).collect(),
        words(&residue.begin),
    ];
    let y = run(&plan, &config, compiler, &operands, n * m, dtype, &at);

    let mask = pruned.mask();
    let oracle_steps: Vec<Step> = steps
        .iter()
        .map(|step| match step {
            EpilogueOp::Bias(_) => Step::Bias(bias.clone()),
            EpilogueOp::Residual(_) => Step::Residual(residual.to_f32()),
            EpilogueOp::Relu => Step::Relu,
            EpilogueOp::Gelu => Step::Gelu,
            _ => Step::Silu,
        })
        .collect();
    let expected = masked_gemm(&w.to_f32(), &|r, c| mask.contains(r, c), &x.to_f32(), (n, k, m), &oracle_steps);
    for (place, &found) in y.iter().enumerate() {
        let (exact, found) = (expected.y[place], f64::from(found));
        let same = if exact.is_finite() {
            // What comes of an infinity is told by its own size.
            let magnitude = Some(expected.magnitude[place]).filter(|m| m.is_finite()).unwrap_or(0.0);
            (found - exact).abs() <= allowed(dtype, k, exact, magnitude) + short_gelu(dtype, &steps) * exact.abs()
        } else {
            exact == found || exact.is_nan() && found.is_nan()
        };
        assert!(same, "{at}: row {} token {} is {found}, expected {exact}", place / m, place % m);
    }
}

fn halves(dtype: DType, values: &[f32]) -> Vec<u8> {
    let bits = |v: f32| if dtype == DType::F16 { f16::from_f32(v).to_bits() } else { bf16::from_f32(v).to_bits() };
    values.iter().flat_map(|&v| bits(v).to_le_bytes()).collect()
}

/// Compiles the kernel as C++ and runs it on the operands, in the order of `main`.
fn run(
    plan: &KernelPlan,
    config: &KernelConfig,
    compiler: &str,
    operands: &[Vec<u8>],
    results: usize,
    dtype: DType,
    at: &str,
) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let source = plan.source(config).unwrap();
    let text = source.text.replace(
        "extern __shared__ __align__(1024) unsigned char shared[];",
        "unsigned char* const shared = emulated::shared(0, 0);",
    );
    // The instruction reads its positions while it runs.
    let text = text.replace("unsigned positions, int accumulate", "const unsigned& positions, int accumulate");
    let (before, rest) = text.split_once("extern \"C\" __global__ void ").unwrap();
    let rest = rest.split_once(&source.name).unwrap().1;
    let argument = |parameter: &Parameter| match parameter {
        Parameter::X => "(const T*)x.data()",
        Parameter::Y => "(T*)y.data()",
        Parameter::XMap => "TensorMap{x.data(), sizes[5], sizes[1], RUN, 64}",
        Parameter::YMap => "TensorMap{y.data(), sizes[0], sizes[1], 64, CHUNK}",
        Parameter::Values => "(const T*)values.data()",
        Parameter::Positions => "(const unsigned*)positions.data()",
        Parameter::PositionsMap => {
            "TensorMap{positions.data(), (int)(positions.size() / 4 / P_STAGE), P_STAGE, 1, P_STAGE}"
        }
        Parameter::Columns => "(const int*)columns.data()",
        Parameter::Begin => "(const int*)begin.data()",
        Parameter::Rows => "(const int*)rows.data()",
        Parameter::Restored => "(const Restored*)restored.data()",
        Parameter::RestoredBegin => "(const int*)restored_begin.data()",
        Parameter::Bias(_) => "(const float*)bias.data()",
        Parameter::Residual(_) => "(const T*)residual.data()",
        Parameter::Tiles => "sizes[2]",
        Parameter::Band => "sizes[3]",
        Parameter::N => "sizes[0]",
        Parameter::M => "sizes[1]",
    };
    let arguments: Vec<&str> = parameters(config).iter().map(argument).collect();
    let mut main = without_assembly(&format!("{before}void kernel{rest}"));
    let names =
        ["x", "values", "positions", "columns", "begin", "rows", "bias", "residual", "restored", "restored_begin"];
    let read: String = names.iter().map(|name| format!("    auto {name} = operand(in);\n")).collect();
    write!(
        main,
        "#include \"main.h\"
int main(int, char** files) {{
    FILE* in = fopen(files[1], \"rb\");
    auto head = operand(in);
    const int* sizes = (const int*)head.data();
{read}    std::vector<unsigned char> y({results} * 2, 0xff);
    launch(sizes[4], SPLIT * SHARE, {});
    FILE* out = fopen(files[2], \"wb\");
    return fwrite(y.data(), 1, y.size(), out) != y.size() || fclose(out);
}}
",
        arguments.join(", ")
    )
    .unwrap();
    write_headers(folder.path());
    std::fs::write(path("kernel.cpp"), main).unwrap();
    compile(compiler, folder.path(), &path("kernel.cpp"), &path("kernel"), at);
    let file: Vec<u8> = operands.iter().flat_map(|o| [&(o.len() as u64).to_le_bytes()[..], o].concat()).collect();
    std::fs::write(path("in"), file).unwrap();
    let mut child = Command::new(path("kernel")).args([path("in"), path("out")]).spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            // A barrier that nobody completes would wait for ever.
            None if start.elapsed() > MOST_TIME => {
                child.kill().unwrap();
                break child.wait().unwrap();
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert!(status.success(), "{at}: {status} after {:.1} s", start.elapsed().as_secs_f64());
    let bits = std::fs::read(path("out")).unwrap();
    let value = |b: u16| if dtype == DType::F16 { f16::from_bits(b).to_f32() } else { bf16::from_bits(b).to_f32() };
    bits.chunks_exact(2).map(|b| value(u16::from_le_bytes([b[0], b[1]]))).collect()
}

/// What kernels include: the emulation's own, and the real ones that are plain C++.
fn write_headers(folder: &Path) {
    std::fs::create_dir(folder.join("fractal")).unwrap();
    let real = |name: &str| HEADERS.iter().find(|(header, _)| *header == name).unwrap().1;
    let memory = real("fractal/memory.cuh");
    let swizzled = &memory[memory.find("template <int COLUMNS, int SIZE>").unwrap()..];
    for (name, text) in [
        ("types.cuh", "#pragma once\n#include \"types.h\"\n#include \"emulate.h\"\n".to_string()),
        ("memory.cuh", format!("#pragma once\nnamespace fractal {{\n{swizzled}")),
        ("hopper.cuh", "#pragma once\n".to_string()),
        ("epilogue.cuh", real("fractal/epilogue.cuh").to_string()),
        ("residue.cuh", real("fractal/residue.cuh").to_string()),
    ] {
        std::fs::write(folder.join("fractal").join(name), text).unwrap();
    }
}

fn compile(compiler: &str, folder: &Path, source: &Path, program: &Path, at: &str) {
    let emulator = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulator");
    let compiled = Command::new(compiler)
        .args(["-std=c++20", "-O2", "-w", "-pthread", "-I"])
        .arg(emulator)
        .arg("-I")
        .arg(folder)
        .arg("-o")
        .args([program, source])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{at}: {}", String::from_utf8_lossy(&compiled.stderr));
}

/// Each assembly statement as a call of its emulation.
fn without_assembly(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("asm") {
        let (before, statement) = rest.split_at(start);
        // Up to the end of the statement; strings in it hold no `);`.
        let end = statement.find(");").expect("it ends") + 2;
        let (statement, after) = statement.split_at(end);
        out.push_str(before);
        // What stands in parentheses behind a constraint.
        let operand = |number: usize| {
            let constraints = ["\"=r\"(", "\"=f\"(", "\"r\"(", "\"f\"("];
            let found =
                statement.match_indices('(').filter(|(i, _)| constraints.iter().any(|c| statement[..=*i].ends_with(c)));
            let open = found.map(|(i, _)| i + 1).nth(number).expect("an operand");
            let mut depth = 1;
            let len = statement[open..]
                .find(|c| {
                    depth += i32::from(c == '(') - i32::from(c == ')');
                    depth == 0
                })
                .expect("it closes");
            &statement[open..open + len]
        };
        if statement.contains("wgmma.mma_async.sp") {
            out.push_str("emulated::multiply_sparse<T, SELECTOR>(d, a, b, positions, accumulate);");
        } else if statement.contains("wgmma.mma_async") {
            out.push_str("emulated::multiply<T>(d, a, b, accumulate);");
        } else if statement.contains("cvt.rn.") {
            let _ = write!(out, "{} = emulated::pack<T>({}, {});", operand(0), operand(1), operand(2));
        } else if statement.contains("mov.f32 %0, 0f00000000") {
            let _ = write!(out, "{} = 0.0f;", operand(0));
        } else if statement.contains("ld.shared.u32") {
            let _ = write!(out, "{} = emulated::word({});", operand(0), operand(1));
        } else {
            assert!(statement.contains("\"\"") || statement.contains("cp.async.wait_all"), "not emulated: {statement}");
            out.push(';');
        }
        rest = after;
    }
    out + rest
}
