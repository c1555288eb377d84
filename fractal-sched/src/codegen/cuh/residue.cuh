// The residue: elements of W restored on top of what its tiles keep. The rows of a tile come in slices of eight: place i of a
// slice has the i-th element of each of its rows side by side. Slice s has the places begin[s] to begin[s + 1], in fours.
#pragma once

#include "fractal/types.cuh"

namespace fractal {

// An element of a row: its column, or -1 where the row has no more.
struct alignas(8) Restored {
    int column;
    float value;
};

// COUNT tokens of a row of X from `token` on as they lie in memory, in loads of VECTOR; zeros past the last one, or where the
// row is not `there`.
template <typename T, int VECTOR, int COUNT>
struct Tokens {
    static constexpr int LOAD = VECTOR < COUNT ? VECTOR : COUNT, BYTES = LOAD * (int)sizeof(T);
    unsigned words[COUNT * sizeof(T) / 4];

    __device__ __forceinline__ void load(const T* row, int token, int m, bool there) {
#pragma unroll
        for (int i = 0; i < COUNT; i += LOAD) {
            const bool inside = there && token + i < m;
            const T* const from = row + token + i;
            unsigned* const to = words + i * (int)sizeof(T) / 4;
            if constexpr (BYTES == 16) {
                uint4 v = {0, 0, 0, 0};
                if (inside) v = *(const uint4*)from;
                to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
            } else if constexpr (BYTES == 8) {
                uint2 v = {0, 0};
                if (inside) v = *(const uint2*)from;
                to[0] = v.x, to[1] = v.y;
            } else if constexpr (BYTES == 4) {
                to[0] = inside ? *(const unsigned*)from : 0;
            } else {
                const unsigned half = inside ? *(const unsigned short*)from : 0;
                to[0] = i % 2 == 0 ? half : to[0] | half << 16;
            }
        }
    }
    // Token i, which the compiler must know.
    __device__ __forceinline__ float at(int i) const {
        if constexpr (sizeof(T) == 4) {
            return __uint_as_float(words[i]);
        } else {
            return to_float(T{(unsigned short)(words[i / 2] >> i % 2 * 16)});
        }
    }
};

// Exchanges rows and columns of a 4 x 4 matrix of which each of four lanes has a row.
__device__ __forceinline__ void turn_quad(float& a, float& b, float& c, float& d) {
    auto exchange = [](float& low, float& high, int apart) {
        const bool upper = threadIdx.x & apart;
        const float other = __shfl_xor_sync(0xffffffffu, upper ? low : high, apart);
        if (upper) low = other;
        else high = other;
    };
    exchange(a, b, 1), exchange(c, d, 1), exchange(a, c, 2), exchange(b, d, 2);
}

// What a slice adds to a warp's fragment of its eight rows: lane l has row l / 4, and sum[2 j + e] is of token
// `token` + 8 j + 2 (l % 4) + e. Of the slice's places, batch `part` of each `parts`.
template <int TOKENS, int VECTOR, int BATCH, typename T>
__device__ __forceinline__ void sum_slice(float (&sum)[TOKENS / 4], const Restored* restored, const int* begin, const T* x,
                                          int token, int m, int part = 0, int parts = 1) {
    // A lane loads as many neighbours as a load can have, and exchanges the sums at last.
    constexpr int COUNT = TOKENS % 32 == 0 ? 8 : 2, LOADS = TOKENS / 4 / COUNT;
    const int lane = threadIdx.x % 32;
    const int mine = token + lane % 4 * COUNT;
#pragma unroll
    for (int i = 0; i < TOKENS / 4; ++i) sum[i] = 0.0f;
    const int end = begin[1];
    for (int place = begin[0] + part * BATCH; place < end; place += parts * BATCH) {
        Restored element[BATCH];
        Tokens<T, VECTOR, COUNT> tokens[BATCH][LOADS];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) element[b] = restored[(size_t)(place + b) * 8 + lane / 4];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const bool there = element[b].column >= 0;
            const T* const row = x + (there ? (size_t)element[b].column * m : 0);
#pragma unroll
            for (int i = 0; i < LOADS; ++i) tokens[b][i].load(row, mine + i * 4 * COUNT, m, there);
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
#pragma unroll
            for (int i = 0; i < TOKENS / 4; ++i) {
                sum[i] = fmaf(element[b].value, tokens[b][i / COUNT].at(i % COUNT), sum[i]);
            }
        }
    }
    if constexpr (COUNT == 8) {
        // Lane q had tokens 8 q to 8 q + 7 of each 32.
#pragma unroll
        for (int i = 0; i < TOKENS / 4; i += 8) {
            turn_quad(sum[i], sum[i + 2], sum[i + 4], sum[i + 6]);
            turn_quad(sum[i + 1], sum[i + 3], sum[i + 5], sum[i + 7]);
        }
    }
}

// What the residue adds to COUNT neighbouring tokens of a tile's row; `begin` is of the tile's first slice.
template <int COUNT, int VECTOR, typename T>
__device__ __forceinline__ void sum_row(float (&sum)[COUNT], const Restored* restored, const int* begin, int row, const T* x,
                                        int token, int m) {
#pragma unroll
    for (int t = 0; t < COUNT; ++t) sum[t] = 0.0f;
    const int end = begin[row / 8 + 1];
    for (int place = begin[row / 8]; place < end; place += 4) {
        Restored element[4];
        Tokens<T, VECTOR, COUNT> tokens[4];
#pragma unroll
        for (int b = 0; b < 4; ++b) element[b] = restored[(size_t)(place + b) * 8 + row % 8];
#pragma unroll
        for (int b = 0; b < 4; ++b) {
            const bool there = element[b].column >= 0;
            tokens[b].load(x + (there ? (size_t)element[b].column * m : 0), token, m, there);
        }
#pragma unroll
        for (int b = 0; b < 4; ++b) {
#pragma unroll
            for (int t = 0; t < COUNT; ++t) sum[t] = fmaf(element[b].value, tokens[b].at(t), sum[t]);
        }
    }
}

// The same for one token, which is seldom needed.
template <typename T>
__device__ __forceinline__ float sum_element(const Restored* restored, const int* begin, int row, const T* x, int token, int m) {
    float sum = 0.0f;
    for (int place = begin[row / 8]; place < begin[row / 8 + 1]; ++place) {
        const Restored element = restored[(size_t)place * 8 + row % 8];
        if (element.column < 0) break;
        sum = fmaf(element.value, to_float(x[(size_t)element.column * m + token]), sum);
    }
    return sum;
}

}  // namespace fractal
