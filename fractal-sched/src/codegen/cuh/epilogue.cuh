// What follows the multiplication, on one f32 sum.
#pragma once

namespace fractal {

// NaN stays NaN.
__device__ __forceinline__ float relu(float v) { return v < 0.0f ? 0.0f : v; }
// From -14 on the least number is nearer to 0 than to v P(v); and a negative infinity gives 0, not NaN.
__device__ __forceinline__ float gelu(float v) {
    return v < -14.0f ? -0.0f : 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
}
// For results of 16 bits: max(v, 0) - |v| P(|v|), where P(a) = 2^q(a) is the normal distribution's share beyond a. q is a
// polynomial of least greatest error, weighted by the unit in the last place of a P(a) as a number of 16 bits; it falls on up to
// 16, where P is 0. What follows GELU adds to such errors.
// f16: less than a fifth of a unit in the last place off; fitted on [0, 6].
__device__ __forceinline__ float gelu_f16(float v) {
    const float a = least(fabsf(v), 16.0f);
    float q = fmaf(-3.28969705e-4f, a, 5.90512948e-3f);
    q = fmaf(q, a, -4.84805256e-2f);
    q = fmaf(q, a, -4.6382305e-1f);
    q = fmaf(q, a, -1.14929187f);
    q = fmaf(q, a, -1.0001303f);
    return fmaf(-a, exp2_short(q), fmaxf(v, 0.0f));
}
// bf16: less than a quarter of a unit off down to v = -4.5, and 2e-8 below; fitted with a unit of at least 1e-7.
__device__ __forceinline__ float gelu_bf16(float v) {
    const float a = least(fabsf(v), 16.0f);
    float q = fmaf(2.26649176e-3f, a, -3.4406852e-2f);
    q = fmaf(q, a, -4.86026525e-1f);
    q = fmaf(q, a, -1.13699758f);
    q = fmaf(q, a, -1.00128853f);
    return fmaf(-a, exp2_short(q), fmaxf(v, 0.0f));
}
__device__ __forceinline__ float silu(float v) { return v / (1.0f + expf(-v)); }

}  // namespace fractal
