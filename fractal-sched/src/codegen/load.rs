//! Condensing kept rows of X, and loading packed weights, into one stage of shared memory.

use super::{KernelConfig, Provenance};
use fractal_dsl::Intrinsic;

/// `load(stage, step)`: starts the copies of one step; nothing for a step past the tile's last. Steps come in order.
pub(super) fn stage(config: &KernelConfig, provenance: &Provenance) -> String {
    let place = "swizzled<TOKENS, sizeof(T)>(row, token)";
    let from: String = provenance.skips().iter().map(|s| format!("        // {s}\n")).collect();
    let positions = if config.intrinsic == Intrinsic::MmaSp { positions() } else { "" };
    // Where a thread has few copies a step, the rows' numbers of the next step are fetched while this one is copied.
    let copies = (config.step * config.tokens / config.vector).div_ceil(config.threads());
    // Many copies are not all unrolled: their addresses would take more registers than there are.
    let (ahead, number, fetch, unroll) = if copies <= 8 {
        (fetch_ahead(), "kept_rows[i]", "        fetch(step + 1);\n", "#pragma unroll")
    } else {
        ("", "__ldg(columns + (size_t)step * STEP + row)", "", "#pragma unroll 4")
    };
    format!(
        "    constexpr int COPIES = (X_STAGE / VECTOR + THREADS - 1) / THREADS;
{ahead}    auto load = [&](int stage, int step) {{
        if (step >= last) return;
        T* const xs = x_stages + stage * X_STAGE;
        T* const ws = w_stages + stage * W_STAGE;
        // condense: the kept columns of W are rows of X, each contiguous in tokens.
{from}{unroll}
        for (int i = 0; i < COPIES; ++i) {{
            const int c = threadIdx.x + i * THREADS;
            const int row = c / (TOKENS / VECTOR), token = c % (TOKENS / VECTOR) * VECTOR;
            if (c >= X_STAGE / VECTOR) break;
            const int k = {number};
            const bool kept = k >= 0 && m0 + token < m;
            const T* const source = x + (kept ? (size_t)k * m + m0 + token : 0);
            copy_async<VECTOR * sizeof(T)>(xs + {place}, source, kept);
        }}
        // The weights of a step are packed as they lie in shared memory.
#pragma unroll 4
        for (int c = threadIdx.x; c < W_STAGE * (int)sizeof(T) / 16; c += THREADS) {{
            const int at = c * (16 / (int)sizeof(T));
            copy_async<16>(ws + at, values + (size_t)step * W_STAGE + at, true);
        }}
{positions}{fetch}    }};
"
    )
}

fn fetch_ahead() -> &'static str {
    "    int kept_rows[COPIES];
    auto fetch = [&](int step) {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const int row = (threadIdx.x + i * THREADS) / (TOKENS / VECTOR);
            kept_rows[i] = step < last && row < STEP ? __ldg(columns + (size_t)step * STEP + row) : -1;
        }
    };
    fetch(first);
"
}

fn positions() -> &'static str {
    "        for (int c = threadIdx.x; c < P_STAGE / 4; c += THREADS) {
            copy_async<16>(p_stages + stage * P_STAGE + c * 4, positions + (size_t)step * P_STAGE + c * 4, true);
        }
"
}
