//! The residue: single elements of W restored on top of its tiles. Every family adds it to its sums once, after the main loop
//! and what blocks or warps exchange of it, before the epilogue. `cuh/residue.cuh` has what they share, `tables` the order of
//! the lists.
//!
//! What bounds it: for each element a row of X comes from the second-level cache, 2 bytes a token of 16-bit types, and is
//! multiplied once. So lanes load 16 bytes, several elements' at a time, and columns rise along the lists: warps of a
//! block that go over the same tokens meet rows in the first-level cache now and then.

use super::KernelConfig;

/// `acc` of Hopper's kernels: PIECE tokens of the warp's 16 rows from the tile's row `row0` on.
pub(super) fn hopper(config: &KernelConfig, piece: usize, row0: &str) -> String {
    if !config.residue {
        return String::new();
    }
    // As many loads under way as the registers allow that the sums and the rest leave.
    let resident = config.resident > 0;
    let (zeros, residuals) = (config.stored_zeros, config.residuals() > 0);
    let batch = match piece > 128 || resident {
        true if resident && residuals => 1,
        true if zeros || residuals || resident && (config.is_curved() || !config.runs) => 2,
        _ => 4,
    };
    let tokens = piece.min(if resident && (residuals || !config.runs) { 32 } else { 64 });
    format!(
        "        // Single elements on top of the tile's.
#pragma unroll
        for (int p = 0; p < PIECE / {tokens}; ++p) {{
#pragma unroll
            for (int h = 0; h < 2; ++h) {{
                float rest[{rests}];
                sum_slice<{tokens}, VECTOR, {batch}>(rest, restored, restored_begin + (tile * ROWS + {row0}) / 8 + h, x, m0 + p * {tokens}, m);
#pragma unroll
                for (int i = 0; i < {rests}; ++i) acc[p * {half} + i / 2 * 4 + h * 2 + i % 2] += rest[i];
            }}
        }}
",
        rests = tokens / 4,
        half = tokens / 2,
    )
}

/// Of decode kernels: each team adds its part of the elements to its own sums.
pub(super) fn decode(config: &KernelConfig) -> &'static str {
    if !config.residue {
        return "";
    }
    "    // Single elements on top of the tile's: the teams have batches of them in turn.
#pragma unroll
    for (int i = 0; i < WARP_ROWS / 8; ++i) {
        float rest[TOKENS / 4];
        const int* const slice = restored_begin + (tile * ROWS + top + member * WARP_ROWS) / 8 + i;
        sum_slice<TOKENS, VECTOR, 4>(rest, restored, slice, x, 0, m, team, TEAMS);
#pragma unroll
        for (int j = 0; j < TOKENS / 4; ++j) acc[i / 2][j / 2][i % 2 * 2 + j % 2] += rest[j];
    }
"
}

/// Of `mma_sync` and `mma_sp`: the fragment's part of the rows `row - lane / 4` on, as `rest`.
pub(super) fn fragment(config: &KernelConfig) -> &'static str {
    if !config.residue {
        return "";
    }
    "            float rest[WARP_TOKENS / 4];
            const int* const slice = restored_begin + (tile * ROWS + warp_row) / 8 + 2 * i + h;
            sum_slice<WARP_TOKENS, VECTOR, 4>(rest, restored, slice, x, m0 + warp_token, m);
"
}

/// Of `ffma`: four neighbouring tokens of `slab + row`, as `rest`.
pub(super) fn four(config: &KernelConfig) -> &'static str {
    if !config.residue {
        return "";
    }
    "        float rest[4];
        sum_row<4, VECTOR>(rest, restored, restored_begin + tile * (ROWS / 8), slab + row, x, m0 + token, m);
"
}

/// A sum that is taken again, its residue included.
pub(super) fn again(config: &KernelConfig) -> &'static str {
    if config.residue { " + sum_element(restored, restored_begin + tile * (ROWS / 8), row, x, token, m)" } else { "" }
}
