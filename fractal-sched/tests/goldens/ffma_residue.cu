// tw:128 of a 1024 x 1024 weight
//   let (n2, n3) = split(n, 128);
//   let k4 = skip(k, per = (n2), keep = 24%);
// ffma f32: 128 rows x 128 tokens x 16 columns, 3 stages, 256 threads, 98816 bytes of shared memory, vectors of 4, 128 rows a block, warps of 64 x 32 in 1 groups, 32 columns a stage, a residue | * 0.5 | + residual0[n, m] | relu
#include "fractal/types.cuh"
#include "fractal/memory.cuh"
#include "fractal/epilogue.cuh"
#include "fractal/residue.cuh"

using namespace fractal;

using T = float;
constexpr int ROWS = 128;            // rows of W a tile
constexpr int TOKENS = 128;          // tokens a block
constexpr int STEP = 16;            // kept columns a step
constexpr int STORED = 16;          // of which W stores
constexpr int STAGES = 3;           // of X and W in flight
constexpr int VECTOR = 4;           // elements of X a copy
constexpr int WARP_ROWS = 64;
constexpr int WARP_TOKENS = 32;
constexpr int THREADS = 256;
constexpr int X_STAGE = STEP * TOKENS;
constexpr int W_STAGE = ROWS * STORED;
constexpr int BLOCK_ROWS = 128;      // of the tile's rows, those of a block
constexpr int COLUMNS = 32;         // columns a stage: whole steps
constexpr int GROUPS = 1;          // of warps, which share a stage's columns
constexpr int ROW_LANES = 8;       // of a warp's 32, the others lie along the tokens
constexpr int SHARED_BYTES = 98816;  // stages or sums, then row numbers

// A sum that is not finite, again without the zeros that stand for dropped weights.
__device__ __noinline__ float exact(
    const T* x, const T* values, const int* columns, int first, int last, int row, int token, int m) {
    float sum = 0.0f;
    for (int step = first; step < last; ++step) {
        for (int q = 0; q < STEP; ++q) {
            const int k = columns[(size_t)step * STEP + q];
            const float w = to_float(values[(size_t)step * W_STAGE + q * ROWS + row]);
            if (k >= 0 && w != 0.0f) sum = fmaf(w, to_float(x[(size_t)k * m + token]), sum);
        }
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_ffma_f32_128x128x16_warp64x32_groups1_covered_residue(
    const T* __restrict__ x,
    T* __restrict__ y,
    const T* __restrict__ values,
    const int* __restrict__ columns,
    const int* __restrict__ begin,
    const int* __restrict__ rows,
    const Restored* __restrict__ restored,
    const int* __restrict__ restored_begin,
    const T* __restrict__ residual0,
    int n,
    int m) {
    // parallel for tile, slab, mo: one block each.
    constexpr int SLABS = ROWS / BLOCK_ROWS, SLICE = COLUMNS / GROUPS;
    const int tile = blockIdx.x / SLABS, slab = blockIdx.x % SLABS * BLOCK_ROWS;
    const int m0 = blockIdx.y * TOKENS;
    const int first = begin[tile], last = begin[tile + 1];
    let_next_kernel_start();
    extern __shared__ __align__(128) unsigned char shared[];
    int* const row_list = (int*)(shared + SHARED_BYTES) - BLOCK_ROWS;
    for (int r = threadIdx.x; r < BLOCK_ROWS; r += THREADS) row_list[r] = rows[tile * ROWS + slab + r];
    T* const x_stages = (T*)shared;
    T* const w_stages = x_stages + STAGES * COLUMNS * TOKENS;
    // Neighbouring lanes share rows, every other pair tokens: loads of 16 bytes a lane need no more than two turns then.
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int WARPS_ALONG_ROWS = BLOCK_ROWS / WARP_ROWS, WARPS_A_GROUP = WARPS_ALONG_ROWS * (TOKENS / WARP_TOKENS);
    constexpr int TOKEN_LANES = 32 / ROW_LANES;
    constexpr int THREAD_ROWS = WARP_ROWS / ROW_LANES, THREAD_TOKENS = WARP_TOKENS / TOKEN_LANES;
    const int group = warp / WARPS_A_GROUP;
    const int row0 = warp % WARPS_ALONG_ROWS * WARP_ROWS + lane / 2 % ROW_LANES * 4;
    const int token0 =
        warp % WARPS_A_GROUP / WARPS_ALONG_ROWS * WARP_TOKENS + (lane % 2 + lane / (2 * ROW_LANES) * 2) * 4;
    // A thread's rows and tokens are pieces of four, which lie side by side for neighbours.
    auto row_of = [](int r) { return r / 4 * (4 * ROW_LANES) + r % 4; };
    auto token_of = [](int t) { return t / 4 * (4 * TOKEN_LANES) + t % 4; };

    // A thread copies the same tokens of some columns, and the same rows of some columns.
    constexpr int X_COLUMNS = THREADS / (TOKENS / VECTOR), X_COPIES = (COLUMNS + X_COLUMNS - 1) / X_COLUMNS;
    const int x_column = threadIdx.x / (TOKENS / VECTOR), x_token = threadIdx.x % (TOKENS / VECTOR) * VECTOR;
    const bool inside = m0 + x_token < m;
    const char* const x_from = (const char*)(x + (inside ? m0 + x_token : 0));
    const unsigned x_bytes = m * sizeof(T);
    T* const x_to = x_stages + x_column * TOKENS + x_token;
    constexpr int CHUNK = 16 / (int)sizeof(T);
    constexpr int W_COLUMNS = THREADS / (BLOCK_ROWS / CHUNK), W_COPIES = (COLUMNS + W_COLUMNS - 1) / W_COLUMNS;
    const int w_column = threadIdx.x / (BLOCK_ROWS / CHUNK), w_row = threadIdx.x % (BLOCK_ROWS / CHUNK) * CHUNK;
    const T* const w_from = values + w_column * ROWS + slab + w_row;
    T* const w_to = w_stages + w_column * BLOCK_ROWS + w_row;
    auto fetch = [&](int (&kept)[X_COPIES], int step) {
#pragma unroll
        for (int i = 0; i < X_COPIES; ++i) {
            const int q = x_column + i * X_COLUMNS;
            kept[i] = q < COLUMNS && q < (last - step) * STEP ? __ldg(columns + (size_t)step * STEP + q) : -1;
        }
    };
    int kept[STAGES + 1][X_COPIES];
#pragma unroll
    for (int s = 0; s <= STAGES; ++s) fetch(kept[s], first + s * (COLUMNS / STEP));
    // condense: the kept columns of W are rows of X, each contiguous in tokens. Past the tile's last step there are zeros.
    // let k4 = skip(k, per = (n2), keep = 24%);
    auto load_x = [&](int stage, int step, const int (&kept)[X_COPIES]) {
        if (step >= last) return;
        T* const to = x_to + stage * COLUMNS * TOKENS;
#pragma unroll
        for (int i = 0; i < X_COPIES; ++i) {
            const int q = x_column + i * X_COLUMNS;
            if (COLUMNS % X_COLUMNS != 0 && q >= COLUMNS) break;
            if (THREADS % (TOKENS / VECTOR) != 0 && x_column >= X_COLUMNS) break;
            const int k = kept[i];
            const void* const from = x_from + (size_t)(unsigned)max(k, 0) * x_bytes;
            copy_async<VECTOR * sizeof(T)>(to + i * X_COLUMNS * TOKENS, from, inside && k >= 0);
        }
    };
    auto load_w = [&](int stage, int step) {
        if (step >= last) return;
        const T* const from = w_from + (size_t)step * W_STAGE;
        T* const to = w_to + stage * COLUMNS * BLOCK_ROWS;
        const int there = (last - step) * STEP;
#pragma unroll
        for (int i = 0; i < W_COPIES; ++i) {
            const int q = w_column + i * W_COLUMNS;
            if (COLUMNS % W_COLUMNS != 0 && q >= COLUMNS) break;
            copy_async<16>(to + i * W_COLUMNS * BLOCK_ROWS, from + i * W_COLUMNS * ROWS, COLUMNS == STEP || q < there);
        }
    };
    // Weights do not depend on what ran before; activations do.
#pragma unroll
    for (int s = 0; s < STAGES; ++s) load_w(s, first + s * (COLUMNS / STEP));
    wait_for_previous_kernel();
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
        load_x(s, first + s * (COLUMNS / STEP), kept[s]);
        commit_copies();
    }
    auto load = [&](int stage, int ahead) {
        load_w(stage, ahead);
        load_x(stage, ahead, kept[STAGES]);
        fetch(kept[STAGES], ahead + COLUMNS / STEP);
        commit_copies();
    };

    float acc[THREAD_ROWS][THREAD_TOKENS] = {};
    float w[2][THREAD_ROWS], v[2][THREAD_TOKENS];
    auto fragments = [&](int buffer, const T* ws, const T* xs) {
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r += 4) load_four(&w[buffer][r], ws + row_of(r));
#pragma unroll
        for (int t = 0; t < THREAD_TOKENS; t += 4) load_four(&v[buffer][t], xs + token_of(t));
    };
    // There and back again along the tokens: an operand of each FFMA is one of the FFMA before.
    auto multiply = [&](int buffer) {
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; ++r) {
#pragma unroll
            for (int i = 0; i < THREAD_TOKENS; ++i) {
                const int t = r % 2 == 0 ? i : THREAD_TOKENS - 1 - i;
                acc[r][t] = fmaf(w[buffer][r], v[buffer][t], acc[r][t]);
            }
        }
    };
    const T* const my_ws = w_stages + group * SLICE * BLOCK_ROWS + row0;
    const T* const my_xs = x_stages + group * SLICE * TOKENS + token0;
    int stage = 0;
    wait_copies<STAGES - 1>();
    __syncthreads();
    fragments(0, my_ws, my_xs);
    for (int step = first; step < last; step += COLUMNS / STEP) {
        const T* const ws = my_ws + stage * COLUMNS * BLOCK_ROWS;
        const T* const xs = my_xs + stage * COLUMNS * TOKENS;
#pragma unroll
        for (int q = 0; q < SLICE; ++q) {
            if (q + 1 < SLICE) {
                fragments((q + 1) % 2, ws + (q + 1) * BLOCK_ROWS, xs + (q + 1) * TOKENS);
            } else {
                // All have read this stage, which may be filled again; the next one is there.
                wait_copies<STAGES - 2>();
                __syncthreads();
                load(stage, step + STAGES * (COLUMNS / STEP));
                stage = stage + 1 == STAGES ? 0 : stage + 1;
                fragments(0, my_ws + stage * COLUMNS * BLOCK_ROWS, my_xs + stage * COLUMNS * TOKENS);
            }
            multiply(q % 2);
        }
    }
    wait_copies<0>();
    __syncthreads();
    // Sums as [group][row][token]; pieces of eight tokens are exchanged within a row, against conflicts of banks.
    float* const all_sums = (float*)shared;
    constexpr int EXCHANGED = TOKENS % 32 == 0 ? 4 : 2;
    auto sum_place = [](int row, int token) { return row * TOKENS + (token ^ row / 4 % EXCHANGED * 8); };
#pragma unroll
    for (int r = 0; r < THREAD_ROWS; ++r) {
#pragma unroll
        for (int t = 0; t < THREAD_TOKENS; t += 4) {
            float* const to = all_sums + group * BLOCK_ROWS * TOKENS + sum_place(row0 + row_of(r), token0 + token_of(t));
            *(float4*)to = make_float4(acc[r][t], acc[r][t + 1], acc[r][t + 2], acc[r][t + 3]);
        }
    }
    __syncthreads();
    auto place = [&](int n_row, int token) { return (size_t)n_row * m + token; };
    auto finish = [&](int row, int n_row, int token, float v, float rest) {
        const size_t at = place(n_row, token);
        if (!finite(v)) v = exact(x, values, columns, first, last, row, token, m);
        v += rest;
        v *= __uint_as_float(0x3f000000u);  // 0.5
        v += to_float(residual0[at]);
        v = relu(v);
        return v;
    };
#pragma unroll 4
    for (int c = threadIdx.x; c < BLOCK_ROWS * TOKENS / 4; c += THREADS) {
        const int row = c / (TOKENS / 4), token = c % (TOKENS / 4) * 4;
        const int n_row = row_list[row];
        if (n_row < 0 || m0 + token >= m) continue;
        float4 sum = *(const float4*)(all_sums + sum_place(row, token));
#pragma unroll
        for (int g = 1; g < GROUPS; ++g) {
            const float4 other = *(const float4*)(all_sums + g * BLOCK_ROWS * TOKENS + sum_place(row, token));
            sum = make_float4(sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w);
        }
        float rest[4];
        sum_row<4, VECTOR>(rest, restored, restored_begin + tile * (ROWS / 8), slab + row, x, m0 + token, m);
        float4* const to = (float4*)(y + (size_t)n_row * m + m0 + token);
        *to = make_float4(
            finish(slab + row, n_row, m0 + token, sum.x, rest[0]), finish(slab + row, n_row, m0 + token + 1, sum.y, rest[1]),
            finish(slab + row, n_row, m0 + token + 2, sum.z, rest[2]), finish(slab + row, n_row, m0 + token + 3, sum.w, rest[3]));
    }

}
