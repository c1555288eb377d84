//! The epilogue on each sum, and its store.

use super::{KernelConfig, residue};
use crate::schedule::EpilogueStep;
use fractal_dsl::{DType, Intrinsic, Layout};

/// Everything after the main loop.
pub(super) fn tile(config: &KernelConfig) -> String {
    [finish(config), visit(config)].concat()
}

/// A sum without the stored zeros: zero times an infinity is no zero, so a sum that is not finite is taken again. It is a
/// function of its own: inlined, it would be compiled once for each element of a thread.
pub(super) fn exact(config: &KernelConfig) -> String {
    if !config.stored_zeros {
        return String::new();
    }
    let place = match config.intrinsic {
        Intrinsic::Ffma => "q * ROWS + row",
        _ => "swizzled<STORED, sizeof(T)>(row, q)",
    };
    // A call would make the compiler wait for each wgmma; there the function is met once only.
    let inline = if config.is_hopper() { "__forceinline__" } else { "__noinline__" };
    format!(
        "// A sum that is not finite, again without the zeros that stand for dropped weights.
__device__ {inline} float exact(
    const T* x, const T* values, const int* columns, int first, int last, int row, int token, int m) {{
    float sum = 0.0f;
    for (int step = first; step < last; ++step) {{
        for (int q = 0; q < STEP; ++q) {{
            const int k = columns[(size_t)step * STEP + q];
            const float w = to_float(values[(size_t)step * W_STAGE + {place}]);
            if (k >= 0 && w != 0.0f) sum = fmaf(w, to_float(x[(size_t)k * m + token]), sum);
        }}
    }}
    return sum;
}}
"
    )
}

/// The epilogue on `v`; the bias is `biasN` and then the first text, a residual `residualN` and then the second: an index or
/// a name's end.
pub(super) fn steps(config: &KernelConfig, indent: &str, [bias, residual]: [&str; 2]) -> String {
    let step = |step: &EpilogueStep| match step {
        EpilogueStep::Bias(number) => format!("{indent}v += bias{number}{bias};\n"),
        EpilogueStep::Residual(number) => format!("{indent}v += to_float(residual{number}{residual});\n"),
        EpilogueStep::Relu => format!("{indent}v = relu(v);\n"),
        EpilogueStep::Gelu if config.dtype == DType::F32 => format!("{indent}v = gelu(v);\n"),
        EpilogueStep::Gelu => format!("{indent}v = gelu_{}(v);\n", config.dtype),
        EpilogueStep::Silu => format!("{indent}v = silu(v);\n"),
        EpilogueStep::Scale(bits) => {
            format!("{indent}v *= __uint_as_float({bits:#010x}u);  // {}\n", f32::from_bits(*bits))
        }
    };
    config.epilogue.iter().map(step).collect()
}

/// `finish(row, n_row, token, v)`: the epilogue on one sum of the tile's `row`, and its store.
pub(super) fn finish(config: &KernelConfig) -> String {
    let at = place(config);
    let steps = steps(config, "        ", ["[n_row]", "[at]"]);
    let (exact, rest) = (exact_again(config), rest(config));
    format!(
        "    auto finish = [&](int row, int n_row, int token, float v{rest}) {{
        if (token >= m) return;
        const size_t at = {at};
{exact}{steps}        y[at] = from_float<T>(v);
    }};
"
    )
}

/// The epilogue on one sum, and where its result lies: of kernels that store by themselves.
pub(super) fn finish_value(config: &KernelConfig) -> String {
    let (exact, rest) = (exact_again(config), rest(config));
    format!(
        "    auto place = [&](int n_row, int token) {{ return {}; }};
    auto finish = [&](int row, int n_row, int token, float v{rest}) {{
        const size_t at = place(n_row, token);
{exact}{}        return v;
    }};
",
        place(config),
        steps(config, "        ", ["[n_row]", "[at]"])
    )
}

/// The parameter of `finish` for what the residue adds; the teams of decode kernels have added it.
fn rest(config: &KernelConfig) -> &'static str {
    if config.residue && config.decode.is_none() { ", float rest" } else { "" }
}

/// A sum that is not finite without its stored zeros, and then the residue.
fn exact_again(config: &KernelConfig) -> String {
    let residue = if config.decode.is_some() { residue::again(config) } else { "" };
    let exact = if config.stored_zeros {
        format!("        if (!finite(v)) v = exact(x, values, columns, first, last, row, token, m){residue};\n")
    } else {
        String::new()
    };
    if rest(config).is_empty() { exact } else { exact + "        v += rest;\n" }
}

/// Where the result of `n_row` and `token` lies.
fn place(config: &KernelConfig) -> &'static str {
    match config.output {
        Layout::FeatureMajor => "(size_t)n_row * m + token",
        Layout::TokenMajor => "(size_t)token * n + n_row",
    }
}

fn visit(config: &KernelConfig) -> String {
    // All lanes of a warp sum the residue together.
    let rests = if config.residue { [", rest[2 * j]", ", rest[2 * j + 1]"] } else { [""; 2] };
    "#pragma unroll
    for (int i = 0; i < WARP_ROWS / 16; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = warp_row + i * 16 + h * 8 + lane / 4;
RESIDUE            const int n_row = rows[tile * ROWS + row];
            if (n_row < 0) continue;
#pragma unroll
            for (int j = 0; j < WARP_TOKENS / 8; ++j) {
                const int token = m0 + warp_token + j * 8 + lane % 4 * 2;
                finish(row, n_row, token, acc[i][j][2 * h]EVEN);
                finish(row, n_row, token + 1, acc[i][j][2 * h + 1]ODD);
            }
        }
    }
"
    .replace("RESIDUE", residue::fragment(config))
    .replace("EVEN", rests[0])
    .replace("ODD", rests[1])
}
