// tw:128 of a 1024 x 1024 weight
//   let (n2, n3) = split(n, 128);
//   let k4 = skip(k, per = (n2), keep = 24%);
// mma_sync f16: 128 rows x 128 tokens x 64 columns, 3 stages, 256 threads, 98304 bytes of shared memory, vectors of 8, a residue | + bias0[n] | gelu
#include "fractal/types.cuh"
#include "fractal/memory.cuh"
#include "fractal/mma.cuh"
#include "fractal/epilogue.cuh"
#include "fractal/residue.cuh"

using namespace fractal;

using T = f16;
constexpr int ROWS = 128;            // rows of W a block
constexpr int TOKENS = 128;          // tokens a block
constexpr int STEP = 64;            // kept columns a step
constexpr int STORED = 64;          // of which W stores
constexpr int STAGES = 3;           // of X and W in flight
constexpr int VECTOR = 8;           // elements of X a copy
constexpr int WARP_ROWS = 64;
constexpr int WARP_TOKENS = 32;
constexpr int THREADS = 256;
constexpr int X_STAGE = STEP * TOKENS;
constexpr int W_STAGE = ROWS * STORED;

// A sum that is not finite, again without the zeros that stand for dropped weights.
__device__ __noinline__ float exact(
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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_mma_sync_f16_128x128x64_covered_residue(
    const T* __restrict__ x,
    T* __restrict__ y,
    const T* __restrict__ values,
    const int* __restrict__ columns,
    const int* __restrict__ begin,
    const int* __restrict__ rows,
    const Restored* __restrict__ restored,
    const int* __restrict__ restored_begin,
    const float* __restrict__ bias0,
    int n,
    int m) {
    // parallel for tile, mo: one block each.
    const int tile = blockIdx.x;
    const int m0 = blockIdx.y * TOKENS;
    const int first = begin[tile], last = begin[tile + 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp % (ROWS / WARP_ROWS) * WARP_ROWS;
    const int warp_token = warp / (ROWS / WARP_ROWS) * WARP_TOKENS;
    extern __shared__ __align__(128) unsigned char shared[];
    T* const x_stages = (T*)shared;
    T* const w_stages = x_stages + STAGES * X_STAGE;

    constexpr int COPIES = (X_STAGE / VECTOR + THREADS - 1) / THREADS;
    int kept_rows[COPIES];
    auto fetch = [&](int step) {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const int row = (threadIdx.x + i * THREADS) / (TOKENS / VECTOR);
            kept_rows[i] = step < last && row < STEP ? __ldg(columns + (size_t)step * STEP + row) : -1;
        }
    };
    fetch(first);
    auto load = [&](int stage, int step) {
        if (step >= last) return;
        T* const xs = x_stages + stage * X_STAGE;
        T* const ws = w_stages + stage * W_STAGE;
        // condense: the kept columns of W are rows of X, each contiguous in tokens.
        // let k4 = skip(k, per = (n2), keep = 24%);
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const int c = threadIdx.x + i * THREADS;
            const int row = c / (TOKENS / VECTOR), token = c % (TOKENS / VECTOR) * VECTOR;
            if (c >= X_STAGE / VECTOR) break;
            const int k = kept_rows[i];
            const bool kept = k >= 0 && m0 + token < m;
            const T* const source = x + (kept ? (size_t)k * m + m0 + token : 0);
            copy_async<VECTOR * sizeof(T)>(xs + swizzled<TOKENS, sizeof(T)>(row, token), source, kept);
        }
        // The weights of a step are packed as they lie in shared memory.
#pragma unroll 4
        for (int c = threadIdx.x; c < W_STAGE * (int)sizeof(T) / 16; c += THREADS) {
            const int at = c * (16 / (int)sizeof(T));
            copy_async<16>(ws + at, values + (size_t)step * W_STAGE + at, true);
        }
        fetch(step + 1);
    };

    float acc[WARP_ROWS / 16][WARP_TOKENS / 8][4] = {};

    // A pipeline of STAGES steps: copies of later steps run while one is multiplied.
    for (int s = 0; s < STAGES - 1; ++s) {
        load(s, first + s);
        commit_copies();
    }
    int stage = 0;
    for (int step = first; step < last; ++step) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        const int ahead = step + STAGES - 1;
        load((stage + STAGES - 1) % STAGES, ahead);
        commit_copies();
        const T* const xs = x_stages + stage * X_STAGE;
        const T* const ws = w_stages + stage * W_STAGE;
#pragma unroll
        for (int depth = 0; depth < STEP; depth += 16) {
            unsigned a[WARP_ROWS / 16][4];
#pragma unroll
            for (int i = 0; i < WARP_ROWS / 16; ++i) {
                load_matrices(a[i], ws + swizzled<STORED, sizeof(T)>(warp_row + i * 16 + lane % 16, depth + lane / 16 * 8));
            }
#pragma unroll
            for (int j = 0; j < WARP_TOKENS / 16; ++j) {
                unsigned b[4];
                load_matrices_transposed(
                    b, xs + swizzled<TOKENS, sizeof(T)>(depth + lane % 16, warp_token + j * 16 + lane / 16 * 8));
#pragma unroll
                for (int i = 0; i < WARP_ROWS / 16; ++i) {
                    mma(acc[i][2 * j], a[i], b[0], b[1], T{});
                    mma(acc[i][2 * j + 1], a[i], b[2], b[3], T{});
                }
            }
        }
        stage = (stage + 1) % STAGES;
    }
    wait_copies<0>();

    auto finish = [&](int row, int n_row, int token, float v, float rest) {
        if (token >= m) return;
        const size_t at = (size_t)n_row * m + token;
        if (!finite(v)) v = exact(x, values, columns, first, last, row, token, m);
        v += rest;
        v += bias0[n_row];
        v = gelu_f16(v);
        y[at] = from_float<T>(v);
    };
#pragma unroll
    for (int i = 0; i < WARP_ROWS / 16; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = warp_row + i * 16 + h * 8 + lane / 4;
            float rest[WARP_TOKENS / 4];
            const int* const slice = restored_begin + (tile * ROWS + warp_row) / 8 + 2 * i + h;
            sum_slice<WARP_TOKENS, VECTOR, 4>(rest, restored, slice, x, m0 + warp_token, m);
            const int n_row = rows[tile * ROWS + row];
            if (n_row < 0) continue;
#pragma unroll
            for (int j = 0; j < WARP_TOKENS / 8; ++j) {
                const int token = m0 + warp_token + j * 8 + lane % 4 * 2;
                finish(row, n_row, token, acc[i][j][2 * h], rest[2 * j]);
                finish(row, n_row, token + 1, acc[i][j][2 * h + 1], rest[2 * j + 1]);
            }
        }
    }

}
