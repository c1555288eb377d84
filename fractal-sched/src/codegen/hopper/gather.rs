//! The warpgroup that copies, where rows of X come one by one and a step is short for the bytes that it brings: 512 tokens a
//! block, or 256 and more with 2 of 4 kept, whether weights come by stages or stay. Kernels that repair stored zeros have no
//! registers for it and stay with `load`.
//!
//! A lane keeps the same four rows of a step for all of its tokens: one fetch of their columns and four addresses, no exchange
//! between lanes, whose shuffles would take the way that copies take. With dense steps of 256 tokens and fewer `load` is faster.

use super::KernelConfig;
use super::load::{indented, joined, weights_beside_rows};
use fractal_dsl::Intrinsic;

/// Whether this is the faster way, and there are registers for it.
pub(super) fn serves(config: &KernelConfig) -> bool {
    let short = config.tokens == 512 || config.intrinsic == Intrinsic::WgmmaSp && config.tokens >= 256;
    config.is_hopper() && config.column_run == 0 && short && !config.stored_zeros
}

/// Most elements of X: its rows begin at 32-bit numbers of pieces of 8.
pub(super) const MOST_OF_X: usize = (u32::MAX as usize).saturating_mul(8);

/// What a lane knows of its rows.
pub(super) const SETUP: &str = "        // A warp copies 16 of a step's 64 rows of X: eight lanes four of them, 16 bytes a lane of each 64 tokens.
        const int row = warp * 16 + lane / 8 * 4;
        // Chunk of 64 tokens, then rows of 128 bytes, pieces of 16 exchanged by the row's number.
        unsigned places[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) places[i] = (row + i) * 128 + ((lane % 8 ^ ((row + i) & 7)) << 4);
        const unsigned row_chunks = m / 8;
        // Of a lane's rows: where they begin in X, in units of 16 bytes; whether the warp's are all there, and if not, which.
        struct Rows {
            unsigned offset[4], there;
            bool whole;
        };
        auto rows_of = [&](int4 k) {
            Rows own{{k.x * row_chunks, k.y * row_chunks, k.z * row_chunks, k.w * row_chunks}, 15, true};
            if (__any_sync(0xffffffffu, (k.x | k.y | k.z | k.w) < 0)) {
                own.there = (k.x >= 0) | (k.y >= 0) << 1 | (k.z >= 0) << 2 | (k.w >= 0) << 3;
                own.whole = false;
            }
            return own;
        };
";

/// The copies of a stage's rows of X and what follows: `own` rows, the `source` of a lane's tokens from `token` on, whether all are
/// `inside`, and the stage's place `xs` are known.
pub(super) const COPIES: &str = "                    if (own.whole && inside) {
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const uint4* const from = source + own.offset[i];
#pragma unroll
                            for (int c = 0; c < TOKENS / 64; ++c) copy_chunk(xs + places[i] + c * (STEP * 128), from + c * 8);
                        }
                    } else {
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
#pragma unroll
                            for (int c = 0; c < TOKENS / 64; ++c) {
                                const bool kept = token + c * 64 < m && own.there >> i & 1;
                                copy_chunk(xs + places[i] + c * (STEP * 128), source + (kept ? own.offset[i] + c * 8 : 0), kept);
                            }
                        }
                    }
                    barrier_arrive_after_copies(full + 8 * stage);
                    if (++stage == STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
";

pub(super) fn producer(config: &KernelConfig) -> String {
    let weights = indented(&weights_beside_rows(config, "step + u"), "                    ");
    let joined = joined(config);
    format!(
        "    if (group == 2) {{
        give_registers<72>();
{SETUP}        // The columns of two steps are fetched while the two before are copied.
        auto fetch = [&](int4& k, int step, int last) {{
            if (step < last) k = load_four_now(columns + (size_t)step * STEP + row);
        }};
        int stage = 0, turn = 0;
        unsigned phase = 0;
        Item item = fetch_item(0), coming = fetch_item(1);
        Range range = part(item);
        int4 near = {{}}, far = {{}};
        fetch(near, range.first, range.last);
        fetch(far, range.first + 1, range.last);
        // X is what the kernel before may have written.
        dependency_wait();
        for (; item.tile >= 0; ++turn) {{
            const Range next = part(coming);
            const int m0 = item.m0, token = m0 + lane % 8 * 8;
            item = coming;
            coming = fetch_item(turn + 2);
            const uint4* const source = (const uint4*)(x + (token < m ? token : 0));
            const bool inside = m0 + TOKENS <= m;
            // At least once, since the columns of the next item are fetched there.
            for (int step = range.first; step == range.first || step < range.last; step += 2) {{
                // What was fetched is used up before more is fetched: to wait for the one would be to wait for the other.
                const Rows both[2] = {{rows_of(near), rows_of(far)}};
                const bool more = step + 2 < range.last;
                const int ahead = more ? step + 2 : next.first, last = more ? range.last : next.last;
                fetch(near, ahead, last);
                fetch(far, ahead + 1, last);
#pragma unroll
                for (int u = 0; u < 2; ++u) {{
                    if (step + u >= range.last) break;
                    const Rows& own = both[u];
                    barrier_wait(empty + 8 * stage, phase ^ 1);
{weights}{COPIES}                }}
            }}
            range = next;
        }}
        // No copy may be under way when the block ends.
        asm volatile(\"cp.async.wait_all;\" ::: \"memory\");
{joined}        return;
    }}

"
    )
}
