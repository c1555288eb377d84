//! Few kept columns: the weights of a tile, and the positions of 2 of 4, stay in shared memory while the block goes over the tokens.
//!
//! The two multiplying warpgroups take token tiles in turn, each all rows, so that one stores its results while the
//! other multiplies. Stages hold X alone, half a step where many whole weights stay and rows come one by one. A block has items
//! that follow one another, tile by tile, so that it changes weights seldom; that is announced by two barriers: the weights are
//! there, and both warpgroups are done with the last. Of a tile's tokens blocks begin with those that others have at that time,
//! since the second-level cache is fastest where many read the same.

use super::KernelConfig;
use super::finish::{buffers_of_group, end, finish};
use super::full_arrivals;
use super::gather::{self, COPIES, SETUP};
use super::load::{LOAD_BOXES, PLACE, StepLoop};
use super::multiply::{fence, weights_rows};

/// Constants, then everything between the signature and the end of the kernel.
pub(super) fn constants(config: &KernelConfig) -> String {
    format!(
        "constexpr int RESIDENT = {};         // steps of W at most, all of them in shared memory
constexpr int HALVES = ROWS / 64;    // of 64 rows, that a warpgroup multiplies
constexpr int PER_STEP = STEP / X_STEP;  // stages of X
",
        config.resident
    )
}

pub(super) fn body(config: &KernelConfig) -> String {
    let producer = if config.column_run > 0 {
        box_producer()
    } else if gather::serves(config) {
        gathering_producer()
    } else {
        producer(config)
    };
    let weights = load_weights(config);
    [place(config), producer.replace("LOAD_WEIGHTS\n", &weights), consumer(config)].concat()
}

fn place(config: &KernelConfig) -> String {
    "    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = (shared_address(shared) + 1023) / 1024 * 1024;
    const unsigned weights = base + STAGES * STAGE_BYTES, staging = weights + RESIDENT * (WEIGHTS);
    const unsigned full = staging + STAGING_BYTES, empty = full + 8 * STAGES;
    const unsigned weights_there = empty + 8 * STAGES, weights_done = weights_there + 8;
    const int group = uniform(threadIdx.x / 128), warp = uniform(threadIdx.x / 32 % 4), lane = threadIdx.x % 32;
    // The next kernel of the stream may take multiprocessors as they become free.
    dependents_may_start();
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, ARRIVALS);
            barrier_init(empty + 8 * s, 4);
        }
        barrier_init(weights_there, 1);
        barrier_init(weights_done, 8);
        barrier_init_done();
    }
    __syncthreads();
    // parallel for tile, mo: each block has items that follow one another.
    const int token_tiles = (m + TOKENS - 1) / TOKENS;
    const long long items = (long long)tiles * token_tiles;
    const int from = (int)(items * blockIdx.x / gridDim.x), to = (int)(items * (blockIdx.x + 1) / gridDim.x);
    // Of more tiles than blocks, blocks go over the tokens in step: a tile's items begin with the tokens that let the last block
    // which has some of them begin its own with the first.
    auto first_tokens = [&](unsigned tile) {
        if (tiles <= gridDim.x) return 0u;
        const unsigned block = ((tile + 1) * gridDim.x + tiles - 1) / tiles - 1;
        const unsigned begins = tiles * block % gridDim.x * token_tiles / gridDim.x;
        return begins == 0 ? 0 : token_tiles - begins;
    };
    // Of an item: its tile of rows, and its tile of tokens.
    int of_rows = from / token_tiles;
    int of_tokens = (first_tokens(of_rows) + from % token_tiles) % token_tiles;
    auto go_on = [&](int item) {
        if (++of_tokens == token_tiles) of_tokens = 0;
        if (item == (of_rows + 1) * token_tiles) of_tokens = first_tokens(++of_rows);
    };

"
    .replace("ARRIVALS", &full_arrivals(config, 0).to_string())
    .replace("WEIGHTS", step_bytes(config))
}

/// Bytes of a step's weights, with their positions.
fn step_bytes(config: &KernelConfig) -> &'static str {
    if config.intrinsic.is_sparse() { "W_STAGE * 2 + P_STAGE * 4" } else { "W_STAGE * 2" }
}

/// A tile's weights, when both warpgroups are done with the last one's. Positions lie behind all of them.
fn load_weights(config: &KernelConfig) -> String {
    let bytes = step_bytes(config);
    let positions = if config.intrinsic.is_sparse() {
        "                        load_row(p_map, first + step, weights + RESIDENT * (W_STAGE * 2) + step * (P_STAGE * 4), weights_there);
"
    } else {
        ""
    };
    format!(
        "                    if (changes > 0) barrier_wait(weights_done, (changes - 1) & 1);
                    barrier_expect(weights_there, steps * ({bytes}));
                    for (int step = 0; step < steps; ++step) {{
                        bulk_copy(weights + step * (W_STAGE * 2), values + (size_t)(first + step) * W_STAGE, W_STAGE * 2, weights_there);
{positions}                    }}
"
    )
}

fn box_producer() -> String {
    format!(
        "    if (group == 2) {{
        give_registers<72>();
        if (warp > 0) return;
        // The first columns of a tile's groups: four steps a register, of a step eight lanes.
        int starts[RESIDENT / 4];
        int tile = -1, steps = 0, changes = 0, stage = 0;
        unsigned phase = 0;
        for (int item = from; item < to; go_on(++item)) {{
            if (of_rows != tile) {{
                tile = of_rows;
                const int first = load_now(begin + tile);
                steps = load_now(begin + tile + 1) - first;
#pragma unroll
                for (int i = 0; i < RESIDENT / 4; ++i) {{
                    const int step = i * 4 + lane / 8, group = lane % 8;
                    const bool there = step < steps && group < GROUPS;
                    const int column = there ? load_now(columns + (size_t)(first + step) * STEP + group * RUN) : -1;
                    starts[i] = column < 0 ? NOWHERE : column;
                }}
                if (lane == 0) {{
LOAD_WEIGHTS
                }}
                __syncwarp();
                // X is what the kernel before may have written.
                if (changes == 0) dependency_wait();
                ++changes;
            }}
            const int m0 = of_tokens * TOKENS;
#pragma unroll
            for (int u = 0; u < RESIDENT; ++u) {{
                if (u >= steps) break;
                const int column = __shfl_sync(0xffffffffu, starts[u / 4], u % 4 * 8 + lane % 8);
                barrier_wait(empty + 8 * stage, phase ^ 1);
                const unsigned xs = base + stage * STAGE_BYTES;
                if (lane == 0) barrier_expect(full + 8 * stage, X_STAGE * 2);
                __syncwarp();
{LOAD_BOXES}                if (++stage == STAGES) {{
                    stage = 0;
                    phase ^= 1;
                }}
            }}
        }}
        return;
    }}

"
    )
}

/// Each lane the same four rows of a step, as where weights come by stages.
fn gathering_producer() -> String {
    format!(
        "    if (group == 2) {{
        give_registers<72>();
{SETUP}        int tile = -1, first = 0, steps = 0, changes = 0, stage = 0;
        unsigned phase = 0;
        // The columns of two steps are fetched while the two before are copied; behind a tile's last come its first again.
        int4 near = {{}}, far = {{}};
        auto fetch = [&](int step) {{
            if (step < steps) near = load_four_now(columns + (size_t)(first + step) * STEP + row);
            if (step + 1 < steps) far = load_four_now(columns + (size_t)(first + step + 1) * STEP + row);
        }};
        for (int item = from; item < to; go_on(++item)) {{
            if (of_rows != tile) {{
                tile = of_rows;
                first = load_now(begin + tile);
                steps = load_now(begin + tile + 1) - first;
                fetch(0);
                if (warp == 0 && lane == 0) {{
LOAD_WEIGHTS
                }}
                __syncwarp();
                // X is what the kernel before may have written.
                if (changes == 0) dependency_wait();
                ++changes;
            }}
            const int m0 = of_tokens * TOKENS, token = m0 + lane % 8 * 8;
            const uint4* const source = (const uint4*)(x + (token < m ? token : 0));
            const bool inside = m0 + TOKENS <= m;
            for (int step = 0; step < steps; step += 2) {{
                // What was fetched is used up before more is fetched: to wait for the one would be to wait for the other.
                const Rows both[2] = {{rows_of(near), rows_of(far)}};
                fetch(step + 2 < steps ? step + 2 : 0);
#pragma unroll
                for (int u = 0; u < 2; ++u) {{
                    if (step + u >= steps) break;
                    const Rows& own = both[u];
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    const unsigned xs = base + stage * STAGE_BYTES;
{COPIES}                }}
            }}
        }}
        // No copy may be under way when the block ends.
        asm volatile(\"cp.async.wait_all;\" ::: \"memory\");
        return;
    }}

"
    )
}

fn producer(config: &KernelConfig) -> String {
    let [unrolled, rolled] = [
        "#pragma unroll\nfor (int u = 0; u < 4 * PER_STEP; ++u) {\n    if (ahead + u >= plain) break;\n",
        "#pragma unroll 1\nfor (int u = ahead < plain ? plain - ahead : 0; u < 4 * PER_STEP && ahead + u < count; ++u) {\n",
    ];
    let rows = |plain| {
        StepLoop {
            plain,
            head: if plain { unrolled } else { rolled },
            column: "const int column = u < 2 * PER_STEP ? columns_here[0] : columns_here[1];\n",
            stage: "const unsigned xs = base + stage * STAGE_BYTES;\n",
            // 3 % faster with 8 steps, up to 8 % slower with 4, the same with more (docs/perf-log.md).
            offsets_first: config.resident == 8,
            indent: "                ",
        }
        .code()
    };
    let (plain, others) = (rows(true), rows(false));
    format!(
        "    if (group == 2) {{
        give_registers<72>();
{PLACE}        // The columns of a tile: two steps a register, 16 lanes each, this warp's rows as stages have them; and how many
        // steps have all, up to the first that has not: as a rule a tile's last.
        int columns_here[RESIDENT / 2];
        int tile = -1, steps = 0, whole = 0, changes = 0, stage = 0;
        unsigned phase = 0;
        for (int item = from; item < to; go_on(++item)) {{
            if (of_rows != tile) {{
                tile = of_rows;
                const int first = load_now(begin + tile);
                steps = load_now(begin + tile + 1) - first;
                const int mine = lane % 16 / QUARTER * X_STEP + warp * QUARTER + lane % QUARTER;
#pragma unroll
                for (int i = 0; i < RESIDENT / 2; ++i) {{
                    const int step = i * 2 + lane / 16;
                    columns_here[i] = step < steps ? load_now(columns + (size_t)(first + step) * STEP + mine) : 0;
                }}
                if (warp == 0 && lane == 0) {{
LOAD_WEIGHTS
                }}
                __syncwarp();
                whole = 0;
#pragma unroll
                for (int i = 0; i < RESIDENT / 2; ++i) {{
                    const int more = whole_steps(columns_here[i]);
                    if (whole == i * 2) whole += more;
                }}
                if (whole > steps) whole = steps;
                // X is what the kernel before may have written.
                if (changes == 0) dependency_wait();
                ++changes;
            }}
            const int m0 = of_tokens * TOKENS, token = m0 + lane % LANES * 8;
            const char* const source = (const char*)(x + (token < m ? token : 0));
            const int count = steps * PER_STEP, plain = m0 + TOKENS <= m ? whole * PER_STEP : 0;
            // Four steps at a time: their columns come to the first two registers. All in one piece would be too much code.
#pragma unroll 1
            for (int ahead = 0; ahead < RESIDENT * PER_STEP; ahead += 4 * PER_STEP) {{
{plain}{others}                const int done[2] = {{columns_here[0], columns_here[1]}};
#pragma unroll
                for (int i = 2; i < RESIDENT / 2; ++i) columns_here[i - 2] = columns_here[i];
                columns_here[RESIDENT / 2 - 2] = done[0];
                columns_here[RESIDENT / 2 - 1] = done[1];
            }}
        }}
        // No copy may be under way when the block ends.
        asm volatile(\"cp.async.wait_all;\" ::: \"memory\");
        return;
    }}

"
    )
}

fn consumer(config: &KernelConfig) -> String {
    let claim = if config.runs {
        "        // All buffers are free again long before they are needed.
        if (threadIdx.x % 128 == 0) boxes_read<0>();
        group_sync(group);
"
    } else {
        ""
    };
    let declared: String = (0..config.biases()).map(|b| format!("    float bias{b}_rows[2 * HALVES];\n")).collect();
    let fetched: String = (0..config.biases())
        .map(|b| format!("                bias{b}_rows[h] = load_now(bias{b} + (n_row < 0 ? 0 : n_row));\n"))
        .collect();
    let biases = if fetched.is_empty() {
        String::new()
    } else {
        format!(
            "#pragma unroll
            for (int h = 0; h < 2 * HALVES; ++h) {{
                const int n_row = __shfl_sync(0xffffffffu, tile_rows[h / 2], lane / 4 + h % 2 * 8);
{fetched}            }}
"
        )
    };
    let here: String = (0..config.biases())
        .map(|b| {
            format!(
                "            const float bias{b}_here[2] = {{bias{b}_rows[half * 2], bias{b}_rows[half * 2 + 1]}};\n"
            )
        })
        .collect();
    let own_staging = buffers_of_group(config);
    let (main_loop, read) = if config.intrinsic.is_sparse() {
        let read = "#pragma unroll
        for (int half = 0; half < HALVES; ++half) asm volatile(\"\" : \"+r\"(even[half]), \"+r\"(odd[half])::\"memory\");
";
        (sparse_loop(config), read)
    } else {
        (dense_loop(config), "")
    };
    let (w_row, descriptor) = weights_rows(config);
    let (finish, end) = (finish(config, "half * (PIECE / CHUNK) + c", "half * 64 + warp * 16"), end(config));
    format!(
        "    take_registers<216>();
    int stage = 0;
    unsigned phase = 0;
    const unsigned long long xs = descriptor(base, X_STEP * 128, 1024);
    const unsigned long long ws = {descriptor}(weights, 16, 8 * {w_row});
{own_staging}    // The numbers of the 16 rows of this warp in each half of the tile, one a lane.
    int tile = -1, steps = 0, changes = 0, tile_rows[HALVES];
{declared}    bool changed = false;
    dependency_wait();
    if (group == 1) pass_turn(1);
    for (int item = from; item < to; go_on(++item)) {{
        if (of_rows != tile) {{
            // Done with the last weights, if they have come at all: a warpgroup may have had no item of them.
            if (changed) barrier_wait(weights_there, (changes - 1) & 1);
            if (tile >= 0 && lane == 0) barrier_arrive(weights_done);
            tile = of_rows;
            steps = uniform(load_now(begin + tile + 1) - load_now(begin + tile));
#pragma unroll
            for (int half = 0; half < HALVES; ++half) tile_rows[half] = load_now(rows + tile * ROWS + half * 64 + warp * 16 + lane % 16);
{biases}            changed = true;
            ++changes;
        }}
        if ((item - from) % 2 != group) {{
            // The other warpgroup's stages.
            phase ^= (stage + steps * PER_STEP) / STAGES & 1;
            stage = (stage + steps * PER_STEP) % STAGES;
            continue;
        }}
        if (changed) barrier_wait(weights_there, (changes - 1) & 1);
        changed = false;
        const int m0 = of_tokens * TOKENS;
        // The other has begun its last step, and seen all stages before this one's full: of a stage, no phase is missed.
        take_turn(group);
        // The first multiplication sets them.
        float sums[HALVES][TOKENS / 2];
        int previous = 0;
{main_loop}{claim}        wgmma_wait<0>();
{read}        if (steps > 0 && lane == 0) barrier_arrive(empty + 8 * previous);
#pragma unroll
        for (int i = 0; i < HALVES * (TOKENS / 2); ++i) {{
            // The compiler does not see that the instruction writes later than it is issued.
            asm volatile(\"\" : \"+f\"(sums[i / (TOKENS / 2)][i % (TOKENS / 2)])::\"memory\");
        }}
        if (steps == 0) {{
            pass_turn(group);
#pragma unroll
            for (int i = 0; i < HALVES * (TOKENS / 2); ++i) {{
                asm volatile(\"mov.f32 %0, 0f00000000;\" : \"=f\"(sums[i / (TOKENS / 2)][i % (TOKENS / 2)]));
            }}
        }}
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {{
            float (&acc)[TOKENS / 2] = sums[half];
            const int numbers = tile_rows[half];
{here}{finish}        }}
    }}
{end}"
    )
}

/// A stage at a time.
fn dense_loop(config: &KernelConfig) -> String {
    let fence = fence(config);
    format!(
        "        // A stage at a time.
        const int count = steps * PER_STEP;
        for (int part = 0; part < count; ++part) {{
            barrier_wait(full + 8 * stage, phase);
{fence}            wgmma_begin();
#pragma unroll
            for (int depth = 0; depth < X_STEP / 16; ++depth) {{
                const unsigned long long w = advance(ws, part / PER_STEP * (W_STAGE * 2) + part % PER_STEP * (X_STEP * 2) + depth * 32);
                const unsigned long long b = advance(xs, stage * STAGE_BYTES + depth * 2048);
#pragma unroll
                for (int half = 0; half < HALVES; ++half) multiply(sums[half], advance(w, half * (64 * 128)), b, part > 0 || depth > 0);
            }}
            wgmma_commit();
            if (part + 1 == count) pass_turn(group);
            // The step before is done: its stage may be filled again.
            wgmma_wait<1>();
            if (part > 0 && lane == 0) barrier_arrive(empty + 8 * previous);
            previous = stage;
            if (++stage == STAGES) {{
                stage = 0;
                phase ^= 1;
            }}
        }}
"
    )
}

/// Two steps a turn: each has its own registers of positions, which must not be written again before the instruction that reads
/// them is done.
fn sparse_loop(config: &KernelConfig) -> String {
    let fence = fence(config);
    format!(
        "        unsigned even[HALVES] = {{}}, odd[HALVES] = {{}};
        auto issue = [&](int step, unsigned (&kept)[HALVES]) {{
            barrier_wait(full + 8 * stage, phase);
{fence}#pragma unroll
            for (int half = 0; half < HALVES; ++half) {{
                const unsigned at = weights + RESIDENT * (W_STAGE * 2) + step * (P_STAGE * 4) + (half * 128 + threadIdx.x % 128) * 4;
                asm volatile(\"ld.shared.u32 %0, [%1];\" : \"=r\"(kept[half]) : \"r\"(at) : \"memory\");
            }}
            wgmma_begin();
            const unsigned long long w = advance(ws, step * (W_STAGE * 2)), b = advance(xs, stage * STAGE_BYTES);
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {{
                multiply<0>(sums[half], advance(w, half * (64 * 64)), b, kept[half], step > 0);
                multiply<1>(sums[half], advance(w, half * (64 * 64) + 32), advance(b, 4096), kept[half], 1);
            }}
            wgmma_commit();
            if (step + 1 == steps) pass_turn(group);
        }};
        // The step before is done, and with it what read its positions: its stage may be filled again.
        auto retire = [&](int step, unsigned (&read)[HALVES]) {{
            wgmma_wait<1>();
#pragma unroll
            for (int half = 0; half < HALVES; ++half) asm volatile(\"\" : \"+r\"(read[half])::\"memory\");
            if (step > 0 && lane == 0) barrier_arrive(empty + 8 * previous);
            previous = stage;
            if (++stage == STAGES) {{
                stage = 0;
                phase ^= 1;
            }}
        }};
        for (int step = 0; step < steps; step += 2) {{
            issue(step, even);
            retire(step, odd);
            if (step + 1 < steps) {{
                issue(step + 1, odd);
                retire(step + 1, even);
            }}
        }}
"
    )
}
