//! Elementwise functions written so that the compiler vectorises them: no branch, no call, no table.
//!
//! Callers dispatch over the CPU's vector width with `pulp`, hence `inline(always)`: a closure handed to `pulp` is not
//! inlined into the wide function, so each loop is a struct with its operands.

use std::f32::consts::{FRAC_1_SQRT_2, LOG2_E};

/// e^x, relative error below 3e-7; arguments are clamped to \[-87, 88\], where the result is a normal f32.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // ln 2 in two parts: the high one has 9 significant bits, so that its product with the exponent is exact.
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = (std::f64::consts::LN_2 - 355.0 / 512.0) as f32;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;

    let x = x.clamp(-87.0, 88.0);
    let shifted = x * LOG2_E + ROUND;
    let exponent = shifted - ROUND;
    let f = (x - exponent * LN_2_HIGH) - exponent * LN_2_LOW;
    // Taylor to the 7th power: |f| <= ln(2)/2 leaves a remainder below 6e-9.
    let p = 1.0 / 720.0 + f * (1.0 / 5040.0);
    let p = 1.0 / 120.0 + f * p;
    let p = 1.0 / 24.0 + f * p;
    let p = 1.0 / 6.0 + f * p;
    let p = 0.5 + f * p;
    let p = 1.0 + f * p;
    let p = 1.0 + f * p;
    p * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

/// erf(x), absolute error below 5e-7: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
#[expect(clippy::excessive_precision, reason = "the handbook's digits")]
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * a);
    let p = -1.453_152_027 + t * 1.061_405_429;
    let p = 1.421_413_741 + t * p;
    let p = -0.284_496_736 + t * p;
    let p = t * (0.254_829_592 + t * p);
    (1.0 - p * exp(-a * a)).copysign(x)
}

/// x/2 (1 + erf(x/sqrt(2))).
#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All terms are positive, so the series loses no digits.
    fn erf_f64(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for i in 1..200 {
            term *= 2.0 * x * x / f64::from(2 * i + 1);
            sum += term;
        }
        2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
    }

    #[test]
    fn exp_has_its_stated_error() {
        for i in -8700..=8800 {
            let x = i as f32 / 100.0;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 3e-7, "exp({x}): relative error {error}");
        }
    }

    #[test]
    fn erf_and_gelu_have_their_stated_error() {
        for i in -600..=600 {
            let x = i as f32 / 100.0;
            let wide = f64::from(x);
            let error = (f64::from(erf(x)) - erf_f64(wide)).abs();
            assert!(error < 5e-7, "erf({x}): error {error}");
            let expected = 0.5 * wide * (1.0 + erf_f64(wide / 2f64.sqrt()));
            let error = (f64::from(gelu(x)) - expected).abs();
            assert!(error < 1e-6, "gelu({x}): error {error}");
        }
    }
}
