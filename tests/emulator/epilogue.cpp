// GELU for results of 16 bits against the exact one, in units of a result's last place.
#include "fractal/types.cuh"
#include "fractal/epilogue.cuh"

#include <cstdio>
#include <limits>

using namespace fractal;

int failures = 0;

void check(const char* what, float v, double found, double most) {
    if (!(found <= most)) {
        fprintf(stderr, "%s(%g): %g, at most %g\n", what, v, found, most);
        ++failures;
    }
}

double exact(double v) { return 0.5 * v * erfc(-v * 0.70710678118654752440); }

// The unit in the last place of a type with so many bits behind the leading one and this least exponent.
double unit(double v, int bits, int least_exponent) {
    int exponent;
    frexp(v, &exponent);
    const bool is_normal = v != 0 && exponent - 1 > least_exponent;
    return ldexp(1.0, (is_normal ? exponent - 1 : least_exponent) - bits);
}

int main() {
    for (int i = -160000; i <= 160000; ++i) {
        const float v = (float)i / 16000;
        const double y = exact(v);
        check("gelu_f16", v, fabs(gelu_f16(v) - y), 0.2 * unit(y, 10, -14));
        check("gelu_bf16", v, fabs(gelu_bf16(v) - y), v < -4.5f ? 2e-8 : 0.25 * unit(y, 7, -126));
        // f32 has an erff of its own.
        check("gelu", v, fabs(gelu(v) - y), 4e-7 * fmax(1.0, fabs(y)));
    }
    const float infinity = std::numeric_limits<float>::infinity();
    for (float (*gelu_of)(float) : {gelu_f16, gelu_bf16, gelu}) {
        for (float large : {1e4f, 1e30f, infinity}) {
            check("large", large, gelu_of(large) == large ? 0.0 : 1.0, 0.0);
            check("small", -large, fabs(gelu_of(-large)), 0.0);
        }
        check("NaN", NAN, gelu_of(NAN) != gelu_of(NAN) ? 0.0 : 1.0, 0.0);
    }
    return failures > 0;
}
