//! `mma_sp`: m16n8k32 on f16 or bf16 with 2 of each 4 columns kept. A step is 64 columns: two instructions deep, whose
//! positions lie in the same word for different lanes (the selector).

use super::KernelConfig;

pub(super) fn multiply(_config: &KernelConfig) -> String {
    let halves: String = [0, 1].into_iter().map(half).collect();
    format!(
        "        unsigned kept[WARP_ROWS / 16];
#pragma unroll
        for (int i = 0; i < WARP_ROWS / 16; ++i) {{
            kept[i] = p_stages[stage * P_STAGE + (warp_row / 16 + i) * 32 + lane];
        }}
{halves}"
    )
}

fn half(selector: usize) -> String {
    let (stored, logical) = (selector * 16, selector * 32);
    format!(
        "        {{
            // Columns {logical} to {} of the step.
            unsigned a[WARP_ROWS / 16][4];
#pragma unroll
            for (int i = 0; i < WARP_ROWS / 16; ++i) {{
                load_matrices(a[i], ws + swizzled<STORED, sizeof(T)>(warp_row + i * 16 + lane % 16, {stored} + lane / 16 * 8));
            }}
#pragma unroll
            for (int j = 0; j < WARP_TOKENS / 16; ++j) {{
                const int token = warp_token + j * 16 + lane / 16 * 8;
                unsigned upper[4], lower[4];
                load_matrices_transposed(upper, xs + swizzled<TOKENS, sizeof(T)>({logical} + lane % 16, token));
                load_matrices_transposed(lower, xs + swizzled<TOKENS, sizeof(T)>({logical} + 16 + lane % 16, token));
                const unsigned left[4] = {{upper[0], upper[1], lower[0], lower[1]}};
                const unsigned right[4] = {{upper[2], upper[3], lower[2], lower[3]}};
#pragma unroll
                for (int i = 0; i < WARP_ROWS / 16; ++i) {{
                    mma_sparse<{selector}>(acc[i][2 * j], a[i], left, kept[i], T{{}});
                    mma_sparse<{selector}>(acc[i][2 * j + 1], a[i], right, kept[i], T{{}});
                }}
            }}
        }}
",
        logical + 31
    )
}
