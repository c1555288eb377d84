//! The order of a kernel's pieces.

use super::{KernelConfig, Provenance, decode, ffma, hopper, load, mma_sp, mma_sync, store};
use fractal_dsl::{DType, Intrinsic};

/// A CUDA source: text, and the headers it includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaSource {
    /// The kernel's name.
    pub name: String,
    /// CUDA C++.
    pub text: String,
}

/// The device helpers, by the name in the `#include`.
pub const HEADERS: [(&str, &str); 7] = [
    ("fractal/types.cuh", include_str!("cuh/types.cuh")),
    ("fractal/memory.cuh", include_str!("cuh/memory.cuh")),
    ("fractal/mma.cuh", include_str!("cuh/mma.cuh")),
    ("fractal/decode.cuh", include_str!("cuh/decode.cuh")),
    ("fractal/hopper.cuh", include_str!("cuh/hopper.cuh")),
    ("fractal/epilogue.cuh", include_str!("cuh/epilogue.cuh")),
    ("fractal/residue.cuh", include_str!("cuh/residue.cuh")),
];

/// One parameter of a kernel, in the order of its signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// X[k, m].
    X,
    /// Y.
    Y,
    /// X as a map of boxes for the copy engine: [`KernelConfig::column_run`] rows by 64 tokens.
    XMap,
    /// Y as a map of boxes for the copy engine: 64 rows by [`KernelConfig::chunk`] tokens.
    YMap,
    /// Packed values, step by step.
    Values,
    /// Of 2-of-4 kernels: positions, step by step.
    Positions,
    /// The same as a map of rows for the copy engine, a step each.
    PositionsMap,
    /// Kept columns of each tile, padded to whole steps.
    Columns,
    /// The first step of each tile, and one past the last.
    Begin,
    /// Rows of each tile.
    Rows,
    /// Of kernels with a residue: restored elements, place by place of each eight rows ([`super::tables::RESIDUE_ROWS`]).
    Restored,
    /// The first place of each eight rows of the tiles, and one past the last.
    RestoredBegin,
    /// A bias operand.
    Bias(usize),
    /// A residual operand.
    Residual(usize),
    /// Tiles of rows, `int`: of kernels whose blocks take several.
    Tiles,
    /// Tiles that run on the same tokens together, `int`: of the same kernels.
    Band,
    /// Rows of W, `int`.
    N,
    /// Tokens, `int`.
    M,
}

/// The parameters of a kernel.
pub fn parameters(config: &KernelConfig) -> Vec<Parameter> {
    let mut parameters = vec![Parameter::X, Parameter::Y];
    if config.column_run > 0 {
        parameters.push(Parameter::XMap);
    }
    if config.runs {
        parameters.push(Parameter::YMap);
    }
    parameters.push(Parameter::Values);
    if config.position_bytes() > 0 {
        parameters.push(if config.is_hopper() { Parameter::PositionsMap } else { Parameter::Positions });
    }
    parameters.extend([Parameter::Columns, Parameter::Begin, Parameter::Rows]);
    if config.residue {
        parameters.extend([Parameter::Restored, Parameter::RestoredBegin]);
    }
    parameters.extend((0..config.biases()).map(Parameter::Bias));
    parameters.extend((0..config.residuals()).map(Parameter::Residual));
    if config.is_hopper() {
        parameters.push(Parameter::Tiles);
        if config.resident == 0 {
            parameters.push(Parameter::Band);
        }
    }
    parameters.extend([Parameter::N, Parameter::M]);
    parameters
}

fn declaration(parameter: Parameter) -> String {
    match parameter {
        Parameter::X => "const T* __restrict__ x".into(),
        Parameter::Y => "T* __restrict__ y".into(),
        Parameter::XMap => "const __grid_constant__ TensorMap x_map".into(),
        Parameter::YMap => "const __grid_constant__ TensorMap y_map".into(),
        Parameter::Values => "const T* __restrict__ values".into(),
        Parameter::Positions => "const unsigned* __restrict__ positions".into(),
        Parameter::PositionsMap => "const __grid_constant__ TensorMap p_map".into(),
        Parameter::Columns => "const int* __restrict__ columns".into(),
        Parameter::Begin => "const int* __restrict__ begin".into(),
        Parameter::Rows => "const int* __restrict__ rows".into(),
        Parameter::Restored => "const Restored* __restrict__ restored".into(),
        Parameter::RestoredBegin => "const int* __restrict__ restored_begin".into(),
        Parameter::Bias(number) => format!("const float* __restrict__ bias{number}"),
        Parameter::Residual(number) => format!("const T* __restrict__ residual{number}"),
        Parameter::Tiles => "int tiles".into(),
        Parameter::Band => "int band".into(),
        Parameter::N => "int n".into(),
        Parameter::M => "int m".into(),
    }
}

/// Writes the kernel of a configuration.
///
/// # Errors
/// What keeps the configuration from being a kernel ([`KernelConfig::check`]).
pub fn emit(config: &KernelConfig, provenance: &Provenance) -> Result<CudaSource, String> {
    config.check()?;
    let name = config.name();
    if let Some(decode) = config.decode {
        let pieces = [vec![head(config, provenance)], decode::kernel(config, decode, &name)].concat();
        return Ok(CudaSource { name, text: pieces.join("\n") });
    }
    if config.is_hopper() {
        let pieces = [
            head(config, provenance),
            constants(config),
            hopper::instruction(config),
            store::exact(config),
            signature(config, &name, "1"),
            hopper::body(config),
            "}\n".into(),
        ];
        return Ok(CudaSource { name, text: pieces.join("\n") });
    }
    if let Some(division) = &config.division {
        let pieces = [
            head(config, provenance),
            constants(config) + &ffma::constants(config, division),
            store::exact(config),
            signature(config, &name, &config.blocks_per_sm().to_string()),
            ffma::body(config, division, provenance),
            "}\n".into(),
        ];
        return Ok(CudaSource { name, text: pieces.join("\n") });
    }
    let multiply = match config.intrinsic {
        Intrinsic::MmaSp => mma_sp::multiply(config),
        _ => mma_sync::multiply(config),
    };
    let pieces = [
        head(config, provenance),
        constants(config),
        store::exact(config),
        signature(config, &name, "1"),
        place(config),
        load::stage(config, provenance),
        accumulators(),
        main_loop(&multiply),
        store::tile(config),
        "}\n".into(),
    ];
    Ok(CudaSource { name, text: pieces.join("\n") })
}

fn head(config: &KernelConfig, provenance: &Provenance) -> String {
    let statements: String = provenance.statements.iter().map(|s| format!("//   {s}\n")).collect();
    let title = &provenance.title;
    let used = |name: &str| match config.intrinsic {
        _ if name == "fractal/decode.cuh" => config.decode.is_some(),
        _ if name == "fractal/residue.cuh" => config.residue,
        Intrinsic::Wgmma | Intrinsic::WgmmaSp => name != "fractal/mma.cuh",
        Intrinsic::Ffma => name != "fractal/mma.cuh" && name != "fractal/hopper.cuh",
        _ => name != "fractal/hopper.cuh",
    };
    let headers: String =
        HEADERS.iter().filter(|(name, _)| used(name)).map(|(name, _)| format!("#include \"{name}\"\n")).collect();
    format!("// {title}\n{statements}// {config}\n{headers}\nusing namespace fractal;\n")
}

/// The storage type's name in CUDA.
pub(super) fn storage(config: &KernelConfig) -> &'static str {
    match config.dtype {
        DType::F32 => "float",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
    }
}

fn constants(config: &KernelConfig) -> String {
    let storage = storage(config);
    let (warp_rows, warp_tokens) = config.warp_tile();
    let KernelConfig { rows, tokens, step, stages, vector, .. } = config;
    let (stored, threads) = (config.stored_step(), config.threads());
    let whole = if config.division.is_some() { "tile" } else { "block" };
    let x_step = if config.is_hopper() { "X_STEP" } else { "STEP" };
    let positions = match config.position_bytes() {
        0 => String::new(),
        bytes => format!("constexpr int P_STAGE = {};            // words of positions a step\n", bytes / 4),
    };
    let warps = if config.is_hopper() {
        hopper::constants(config)
    } else {
        format!("constexpr int WARP_ROWS = {warp_rows};\nconstexpr int WARP_TOKENS = {warp_tokens};\n")
    };
    format!(
        "using T = {storage};
constexpr int ROWS = {rows};            // rows of W a {whole}
constexpr int TOKENS = {tokens};          // tokens a block
constexpr int STEP = {step};            // kept columns a step
constexpr int STORED = {stored};          // of which W stores
constexpr int STAGES = {stages};           // of X and W in flight
constexpr int VECTOR = {vector};           // elements of X a copy
{warps}{positions}constexpr int THREADS = {threads};
constexpr int X_STAGE = {x_step} * TOKENS;
constexpr int W_STAGE = ROWS * STORED;
"
    )
}

/// `least` is the number of blocks that a multiprocessor shall hold.
pub(super) fn signature(config: &KernelConfig, name: &str, least: &str) -> String {
    let cluster = if config.split * config.share > 1 { "__cluster_dims__(SPLIT * SHARE, 1, 1) " } else { "" };
    let declarations: Vec<String> = parameters(config).into_iter().map(declaration).collect();
    format!(
        "extern \"C\" __global__ void {cluster}__launch_bounds__(THREADS, {least})\n{name}(\n    {}) {{",
        declarations.join(",\n    ")
    )
}

fn place(config: &KernelConfig) -> String {
    let common = "    // parallel for tile, mo: one block each.
    const int tile = blockIdx.x;
    const int m0 = blockIdx.y * TOKENS;
    const int first = begin[tile], last = begin[tile + 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp % (ROWS / WARP_ROWS) * WARP_ROWS;
    const int warp_token = warp / (ROWS / WARP_ROWS) * WARP_TOKENS;
    extern __shared__ __align__(128) unsigned char shared[];
    T* const x_stages = (T*)shared;
    T* const w_stages = x_stages + STAGES * X_STAGE;
";
    let positions = if config.intrinsic == Intrinsic::MmaSp {
        "    unsigned* const p_stages = (unsigned*)(w_stages + STAGES * W_STAGE);\n"
    } else {
        ""
    };
    [common, positions].concat()
}

fn accumulators() -> String {
    "    float acc[WARP_ROWS / 16][WARP_TOKENS / 8][4] = {};\n".into()
}

fn main_loop(multiply: &str) -> String {
    format!(
        "    // A pipeline of STAGES steps: copies of later steps run while one is multiplied.
    for (int s = 0; s < STAGES - 1; ++s) {{
        load(s, first + s);
        commit_copies();
    }}
    int stage = 0;
    for (int step = first; step < last; ++step) {{
        wait_copies<STAGES - 2>();
        __syncthreads();
        const int ahead = step + STAGES - 1;
        load((stage + STAGES - 1) % STAGES, ahead);
        commit_copies();
        const T* const xs = x_stages + stage * X_STAGE;
        const T* const ws = w_stages + stage * W_STAGE;
{multiply}        stage = (stage + 1) % STAGES;
    }}
    wait_copies<0>();
"
    )
}
