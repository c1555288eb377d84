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
//! Many tokens, where asked for: a cluster of `share` blocks takes the same tile with tokens that follow one another; each brings its part of
//! the weights to all of them. A stage is empty when all have read it.
//!
//! Few tiles: a cluster of `split` blocks shares the steps of a tile; then each block gets the sums of its part of the
//! tokens from all, in the order of their ranks, through distributed shared memory.
//!
//! Small blocks (`KernelConfig::has_early_weights`): a kernel starts while the one ahead of it in the stream still runs, and may not
//! read X before that has ended; weights are constants, so those of the first steps are brought while it waits.
//!
//! What a tile needs besides its steps (its place, its rows, its bias) is fetched before its first multiplication, so that
//! the epilogue waits for nothing.
//!
//! | piece | file |
//! |---|---|
//! | sizes, the instruction, a block's place | here |
//! | copying | `load`; rows of X one by one where a step is short for what it brings: `gather` |
//! | the main loop | `multiply` |
//! | exchange of sums, epilogue, stores | `finish` |
//! | weights that stay in shared memory | `resident` |

mod finish;
mod gather;
mod load;
mod multiply;
mod resident;

use super::KernelConfig;
use fractal_dsl::{DType, Intrinsic};

/// Bytes of barriers, and what the first stage may lose to its alignment.
pub(super) const BARRIER_BYTES: usize = 256 + 1024;

/// Tokens of a multiplying warpgroup. Where weights stay, each has all of a block's.
pub(super) fn group_tokens(config: &KernelConfig) -> usize {
    if config.rows == 128 || config.resident > 0 { config.tokens } else { config.tokens / 2 }
}

/// Tokens that a warp stages at a time for its stores.
pub(super) fn chunk(config: &KernelConfig) -> usize {
    // Two buffers of 64 tokens do not fit beside stages of 64 KiB of X; beside 96 KiB of weights that stay, or 72 with 2 of
    // 4 kept, they would take a stage's room.
    let most = match config.resident {
        0 if config.tokens == 512 => 16,
        0..=8 => 64,
        _ => 32,
    };
    (group_tokens(config) / config.split).min(most)
}

/// Buffers of results of a warp or warpgroup: two that take turns, or as many as there are where few weights stay.
fn buffers(config: &KernelConfig) -> usize {
    if config.runs && (config.rows, config.resident) == (128, 4) { 4 } else { 2 }
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
        "constexpr int X_STEP = {};           // columns of X a stage
constexpr unsigned STAGE_BYTES = {};  // bytes of a stage: X, and W and positions where they do not stay
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
        config.x_step(),
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
    let resident = if config.resident > 0 { resident::constants(config) } else { String::new() };
    [constants, boxes, sums, resident].concat()
}

/// Most elements of X that a kernel reaches.
pub(super) fn most_of_x(config: &KernelConfig) -> usize {
    if gather::serves(config) { gather::MOST_OF_X } else { usize::MAX }
}

/// Everything between the signature and the end of the kernel.
pub(super) fn body(config: &KernelConfig) -> String {
    if config.resident > 0 {
        return resident::body(config);
    }
    let producer = if config.column_run > 0 {
        load::box_producer(config)
    } else if gather::serves(config) {
        gather::producer(config)
    } else {
        load::producer(config)
    };
    let last = if config.share > 1 { "    // Others may still write here.\n    cluster_sync();\n" } else { "" };
    [
        &place(config),
        &producer,
        &multiply::consumer(config),
        finish::reduction(config),
        &finish::finish(config, "c", "row0"),
        "    }\n",
        finish::end(config),
        last,
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
fn full_arrivals(config: &KernelConfig, weights: usize) -> usize {
    if config.column_run > 0 { 1 } else { 128 + weights }
}

fn place(config: &KernelConfig) -> String {
    "    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = (shared_address(shared) + 1023) / 1024 * 1024;
    const unsigned staging = base + STAGES * STAGE_BYTES;
    const unsigned FULL, empty = full + 8 * STAGES;
    const int group = uniform(threadIdx.x / 128), warp = uniform(threadIdx.x / 32 % 4), lane = threadIdx.x % 32;
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
    // so that X and W come from memory once a band; the longest tiles are in the first.
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
    // Beside the repair of stored zeros there are no registers for what follows from it.
    .replace("uniform(", if config.stored_zeros { "(" } else { "uniform(" })
    .replace("MEET", if config.split * config.share > 1 { "cluster_sync" } else { "__syncthreads" })
    .replace("FULL", if config.split > 1 { "sums = staging + STAGING_BYTES, full = sums + SUM_BYTES" } else { "full = staging + STAGING_BYTES" })
}
