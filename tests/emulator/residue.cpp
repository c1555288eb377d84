// The sums of `fractal/residue.cuh` against plain loops, in every width that kernels of any family have.
#include "fractal/types.cuh"
#include "fractal/residue.cuh"

#include <cstdio>
#include <random>

using namespace fractal;

constexpr int ROWS = 32, COLUMNS = 40;
int failures = 0;

template <typename T>
struct Case {
    int m;
    std::vector<T> x;
    std::vector<Restored> restored;
    std::vector<int> begin;
    std::vector<double> expected;

    Case(int m, unsigned seed) : m(m), x(COLUMNS * m), expected(ROWS * m) {
        std::mt19937 random(seed);
        auto next = [&] { return (float)((int)(random() % 2001) - 1000) / 1000; };
        for (T& v : x) v = from_float<T>(next());
        begin.push_back(0);
        for (int slice = 0; slice < ROWS / 8; ++slice) {
            // A slice without elements, too.
            const int places = slice == 1 ? 0 : 4 * (1 + (int)(random() % 5)), first = begin.back();
            begin.push_back(first + places);
            restored.resize(begin.back() * 8, Restored{-1, 0.0f});
            for (int row = 0; row < 8 && places > 0; ++row) {
                const int count = (int)(random() % (places + 1));
                for (int i = 0; i < count; ++i) {
                    const int column = i * COLUMNS / count;
                    restored[(first + i) * 8 + row] = Restored{column, next()};
                    for (int t = 0; t < m; ++t) {
                        const float v = restored[(first + i) * 8 + row].value;
                        expected[(slice * 8 + row) * m + t] += (double)v * to_float(x[column * m + t]);
                    }
                }
            }
        }
    }
    void check(const char* what, int width, int row, int token, float found) {
        if (token < m && std::abs(found - expected[row * m + token]) <= 1e-4) return;
        if (token >= m && found == 0.0f) return;
        ++failures;
        fprintf(stderr, "%s, loads of %d, m %d: row %d token %d is %g\n", what, width, m, row, token, found);
    }
};

// A warp's fragment of each slice, its batches in so many parts.
template <int TOKENS, int VECTOR, int BATCH, typename T>
void fragments(Case<T>& c, int parts) {
    std::vector<float> sums(ROWS * (c.m + TOKENS));
    emulated::Block block;
    std::vector<std::thread> lanes;
    for (unsigned lane = 0; lane < 32; ++lane) {
        lanes.emplace_back([&, lane] {
            threadIdx.x = lane, emulated::block = &block;
            for (int slice = 0; slice < ROWS / 8; ++slice) {
                for (int token = 0; token < c.m; token += TOKENS) {
                    for (int part = 0; part < parts; ++part) {
                        float sum[TOKENS / 4];
                        sum_slice<TOKENS, VECTOR, BATCH>(sum, c.restored.data(), c.begin.data() + slice, c.x.data(), token, c.m,
                                                         part, parts);
                        for (int i = 0; i < TOKENS / 4; ++i) {
                            const int place = token + i / 2 * 8 + lane % 4 * 2 + i % 2;
                            sums[(slice * 8 + lane / 4) * (c.m + TOKENS) + place] += sum[i];
                        }
                    }
                }
            }
        });
    }
    for (std::thread& lane : lanes) lane.join();
    for (int row = 0; row < ROWS; ++row) {
        for (int token = 0; token < c.m + TOKENS; ++token) c.check("fragment", VECTOR, row, token, sums[row * (c.m + TOKENS) + token]);
    }
}

template <int VECTOR, typename T>
void all() {
    for (int m : {8, 24, 72}) {
        const int tokens = m / 8 * VECTOR;
        Case<T> c(tokens, 7 * tokens + VECTOR);
        for (int row = 0; row < ROWS; ++row) {
            for (int token = 0; token < tokens; token += 4) {
                float four[4];
                sum_row<4, VECTOR>(four, c.restored.data(), c.begin.data(), row, c.x.data(), token, tokens);
                for (int t = 0; t < 4; ++t) c.check("row", VECTOR, row, token + t, four[t]);
            }
            for (int token = 0; token < tokens; ++token) {
                c.check("element", 1, row, token, sum_element(c.restored.data(), c.begin.data(), row, c.x.data(), token, tokens));
            }
        }
        if constexpr (sizeof(T) == 2) {
            fragments<8, VECTOR, 4>(c, 3);
            fragments<16, VECTOR, 4>(c, 1);
            fragments<32, VECTOR, 2>(c, 2);
            fragments<64, VECTOR, 4>(c, 1);
        }
    }
}

int main() {
    all<1, float>(), all<2, float>(), all<4, float>();
    all<1, f16>(), all<2, f16>(), all<4, f16>(), all<8, f16>();
    all<1, bf16>(), all<8, bf16>();
    return failures > 0;
}
