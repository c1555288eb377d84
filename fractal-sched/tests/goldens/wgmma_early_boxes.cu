// bw:128x64 of a 1024 x 1024 weight
//   let (n2, n3) = split(n, 128);
//   let (k4, k5) = split(k, 64);
//   let k6 = skip(k4, per = (n2), keep = 25%);
// wgmma f16: 128 rows x 64 tokens x 64 columns, 8 stages, 384 threads, 230656 bytes of shared memory, vectors of 8
#include "fractal/types.cuh"
#include "fractal/memory.cuh"
#include "fractal/hopper.cuh"
#include "fractal/epilogue.cuh"

using namespace fractal;

using T = f16;
constexpr int ROWS = 128;            // rows of W a block
constexpr int TOKENS = 64;          // tokens a block
constexpr int STEP = 64;            // kept columns a step
constexpr int STORED = 64;          // of which W stores
constexpr int STAGES = 8;           // of X and W in flight
constexpr int VECTOR = 8;           // elements of X a copy
constexpr int X_STEP = 64;           // columns of X a stage
constexpr unsigned STAGE_BYTES = 24576;  // bytes of a stage: X, and W and positions where they do not stay
constexpr unsigned STAGING_BYTES = 32768;
constexpr int GROUP_TOKENS = 64;     // tokens of a multiplying warpgroup
constexpr int SPLIT = 1;            // blocks that share the steps of a tile
constexpr int SHARE = 1;            // blocks that share its weights, each with its own tokens
constexpr int PIECE = GROUP_TOKENS / SPLIT;  // of which a block finishes
constexpr int CHUNK = 64;           // tokens a warp stages at a time
constexpr int STORES = CHUNK / 16;  // 16-byte stores of a lane for them
constexpr int BUFFERS = 2;          // of such chunks
constexpr int TOGETHER = BUFFERS / 2;  // of which leave at a time
constexpr int RUN = 64;             // columns that follow one another, a box of X
constexpr int GROUPS = STEP / RUN;
constexpr int NOWHERE = 1 << 30;    // a row of X beyond its end
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


extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_wgmma_f16_128x64x64_boxes64_runs(
    const T* __restrict__ x,
    T* __restrict__ y,
    const __grid_constant__ TensorMap x_map,
    const __grid_constant__ TensorMap y_map,
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
    const unsigned full = staging + STAGING_BYTES, empty = full + 8 * STAGES;
    const int group = uniform(threadIdx.x / 128), warp = uniform(threadIdx.x / 32 % 4), lane = threadIdx.x % 32;
    // The next kernel of the stream may take multiprocessors as they become free.
    dependents_may_start();
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 8 * SHARE);
        }
        barrier_init_done();
    }
    __syncthreads();
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
        if (warp == 0) {
            // The first columns of the groups of four steps are fetched while the four before are copied: of a step, eight lanes.
            auto fetch = [&](Range range, int step) {
                const int mine = range.first + step + lane / 8, group = lane % 8;
                return mine < range.last && group < GROUPS ? load_now(columns + (size_t)mine * STEP + group * RUN) : -1;
            };
            int stage = 0, turn = 0;
            unsigned phase = 0;
            Item item = fetch_item(0), coming = fetch_item(1);
            Range range = part(item);
            int far = fetch(range, 0);
            // Weights were there before this kernel's turn. With one tile of tokens each block has weights of its own: all stages
            // are filled. Else two: more would be in the way of what the last blocks of the kernel ahead still copy.
            int early = token_tiles == 1 ? STAGES : 2;
            if (early > range.last - range.first) early = range.last - range.first;
            for (int s = 0; s < early; ++s) {
                const unsigned ws = base + s * STAGE_BYTES + X_STAGE * 2;
                if (lane == 0) {
                    bulk_copy(ws, values + (size_t)(range.first + s) * W_STAGE, W_STAGE * 2, full + 8 * s);
                    barrier_add_bytes(full + 8 * s, W_STAGE * 2);
                }
            }
            // X is what the kernel before may have written.
            dependency_wait();
            for (; item.tile >= 0; ++turn) {
                const Range next = part(coming);
                const int m0 = item.m0;
                item = coming;
                coming = fetch_item(turn + 2);
                const int steps = range.last - range.first;
                for (int ahead = 0; ahead == 0 || ahead < steps; ahead += 4) {
                    // Used before more is fetched: to wait for the one would be to wait for the other.
                    const int near = far < 0 ? NOWHERE : far;
                    far = ahead + 4 < steps ? fetch(range, ahead + 4) : fetch(next, 0);
#pragma unroll
                    for (int u = 0; u < 4; ++u) {
                        if (ahead + u >= steps) break;
                        const int column = __shfl_sync(0xffffffffu, near, u * 8 + lane % 8);
                        barrier_wait(empty + 8 * stage, phase ^ 1);
                        const unsigned xs = base + stage * STAGE_BYTES, ws = xs + X_STAGE * 2;
                        if (lane == 0) {
                            if (early <= 0) bulk_copy(ws, values + (size_t)(range.first + ahead + u) * W_STAGE, W_STAGE * 2, full + 8 * stage);
                            barrier_expect(full + 8 * stage, early > 0 ? X_STAGE * 2 : X_STAGE * 2 + W_STAGE * 2);
                        }
                        early -= early > 0;
                        __syncwarp();
#pragma unroll
                    for (int c = 0; c < TOKENS / 64; ++c) {
                        if (lane < GROUPS) load_box(x_map, column, m0 + c * 64, xs + c * (STEP * 128) + lane * (RUN * 128), full + 8 * stage);
                    }
                        if (++stage == STAGES) {
                            stage = 0;
                            phase ^= 1;
                        }
                    }
                }
                range = next;
            }
        }
        return;
    }

    take_registers<216>();
    int stage = 0;
    unsigned phase = 0;
    const unsigned long long xs = descriptor(base + 0, STEP * 128, 1024);
    const unsigned long long ws = descriptor(base + X_STAGE * 2 + group * (64 * 128), 16, 8 * 128);
    // Each warp has 16 rows.
    const int row0 = group * 64 + warp * 16;
    // Buffers of 64 rows in turn.
    const unsigned buffers = staging + group * (BUFFERS * 64 * CHUNK * 2);
    int buffer = 0;
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
        const int tile = coming.tile, m0 = coming.m0 + 0 + rank * PIECE;
        const Range own = part(coming);
        const int first = own.first, last = own.last;
        const int numbers = numbers_ahead;
        float acc[GROUP_TOKENS / 2];
        // After the first step has been issued: a fence waits for all that was fetched before it.
        auto fetch_ahead = [&]() {
            coming = fetch_item(turn + 1);
            fetch_rows(coming.tile);
            // Both are free again long before they are needed.
            if (threadIdx.x % 128 == 0) boxes_read<0>();
            group_sync(group);
        };
        if (last == first) fetch_ahead();
        int previous = 0;
        for (int step = first; step < last; ++step) {
            barrier_wait(full + 8 * stage, phase);
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
        const int matrix_row = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
        for (int c = 0; c < PIECE / CHUNK; ++c) {
            const unsigned box = buffers + buffer * (64 * CHUNK * 2);
            buffer = (buffer + 1) % BUFFERS;
            if (c >= BUFFERS) {
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
    // Shared memory must last until it is read, and the results be there when the kernel ends.
    if (threadIdx.x % 128 == 0) boxes_written();

}
