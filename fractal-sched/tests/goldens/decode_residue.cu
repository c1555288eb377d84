// tw:128 of a 1024 x 1024 weight
//   let (n2, n3) = split(n, 128);
//   let k4 = skip(k, per = (n2), keep = 24%);
// mma_sync bf16: 128 rows x 8 tokens x 64 columns, 4 stages, 512 threads, 32832 bytes of shared memory, vectors of 1, decode: slabs of 16 rows, 16 warps, a residue
#include "fractal/types.cuh"
#include "fractal/memory.cuh"
#include "fractal/mma.cuh"
#include "fractal/decode.cuh"
#include "fractal/epilogue.cuh"
#include "fractal/residue.cuh"

using namespace fractal;

using T = bf16;
constexpr int ROWS = 128;            // rows of W a tile
constexpr int SLAB = 16;            // of which a block takes
constexpr int WARP_ROWS = 16;       // of which a warp takes
constexpr int TOKENS = 8;          // tokens at most
constexpr int STEP = 64;            // kept columns a step
constexpr int STORED = 64;
constexpr int UNIT = 32;            // kept columns at a time
constexpr int STAGES = 4;           // rounds of X in flight
constexpr int DEPTH = 4;            // units of W in flight
constexpr int VECTOR = 1;           // elements of X a copy
constexpr int WARPS = 16;
constexpr int THREADS = 512;
constexpr int MIN_BLOCKS = 1;       // that a multiprocessor shall hold
constexpr int TEAM = SLAB / WARP_ROWS;  // warps of a team, and units of a round
constexpr int TEAMS = WARPS / TEAM;
constexpr int W_STAGE = ROWS * STORED;
constexpr int X_UNIT = UNIT * TOKENS;
constexpr int WARP_FLOATS = 512;   // of shared memory for each warp: rows of X, then sums
constexpr int GROUPS = TOKENS / 8;    // of tokens

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

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
gemm_mma_sync_bf16_128x8x64_decode16x16_covered_residue(
    const T* __restrict__ x,
    T* __restrict__ y,
    const T* __restrict__ values,
    const int* __restrict__ columns,
    const int* __restrict__ begin,
    const int* __restrict__ rows,
    const Restored* __restrict__ restored,
    const int* __restrict__ restored_begin,
    int n,
    int m) {
    // parallel for tile, slab: one block each.
    const int tile = blockIdx.x / (ROWS / SLAB), top = blockIdx.x % (ROWS / SLAB) * SLAB;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, member = warp % TEAM, team = warp / TEAM;
    let_next_start();
    const int first = load_index(begin + tile), last = load_index(begin + tile + 1);
    extern __shared__ __align__(128) unsigned char shared[];
    int* const row_list = (int*)shared;
    float* const sums = (float*)(row_list + SLAB);
    T* const xs = (T*)(sums + team * TEAM * WARP_FLOATS);

    // Round t of this team has the units from (team + t * TEAMS) * TEAM on, of all in the tile.
    const int all = 2 * (last - first), rounds = ((all + TEAM - 1) / TEAM - team + TEAMS - 1) / TEAMS;
    auto unit_of = [&](int round, int number) { return (team + round * TEAMS) * TEAM + number; };
    const int g = lane / 4, q = lane % 4;
    const T* const lane_weights = values + (size_t)first * W_STAGE + (top + member * WARP_ROWS + g) * STORED + (q ^ g) * 8;
    // This lane looks up the column in slot `lane`.
    const int* const lane_columns = columns + (size_t)first * STEP + lane % 8 / 2 * 8 + lane / 8 * 2 + lane % 2;
    auto column = [&](int round) {
        const int unit = unit_of(round, member);
        return unit < all ? load_index(lane_columns + (size_t)unit * UNIT) : -1;
    };
    uint4 w[DEPTH][WARP_ROWS / 16][2];
    auto fetch = [&](uint4 (&to)[2], int i, int round, int number) {
        const int unit = unit_of(round, number);
        if (unit >= all) return;
        const T* const from =
            lane_weights + (size_t)(unit / 2) * W_STAGE + i * (16 * STORED) + ((q ^ g) & 4 ? -32 : 32) * (unit % 2);
        to[0] = load_streamed(from);
        to[1] = load_streamed(from + 8 * STORED);
    };
    // The warps of a team wait for each other.
    auto meet = [&]() {
        if (TEAM == 1) {
            __syncwarp();
        } else {
            meet_at(1 + team, TEAM * 32);
        }
    };

    auto place = [&](int slot, int token) { return swizzled<TOKENS, sizeof(T)>(slot, token); };
    // condense: the kept columns of W are rows of X, each contiguous in tokens.
    auto peek = [&](int k) { return k < 0 ? 0 : load_half(x + (size_t)k * m); };
    auto gather = [&](int stage, int k, unsigned first_token) {
        T* const to = xs + (stage * TEAM + member) * X_UNIT;
        const T* const from = x + (k < 0 ? 0 : (size_t)k * m);
        for (int token = 0; token < m; token += 8) {
            unsigned v[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                v[i] = token + i == 0 ? first_token : k >= 0 && token + i < m ? load_half(from + token + i) : 0;
            }
            *(uint4*)(to + place(lane, token)) =
                make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
        }
    };

    int kept[STAGES];
#pragma unroll
    for (int s = 0; s < STAGES; ++s) kept[s] = column(s);
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
#pragma unroll
        for (int i = 0; i < WARP_ROWS / 16; ++i) fetch(w[d][i], i, d / TEAM, d % TEAM);
    }
    if (threadIdx.x < SLAB) copy_async<4>(row_list + threadIdx.x, rows + tile * ROWS + top + threadIdx.x, true);
    if (m == 1) {
        // Memory would rest while columns and then elements of X are looked up: the next weights come as far as the cache. With
        // more tokens X comes by copies, which this would hold up.
        const int ahead = first + DEPTH * TEAMS / 2 + warp;
        for (int row = lane; ahead < last && row < SLAB; row += 32) prefetch(values + (size_t)ahead * W_STAGE + (top + row) * STORED);
    }
    // Only the weights were there before this kernel's turn.
    wait_for_previous();
    unsigned ahead[STAGES];
#pragma unroll
    for (int s = 0; s < STAGES; ++s) ahead[s] = peek(kept[s]);
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
        if (s < rounds) gather(s, kept[s], ahead[s]);
        commit_copies();
        kept[s] = column(s + STAGES);
    }
    float acc[WARP_ROWS / 16][GROUPS][4] = {};
    for (int base = 0; base < rounds; base += STAGES) {
#pragma unroll
        for (int s = 0; s < STAGES; ++s) {
            const int round = base + s;
            if (round >= rounds) break;
            wait_copies<STAGES - 1>();
            meet();
            const unsigned next = peek(kept[s]);
#pragma unroll
            for (int u = 0; u < TEAM; ++u) {
                if (unit_of(round, u) >= all) break;
                uint4 (&a)[WARP_ROWS / 16][2] = w[(s * TEAM + u) % DEPTH];
#pragma unroll
                for (int j = 0; j < GROUPS; ++j) {
                    unsigned b[4];
                    load_matrices_transposed(b, xs + (s * TEAM + u) * X_UNIT + place(lane, j * 8));
#pragma unroll
                    for (int i = 0; i < WARP_ROWS / 16; ++i) {
                        const unsigned low[4] = {a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y};
                        const unsigned high[4] = {a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w};
                        mma(acc[i][j], low, b[0], b[1], T{});
                        mma(acc[i][j], high, b[2], b[3], T{});
                        // The registers' next weights start as soon as these are used.
                        if (j == GROUPS - 1) fetch(a[i], i, round + (u + DEPTH) / TEAM, (u + DEPTH) % TEAM);
                    }
                }
            }
            meet();
            if (round + STAGES < rounds) gather(s, kept[s], next);
            commit_copies();
            kept[s] = column(round + 2 * STAGES);
        }
    }
    wait_copies<0>();
    meet();

    // Single elements on top of the tile's: the teams have batches of them in turn.
#pragma unroll
    for (int i = 0; i < WARP_ROWS / 8; ++i) {
        float rest[TOKENS / 4];
        const int* const slice = restored_begin + (tile * ROWS + top + member * WARP_ROWS) / 8 + i;
        sum_slice<TOKENS, VECTOR, 4>(rest, restored, slice, x, 0, m, team, TEAMS);
#pragma unroll
        for (int j = 0; j < TOKENS / 4; ++j) acc[i / 2][j / 2][i % 2 * 2 + j % 2] += rest[j];
    }
    // The sums of each warp, then their sum in the order of the teams.
#pragma unroll
    for (int i = 0; i < WARP_ROWS / 16; ++i) {
#pragma unroll
        for (int j = 0; j < GROUPS; ++j) {
            const float (&v)[4] = acc[i][j];
            *(float4*)(sums + warp * WARP_FLOATS + ((i * GROUPS + j) * 32 + lane) * 4) = make_float4(v[0], v[1], v[2], v[3]);
        }
    }

    auto finish = [&](int row, int n_row, int token, float v) {
        if (token >= m) return;
        const size_t at = (size_t)n_row * m + token;
        if (!finite(v)) v = exact(x, values, columns, first, last, row, token, m) + sum_element(restored, restored_begin + tile * (ROWS / 8), row, x, token, m);
        y[at] = from_float<T>(v);
    };

    __syncthreads();
    // What one lane has of one fragment: two tokens of two rows.
    constexpr int OF_WARP = WARP_ROWS * TOKENS / 4;
    for (int c = threadIdx.x; c < TEAM * OF_WARP; c += THREADS) {
        const int row = c / 32 / GROUPS * 16 + c % 32 / 4, token = c / 32 % GROUPS * 8 + c % 4 * 2;
        if (token >= m) continue;
        const float* const of_team = sums + c / OF_WARP * WARP_FLOATS + c % OF_WARP * 4;
        float v[4] = {};
#pragma unroll
        for (int t = 0; t < TEAMS; ++t) {
            const float4 sum = *(const float4*)(of_team + t * (TEAM * WARP_FLOATS));
            v[0] += sum.x;
            v[1] += sum.y;
            v[2] += sum.z;
            v[3] += sum.w;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int n_row = row_list[row + h * 8];
            if (n_row < 0) continue;
            // One at a time: for both there are no registers.
#pragma unroll 1
            for (int e = 0; e < 2; ++e) finish(top + row + h * 8, n_row, token + e, e ? v[2 * h + 1] : v[2 * h]);
        }
    }

}
