// What follows the multiplication, on one f32 sum.
#pragma once

namespace fractal {

// NaN stays NaN.
__device__ __forceinline__ float relu(float v) { return v < 0.0f ? 0.0f : v; }
__device__ __forceinline__ float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f)); }
// For results of 16 bits: erf to 1.5e-7 without a branch (Abramowitz and Stegun, 7.1.26).
__device__ __forceinline__ float gelu_short(float v) {
    const float x = fabsf(v) * 0.70710678118654752f;
    const float t = __fdividef(1.0f, fmaf(0.3275911f, x, 1.0f));
    float p = fmaf(1.061405429f, t, -1.453152027f);
    p = fmaf(p, t, 1.421413741f);
    p = fmaf(p, t, -0.284496736f);
    p = fmaf(p, t, 0.254829592f);
    const float tail = p * t * __expf(-x * x);
    return 0.5f * v * (v < 0.0f ? tail : 2.0f - tail);
}
__device__ __forceinline__ float silu(float v) { return v / (1.0f + expf(-v)); }

}  // namespace fractal
