//! After the main loop: sums -> Y, by way of the cluster's exchange, the epilogue and buffers in shared memory.

use super::{KernelConfig, group_tokens};
use crate::codegen::residue;
use crate::codegen::store::steps;
use fractal_dsl::DType;

/// The sums of the cluster's blocks: each gets its part of the tokens from all.
pub(super) fn reduction(config: &KernelConfig) -> &'static str {
    if config.split == 1 {
        return "";
    }
    "        // Of each block, four sums of each thread together.
#pragma unroll
        for (int to = 0; to < SPLIT; ++to) {
            const unsigned there = shared_of_block(sums + rank * (PIECE / 2 * 256 * 4) + threadIdx.x * 16, to);
#pragma unroll
            for (int i = 0; i < PIECE / 8; ++i) store_floats(there + i * 4096, acc + to * (PIECE / 2) + i * 4);
        }
        cluster_sync();
#pragma unroll
        for (int i = 0; i < PIECE / 8; ++i) {
            float4 sum = load_floats(sums + threadIdx.x * 16 + i * 4096);
#pragma unroll
            for (int from = 1; from < SPLIT; ++from) {
                const float4 more = load_floats(sums + from * (PIECE / 2 * 256 * 4) + threadIdx.x * 16 + i * 4096);
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
            acc[4 * i] = sum.x, acc[4 * i + 1] = sum.y, acc[4 * i + 2] = sum.z, acc[4 * i + 3] = sum.w;
        }
"
}

/// The residue and the epilogue on `acc` and its stores, with `numbers`, `m0` and the tile known; `number` counts the boxes of an
/// item, `row0` is the warp's first row of the tile.
pub(super) fn finish(config: &KernelConfig, number: &str, row0: &str) -> String {
    let pack = if config.dtype == DType::F16 { "f16x2" } else { "bf16x2" };
    // Element i of eight: of row i / 2 % 2 of the thread's two, and of two tokens eight apart. Two neighbours at a time.
    let pairs: String = (0..config.residuals())
        .map(|r| format!("                    if (i % 2 == 0) residual{r}_pair = there ? *(const unsigned*)(residual{r} + at) : 0;\n                    const T residual{r}_here{{(unsigned short)(residual{r}_pair >> i % 2 * 16)}};\n"))
        .collect();
    let place = if config.residuals() > 0 {
        format!(
            "                    const int token = m0 + c * CHUNK + q * 16 + i / 4 * 8 + lane % 4 * 2, n_row = i / 2 % 2 ? lower_row : upper_row;
                    const bool there = n_row >= 0 && token < m;
                    const size_t at = (size_t)n_row * m + token;
{pairs}"
        )
    } else {
        String::new()
    };
    let declared: String =
        (0..config.residuals()).map(|r| format!("unsigned residual{r}_pair;\n                ")).collect();
    let steps_of_eight = if config.epilogue.is_empty() {
        String::new()
    } else {
        let steps = steps(config, "                    ", ["_here[i / 2 % 2]", "_here"]);
        format!(
            "                {declared}
#pragma unroll
                for (int i = 0; i < 8; ++i) {{
                    float& v = piece[i];
{place}{steps}                }}
"
        )
    };
    let (watch, repair) = if config.stored_zeros { (watch(), repair(config)) } else { (String::new(), String::new()) };
    let residue = residue::hopper(config, group_tokens(config) / config.split, row0);
    let own_rows = if config.residuals() > 0 {
        "        const int upper_row = __shfl_sync(0xffffffffu, numbers, lane / 4);
        const int lower_row = __shfl_sync(0xffffffffu, numbers, lane / 4 + 8);
"
    } else {
        ""
    };
    let store = if config.runs { store_runs() } else { store_rows() }.replace("NUMBER", number).replace(
        "PACK",
        &format!(
            "float* const piece = acc + c * (CHUNK / 2) + q * 8;
{steps_of_eight}                unsigned p[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {{
                    asm(\"cvt.rn.{pack}.f32 %0, %1, %2;\" : \"=r\"(p[i]) : \"f\"(piece[2 * i + 1]), \"f\"(piece[2 * i]));
                }}"
        ),
    );
    format!(
        "{watch}{residue}{own_rows}        const int matrix_row = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
        for (int c = 0; c < PIECE / CHUNK; ++c) {{
{store}{repair}"
    )
}

/// Where a warpgroup's boxes, or a warp's rows, wait for their stores.
pub(super) fn buffers_of_group(config: &KernelConfig) -> &'static str {
    if config.runs {
        "    // Buffers of 64 rows in turn.
    const unsigned buffers = staging + group * (BUFFERS * 64 * CHUNK * 2);
    int buffer = 0;
"
    } else {
        "    const unsigned mine = staging + (group * 4 + warp) * (2 * 16 * CHUNK * 2);\n"
    }
}

/// What a multiplying warpgroup does at last.
pub(super) fn end(config: &KernelConfig) -> &'static str {
    if config.runs {
        "    // Shared memory must last until it is read, and the results be there when the kernel ends.
    if (threadIdx.x % 128 == 0) boxes_written();
"
    } else {
        ""
    }
}

/// Each warp its 16 rows, 16 bytes a lane.
fn store_rows() -> &'static str {
    "            // Two buffers in turn: one is read while the other is written.
            const unsigned buffer = mine + c % 2 * (16 * CHUNK * 2);
#pragma unroll
            for (int q = 0; q < CHUNK / 16; ++q) {
                PACK
                store_matrices(buffer + 2 * swizzled<CHUNK, 2>(matrix_row, q * 16 + lane / 16 * 8), p[0], p[1], p[2], p[3]);
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < STORES; ++i) {
                const int row = i * (256 / CHUNK) + lane / (CHUNK / 8), column = lane % (CHUNK / 8) * 8;
                const int token = m0 + c * CHUNK + column;
                const int n_row = __shfl_sync(0xffffffffu, numbers, row);
                const uint4 v = load_chunk(buffer + 2 * swizzled<CHUNK, 2>(row, column));
                if (n_row >= 0 && token < m) *(uint4*)(y + (size_t)n_row * m + token) = v;
            }
        }
        // The next tile begins with the first buffer, which others may still read.
        __syncwarp();
"
}

/// A warpgroup its 64 rows, by the copy engine, which runs on while the next tile is multiplied.
fn store_runs() -> &'static str {
    "            const unsigned box = buffers + buffer * (64 * CHUNK * 2);
            buffer = (buffer + 1) % BUFFERS;
            if (NUMBER >= BUFFERS) {
                // The oldest box has left this buffer.
                if (threadIdx.x % 128 == 0) boxes_read<BUFFERS - 1>();
                group_sync(group);
            }
#pragma unroll
            for (int q = 0; q < CHUNK / 16; ++q) {
                PACK
                store_matrices(box + 2 * swizzled<CHUNK, 2>(warp * 16 + matrix_row, q * 16 + lane / 16 * 8), p[0], p[1], p[2], p[3]);
            }
            if (c % TOGETHER == TOGETHER - 1) {
                fence_async();
                group_sync(group);
                if (threadIdx.x % 128 == 0) {
#pragma unroll
                    for (int i = TOGETHER - 1; i >= 0; --i) {
                        const unsigned filled = buffers + (buffer + BUFFERS - 1 - i) % BUFFERS * (64 * CHUNK * 2);
                        store_box(y_map, numbers, m0 + (c - i) * CHUNK, filled, numbers >= 0);
                    }
                }
            }
        }
"
}

fn watch() -> String {
    "        bool all_finite = true;
#pragma unroll
        for (int i = 0; i < PIECE / 2; ++i) all_finite &= finite(acc[i]);
        const bool again = __any_sync(0xffffffffu, !all_finite);
"
    .into()
}

/// Zero times an infinity is no zero: where a warp met a sum that is not finite, its sums are taken again without the zeros
/// that stand for dropped weights. The accumulators are free by then.
fn repair(config: &KernelConfig) -> String {
    let (steps, residue) = (steps(config, "                ", ["[n_row]", "[at]"]), residue::again(config));
    format!(
        "        if (again) {{
            for (int i = lane; i < 16 * PIECE; i += 32) {{
                const int row = row0 + i / PIECE, token = m0 + i % PIECE;
                const int n_row = rows[tile * ROWS + row];
                if (n_row < 0 || token >= m) continue;
                const size_t at = (size_t)n_row * m + token;
                float v = exact(x, values, columns, begin[tile], begin[tile + 1], row, token, m){residue};
{steps}                y[at] = from_float<T>(v);
            }}
            __syncwarp();
        }}
"
    )
}
