// 2:4 of a 1024 x 1024 weight
//   let (k2, k3) = split(k, 4);
//   let k4 = skip(k3, per = (n, k2), keep = 2 of 4);
// mma_sp f16: 128 rows x 128 tokens x 64 columns, 4 stages, 256 threads, 102400 bytes of shared memory, vectors of 8
#include "fractal/types.cuh"
#include "fractal/memory.cuh"
#include "fractal/mma.cuh"
#include "fractal/epilogue.cuh"

using namespace fractal;

using T = f16;
constexpr int ROWS = 128;            // rows of W a block
constexpr int TOKENS = 128;          // tokens a block
constexpr int STEP = 64;            // kept columns a step
constexpr int STORED = 32;          // of which W stores
constexpr int STAGES = 4;           // of X and W in flight
constexpr int VECTOR = 8;           // elements of X a copy
constexpr int WARP_ROWS = 64;
constexpr int WARP_TOKENS = 32;
constexpr int P_STAGE = 256;            // words of positions a step
constexpr int THREADS = 256;
constexpr int X_STAGE = STEP * TOKENS;
constexpr int W_STAGE = ROWS * STORED;


extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_mma_sp_f16_128x128x64(
    const T* __restrict__ x,
    T* __restrict__ y,
    const T* __restrict__ values,
    const unsigned* __restrict__ positions,
    const int* __restrict__ columns,
    const int* __restrict__ begin,
    const int* __restrict__ rows,
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
    unsigned* const p_stages = (unsigned*)(w_stages + STAGES * W_STAGE);

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
        // let k4 = skip(k3, per = (n, k2), keep = 2 of 4);
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
        for (int c = threadIdx.x; c < P_STAGE / 4; c += THREADS) {
            copy_async<16>(p_stages + stage * P_STAGE + c * 4, positions + (size_t)step * P_STAGE + c * 4, true);
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
        unsigned kept[WARP_ROWS / 16];
#pragma unroll
        for (int i = 0; i < WARP_ROWS / 16; ++i) {
            kept[i] = p_stages[stage * P_STAGE + (warp_row / 16 + i) * 32 + lane];
        }
        {
            // Columns 0 to 31 of the step.
            unsigned a[WARP_ROWS / 16][4];
#pragma unroll
            for (int i = 0; i < WARP_ROWS / 16; ++i) {
                load_matrices(a[i], ws + swizzled<STORED, sizeof(T)>(warp_row + i * 16 + lane % 16, 0 + lane / 16 * 8));
            }
#pragma unroll
            for (int j = 0; j < WARP_TOKENS / 16; ++j) {
                const int token = warp_token + j * 16 + lane / 16 * 8;
                unsigned upper[4], lower[4];
                load_matrices_transposed(upper, xs + swizzled<TOKENS, sizeof(T)>(0 + lane % 16, token));
                load_matrices_transposed(lower, xs + swizzled<TOKENS, sizeof(T)>(0 + 16 + lane % 16, token));
                const unsigned left[4] = {upper[0], upper[1], lower[0], lower[1]};
                const unsigned right[4] = {upper[2], upper[3], lower[2], lower[3]};
#pragma unroll
                for (int i = 0; i < WARP_ROWS / 16; ++i) {
                    mma_sparse<0>(acc[i][2 * j], a[i], left, kept[i], T{});
                    mma_sparse<0>(acc[i][2 * j + 1], a[i], right, kept[i], T{});
                }
            }
        }
        {
            // Columns 32 to 63 of the step.
            unsigned a[WARP_ROWS / 16][4];
#pragma unroll
            for (int i = 0; i < WARP_ROWS / 16; ++i) {
                load_matrices(a[i], ws + swizzled<STORED, sizeof(T)>(warp_row + i * 16 + lane % 16, 16 + lane / 16 * 8));
            }
#pragma unroll
            for (int j = 0; j < WARP_TOKENS / 16; ++j) {
                const int token = warp_token + j * 16 + lane / 16 * 8;
                unsigned upper[4], lower[4];
                load_matrices_transposed(upper, xs + swizzled<TOKENS, sizeof(T)>(32 + lane % 16, token));
                load_matrices_transposed(lower, xs + swizzled<TOKENS, sizeof(T)>(32 + 16 + lane % 16, token));
                const unsigned left[4] = {upper[0], upper[1], lower[0], lower[1]};
                const unsigned right[4] = {upper[2], upper[3], lower[2], lower[3]};
#pragma unroll
                for (int i = 0; i < WARP_ROWS / 16; ++i) {
                    mma_sparse<1>(acc[i][2 * j], a[i], left, kept[i], T{});
                    mma_sparse<1>(acc[i][2 * j + 1], a[i], right, kept[i], T{});
                }
            }
        }
        stage = (stage + 1) % STAGES;
    }
    wait_copies<0>();

    auto finish = [&](int row, int n_row, int token, float v) {
        if (token >= m) return;
        const size_t at = (size_t)n_row * m + token;
        y[at] = from_float<T>(v);
    };
#pragma unroll
    for (int i = 0; i < WARP_ROWS / 16; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = warp_row + i * 16 + h * 8 + lane / 4;
            const int n_row = rows[tile * ROWS + row];
            if (n_row < 0) continue;
#pragma unroll
            for (int j = 0; j < WARP_TOKENS / 8; ++j) {
                const int token = m0 + warp_token + j * 8 + lane % 4 * 2;
                finish(row, n_row, token, acc[i][j][2 * h]);
                finish(row, n_row, token + 1, acc[i][j][2 * h + 1]);
            }
        }
    }

}
