// tw:128 of a 1024 x 1024 weight
//   let (n2, n3) = split(n, 128);
//   let k4 = skip(k, per = (n2), keep = 25%);
// wgmma f16: 128 rows x 256 tokens x 64 columns, 4 stages, 384 threads, 214144 bytes of shared memory, vectors of 8 | + bias0[n] | gelu
#include "fractal/types.cuh"
#include "fractal/memory.cuh"
#include "fractal/hopper.cuh"
#include "fractal/epilogue.cuh"

using namespace fractal;

using T = f16;
constexpr int ROWS = 128;            // rows of W a block
constexpr int TOKENS = 256;          // tokens a block
constexpr int STEP = 64;            // kept columns a step
constexpr int STORED = 64;          // of which W stores
constexpr int STAGES = 4;           // steps in flight
constexpr int VECTOR = 8;           // elements of X a copy
constexpr unsigned STAGE_BYTES = 49152;  // bytes of a stage: X, W, positions
constexpr unsigned STAGING_BYTES = 16384;
constexpr int THREADS = 384;
constexpr int X_STAGE = STEP * TOKENS;
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
gemm_wgmma_f16_128x256x64(
    const T* __restrict__ x,
    T* __restrict__ y,
    const T* __restrict__ values,
    const int* __restrict__ columns,
    const int* __restrict__ begin,
    const int* __restrict__ rows,
    const float* __restrict__ bias0,
    int tiles,
    int n,
    int m) {
    extern __shared__ __align__(1024) unsigned char shared[];
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

    if (group == 2) {
        give_registers<56>();
        int stage = 0;
        unsigned phase = 0;
        // Columns are fetched four steps ahead: two steps a register, 16 lanes each, this warp's rows. Kept as offsets into X
        // in units of 16 bytes, with a bit for each that there is.
        const unsigned row_chunks = m / 8;
        struct Rows {
            unsigned offset, there;
        };
        auto fetch = [&](int first, int steps, int step) {
            const int mine = step + lane / 16;
            const int k = mine < steps ? __ldg(columns + (size_t)(first + mine) * STEP + warp * 16 + lane % 16) : -1;
            return Rows{k < 0 ? 0 : k * row_chunks, __ballot_sync(0xffffffffu, k >= 0)};
        };
        int item = blockIdx.x, first = 0, steps = 0;
        if (item < items) {
            first = begin[item / token_tiles];
            steps = begin[item / token_tiles + 1] - first;
        }
        Rows near = fetch(first, steps, 0), far = fetch(first, steps, 2);
        while (item < items) {
            const int next = item + gridDim.x;
            int next_first = 0, next_steps = 0;
            if (next < items) {
                next_first = begin[next / token_tiles];
                next_steps = begin[next / token_tiles + 1] - next_first;
            }
            const int m0 = item % token_tiles * TOKENS;
            const bool inside = m0 + lane * 8 < m;
            const uint4* const source = (const uint4*)(x + (inside ? m0 + lane * 8 : 0));
            // Chunk of 64 tokens, then rows of 128 bytes, chunks of 16 exchanged by the row's number.
            const unsigned chunk = lane / 8 * (STEP * 128), within = lane % 8;
            for (int ahead = 0; ahead == 0 || ahead < steps; ahead += 4) {
                const bool more = ahead + 4 < steps;
                const Rows next_near = more ? fetch(first, steps, ahead + 4) : fetch(next_first, next_steps, 0);
                const Rows next_far = more ? fetch(first, steps, ahead + 6) : fetch(next_first, next_steps, 2);
                for (int u = 0; u < 4 && ahead + u < steps; ++u) {
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    const unsigned xs = base + stage * STAGE_BYTES, ws = xs + X_STAGE * 2;
                    if (lane == 0 && warp == (stage & 3)) {
                        barrier_expect(full + 8 * stage, W_STAGE * 2);
                        bulk_copy(ws, values + (size_t)(first + ahead + u) * W_STAGE, W_STAGE * 2, full + 8 * stage);
                    }
                    __syncwarp();
                    const Rows list = u < 2 ? near : far;
                    const unsigned there = list.there >> (u & 1) * 16 & 0xffffu;
                    unsigned offset[16 / 1];
#pragma unroll
                    for (int i = 0; i < 16 / 1; ++i) {
                        offset[i] = __shfl_sync(0xffffffffu, list.offset, (u & 1) * 16 + i * 1);
                    }
                    const unsigned to = xs + chunk + warp * 2048;
                    if (there == 0xffffu && m0 + TOKENS <= m) {
#pragma unroll
                        for (int i = 0; i < 16 / 1; ++i) {
                            copy_chunk(to + i * 128 + ((within ^ (i & 7)) << 4), source + offset[i]);
                        }
                    } else {
#pragma unroll
                        for (int i = 0; i < 16 / 1; ++i) {
                            const bool kept = inside && there >> (i * 1) & 1;
                            copy_chunk(to + i * 128 + ((within ^ (i & 7)) << 4), source + offset[i], kept);
                        }
                    }
                    barrier_arrive_after_copies(full + 8 * stage);
                    if (++stage == STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                }
                near = next_near;
                far = next_far;
            }
            item = next;
            first = next_first;
            steps = next_steps;
        }
        // No copy may be under way when the block ends.
        asm volatile("cp.async.wait_all;" ::: "memory");
        return;
    }

    take_registers<224>();
    float acc[TOKENS / 2];
    int stage = 0;
    unsigned phase = 0;
    const unsigned long long xs = descriptor(base, STEP * 128, 1024);
    const unsigned long long ws = descriptor(base + X_STAGE * 2 + group * (64 * 128), 16, 8 * 128);
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const int tile = item / token_tiles, m0 = item % token_tiles * TOKENS;
        const int first = begin[tile], last = begin[tile + 1];
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
        for (int i = 0; i < TOKENS / 2; ++i) {
            // The compiler does not see that the instruction writes later than it is issued.
            asm volatile("" : "+f"(acc[i])::"memory");
        }
        if (last == first) {
#pragma unroll
            for (int i = 0; i < TOKENS / 2; ++i) acc[i] = 0.0f;
        }
        // Epilogue: each warp has 16 rows.
        const int row0 = group * 64 + warp * 16;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int n_row = rows[tile * ROWS + row0 + lane / 4 + h * 8];
#pragma unroll
            for (int j = 0; j < TOKENS / 8; ++j) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int token = m0 + j * 8 + lane % 4 * 2 + e;
                    float& v = acc[j * 4 + h * 2 + e];
                    v += bias0[n_row < 0 ? 0 : n_row];
                    v = gelu_short(v);
                }
                // All at once, the epilogue's loads would take more registers than there are.
                asm volatile("" ::: "memory");
            }
        }
        const unsigned mine = staging + (group * 4 + warp) * 2048;
        const int matrix_row = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
        for (int c = 0; c < TOKENS / 64; ++c) {
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                const float* const v = acc + c * 32 + q * 8;
                unsigned p[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(p[i]) : "f"(v[2 * i + 1]), "f"(v[2 * i]));
                }
                store_matrices(mine + matrix_row * 128 + (((2 * q + lane / 16) ^ (matrix_row & 7)) << 4), p[0], p[1], p[2], p[3]);
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = i * 4 + lane / 8;
                const int n_row = rows[tile * ROWS + row0 + row];
                const int token = m0 + c * 64 + lane % 8 * 8;
                const uint4 v = load_chunk(mine + row * 128 + (((lane % 8) ^ (row & 7)) << 4));
                if (n_row >= 0 && token < m) *(uint4*)(y + (size_t)n_row * m + token) = v;
            }
            __syncwarp();
        }
    }

}
