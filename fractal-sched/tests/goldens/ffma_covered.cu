// ew of a 1024 x 1024 weight
//   let nk2 = join(n, k);
//   let nk3 = skip(nk2, per = (), keep = 25%);
// ffma f32: 128 rows x 128 tokens x 16 columns, 4 stages, 256 threads, 65536 bytes of shared memory, vectors of 1
#include "fractal/types.cuh"
#include "fractal/memory.cuh"
#include "fractal/epilogue.cuh"

using namespace fractal;

using T = float;
constexpr int ROWS = 128;            // rows of W a block
constexpr int TOKENS = 128;          // tokens a block
constexpr int STEP = 16;            // kept columns a step
constexpr int STORED = 16;          // of which W stores
constexpr int STAGES = 4;           // steps in flight
constexpr int VECTOR = 1;           // elements of X a copy
constexpr int WARP_ROWS = 32;
constexpr int WARP_TOKENS = 64;
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
            const float w = to_float(values[(size_t)step * W_STAGE + q * ROWS + row]);
            if (k >= 0 && w != 0.0f) sum = fmaf(w, to_float(x[(size_t)k * m + token]), sum);
        }
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_ffma_f32_128x128x16_covered(
    const T* __restrict__ x,
    T* __restrict__ y,
    const T* __restrict__ values,
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
    constexpr int THREAD_ROWS = WARP_ROWS / 4, THREAD_TOKENS = WARP_TOKENS / 8;
    auto thread_row = [&](int r) { return warp_row + r / 4 * 16 + lane / 8 * 4 + r % 4; };
    auto thread_token = [&](int t) { return warp_token + t / 4 * 32 + lane % 8 * 4 + t % 4; };

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
        // let nk3 = skip(nk2, per = (), keep = 25%);
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const int c = threadIdx.x + i * THREADS;
            const int row = c / (TOKENS / VECTOR), token = c % (TOKENS / VECTOR) * VECTOR;
            if (c >= X_STAGE / VECTOR) break;
            const int k = kept_rows[i];
            const bool kept = k >= 0 && m0 + token < m;
            const T* const source = x + (kept ? (size_t)k * m + m0 + token : 0);
            copy_async<VECTOR * sizeof(T)>(xs + row * TOKENS + token, source, kept);
        }
        // The weights of a step are packed as they lie in shared memory.
#pragma unroll 4
        for (int c = threadIdx.x; c < W_STAGE * (int)sizeof(T) / 16; c += THREADS) {
            const int at = c * (16 / (int)sizeof(T));
            copy_async<16>(ws + at, values + (size_t)step * W_STAGE + at, true);
        }
        fetch(step + 1);
    };

    float acc[THREAD_ROWS][THREAD_TOKENS] = {};

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
        for (int q = 0; q < STEP; ++q) {
            float w[THREAD_ROWS], v[THREAD_TOKENS];
#pragma unroll
            for (int r = 0; r < THREAD_ROWS; ++r) {
                w[r] = to_float(ws[q * ROWS + thread_row(r)]);
            }
#pragma unroll
            for (int t = 0; t < THREAD_TOKENS; ++t) {
                v[t] = to_float(xs[q * TOKENS + thread_token(t)]);
            }
#pragma unroll
            for (int r = 0; r < THREAD_ROWS; ++r) {
#pragma unroll
                for (int t = 0; t < THREAD_TOKENS; ++t) {
                    acc[r][t] = fmaf(w[r], v[t], acc[r][t]);
                }
            }
        }
        stage = (stage + 1) % STAGES;
    }
    wait_copies<0>();

    auto finish = [&](int row, int n_row, int token, float v) {
        if (token >= m) return;
        const size_t at = (size_t)token * n + n_row;
        if (!finite(v)) v = exact(x, values, columns, first, last, row, token, m);
        y[at] = from_float<T>(v);
    };
#pragma unroll
    for (int r = 0; r < THREAD_ROWS; ++r) {
        const int row = thread_row(r);
        const int n_row = rows[tile * ROWS + row];
        if (n_row < 0) continue;
#pragma unroll
        for (int t = 0; t < THREAD_TOKENS; ++t) finish(row, n_row, m0 + thread_token(t), acc[r][t]);
    }

}
