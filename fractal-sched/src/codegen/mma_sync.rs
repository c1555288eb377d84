//! `mma_sync`: m16n8k16 on f16 or bf16. A = W from its swizzled image, B = X transposed on the way to registers.

use super::KernelConfig;

pub(super) fn multiply(_config: &KernelConfig) -> String {
    "#pragma unroll
        for (int depth = 0; depth < STEP; depth += 16) {
            unsigned a[WARP_ROWS / 16][4];
#pragma unroll
            for (int i = 0; i < WARP_ROWS / 16; ++i) {
                load_matrices(a[i], ws + swizzled<STORED, sizeof(T)>(warp_row + i * 16 + lane % 16, depth + lane / 16 * 8));
            }
#pragma unroll
            for (int j = 0; j < WARP_TOKENS / 16; ++j) {
                unsigned b[4];
                load_matrices_transposed(
                    b, xs + swizzled<TOKENS, sizeof(T)>(depth + lane % 16, warp_token + j * 16 + lane / 16 * 8));
#pragma unroll
                for (int i = 0; i < WARP_ROWS / 16; ++i) {
                    mma(acc[i][2 * j], a[i], b[0], b[1], T{});
                    mma(acc[i][2 * j + 1], a[i], b[2], b[3], T{});
                }
            }
        }
"
    .into()
}
