// 2:4 of a 1024 x 1024 weight
//   let (k2, k3) = split(k, 4);
//   let k4 = skip(k3, per = (n, k2), keep = 2 of 4);
// wgmma_sp f16: 128 rows x 256 tokens x 64 columns, 4 stages, 384 threads, 201984 bytes of shared memory, vectors of 8
#include "fractal/types.cuh"
#include "fractal/memory.cuh"
#include "fractal/hopper.cuh"
#include "fractal/epilogue.cuh"

using namespace fractal;

using T = f16;
constexpr int ROWS = 128;            // rows of W a block
constexpr int TOKENS = 256;          // tokens a block
constexpr int STEP = 64;            // kept columns a step
constexpr int STORED = 32;          // of which W stores
constexpr int STAGES = 4;           // of X and W in flight
constexpr int VECTOR = 8;           // elements of X a copy
constexpr int X_STEP = 64;           // columns of X a stage
constexpr unsigned STAGE_BYTES = 41984;  // bytes of a stage: X, and W and positions where they do not stay
constexpr unsigned STAGING_BYTES = 32768;
constexpr int GROUP_TOKENS = 256;     // tokens of a multiplying warpgroup
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
constexpr int P_STAGE = 256;            // words of positions a step
constexpr int THREADS = 384;
constexpr int X_STAGE = X_STEP * TOKENS;
constexpr int W_STAGE = ROWS * STORED;

// d[64 x 256] = a[64 x 32, 2 of 4 kept] b[32 x 256] (+ d where `accumulate`). Lanes 0 and 1 (SELECTOR 0) or
// 2 and 3 (1) of each four hold the positions of what is kept, in a register that is read while the instruction runs.
template <int SELECTOR>
__device__ __forceinline__ void multiply(
    float (&d)[128], unsigned long long a, unsigned long long b, unsigned positions, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %131, 0;\n"
        "wgmma.mma_async.sp.sync.aligned.m64n256k32.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, %130, %132, p, 1, 1, 0, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(positions), "r"(accumulate), "n"(SELECTOR));
}


extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_wgmma_sp_f16_128x256x64_boxes64_runs(
    const T* __restrict__ x,
    T* __restrict__ y,
    const __grid_constant__ TensorMap x_map,
    const __grid_constant__ TensorMap y_map,
    const T* __restrict__ values,
    const __grid_constant__ TensorMap p_map,
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
                        const int column = __shfl_sync(0xffffffffu, near, u * 8);
                        barrier_wait(empty + 8 * stage, phase ^ 1);
                        const unsigned xs = base + stage * STAGE_BYTES, ws = xs + X_STAGE * 2;
                        if (lane == 0) {
                            bulk_copy(ws, values + (size_t)(range.first + ahead + u) * W_STAGE, W_STAGE * 2, full + 8 * stage);
                        load_row(p_map, range.first + ahead + u, ws + W_STAGE * 2, full + 8 * stage);
                            barrier_expect(full + 8 * stage, X_STAGE * 2 + W_STAGE * 2 + P_STAGE * 4);
                        }
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
    const unsigned long long ws = descriptor64(base + X_STAGE * 2 + group * (64 * 64), 16, 8 * 64);
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
        unsigned even = 0, odd = 0;
        auto issue = [&](int step, unsigned& kept) {
            barrier_wait(full + 8 * stage, phase);
            const unsigned at = base + stage * STAGE_BYTES + X_STAGE * 2 + W_STAGE * 2;
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(kept) : "r"(at + (threadIdx.x % 256) * 4) : "memory");
            wgmma_begin();
            multiply<0>(acc, advance(ws, stage * STAGE_BYTES), advance(xs, stage * STAGE_BYTES), kept, step > first);
            multiply<1>(acc, advance(ws, stage * STAGE_BYTES + 32), advance(xs, stage * STAGE_BYTES + 4096), kept, 1);
            wgmma_commit();
            if (step == first) fetch_ahead();
        };
        // The step before is done, and with it what read its positions: its stage may be filled again.
        auto retire = [&](int step, unsigned& read) {
            wgmma_wait<1>();
            asm volatile("" : "+r"(read)::"memory");
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
        asm volatile("" : "+r"(even), "+r"(odd)::"memory");
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
