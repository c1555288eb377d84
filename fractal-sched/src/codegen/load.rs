//! Condensing kept rows of X, and loading packed weights, into one stage of shared memory.

use super::{KernelConfig, Provenance};
use fractal_dsl::Intrinsic;

/// `load(stage, step)`: starts the copies of one step; nothing for a step past the tile's last.
pub(super) fn stage(config: &KernelConfig, provenance: &Provenance) -> String {
    let place = match config.intrinsic {
        Intrinsic::Ffma => "row * TOKENS + token",
        _ => "swizzled<TOKENS, sizeof(T)>(row, token)",
    };
    let from: String = provenance.skips().iter().map(|s| format!("        // {s}\n")).collect();
    format!(
        "    auto load = [&](int stage, int step) {{
        if (step >= last) return;
        T* const xs = x_stages + stage * X_STAGE;
        T* const ws = w_stages + stage * W_STAGE;
        // condense: the kept columns of W are rows of X, each contiguous in tokens.
{from}#pragma unroll 4
        for (int c = threadIdx.x; c < X_STAGE / VECTOR; c += THREADS) {{
            const int row = c / (TOKENS / VECTOR), token = c % (TOKENS / VECTOR) * VECTOR;
            const int k = __ldg(columns + (size_t)step * STEP + row);
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
    }};
"
    )
}
