// What follows the multiplication, on one f32 sum.
#pragma once

namespace fractal {

// NaN stays NaN.
__device__ __forceinline__ float relu(float v) { return v < 0.0f ? 0.0f : v; }
__device__ __forceinline__ float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f)); }
// For results of 16 bits: max(v, 0) - |v| P(|v|), where P(a) = 2^q(a) is the normal distribution's share beyond a. q is the
// polynomial of degree 5 with the least greatest error of P on [0, 6], 3.3e-7; from 6 on P is less than 1e-9.
__device__ __forceinline__ float gelu_short(float v) {
    const float a = least(fabsf(v), 6.0f);
    float q = fmaf(-5.19577796e-4f, a, 7.38987126e-3f);
    q = fmaf(q, a, -5.25405926e-2f);
    q = fmaf(q, a, -4.59276491e-1f);
    q = fmaf(q, a, -1.15108233f);
    q = fmaf(q, a, -1.00000094f);
    return fmaf(-a, exp2_short(q), fmaxf(v, 0.0f));
}
__device__ __forceinline__ float silu(float v) { return v / (1.0f + expf(-v)); }
// For results of 16 bits.
__device__ __forceinline__ float silu_short(float v) { return __fdividef(v, 1.0f + exp2_short(-1.44269504f * v)); }

}  // namespace fractal
