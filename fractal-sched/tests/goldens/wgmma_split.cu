// tw:64 of a 1024 x 1024 weight
//   let (n2, n3) = split(n, 64);
//   let k4 = skip(k, per = (n2), keep = 25%);
// wgmma f16: 64 rows x 128 tokens x 64 columns, 3 stages, 384 threads, 124160 bytes of shared memory, vectors of 8, 2 blocks a tile
#include "fractal/types.cuh"
#include "fractal/memory.cuh"
#include "fractal/hopper.cuh"
#include "fractal/epilogue.cuh"

using namespace fractal;

using T = f16;
constexpr int ROWS = 64;            // rows of W a block
constexpr int TOKENS = 128;          // tokens a block
constexpr int STEP = 64;            // kept columns a step
constexpr int STORED = 64;          // of which W stores
constexpr int STAGES = 3;           // of X and W in flight
constexpr int VECTOR = 8;           // elements of X a copy
constexpr int X_STEP = 64;           // columns of X a stage
constexpr unsigned STAGE_BYTES = 24576;  // bytes of a stage: X, and W and positions where they do not stay
constexpr unsigned STAGING_BYTES = 16384;
constexpr int GROUP_TOKENS = 64;     // tokens of a multiplying warpgroup
constexpr int SPLIT = 2;            // blocks that share the steps of a tile
constexpr int SHARE = 1;            // blocks that share its weights, each with its own tokens
constexpr int PIECE = GROUP_TOKENS / SPLIT;  // of which a block finishes
constexpr int CHUNK = 32;           // tokens a warp stages at a time
constexpr int STORES = CHUNK / 16;  // 16-byte stores of a lane for them
constexpr int BUFFERS = 2;          // of such chunks
constexpr int TOGETHER = BUFFERS / 2;  // of which leave at a time
constexpr unsigned SUM_BYTES = 32768;  // sums that the blocks of a cluster exchange
constexpr int THREADS = 384;
constexpr int X_STAGE = X_STEP * TOKENS;
constexpr int W_STAGE = ROWS * STORED;

// d[64 x 64] = a[64 x 16] b[16 x 64] (+ d where `accumulate`); a is K-major, b is token-major.
__device__ __forceinline__ void multiply(
    float (&d)[32], unsigned long long a, unsigned long long b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(accumulate));
}

// A sum that is not finite, again without the zeros that stand for dropped weights.
__device__ __forceinline__ float exact(
    const T* x, const T* values, const int* columns, int first, int last, int row, int token, int m) {
    float sum = 0.0f;
    for (int step = first; step < last; ++step) {
        for (int q = 0; q < STEP; ++q) {
            const int k = columns[(size_t)step * STEP + q];
            const float w = to_float(values[(size_t)step * W_STAGE + swizzled<STORED, sizeof(T)>(row, q)]);
            if (k >= 0 && w != 0.0f) sum = fmaf(w, to_float(x[(size_t)k * m + token]), sum);
        }
    }
    return sum;
}

extern "C" __global__ void __cluster_dims__(SPLIT * SHARE, 1, 1) __launch_bounds__(THREADS, 1)
gemm_wgmma_f16_64x128x64_split2_covered(
    const T* __restrict__ x,
    T* __restrict__ y,
    const T* __restrict__ values,
    const int* __restrict__ columns,
    const int* __restrict__ begin,
    const int* __restrict__ rows,
    int tiles,
    int band,
    int n,
    int m) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = (shared_address(shared) + 1023) / 1024 * 1024;
    const unsigned staging = base + STAGES * STAGE_BYTES;
    const unsigned sums = staging + STAGING_BYTES, full = sums + SUM_BYTES, empty = full + 8 * STAGES;
    const int group = (threadIdx.x / 128), warp = (threadIdx.x / 32 % 4), lane = threadIdx.x % 32;
    // The next kernel of the stream may take multiprocessors as they become free.
    dependents_may_start();
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, 129);
            barrier_init(empty + 8 * s, 8 * SHARE);
        }
        barrier_init_done();
    }
    cluster_sync();
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
        // The columns of four steps are fetched while the four before are copied: two steps a register, 16 lanes each, this
        // warp's rows. What is no step counts as there.
        auto fetch = [&](Range range, int step) {
            const int mine = range.first + step + lane / 16;
            return mine < range.last ? load_now(columns + (size_t)mine * STEP + warp * 16 + lane % 16) : 0;
        };
        int stage = 0, turn = 0;
        unsigned phase = 0;
        Item item = fetch_item(0), coming = fetch_item(1);
        Range range = part(item);
        int near = fetch(range, 0), far = fetch(range, 2);
        // Weights were there before this kernel's turn. With one tile of tokens each block has weights of its own: all stages
        // are filled. Else two: more would be in the way of what the last blocks of the kernel ahead still copy.
        int early = token_tiles == 1 ? STAGES : 2;
        if (early > range.last - range.first) early = range.last - range.first;
        for (int s = 0; s < early; ++s) {
            const unsigned ws = base + s * STAGE_BYTES + X_STAGE * 2;
            if (lane == 0 && warp == (s & 3)) {
                bulk_copy(ws, values + (size_t)(range.first + s) * W_STAGE, W_STAGE * 2, full + 8 * s);
                barrier_expect(full + 8 * s, W_STAGE * 2);
            }
        }
        // X is what the kernel before may have written.
        dependency_wait();
        for (; item.tile >= 0; ++turn) {
            const Range next = part(coming);
            const int m0 = item.m0;
            item = coming;
            coming = fetch_item(turn + 2);
            const int token = m0 + lane % LANES * 8;
            const char* const source = (const char*)(x + (token < m ? token : 0));
            const int steps = range.last - range.first;
            for (int ahead = 0; ahead == 0 || ahead < steps; ahead += 4) {
                const bool more = ahead + 4 < steps;
                // A step that lacks a column is as a rule its tile's last: those before it need not look.
                const int near_whole = whole_steps(near), far_whole = whole_steps(far);
                const int near_ahead = more ? fetch(range, ahead + 4) : fetch(next, 0);
                const int far_ahead = more ? fetch(range, ahead + 6) : fetch(next, 2);
                const int count = steps - ahead < 4 ? steps - ahead : 4;
                const int whole = near_whole < 2 ? near_whole : 2 + far_whole;
                const int plain = m0 + TOKENS > m ? 0 : whole < count ? whole : count;
#pragma unroll
                for (int u = 0; u < 4; ++u) {
                    if (u >= plain) break;
                    const int column = u < 2 ? near : far;
                    // A lane's rows come to the first lanes of its LANES; from there, to all of them.
                    const unsigned own = __shfl_sync(0xffffffffu, (unsigned)column * row_bytes, u * QUARTER % 32 + lane % LANES * AT_ONCE + sub);
                    unsigned offsets[COUNT];
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) offsets[i] = __shfl_sync(0xffffffffu, own, i, LANES);
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    const unsigned xs = base + stage * STAGE_BYTES, ws = xs + X_STAGE * 2;
                    if (early > 0) --early;
                    else if (lane == 0 && warp == (stage & 3)) {
                        bulk_copy(ws, values + (size_t)(range.first + ahead + u) * W_STAGE, W_STAGE * 2, full + 8 * stage);
                        barrier_expect(full + 8 * stage, W_STAGE * 2);
                    }
                    __syncwarp();
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
                for (int u = plain; u < count; ++u) {
                    const int column = u < 2 ? near : far;
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    const unsigned xs = base + stage * STAGE_BYTES, ws = xs + X_STAGE * 2;
                    if (early > 0) --early;
                    else if (lane == 0 && warp == (stage & 3)) {
                        bulk_copy(ws, values + (size_t)(range.first + ahead + u) * W_STAGE, W_STAGE * 2, full + 8 * stage);
                        barrier_expect(full + 8 * stage, W_STAGE * 2);
                    }
                    __syncwarp();
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
                near = near_ahead;
                far = far_ahead;
            }
            range = next;
        }
        // No copy may be under way when the block ends.
        asm volatile("cp.async.wait_all;" ::: "memory");
        cluster_sync();
        return;
    }

    take_registers<216>();
    int stage = 0;
    unsigned phase = 0;
    const unsigned long long xs = descriptor(base + group * (GROUP_TOKENS / 64 * STEP * 128), STEP * 128, 1024);
    const unsigned long long ws = descriptor(base + X_STAGE * 2 + 0, 16, 8 * 128);
    // Each warp has 16 rows.
    const int row0 = 0 + warp * 16;
    const unsigned mine = staging + (group * 4 + warp) * (2 * 16 * CHUNK * 2);
    // The numbers of the warp's 16 rows, one a lane, fetched while the item before is multiplied.
    int numbers_ahead = -1;
    auto fetch_rows = [&](int tile) {
        if (tile >= 0) numbers_ahead = load_now(rows + tile * ROWS + row0 + lane % 16);
    };
    int turn = 0;
    Item coming = fetch_item(0);
    fetch_rows(coming.tile);
    dependency_wait();
    for (; coming.tile >= 0; ++turn) {
        const int tile = coming.tile, m0 = coming.m0 + group * GROUP_TOKENS + rank * PIECE;
        const Range own = part(coming);
        const int first = own.first, last = own.last;
        const int numbers = numbers_ahead;
        float acc[GROUP_TOKENS / 2];
#pragma unroll
        for (int i = 0; i < GROUP_TOKENS / 2; ++i) acc[i] = 0.0f;
        // After the first step has been issued: a fence waits for all that was fetched before it.
        auto fetch_ahead = [&]() {
            coming = fetch_item(turn + 1);
            fetch_rows(coming.tile);
        };
        if (last == first) fetch_ahead();
        int previous = 0;
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
            if (step == first) fetch_ahead();
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
#pragma unroll
        for (int i = 0; i < GROUP_TOKENS / 2; ++i) {
            // The compiler does not see that the instruction writes later than it is issued.
            asm volatile("" : "+f"(acc[i])::"memory");
        }
        // A branch, and no selection of each sum.
        if (last == first) {
#pragma unroll
            for (int i = 0; i < GROUP_TOKENS / 2; ++i) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(acc[i]));
        }
        // Of each block, four sums of each thread together.
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
        bool all_finite = true;
#pragma unroll
        for (int i = 0; i < PIECE / 2; ++i) all_finite &= finite(acc[i]);
        const bool again = __any_sync(0xffffffffu, !all_finite);
        const int matrix_row = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
        for (int c = 0; c < PIECE / CHUNK; ++c) {
            // Two buffers in turn: one is read while the other is written.
            const unsigned buffer = mine + c % 2 * (16 * CHUNK * 2);
#pragma unroll
            for (int q = 0; q < CHUNK / 16; ++q) {
                float* const piece = acc + c * (CHUNK / 2) + q * 8;
                unsigned p[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(p[i]) : "f"(piece[2 * i + 1]), "f"(piece[2 * i]));
                }
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
        if (again) {
            for (int i = lane; i < 16 * PIECE; i += 32) {
                const int row = row0 + i / PIECE, token = m0 + i % PIECE;
                const int n_row = rows[tile * ROWS + row];
                if (n_row < 0 || token >= m) continue;
                const size_t at = (size_t)n_row * m + token;
                float v = exact(x, values, columns, begin[tile], begin[tile + 1], row, token, m);
                y[at] = from_float<T>(v);
            }
            __syncwarp();
        }
    }

}
