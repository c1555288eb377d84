// tw:128 of a 1024 x 1024 weight
//   let (n2, n3) = split(n, 128);
//   let k4 = skip(k, per = (n2), keep = 25%);
// mma_sync bf16: 128 rows x 16 tokens x 64 columns, 4 stages, 256 threads, 32896 bytes of shared memory, vectors of 8, decode: slabs of 32 rows, 8 warps | * 0.5 | + residual0[n, m] | relu
#include "fractal/types.cuh"
#include "fractal/memory.cuh"
#include "fractal/mma.cuh"
#include "fractal/decode.cuh"
#include "fractal/epilogue.cuh"

using namespace fractal;

using T = bf16;
constexpr int ROWS = 128;            // rows of W a tile
constexpr int SLAB = 32;            // of which a block takes
constexpr int WARP_ROWS = 32;       // of which a warp takes
constexpr int TOKENS = 16;          // tokens at most
constexpr int STEP = 64;            // kept columns a step
constexpr int STORED = 64;
constexpr int UNIT = 32;            // kept columns at a time
constexpr int STAGES = 4;           // rounds of X in flight
constexpr int DEPTH = 2;            // units of W in flight
constexpr int VECTOR = 8;           // elements of X a copy
constexpr int WARPS = 8;
constexpr int THREADS = 256;
constexpr int MIN_BLOCKS = 3;       // that a multiprocessor shall hold
constexpr int TEAM = SLAB / WARP_ROWS;  // warps of a team, and units of a round
constexpr int TEAMS = WARPS / TEAM;
constexpr int W_STAGE = ROWS * STORED;
constexpr int X_UNIT = UNIT * TOKENS;
constexpr int WARP_FLOATS = 1024;   // of shared memory for each warp: rows of X, then sums
constexpr int GROUPS = TOKENS / 8;    // of tokens


extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
gemm_mma_sync_bf16_128x16x64_decode32x8(
    const T* __restrict__ x,
    T* __restrict__ y,
    const T* __restrict__ values,
    const int* __restrict__ columns,
    const int* __restrict__ begin,
    const int* __restrict__ rows,
    const T* __restrict__ residual0,
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
    auto gather = [&](int stage, int k) {
        T* const to = xs + (stage * TEAM + member) * X_UNIT;
#pragma unroll
        for (int i = 0; i < GROUPS; ++i) {
            const int slot = i * (32 / GROUPS) + lane / GROUPS, token = lane % GROUPS * 8;
            const int row = GROUPS == 1 ? k : __shfl_sync(0xffffffffu, k, slot);
            if (token >= m) continue;
            T* const chunk = to + place(slot, token);
            if (row >= 0) {
                copy_cached(chunk, x + (size_t)row * m + token);
            } else {
                *(uint4*)chunk = make_uint4(0, 0, 0, 0);
            }
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
    // Only the weights were there before this kernel's turn.
    wait_for_previous();
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
        if (s < rounds) gather(s, kept[s]);
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
            if (round + STAGES < rounds) gather(s, kept[s]);
            commit_copies();
            kept[s] = column(round + 2 * STAGES);
        }
    }
    wait_copies<0>();
    meet();

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
        v *= __uint_as_float(0x3f000000u);  // 0.5
        v += to_float(residual0[at]);
        v = relu(v);
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
