//! `wgmma` and `wgmma_sp`: m64nNk16, or m64nNk32 with 2 of 4 kept, on f16 or bf16; Hopper alone.
//!
//! One persistent block a multiprocessor: two warpgroups multiply and one warpgroup copies. Of a tile of 128 rows each
//! multiplying warpgroup has 64; of one of 64 rows each has half of the tokens. Weights come as swizzled images by bulk
//! copies; each kept row of X comes by `cp.async`, 16 bytes a lane, straight into the swizzled B tile, so that nothing but
//! the row's number differs from a dense kernel. Barriers say when a stage is full (copies of 128 threads and the bulk
//! copy) and when it is empty (8 warps).
//!
//! Where columns follow one another in groups of 8 or more, one warp has the copy engine bring each group as a box of X, and
//! barriers wait for its bytes alone.
//!
//! Many tokens: a cluster of `share` blocks takes the same tile with tokens that follow one another; each brings its part of
//! the weights to all of them. A stage is empty when all have read it.
//!
//! Few tiles: a cluster of `split` blocks shares the steps of a tile; then each block gets the sums of its part of the
//! tokens from all, in the order of their ranks, through distributed shared memory.
//!
//! What a tile needs besides its steps (its place, its rows, its bias) is fetched before its first multiplication, so that
//! the epilogue waits for nothing.

use super::KernelConfig;
use super::store::steps;
use fractal_dsl::{DType, Intrinsic};

/// Bytes of barriers, and what the first stage may lose to its alignment.
pub(super) const BARRIER_BYTES: usize = 256 + 1024;

/// Tokens of a multiplying warpgroup.
pub(super) fn group_tokens(config: &KernelConfig) -> usize {
    if config.rows == 128 { config.tokens } else { config.tokens / 2 }
}

/// Tokens that a warp stages at a time for its stores.
pub(super) fn chunk(config: &KernelConfig) -> usize {
    // Two buffers of 64 tokens do not fit beside stages of 64 KiB of X.
    let most = if config.tokens == 512 { 16 } else { 64 };
    (group_tokens(config) / config.split).min(most)
}

/// Buffers of results of a warp or warpgroup: two that take turns, or as many as there are where few weights stay.
fn buffers(config: &KernelConfig) -> usize {
    if config.runs && config.resident == 4 { 4 } else { 2 }
}

/// Bytes of staging: 16 rows of each multiplying warp, in all buffers.
pub(super) fn staging_bytes(config: &KernelConfig) -> usize {
    8 * 16 * chunk(config) * 2 * buffers(config)
}

/// Bytes for the sums that the blocks of a cluster exchange: those of each thread.
pub(super) fn exchange_bytes(config: &KernelConfig) -> usize {
    if config.split > 1 { 256 * group_tokens(config) / 2 * 4 } else { 0 }
}

/// Constants of these kernels alone.
pub(super) fn constants(config: &KernelConfig) -> String {
    let boxes = match config.column_run {
        0 => String::new(),
        run => format!(
            "constexpr int RUN = {run};             // columns that follow one another, a box of X
constexpr int GROUPS = STEP / RUN;
constexpr int NOWHERE = 1 << 30;    // a row of X beyond its end
"
        ),
    };
    let constants = format!(
        "constexpr unsigned STAGE_BYTES = {};  // bytes of a stage: X, W, positions
constexpr unsigned STAGING_BYTES = {};
constexpr int GROUP_TOKENS = {};     // tokens of a multiplying warpgroup
constexpr int SPLIT = {};            // blocks that share the steps of a tile
constexpr int SHARE = {};            // blocks that share its weights, each with its own tokens
constexpr int PIECE = GROUP_TOKENS / SPLIT;  // of which a block finishes
constexpr int CHUNK = {};           // tokens a warp stages at a time
constexpr int STORES = CHUNK / 16;  // 16-byte stores of a lane for them
constexpr int BUFFERS = {};          // of such chunks
constexpr int TOGETHER = BUFFERS / 2;  // of which leave at a time
",
        config.stage_bytes(),
        staging_bytes(config),
        group_tokens(config),
        config.split,
        config.share,
        chunk(config),
        buffers(config),
    );
    let sums = match exchange_bytes(config) {
        0 => String::new(),
        bytes => format!("constexpr unsigned SUM_BYTES = {bytes};  // sums that the blocks of a cluster exchange\n"),
    };
    [constants, boxes, sums].concat()
}

/// Everything between the signature and the end of the kernel.
pub(super) fn body(config: &KernelConfig) -> String {
    let finish = finish(config, "c");
    [
        place(config),
        if config.column_run > 0 { box_producer(config) } else { producer(config) },
        consumer(config),
        reduction(config).into(),
        finish,
        "    }\n".into(),
        end(config).into(),
        if config.share > 1 {
            "    // Others may still write here.\n    cluster_sync();\n".into()
        } else {
            String::new()
        },
    ]
    .concat()
}

/// The instruction for this number of tokens and type: `acc[64 x TOKENS] (+)= a b`.
pub(super) fn instruction(config: &KernelConfig) -> String {
    let tokens = group_tokens(config);
    let registers = tokens / 2;
    let dtype = if config.dtype == DType::F16 { "f16" } else { "bf16" };
    let list = |f: &dyn Fn(usize) -> String| (0..registers).map(f).collect::<Vec<_>>().join(", ");
    let (places, operands) = (list(&|i| format!("%{i}")), list(&|i| format!("\"+f\"(d[{i}])")));
    if config.intrinsic == Intrinsic::Wgmma {
        return format!(
            "// d[64 x {tokens}] = a[64 x 16] b[16 x {tokens}] (+ d where `accumulate`); a is K-major, b is token-major.
__device__ __forceinline__ void multiply(
    float (&d)[{registers}], unsigned long long a, unsigned long long b, int accumulate) {{
    asm volatile(
        \"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{p}, 0;\\n\"
        \"wgmma.mma_async.sync.aligned.m64n{tokens}k16.f32.{dtype}.{dtype} {{{places}}}, %{registers}, %{b}, p, 1, 1, 0, 1;\\n}}\"
        : {operands}
        : \"l\"(a), \"l\"(b), \"r\"(accumulate));
}}
",
            p = registers + 2,
            b = registers + 1,
        );
    }
    format!(
        "// d[64 x {tokens}] = a[64 x 32, 2 of 4 kept] b[32 x {tokens}] (+ d where `accumulate`). Lanes 0 and 1 (SELECTOR 0) or
// 2 and 3 (1) of each four hold the positions of what is kept, in a register that is read while the instruction runs.
template <int SELECTOR>
__device__ __forceinline__ void multiply(
    float (&d)[{registers}], unsigned long long a, unsigned long long b, unsigned positions, int accumulate) {{
    asm volatile(
        \"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{p}, 0;\\n\"
        \"wgmma.mma_async.sp.sync.aligned.m64n{tokens}k32.f32.{dtype}.{dtype} {{{places}}}, %{registers}, %{b}, %{e}, %{s}, p, 1, 1, 0, 1;\\n}}\"
        : {operands}
        : \"l\"(a), \"l\"(b), \"r\"(positions), \"r\"(accumulate), \"n\"(SELECTOR));
}}
",
        b = registers + 1,
        e = registers + 2,
        p = registers + 3,
        s = registers + 4,
    )
}

/// Arrivals that make a stage full: the copy engine's bytes are announced by one thread, rows are copied by 128.
pub(super) fn full_arrivals(config: &KernelConfig, weights: usize) -> usize {
    if config.column_run > 0 { 1 } else { 128 + weights }
}

fn place(config: &KernelConfig) -> String {
    "    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = (shared_address(shared) + 1023) / 1024 * 1024;
    const unsigned staging = base + STAGES * STAGE_BYTES;
    const unsigned FULL, empty = full + 8 * STAGES;
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    // The next kernel of the stream may take multiprocessors as they become free.
    dependents_may_start();
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, ARRIVALS);
            barrier_init(empty + 8 * s, 8 * SHARE);
        }
        barrier_init_done();
    }
    MEET();
    // parallel for tile, mo. Blocks take items in turn, there and back. The tiles of a band run together on the same tokens,
    // so that X and W come from memory once a band; where tiles are uneven, a band is one tile and the longest is first.
    const int token_tiles = (m + TOKENS * SHARE - 1) / (TOKENS * SHARE);
    const int items = tiles * token_tiles;
    const int teams = gridDim.x / (SPLIT * SHARE), team = blockIdx.x / (SPLIT * SHARE);
    const int rank = blockIdx.x % SPLIT, member = blockIdx.x % SHARE;
    // A tile of rows, or -1; its tokens; and where its steps lie in the lists.
    struct Item {
        int tile, m0, begin, end;
    };
    auto fetch_item = [&](int turn) {
        const int at = turn * teams + (turn % 2 ? teams - 1 - team : team);
        if (at >= items) return Item{-1, 0, 0, 0};
        const int low = at / (band * token_tiles) * band, width = tiles - low < band ? tiles - low : band;
        const int of_band = at - low * token_tiles, tile = low + of_band % width;
        return Item{tile, (of_band / width * SHARE + member) * TOKENS, load_now(begin + tile), load_now(begin + tile + 1)};
    };
    // This block's part of the steps; computed when needed, since it waits for what was fetched.
    struct Range {
        int first, last;
    };
    auto part = [&](const Item& item) {
        const int steps = item.end - item.begin;
        return Range{item.begin + steps * rank / SPLIT, item.begin + steps * (rank + 1) / SPLIT};
    };

"
    .replace("ARRIVALS", &full_arrivals(config, 1).to_string())
    .replace("MEET", if config.split * config.share > 1 { "cluster_sync" } else { "__syncthreads" })
    .replace("FULL", if config.split > 1 { "sums = staging + STAGING_BYTES, full = sums + SUM_BYTES" } else { "full = staging + STAGING_BYTES" })
}

/// What the copy engine brings of a step's weights.
struct Weights {
    bytes: &'static str,
    positions: &'static str,
}

fn weights(config: &KernelConfig) -> Weights {
    if config.intrinsic == Intrinsic::WgmmaSp {
        Weights {
            bytes: "W_STAGE * 2 + P_STAGE * 4",
            positions: "                        bulk_copy(ws + W_STAGE * 2, positions + (size_t)(range.first + ahead + u) * P_STAGE, P_STAGE * 4, full + 8 * stage);\n",
        }
    } else {
        Weights { bytes: "W_STAGE * 2", positions: "" }
    }
}

/// The producer's part in the cluster's last meeting.
fn joined(config: &KernelConfig) -> &'static str {
    if config.split * config.share > 1 { "        __syncwarp();\n        cluster_sync();\n" } else { "" }
}

/// The weights of one step, whole or this block's part for all of the cluster.
fn load_weights(config: &KernelConfig) -> &'static str {
    if config.share > 1 {
        "bulk_copy_to_all<SHARE>(ws + member * (W_STAGE * 2 / SHARE), values + (size_t)(range.first + ahead + u) * W_STAGE + member * (W_STAGE / SHARE), W_STAGE * 2 / SHARE, full + 8 * stage);"
    } else {
        "bulk_copy(ws, values + (size_t)(range.first + ahead + u) * W_STAGE, W_STAGE * 2, full + 8 * stage);"
    }
}

/// A warp's word that it has read a stage, to whoever fills it.
fn release(config: &KernelConfig, condition: &str) -> String {
    if config.share > 1 {
        format!("if ({condition} && lane < SHARE) barrier_arrive_at(empty + 8 * previous, lane);")
    } else {
        format!("if ({condition} && lane == 0) barrier_arrive(empty + 8 * previous);")
    }
}

/// The boxes of one step: `column`, the tokens `m0`, the place `xs` and the stage are known.
pub(super) const LOAD_BOXES: &str = "#pragma unroll
                    for (int c = 0; c < TOKENS / 64; ++c) {
                        if (lane < GROUPS) load_box(x_map, column, m0 + c * 64, xs + c * (STEP * 128) + lane * (RUN * 128), full + 8 * stage);
                    }
";

fn box_producer(config: &KernelConfig) -> String {
    let (Weights { bytes, positions }, load, joined) = (weights(config), load_weights(config), joined(config));
    format!(
        "    if (group == 2) {{
        give_registers<72>();
        if (warp == 0) {{
            // The first columns of the groups of four steps are fetched while the four before are copied: of a step, eight lanes.
            auto fetch = [&](Range range, int step) {{
                const int mine = range.first + step + lane / 8, group = lane % 8;
                return mine < range.last && group < GROUPS ? load_now(columns + (size_t)mine * STEP + group * RUN) : -1;
            }};
            int stage = 0, turn = 0;
            unsigned phase = 0;
            Item item = fetch_item(0), coming = fetch_item(1);
            Range range = part(item);
            int far = fetch(range, 0);
            // X is what the kernel before may have written.
            dependency_wait();
            for (; item.tile >= 0; ++turn) {{
                const Range next = part(coming);
                const int m0 = item.m0;
                item = coming;
                coming = fetch_item(turn + 2);
                const int steps = range.last - range.first;
                for (int ahead = 0; ahead == 0 || ahead < steps; ahead += 4) {{
                    // Used before more is fetched: to wait for the one would be to wait for the other.
                    const int near = far < 0 ? NOWHERE : far;
                    far = ahead + 4 < steps ? fetch(range, ahead + 4) : fetch(next, 0);
#pragma unroll
                    for (int u = 0; u < 4; ++u) {{
                        if (ahead + u >= steps) break;
                        const int column = __shfl_sync(0xffffffffu, near, u * 8 + lane % 8);
                        barrier_wait(empty + 8 * stage, phase ^ 1);
                        const unsigned xs = base + stage * STAGE_BYTES, ws = xs + X_STAGE * 2;
                        if (lane == 0) {{
                            {load}
{positions}                            barrier_expect(full + 8 * stage, X_STAGE * 2 + {bytes});
                        }}
                        __syncwarp();
{LOAD_BOXES}                        if (++stage == STAGES) {{
                            stage = 0;
                            phase ^= 1;
                        }}
                    }}
                }}
                range = next;
            }}
        }}
{joined}        return;
    }}

"
    )
}

fn producer(config: &KernelConfig) -> String {
    let (Weights { bytes, positions }, load, joined) = (weights(config), load_weights(config), joined(config));
    format!(
        "    if (group == 2) {{
        give_registers<72>();
        // A warp copies 16 of a step's 64 rows of X. Its lanes cover so many tokens of so many rows at once.
        constexpr int LANES = TOKENS / 8 < 32 ? TOKENS / 8 : 32, AT_ONCE = 32 / LANES, COUNT = 16 / AT_ONCE;
        constexpr int PARTS = (TOKENS + 255) / 256;
        const int sub = lane / LANES;
        // Chunk of 64 tokens, then rows of 128 bytes, chunks of 16 exchanged by the row's number.
        const unsigned chunk = lane % LANES / 8 * (STEP * 128) + warp * 2048 + sub * 128, within = lane % 8;
        const unsigned row_chunks = m / 8;
        // The columns of four steps are fetched while the four before are copied: two steps a register, 16 lanes each, this
        // warp's rows.
        auto fetch = [&](Range range, int step) {{
            const int mine = range.first + step + lane / 16;
            return mine < range.last ? load_now(columns + (size_t)mine * STEP + warp * 16 + lane % 16) : -1;
        }};
        int stage = 0, turn = 0;
        unsigned phase = 0;
        Item item = fetch_item(0), coming = fetch_item(1);
        Range range = part(item);
        int near = fetch(range, 0), far = fetch(range, 2);
        // X is what the kernel before may have written.
        dependency_wait();
        for (; item.tile >= 0; ++turn) {{
            const Range next = part(coming);
            const int m0 = item.m0;
            item = coming;
            coming = fetch_item(turn + 2);
            const int token = m0 + lane % LANES * 8;
            const uint4* const source = (const uint4*)(x + (token < m ? token : 0));
            const int steps = range.last - range.first;
            for (int ahead = 0; ahead == 0 || ahead < steps; ahead += 4) {{
                // Offsets into X in units of 16 bytes, and a bit for each row that there is. What was fetched is used up
                // before more is fetched: to wait for the one would be to wait for the other.
                const unsigned there[2] = {{__ballot_sync(0xffffffffu, near >= 0), __ballot_sync(0xffffffffu, far >= 0)}};
                const unsigned places[2] = {{near < 0 ? 0 : near * row_chunks, far < 0 ? 0 : far * row_chunks}};
                const bool more = ahead + 4 < steps;
                near = more ? fetch(range, ahead + 4) : fetch(next, 0);
                far = more ? fetch(range, ahead + 6) : fetch(next, 2);
#pragma unroll
                for (int u = 0; u < 4; ++u) {{
                    if (ahead + u >= steps) break;
                    unsigned offset[COUNT];
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) {{
                        offset[i] = __shfl_sync(0xffffffffu, places[u / 2], u % 2 * 16 + i * AT_ONCE + sub);
                    }}
                    const unsigned here = there[u / 2] >> u % 2 * 16 & 0xffffu;
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    const unsigned xs = base + stage * STAGE_BYTES, ws = xs + X_STAGE * 2;
                    if (lane == 0 && warp == (stage & 3)) {{
                        {load}
{positions}                        barrier_expect(full + 8 * stage, {bytes});
                    }}
                    __syncwarp();
                    const unsigned to = xs + chunk;
                    if (here == 0xffffu && m0 + TOKENS <= m) {{
#pragma unroll
                        for (int i = 0; i < COUNT; ++i) {{
#pragma unroll
                            for (int p = 0; p < PARTS; ++p) {{
                                copy_chunk(to + p * (4 * STEP * 128) + i * AT_ONCE * 128 + ((within ^ ((i * AT_ONCE + sub) & 7)) << 4),
                                           source + offset[i] + p * 32);
                            }}
                        }}
                    }} else {{
#pragma unroll
                        for (int i = 0; i < COUNT; ++i) {{
#pragma unroll
                            for (int p = 0; p < PARTS; ++p) {{
                                const bool kept = token + p * 256 < m && here >> (i * AT_ONCE + sub) & 1;
                                copy_chunk(to + p * (4 * STEP * 128) + i * AT_ONCE * 128 + ((within ^ ((i * AT_ONCE + sub) & 7)) << 4),
                                           source + (kept ? offset[i] + p * 32 : 0), kept);
                            }}
                        }}
                    }}
                    barrier_arrive_after_copies(full + 8 * stage);
                    if (++stage == STAGES) {{
                        stage = 0;
                        phase ^= 1;
                    }}
                }}
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

fn consumer(config: &KernelConfig) -> String {
    let sparse = config.intrinsic == Intrinsic::WgmmaSp;
    // Rows of W are 128 bytes (128-byte swizzle), or 64 where half is stored (64-byte swizzle).
    let (w_row, weights) = if sparse { (64, "descriptor64") } else { (128, "descriptor") };
    let (group_rows, group_x) = if config.rows == 128 {
        (format!("group * (64 * {w_row})"), "0")
    } else {
        ("0".into(), "group * (GROUP_TOKENS / 64 * STEP * 128)")
    };
    let (row0, token0) = if config.rows == 128 { ("group * 64", "0") } else { ("0", "group * GROUP_TOKENS") };
    let (staging, claim) = if config.runs {
        (
            "    // Buffers of 64 rows in turn.
    const unsigned buffers = staging + group * (BUFFERS * 64 * CHUNK * 2);
    int buffer = 0;
",
            "            // Both are free again long before they are needed.
            if (threadIdx.x % 128 == 0) boxes_read<0>();
            group_sync(group);
",
        )
    } else {
        ("    const unsigned mine = staging + (group * 4 + warp) * (2 * 16 * CHUNK * 2);\n", "")
    };
    // What ordinary copies brought is fenced.
    let fence = if config.column_run > 0 { "" } else { "            fence_async();\n" };
    let main_loop = if sparse { sparse_loop(config) } else { dense_loop().into() }
        .replace("FENCE", fence)
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
        // The step before is done: its positions are read, by all that read them, and its stage may be filled again.
        auto retire = [&](int step, unsigned& read) {
            wgmma_wait<1>();
            asm volatile(\"\" : \"+r\"(read)::\"memory\");
            group_sync(group);
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
        group_sync(group);
        RELEASE_LAST
"
    .replace("WORD", word)
}

/// The sums of the cluster's blocks: each gets its part of the tokens from all.
fn reduction(config: &KernelConfig) -> &'static str {
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

/// The epilogue on `acc` and its stores, with `numbers`, `m0` and the tile known; `number` counts the boxes of an item.
pub(super) fn finish(config: &KernelConfig, number: &str) -> String {
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
        "{watch}{own_rows}        const int matrix_row = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
        for (int c = 0; c < PIECE / CHUNK; ++c) {{
{store}{repair}"
    )
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
    let steps = steps(config, "                ", ["[n_row]", "[at]"]);
    format!(
        "        if (again) {{
            for (int i = lane; i < 16 * PIECE; i += 32) {{
                const int row = row0 + i / PIECE, token = m0 + i % PIECE;
                const int n_row = rows[tile * ROWS + row];
                if (n_row < 0 || token >= m) continue;
                const size_t at = (size_t)n_row * m + token;
                float v = exact(x, values, columns, begin[tile], begin[tile + 1], row, token, m);
{steps}                y[at] = from_float<T>(v);
            }}
            __syncwarp();
        }}
"
    )
}
