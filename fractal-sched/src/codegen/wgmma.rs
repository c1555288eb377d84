//! `wgmma` and `wgmma_sp`: m64nNk16, or m64nNk32 with 2 of 4 kept, on f16 or bf16; Hopper alone. One persistent block a multiprocessor: two warpgroups multiply, each 64
//! rows of the tile, and one warpgroup copies. Weights come as swizzled images by bulk copies; each kept row of X comes by
//! `cp.async`, 16 bytes a lane, straight into the swizzled B tile, so that nothing but the row's number differs from a dense
//! kernel. Barriers say when a stage is full (copies of 128 threads and the bulk copy) and when it is empty (8 warps).

use super::KernelConfig;
use super::store::steps;
use fractal_dsl::{DType, Intrinsic};

/// Bytes of staging: 16 rows x 64 tokens of each multiplying warp.
pub(super) const STAGING_BYTES: usize = 8 * 16 * 64 * 2;
/// Bytes of barriers, and what the first stage may lose to its alignment.
pub(super) const BARRIER_BYTES: usize = 128 + 1024;

/// Everything between the signature and the end of the kernel.
pub(super) fn body(config: &KernelConfig) -> String {
    [place().into(), producer(config), consumer(config), epilogue(config)].concat()
}

/// The instruction for this number of tokens and type: `acc[64 x TOKENS] (+)= a b`.
pub(super) fn instruction(config: &KernelConfig) -> String {
    let registers = config.tokens / 2;
    let dtype = if config.dtype == DType::F16 { "f16" } else { "bf16" };
    let list = |f: &dyn Fn(usize) -> String| (0..registers).map(f).collect::<Vec<_>>().join(", ");
    let (places, operands) = (list(&|i| format!("%{i}")), list(&|i| format!("\"+f\"(d[{i}])")));
    let tokens = config.tokens;
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

fn place() -> &'static str {
    "    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = (shared_address(shared) + 1023) / 1024 * 1024;
    const unsigned staging = base + STAGES * STAGE_BYTES;
    const unsigned full = staging + STAGING_BYTES, empty = full + 8 * STAGES;
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, 128 + 1);
            barrier_init(empty + 8 * s, 8);
        }
        barrier_init_done();
    }
    __syncthreads();
    // parallel for tile, mo: the blocks of the grid take items in turn, long tiles first.
    const int token_tiles = (m + TOKENS - 1) / TOKENS;
    const int items = tiles * token_tiles;

"
}

fn producer(config: &KernelConfig) -> String {
    // A warp copies 16 of a step's 64 rows; its lanes cover 256 tokens of one row or 128 of two.
    let (rows_at_once, lanes) = if config.tokens == 256 { (1, "lane") } else { (2, "lane % 16") };
    let (second_row, row_bytes, swizzle) =
        if rows_at_once == 2 { (" + lane / 16 * 128", 256, "((2 * i + lane / 16) & 7)") } else { ("", 128, "(i & 7)") };
    let (w_bytes, positions) = if config.intrinsic == Intrinsic::WgmmaSp {
        (
            "W_STAGE * 2 + P_STAGE * 4",
            "                        bulk_copy(ws + W_STAGE * 2, positions + (size_t)(first + ahead + u) * P_STAGE, P_STAGE * 4, full + 8 * stage);\n",
        )
    } else {
        ("W_STAGE * 2", "")
    };
    let second = if rows_at_once == 2 { " + lane / 16" } else { "" };
    format!(
        "    if (group == 2) {{
        give_registers<56>();
        int stage = 0;
        unsigned phase = 0;
        // Columns are fetched four steps ahead: two steps a register, 16 lanes each, this warp's rows. Kept as offsets into X
        // in units of 16 bytes, with a bit for each that there is.
        const unsigned row_chunks = m / 8;
        struct Rows {{
            unsigned offset, there;
        }};
        auto fetch = [&](int first, int steps, int step) {{
            const int mine = step + lane / 16;
            const int k = mine < steps ? __ldg(columns + (size_t)(first + mine) * STEP + warp * 16 + lane % 16) : -1;
            return Rows{{k < 0 ? 0 : k * row_chunks, __ballot_sync(0xffffffffu, k >= 0)}};
        }};
        int item = blockIdx.x, first = 0, steps = 0;
        if (item < items) {{
            first = begin[item / token_tiles];
            steps = begin[item / token_tiles + 1] - first;
        }}
        Rows near = fetch(first, steps, 0), far = fetch(first, steps, 2);
        while (item < items) {{
            const int next = item + gridDim.x;
            int next_first = 0, next_steps = 0;
            if (next < items) {{
                next_first = begin[next / token_tiles];
                next_steps = begin[next / token_tiles + 1] - next_first;
            }}
            const int m0 = item % token_tiles * TOKENS;
            const bool inside = m0 + {lanes} * 8 < m;
            const uint4* const source = (const uint4*)(x + (inside ? m0 + {lanes} * 8 : 0));
            // Chunk of 64 tokens, then rows of 128 bytes, chunks of 16 exchanged by the row's number.
            const unsigned chunk = {lanes} / 8 * (STEP * 128), within = {lanes} % 8;
            for (int ahead = 0; ahead == 0 || ahead < steps; ahead += 4) {{
                const bool more = ahead + 4 < steps;
                const Rows next_near = more ? fetch(first, steps, ahead + 4) : fetch(next_first, next_steps, 0);
                const Rows next_far = more ? fetch(first, steps, ahead + 6) : fetch(next_first, next_steps, 2);
                for (int u = 0; u < 4 && ahead + u < steps; ++u) {{
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    const unsigned xs = base + stage * STAGE_BYTES, ws = xs + X_STAGE * 2;
                    if (lane == 0 && warp == (stage & 3)) {{
                        barrier_expect(full + 8 * stage, {w_bytes});
                        bulk_copy(ws, values + (size_t)(first + ahead + u) * W_STAGE, W_STAGE * 2, full + 8 * stage);
{positions}                    }}
                    __syncwarp();
                    const Rows list = u < 2 ? near : far;
                    const unsigned there = list.there >> (u & 1) * 16 & 0xffffu;
                    unsigned offset[16 / {rows_at_once}];
#pragma unroll
                    for (int i = 0; i < 16 / {rows_at_once}; ++i) {{
                        offset[i] = __shfl_sync(0xffffffffu, list.offset, (u & 1) * 16 + i * {rows_at_once}{second});
                    }}
                    const unsigned to = xs + chunk + warp * 2048{second_row};
                    if (there == 0xffffu && m0 + TOKENS <= m) {{
#pragma unroll
                        for (int i = 0; i < 16 / {rows_at_once}; ++i) {{
                            copy_chunk(to + i * {row_bytes} + ((within ^ {swizzle}) << 4), source + offset[i]);
                        }}
                    }} else {{
#pragma unroll
                        for (int i = 0; i < 16 / {rows_at_once}; ++i) {{
                            const bool kept = inside && there >> (i * {rows_at_once}{second}) & 1;
                            copy_chunk(to + i * {row_bytes} + ((within ^ {swizzle}) << 4), source + offset[i], kept);
                        }}
                    }}
                    barrier_arrive_after_copies(full + 8 * stage);
                    if (++stage == STAGES) {{
                        stage = 0;
                        phase ^= 1;
                    }}
                }}
                near = next_near;
                far = next_far;
            }}
            item = next;
            first = next_first;
            steps = next_steps;
        }}
        // No copy may be under way when the block ends.
        asm volatile(\"cp.async.wait_all;\" ::: \"memory\");
        return;
    }}

"
    )
}

fn consumer(config: &KernelConfig) -> String {
    let sparse = config.intrinsic == Intrinsic::WgmmaSp;
    // Rows of W are 128 bytes (128-byte swizzle), or 64 where half is stored (64-byte swizzle).
    let (w_row, weights) = if sparse { (64, "descriptor64") } else { (128, "descriptor") };
    let main_loop = if sparse { sparse_loop() } else { dense_loop() };
    format!(
        "    take_registers<224>();
    float acc[TOKENS / 2];
    int stage = 0;
    unsigned phase = 0;
    const unsigned long long xs = descriptor(base, STEP * 128, 1024);
    const unsigned long long ws = {weights}(base + X_STAGE * 2 + group * (64 * {w_row}), 16, 8 * {w_row});
    for (int item = blockIdx.x; item < items; item += gridDim.x) {{
        const int tile = item / token_tiles, m0 = item % token_tiles * TOKENS;
        const int first = begin[tile], last = begin[tile + 1];
{main_loop}#pragma unroll
        for (int i = 0; i < TOKENS / 2; ++i) {{
            // The compiler does not see that the instruction writes later than it is issued.
            asm volatile(\"\" : \"+f\"(acc[i])::\"memory\");
        }}
        if (last == first) {{
#pragma unroll
            for (int i = 0; i < TOKENS / 2; ++i) acc[i] = 0.0f;
        }}
"
    )
}

fn dense_loop() -> &'static str {
    "        int previous = 0;
        for (int step = first; step < last; ++step) {
            barrier_wait(full + 8 * stage, phase);
            fence_async();
            wgmma_begin();
#pragma unroll
            for (int depth = 0; depth < STEP / 16; ++depth) {
                multiply(acc, advance(ws, stage * STAGE_BYTES + depth * 32), advance(xs, stage * STAGE_BYTES + depth * 2048),
                         step > first || depth > 0);
            }
            wgmma_commit();
            // The step before is done: its stage may be filled again.
            wgmma_wait<1>();
            if (step > first && lane == 0) barrier_arrive(empty + 8 * previous);
            previous = stage;
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        wgmma_wait<0>();
        if (last > first && lane == 0) barrier_arrive(empty + 8 * previous);
"
}

/// Two steps a turn: each has its own register of positions, which must not be written again before the instruction that
/// reads it is done.
fn sparse_loop() -> &'static str {
    "        int previous = 0;
        unsigned even = 0, odd = 0;
        auto issue = [&](int step, unsigned& kept) {
            barrier_wait(full + 8 * stage, phase);
            fence_async();
            const unsigned at = base + stage * STAGE_BYTES + X_STAGE * 2 + W_STAGE * 2;
            asm volatile(\"ld.shared.u32 %0, [%1];\" : \"=r\"(kept) : \"r\"(at + (threadIdx.x % 256) * 4) : \"memory\");
            wgmma_begin();
            multiply<0>(acc, advance(ws, stage * STAGE_BYTES), advance(xs, stage * STAGE_BYTES), kept, step > first);
            multiply<1>(acc, advance(ws, stage * STAGE_BYTES + 32), advance(xs, stage * STAGE_BYTES + 4096), kept, 1);
            wgmma_commit();
        };
        // The step before is done: its positions are read, and its stage may be filled again.
        auto retire = [&](int step, unsigned& read) {
            wgmma_wait<1>();
            asm volatile(\"\" : \"+r\"(read)::\"memory\");
            if (step > first && lane == 0) barrier_arrive(empty + 8 * previous);
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
        if (last > first && lane == 0) barrier_arrive(empty + 8 * previous);
"
}

fn epilogue(config: &KernelConfig) -> String {
    let pack = if config.dtype == DType::F16 { "f16x2" } else { "bf16x2" };
    let at_use = if config.residuals() > 0 {
        "                    const size_t at = (size_t)n_row * m + token;\n                    if (n_row < 0 || token >= m) continue;\n"
    } else {
        ""
    };
    let finish = if config.epilogue.is_empty() {
        String::new()
    } else {
        let steps = steps(config, "                    ");
        format!(
            "#pragma unroll
        for (int h = 0; h < 2; ++h) {{
            const int n_row = rows[tile * ROWS + row0 + lane / 4 + h * 8];
#pragma unroll
            for (int j = 0; j < TOKENS / 8; ++j) {{
#pragma unroll
                for (int e = 0; e < 2; ++e) {{
                    const int token = m0 + j * 8 + lane % 4 * 2 + e;
                    float& v = acc[j * 4 + h * 2 + e];
{at_use}{steps}                }}
                // All at once, the epilogue's loads would take more registers than there are.
                asm volatile(\"\" ::: \"memory\");
            }}
        }}
"
        )
    };
    // A row list entry of -1 has no bias.
    let finish = finish.replace("[n_row]", "[n_row < 0 ? 0 : n_row]");
    let (watch, repair) = if config.stored_zeros { (watch(), repair(config)) } else { (String::new(), String::new()) };
    format!(
        "        // Epilogue: each warp has 16 rows.
        const int row0 = group * 64 + warp * 16;
{watch}{finish}        const unsigned mine = staging + (group * 4 + warp) * 2048;
        const int matrix_row = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
        for (int c = 0; c < TOKENS / 64; ++c) {{
#pragma unroll
            for (int q = 0; q < 4; ++q) {{
                const float* const v = acc + c * 32 + q * 8;
                unsigned p[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {{
                    asm(\"cvt.rn.{pack}.f32 %0, %1, %2;\" : \"=r\"(p[i]) : \"f\"(v[2 * i + 1]), \"f\"(v[2 * i]));
                }}
                store_matrices(mine + matrix_row * 128 + (((2 * q + lane / 16) ^ (matrix_row & 7)) << 4), p[0], p[1], p[2], p[3]);
            }}
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; ++i) {{
                const int row = i * 4 + lane / 8;
                const int n_row = rows[tile * ROWS + row0 + row];
                const int token = m0 + c * 64 + lane % 8 * 8;
                const uint4 v = load_chunk(mine + row * 128 + (((lane % 8) ^ (row & 7)) << 4));
                if (n_row >= 0 && token < m) *(uint4*)(y + (size_t)n_row * m + token) = v;
            }}
            __syncwarp();
        }}
{repair}    }}
"
    )
}

fn watch() -> String {
    "        bool all_finite = true;
#pragma unroll
        for (int i = 0; i < TOKENS / 2; ++i) all_finite &= finite(acc[i]);
        const bool again = __any_sync(0xffffffffu, !all_finite);
"
    .into()
}

/// Zero times an infinity is no zero: where a warp met a sum that is not finite, its sums are taken again without the zeros
/// that stand for dropped weights. The accumulators are free by then.
fn repair(config: &KernelConfig) -> String {
    let steps = steps(config, "                ");
    format!(
        "        if (again) {{
            for (int i = lane; i < 16 * TOKENS; i += 32) {{
                const int row = row0 + i / TOKENS, token = m0 + i % TOKENS;
                const int n_row = rows[tile * ROWS + row];
                if (n_row < 0 || token >= m) continue;
                const size_t at = (size_t)n_row * m + token;
                float v = exact(x, values, columns, first, last, row, token, m);
{steps}                y[at] = from_float<T>(v);
            }}
            __syncwarp();
        }}
"
    )
}
