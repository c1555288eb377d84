//! `ffma`: CUDA cores, any type, f32 arithmetic. A warp is 4 x 8 threads; each has a quarter of the warp's rows and an
//! eighth of its tokens, in pieces of four that lie side by side for neighbouring threads.

use super::KernelConfig;

pub(super) fn multiply(_config: &KernelConfig) -> String {
    "#pragma unroll
        for (int q = 0; q < STEP; ++q) {
            float w[THREAD_ROWS], v[THREAD_TOKENS];
#pragma unroll
            for (int r = 0; r < THREAD_ROWS; ++r) {
                w[r] = to_float(ws[q * ROWS + thread_row(r)]);
            }
#pragma unroll
            for (int t = 0; t < THREAD_TOKENS; ++t) {
                v[t] = to_float(xs[q * TOKENS + thread_token(t)]);
            }
#pragma unroll
            for (int r = 0; r < THREAD_ROWS; ++r) {
#pragma unroll
                for (int t = 0; t < THREAD_TOKENS; ++t) {
                    acc[r][t] = fmaf(w[r], v[t], acc[r][t]);
                }
            }
        }
"
    .into()
}

/// What a thread of a warp computes.
pub(super) fn threads() -> &'static str {
    "    constexpr int THREAD_ROWS = WARP_ROWS / 4, THREAD_TOKENS = WARP_TOKENS / 8;
    auto thread_row = [&](int r) { return warp_row + r / 4 * 16 + lane / 8 * 4 + r % 4; };
    auto thread_token = [&](int t) { return warp_token + t / 4 * 32 + lane % 8 * 4 + t % 4; };
"
}
