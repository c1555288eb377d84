// tw:64 of a 1024 x 1024 weight
//   let (n2, n3) = split(n, 64);
//   let k4 = skip(k, per = (n2), keep = 25%);
// wgmma f16: 64 rows x 256 tokens x 64 columns, 5 stages, 384 threads, 230656 bytes of shared memory, vectors of 8, at most 16 steps of W resident
#include "fractal/types.cuh"
#include "fractal/memory.cuh"
#include "fractal/hopper.cuh"
#include "fractal/epilogue.cuh"

using namespace fractal;

using T = f16;
constexpr int ROWS = 64;            // rows of W a block
constexpr int TOKENS = 256;          // tokens a block
constexpr int STEP = 64;            // kept columns a step
constexpr int STORED = 64;          // of which W stores
constexpr int STAGES = 5;           // of X and W in flight
constexpr int VECTOR = 8;           // elements of X a copy
constexpr int X_STEP = 32;           // columns of X a stage
constexpr unsigned STAGE_BYTES = 16384;  // bytes of a stage: X, and W and positions where they do not stay
constexpr unsigned STAGING_BYTES = 16384;
constexpr int GROUP_TOKENS = 256;     // tokens of a multiplying warpgroup
constexpr int SPLIT = 1;            // blocks that share the steps of a tile
constexpr int SHARE = 1;            // blocks that share its weights, each with its own tokens
constexpr int PIECE = GROUP_TOKENS / SPLIT;  // of which a block finishes
constexpr int CHUNK = 32;           // tokens a warp stages at a time
constexpr int STORES = CHUNK / 16;  // 16-byte stores of a lane for them
constexpr int BUFFERS = 2;          // of such chunks
constexpr int TOGETHER = BUFFERS / 2;  // of which leave at a time
constexpr int RESIDENT = 16;         // steps of W at most, all of them in shared memory
constexpr int HALVES = ROWS / 64;    // of 64 rows, that a warpgroup multiplies
constexpr int PER_STEP = STEP / X_STEP;  // stages of X
constexpr int THREADS = 384;
constexpr int X_STAGE = X_STEP * TOKENS;
constexpr int W_STAGE = ROWS * STORED;

// d[64 x 256] = a[64 x 16] b[16 x 256] (+ d where `accumulate`); a is K-major, b is token-major.
__device__ __forceinline__ void multiply(
    float (&d)[128], unsigned long long a, unsigned long long b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, p, 1, 1, 0, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(accumulate));
}


extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_wgmma_f16_64x256x64_resident16_runs(
    const T* __restrict__ x,
    T* __restrict__ y,
    const __grid_constant__ TensorMap y_map,
    const T* __restrict__ values,
    const int* __restrict__ columns,
    const int* __restrict__ begin,
    const int* __restrict__ rows,
    int tiles,
    int n,
    int m) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = (shared_address(shared) + 1023) / 1024 * 1024;
    const unsigned weights = base + STAGES * STAGE_BYTES, staging = weights + RESIDENT * (W_STAGE * 2);
    const unsigned full = staging + STAGING_BYTES, empty = full + 8 * STAGES;
    const unsigned weights_there = empty + 8 * STAGES, weights_done = weights_there + 8;
    const int group = uniform(threadIdx.x / 128), warp = uniform(threadIdx.x / 32 % 4), lane = threadIdx.x % 32;
    // The next kernel of the stream may take multiprocessors as they become free.
    dependents_may_start();
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, 128);
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

    if (group == 2) {
        give_registers<72>();
        // A warp copies a quarter of a stage's rows of X. Its lanes cover so many tokens of so many rows at once.
        constexpr int QUARTER = X_STEP / 4;
        constexpr int LANES = TOKENS / 8 < 32 ? TOKENS / 8 : 32, AT_ONCE = 32 / LANES, COUNT = QUARTER / AT_ONCE;
        constexpr int PARTS = (TOKENS + 255) / 256;
        const int sub = lane / LANES;
        // Chunk of 64 tokens, then rows of 128 bytes, pieces of 16 exchanged by the row's number.
        const unsigned chunk = lane % LANES / 8 * (X_STEP * 128) + warp * (QUARTER * 128) + sub * 128, within = lane % 8;
        // Rows of X up to `most` begin at an offset of 32 bits.
        const unsigned row_bytes = (unsigned)m * 2, most = 0xffffffffu / row_bytes;
        // Of a register's two steps, how many have all columns there, up to the first that has not.
        auto whole_steps = [&](int column) {
            const unsigned there = __ballot_sync(0xffffffffu, (unsigned)column <= most);
            return there == 0xffffffffu ? 2 : (there & 0xffff) == 0xffff ? 1 : 0;
        };
        // The columns of a tile: two steps a register, 16 lanes each, this warp's rows as stages have them; and how many
        // steps have all, up to the first that has not: as a rule a tile's last.
        int columns_here[RESIDENT / 2];
        int tile = -1, steps = 0, whole = 0, changes = 0, stage = 0;
        unsigned phase = 0;
        for (int item = from; item < to; go_on(++item)) {
            if (of_rows != tile) {
                tile = of_rows;
                const int first = load_now(begin + tile);
                steps = load_now(begin + tile + 1) - first;
                const int mine = lane % 16 / QUARTER * X_STEP + warp * QUARTER + lane % QUARTER;
#pragma unroll
                for (int i = 0; i < RESIDENT / 2; ++i) {
                    const int step = i * 2 + lane / 16;
                    columns_here[i] = step < steps ? load_now(columns + (size_t)(first + step) * STEP + mine) : 0;
                }
                if (warp == 0 && lane == 0) {
                    if (changes > 0) barrier_wait(weights_done, (changes - 1) & 1);
                    barrier_expect(weights_there, steps * (W_STAGE * 2));
                    for (int step = 0; step < steps; ++step) {
                        bulk_copy(weights + step * (W_STAGE * 2), values + (size_t)(first + step) * W_STAGE, W_STAGE * 2, weights_there);
                    }
                }
                __syncwarp();
                whole = 0;
#pragma unroll
                for (int i = 0; i < RESIDENT / 2; ++i) {
                    const int more = whole_steps(columns_here[i]);
                    if (whole == i * 2) whole += more;
                }
                if (whole > steps) whole = steps;
                // X is what the kernel before may have written.
                if (changes == 0) dependency_wait();
                ++changes;
            }
            const int m0 = of_tokens * TOKENS, token = m0 + lane % LANES * 8;
            const char* const source = (const char*)(x + (token < m ? token : 0));
            const int count = steps * PER_STEP, plain = m0 + TOKENS <= m ? whole * PER_STEP : 0;
            // Four steps at a time: their columns come to the first two registers. All in one piece would be too much code.
#pragma unroll 1
            for (int ahead = 0; ahead < RESIDENT * PER_STEP; ahead += 4 * PER_STEP) {
#pragma unroll
                for (int u = 0; u < 4 * PER_STEP; ++u) {
                    if (ahead + u >= plain) break;
                    const int column = u < 2 * PER_STEP ? columns_here[0] : columns_here[1];
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    const unsigned xs = base + stage * STAGE_BYTES;
                    // A lane's rows come to the first lanes of its LANES; from there, to all of them.
                    const unsigned own = __shfl_sync(0xffffffffu, (unsigned)column * row_bytes, u * QUARTER % 32 + lane % LANES * AT_ONCE + sub);
                    unsigned offsets[COUNT];
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) offsets[i] = __shfl_sync(0xffffffffu, own, i, LANES);
                    const unsigned to = xs + chunk;
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) {
#pragma unroll
                        for (int p = 0; p < PARTS; ++p) {
                            copy_chunk(to + p * (4 * X_STEP * 128) + i * AT_ONCE * 128 + ((within ^ ((i * AT_ONCE + sub) & 7)) << 4),
                                       source + offsets[i] + p * 512);
                        }
                    }
                    barrier_arrive_after_copies(full + 8 * stage);
                    if (++stage == STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                }
#pragma unroll 1
                for (int u = ahead < plain ? plain - ahead : 0; u < 4 * PER_STEP && ahead + u < count; ++u) {
                    const int column = u < 2 * PER_STEP ? columns_here[0] : columns_here[1];
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    const unsigned xs = base + stage * STAGE_BYTES;
                    // A lane's rows come to the first lanes of its LANES; from there, to all of them.
                    const int own = __shfl_sync(0xffffffffu, column, u * QUARTER % 32 + lane % LANES * AT_ONCE + sub);
                    int offsets[COUNT];
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) offsets[i] = __shfl_sync(0xffffffffu, own, i, LANES);
                    const unsigned to = xs + chunk;
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) {
#pragma unroll
                        for (int p = 0; p < PARTS; ++p) {
                            const bool kept = token + p * 256 < m && offsets[i] >= 0;
                            copy_chunk(to + p * (4 * X_STEP * 128) + i * AT_ONCE * 128 + ((within ^ ((i * AT_ONCE + sub) & 7)) << 4),
                                       source + (kept ? (size_t)offsets[i] * row_bytes + p * 512 : 0), kept);
                        }
                    }
                    barrier_arrive_after_copies(full + 8 * stage);
                    if (++stage == STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                }
                const int done[2] = {columns_here[0], columns_here[1]};
#pragma unroll
                for (int i = 2; i < RESIDENT / 2; ++i) columns_here[i - 2] = columns_here[i];
                columns_here[RESIDENT / 2 - 2] = done[0];
                columns_here[RESIDENT / 2 - 1] = done[1];
            }
        }
        // No copy may be under way when the block ends.
        asm volatile("cp.async.wait_all;" ::: "memory");
        return;
    }

    take_registers<216>();
    int stage = 0;
    unsigned phase = 0;
    const unsigned long long xs = descriptor(base, X_STEP * 128, 1024);
    const unsigned long long ws = descriptor(weights, 16, 8 * 128);
    // Buffers of 64 rows in turn.
    const unsigned buffers = staging + group * (BUFFERS * 64 * CHUNK * 2);
    int buffer = 0;
    // The numbers of the 16 rows of this warp in each half of the tile, one a lane.
    int tile = -1, steps = 0, changes = 0, tile_rows[HALVES];
    bool changed = false;
    dependency_wait();
    if (group == 1) pass_turn(1);
    for (int item = from; item < to; go_on(++item)) {
        if (of_rows != tile) {
            // Done with the last weights, if they have come at all: a warpgroup may have had no item of them.
            if (changed) barrier_wait(weights_there, (changes - 1) & 1);
            if (tile >= 0 && lane == 0) barrier_arrive(weights_done);
            tile = of_rows;
            steps = uniform(load_now(begin + tile + 1) - load_now(begin + tile));
#pragma unroll
            for (int half = 0; half < HALVES; ++half) tile_rows[half] = load_now(rows + tile * ROWS + half * 64 + warp * 16 + lane % 16);
            changed = true;
            ++changes;
        }
        if ((item - from) % 2 != group) {
            // The other warpgroup's stages.
            phase ^= (stage + steps * PER_STEP) / STAGES & 1;
            stage = (stage + steps * PER_STEP) % STAGES;
            continue;
        }
        if (changed) barrier_wait(weights_there, (changes - 1) & 1);
        changed = false;
        const int m0 = of_tokens * TOKENS;
        // The other has begun its last step, and seen all stages before this one's full: of a stage, no phase is missed.
        take_turn(group);
        // The first multiplication sets them.
        float sums[HALVES][TOKENS / 2];
        int previous = 0;
        // A stage at a time.
        const int count = steps * PER_STEP;
        for (int part = 0; part < count; ++part) {
            barrier_wait(full + 8 * stage, phase);
            fence_async();
            wgmma_begin();
#pragma unroll
            for (int depth = 0; depth < X_STEP / 16; ++depth) {
                const unsigned long long w = advance(ws, part / PER_STEP * (W_STAGE * 2) + part % PER_STEP * (X_STEP * 2) + depth * 32);
                const unsigned long long b = advance(xs, stage * STAGE_BYTES + depth * 2048);
#pragma unroll
                for (int half = 0; half < HALVES; ++half) multiply(sums[half], advance(w, half * (64 * 128)), b, part > 0 || depth > 0);
            }
            wgmma_commit();
            if (part + 1 == count) pass_turn(group);
            // The step before is done: its stage may be filled again.
            wgmma_wait<1>();
            if (part > 0 && lane == 0) barrier_arrive(empty + 8 * previous);
            previous = stage;
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        // All buffers are free again long before they are needed.
        if (threadIdx.x % 128 == 0) boxes_read<0>();
        group_sync(group);
        wgmma_wait<0>();
        if (steps > 0 && lane == 0) barrier_arrive(empty + 8 * previous);
#pragma unroll
        for (int i = 0; i < HALVES * (TOKENS / 2); ++i) {
            // The compiler does not see that the instruction writes later than it is issued.
            asm volatile("" : "+f"(sums[i / (TOKENS / 2)][i % (TOKENS / 2)])::"memory");
        }
        if (steps == 0) {
            pass_turn(group);
#pragma unroll
            for (int i = 0; i < HALVES * (TOKENS / 2); ++i) {
                asm volatile("mov.f32 %0, 0f00000000;" : "=f"(sums[i / (TOKENS / 2)][i % (TOKENS / 2)]));
            }
        }
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            float (&acc)[TOKENS / 2] = sums[half];
            const int numbers = tile_rows[half];
        const int matrix_row = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
        for (int c = 0; c < PIECE / CHUNK; ++c) {
            const unsigned box = buffers + buffer * (64 * CHUNK * 2);
            buffer = (buffer + 1) % BUFFERS;
            if (half * (PIECE / CHUNK) + c >= BUFFERS) {
                // The oldest box has left this buffer.
                if (threadIdx.x % 128 == 0) boxes_read<BUFFERS - 1>();
                group_sync(group);
            }
#pragma unroll
            for (int q = 0; q < CHUNK / 16; ++q) {
                float* const piece = acc + c * (CHUNK / 2) + q * 8;
                unsigned p[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(p[i]) : "f"(piece[2 * i + 1]), "f"(piece[2 * i]));
                }
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
        }
    }
    // Shared memory must last until it is read, and the results be there when the kernel ends.
    if (threadIdx.x % 128 == 0) boxes_written();

}
