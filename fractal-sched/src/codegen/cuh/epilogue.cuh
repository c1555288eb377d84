// What follows the multiplication, on one f32 sum.
#pragma once

namespace fractal {

// NaN stays NaN.
__device__ __forceinline__ float relu(float v) { return v < 0.0f ? 0.0f : v; }
// From -14 on the least number is nearer to 0 than to v P(v); and a negative infinity gives 0, not NaN.
__device__ __forceinline__ float gelu(float v) {
    return v < -14.0f ? -0.0f : 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
}
// For results of 16 bits: max(v, 0) - |v| P(|v|), where P(a) = 2^q(a) is the normal distribution's share beyond a. q is the
// polynomial of degree 6 on [0, 8] with the least greatest error, weighted. Together less than 1e-6, and less than a fifth of a
// unit in the last place of f16, off.
__device__ __forceinline__ float gelu_short(float v) {
    const float a = least(fabsf(v), 8.0f);
    float q = fmaf(2.88783122e-5f, a, -7.08183041e-4f);
    q = fmaf(q, a, 7.78878992e-3f);
    q = fmaf(q, a, -5.28257564e-2f);
    q = fmaf(q, a, -4.59277451e-1f);
    q = fmaf(q, a, -1.15103829f);
    q = fmaf(q, a, -1.00000489f);
    return fmaf(-a, exp2_short(q), fmaxf(v, 0.0f));
}
__device__ __forceinline__ float silu(float v) { return v / (1.0f + expf(-v)); }

}  // namespace fractal
