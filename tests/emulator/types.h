// The types of kernels, the 16-bit ones by the compiler's own.
#pragma once
#include <cmath>
#include <cstring>

namespace fractal {

struct f16 {
    unsigned short bits;
};
struct bf16 {
    unsigned short bits;
};
inline float to_float(float v) { return v; }
inline float to_float(f16 v) {
    _Float16 h;
    memcpy(&h, &v.bits, 2);
    return (float)h;
}
inline float to_float(bf16 v) {
    const unsigned bits = (unsigned)v.bits << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
template <typename T>
T from_float(float v);
template <>
inline float from_float<float>(float v) {
    return v;
}
template <>
inline f16 from_float<f16>(float v) {
    const _Float16 h = (_Float16)v;
    f16 out;
    memcpy(&out.bits, &h, 2);
    return out;
}
template <>
inline bf16 from_float<bf16>(float v) {
    unsigned bits;
    memcpy(&bits, &v, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
    return {(unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
inline float exp2_short(float v) { return v < -126.0f ? 0.0f : exp2f(v); }
inline float least(float a, float b) { return a != a || a < b ? a : b; }
inline bool finite(float v) {
    unsigned bits;
    memcpy(&bits, &v, 4);
    return (bits & 0x7f800000u) != 0x7f800000u;
}

}  // namespace fractal

using fractal::from_float;
using fractal::to_float;
