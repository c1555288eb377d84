//! The warpgroups that multiply: stages -> sums in registers.

use super::KernelConfig;
use super::finish::buffers_of_group;
use fractal_dsl::Intrinsic;

/// A warp's word that it has read a stage, to whoever fills it.
fn release(config: &KernelConfig, condition: &str) -> String {
    if config.share > 1 {
        format!("if ({condition} && lane < SHARE) barrier_arrive_at(empty + 8 * previous, lane);")
    } else {
        format!("if ({condition} && lane == 0) barrier_arrive(empty + 8 * previous);")
    }
}

/// What ordinary copies brought is fenced before the tensor cores read it.
pub(super) fn fence(config: &KernelConfig) -> &'static str {
    if config.column_run > 0 { "" } else { "            fence_async();\n" }
}

/// Bytes of a row of W, and the descriptor of its image: 128 (128-byte swizzle), or 64 where half is stored (64-byte swizzle).
pub(super) fn weights_rows(config: &KernelConfig) -> (usize, &'static str) {
    if config.intrinsic.is_sparse() { (64, "descriptor64") } else { (128, "descriptor") }
}

pub(super) fn consumer(config: &KernelConfig) -> String {
    let sparse = config.intrinsic == Intrinsic::WgmmaSp;
    let (w_row, weights) = weights_rows(config);
    let (group_rows, group_x) = if config.rows == 128 {
        (format!("group * (64 * {w_row})"), "0")
    } else {
        ("0".into(), "group * (GROUP_TOKENS / 64 * STEP * 128)")
    };
    let (row0, token0) = if config.rows == 128 { ("group * 64", "0") } else { ("0", "group * GROUP_TOKENS") };
    let staging = buffers_of_group(config);
    let claim = if config.runs {
        "            // Both are free again long before they are needed.
            if (threadIdx.x % 128 == 0) boxes_read<0>();
            group_sync(group);
"
    } else {
        ""
    };
    let main_loop = if sparse { sparse_loop(config) } else { dense_loop().into() }
        .replace("FENCE", fence(config))
        .replace("RELEASE_STEP", &release(config, "step > first"))
        .replace("RELEASE_LAST", &release(config, "last > first"));
    // Set in vain, since the first multiplication sets them again; but it ends their lives before the repair, whose registers
    // would else be too few.
    let sums = if config.stored_zeros {
        "        float acc[GROUP_TOKENS / 2];
#pragma unroll
        for (int i = 0; i < GROUP_TOKENS / 2; ++i) acc[i] = 0.0f;
"
    } else {
        "        float acc[GROUP_TOKENS / 2];\n"
    };
    let declared: String = (0..config.biases()).map(|b| format!("        float bias{b}_here[2];\n")).collect();
    let fetched: String = (0..config.biases())
        .map(|b| format!("                bias{b}_here[h] = load_now(bias{b} + (n_row < 0 ? 0 : n_row));\n"))
        .collect();
    let biases = if fetched.is_empty() {
        String::new()
    } else {
        format!(
            "            for (int h = 0; h < 2; ++h) {{
                const int n_row = __shfl_sync(0xffffffffu, numbers, lane / 4 + h * 8);
{fetched}            }}
"
        )
    };
    format!(
        "    take_registers<216>();
    int stage = 0;
    unsigned phase = 0;
    const unsigned long long xs = descriptor(base + {group_x}, STEP * 128, 1024);
    const unsigned long long ws = {weights}(base + X_STAGE * 2 + {group_rows}, 16, 8 * {w_row});
    // Each warp has 16 rows.
    const int row0 = {row0} + warp * 16;
{staging}    // The numbers of the warp's 16 rows, one a lane, fetched while the item before is multiplied.
    int numbers_ahead = -1;
    auto fetch_rows = [&](int tile) {{
        if (tile >= 0) numbers_ahead = load_now(rows + tile * ROWS + row0 + lane % 16);
    }};
    int turn = 0;
    Item coming = fetch_item(0);
    fetch_rows(coming.tile);
    dependency_wait();
    for (; coming.tile >= 0; ++turn) {{
        const int tile = coming.tile, m0 = coming.m0 + {token0} + rank * PIECE;
        const Range own = part(coming);
        const int first = own.first, last = own.last;
        const int numbers = numbers_ahead;
{sums}{declared}        // After the first step has been issued: a fence waits for all that was fetched before it.
        auto fetch_ahead = [&]() {{
            coming = fetch_item(turn + 1);
{biases}            fetch_rows(coming.tile);
{claim}        }};
        if (last == first) fetch_ahead();
{main_loop}#pragma unroll
        for (int i = 0; i < GROUP_TOKENS / 2; ++i) {{
            // The compiler does not see that the instruction writes later than it is issued.
            asm volatile(\"\" : \"+f\"(acc[i])::\"memory\");
        }}
        // A branch, and no selection of each sum.
        if (last == first) {{
#pragma unroll
            for (int i = 0; i < GROUP_TOKENS / 2; ++i) asm volatile(\"mov.f32 %0, 0f00000000;\" : \"=f\"(acc[i]));
        }}
"
    )
}

fn dense_loop() -> &'static str {
    "        int previous = 0;
        for (int step = first; step < last; ++step) {
            barrier_wait(full + 8 * stage, phase);
FENCE            wgmma_begin();
#pragma unroll
            for (int depth = 0; depth < STEP / 16; ++depth) {
                multiply(acc, advance(ws, stage * STAGE_BYTES + depth * 32), advance(xs, stage * STAGE_BYTES + depth * 2048),
                         step > first || depth > 0);
            }
            wgmma_commit();
            if (step == first) fetch_ahead();
            // The step before is done: its stage may be filled again.
            wgmma_wait<1>();
            RELEASE_STEP
            previous = stage;
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        wgmma_wait<0>();
        RELEASE_LAST
"
}

/// Two steps a turn: each has its own register of positions, which must not be written again before the instruction that
/// reads it is done.
fn sparse_loop(config: &KernelConfig) -> String {
    let word = if config.rows == 128 { "threadIdx.x % 256" } else { "threadIdx.x % 128" };
    "        int previous = 0;
        unsigned even = 0, odd = 0;
        auto issue = [&](int step, unsigned& kept) {
            barrier_wait(full + 8 * stage, phase);
FENCE            const unsigned at = base + stage * STAGE_BYTES + X_STAGE * 2 + W_STAGE * 2;
            asm volatile(\"ld.shared.u32 %0, [%1];\" : \"=r\"(kept) : \"r\"(at + (WORD) * 4) : \"memory\");
            wgmma_begin();
            multiply<0>(acc, advance(ws, stage * STAGE_BYTES), advance(xs, stage * STAGE_BYTES), kept, step > first);
            multiply<1>(acc, advance(ws, stage * STAGE_BYTES + 32), advance(xs, stage * STAGE_BYTES + 4096), kept, 1);
            wgmma_commit();
            if (step == first) fetch_ahead();
        };
        // The step before is done, and with it what read its positions: its stage may be filled again.
        auto retire = [&](int step, unsigned& read) {
            wgmma_wait<1>();
            asm volatile(\"\" : \"+r\"(read)::\"memory\");
            RELEASE_STEP
            previous = stage;
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        };
        for (int step = first; step < last; step += 2) {
            issue(step, even);
            retire(step, odd);
            if (step + 1 < last) {
                issue(step + 1, odd);
                retire(step + 1, even);
            }
        }
        wgmma_wait<0>();
        asm volatile(\"\" : \"+r\"(even), \"+r\"(odd)::\"memory\");
        RELEASE_LAST
"
    .replace("WORD", word)
}
