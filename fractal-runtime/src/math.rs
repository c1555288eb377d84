//! Elementwise functions in plain f32 arithmetic, without a branch, a call or a table, so that loops over them vectorise
//! in any instruction set; hence `inline(always)`, as a loop is compiled once for each set.
//! The polynomials are weighted minimax fits made for this file; the tests hold their errors against f64.

use std::f32::consts::{FRAC_1_SQRT_2, LN_2, LOG2_E};

/// Coefficients from the constant term on.
#[inline(always)]
fn horner<const N: usize>(c: [f32; N], x: f32) -> f32 {
    let mut sum = c[N - 1];
    for i in (0..N - 1).rev() {
        sum = sum * x + c[i];
    }
    sum
}

/// Adding 1.5 * 2^23 rounds to an integer and leaves it in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;

/// 2^(i + fraction) for |fraction| <= 1/2, where `shifted` is the integer i plus [`ROUND`].
#[inline(always)]
fn exp2_parts(shifted: f32, fraction: f32) -> f32 {
    let c = [1.0, LN_2, 0.240_226_47, 0.055_503_288, 0.009_618_489, 0.001_339_993_1, 0.000_153_458_08];
    horner(c, fraction) * f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23))
}

/// `x` in `low..=high`, NaN as it is.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// 2^x, x clamped to the range of normal numbers.
#[inline(always)]
fn exp2(x: f32) -> f32 {
    let x = clamp(x, -126.0, 126.0);
    let shifted = x + ROUND;
    exp2_parts(shifted, x - (shifted - ROUND))
}

/// e^x, relative error below 3e-7; arguments are clamped to \[-87, 87\], where the result is a normal f32.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // ln 2 in two parts: the high one has 9 significant bits, so that its product with the exponent is exact.
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = (std::f64::consts::LN_2 - 355.0 / 512.0) as f32;
    let x = clamp(x, -87.0, 87.0);
    let shifted = x * LOG2_E + ROUND;
    let whole = shifted - ROUND;
    exp2_parts(shifted, ((x - whole * LN_2_HIGH) - whole * LN_2_LOW) * LOG2_E)
}

/// erfc(z) = 1 - erf(z) for z in 1..; 0 past 4, where it is below half a unit of 1.
#[inline(always)]
fn erfc_above_one(z: f32) -> f32 {
    let c = [
        -0.000_419_860_86,
        1.630_418_1,
        0.911_802_66,
        0.158_566_22,
        -0.037_982_585,
        0.006_820_612,
        -0.000_851_483_2,
        0.000_065_351_33,
        -0.000_002_308_051,
    ];
    let tail = exp2(-horner(c, z));
    if z > 4.0 { 0.0 } else { tail }
}

/// erf(z) / z - 1 for |z| <= 1 as a function of z squared.
#[inline(always)]
fn erf_ratio(square: f32) -> f32 {
    let c = [0.128_379_17, -0.376_126_27, 0.112_836, -0.026_854_444, 0.005_189_535, -0.000_802_084_1, 0.000_078_891_19];
    horner(c, square)
}

/// The error function; absolute error below 1e-7.
#[cfg(test)]
pub(crate) fn erf(x: f32) -> f32 {
    let z = x.abs();
    let small = x + x * erf_ratio(x * x);
    let large = (1.0 - erfc_above_one(z)).copysign(x);
    if z > 1.0 { large } else { small }
}

/// x * (1 + erf(x / sqrt 2)) / 2; below -sqrt 2 through erfc, since 1 + erf would cancel.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    let half = 0.5 * x;
    let z = x * FRAC_1_SQRT_2;
    let small = half + half * (z + z * erf_ratio(z * z));
    let tail = if z.abs() > 4.0 { 0.0 } else { half * erfc_above_one(z.abs()) };
    let large = if x > 0.0 { x - tail } else { tail };
    if z.abs() > 1.0 { large } else { small }
}

/// The derivative of [`gelu`]: P(x) + x p(x) for the normal distribution's function P and density p.
#[inline(always)]
pub(crate) fn gelu_slope(x: f32) -> f32 {
    const INVERSE_SQRT_2_PI: f32 = 0.398_942_3;
    let z = x * FRAC_1_SQRT_2;
    let small = 0.5 + 0.5 * (z + z * erf_ratio(z * z));
    let tail = if z.abs() > 4.0 { 0.0 } else { 0.5 * erfc_above_one(z.abs()) };
    let large = if x > 0.0 { 1.0 - tail } else { tail };
    let below = if z.abs() > 1.0 { large } else { small };
    below + x * INVERSE_SQRT_2_PI * exp(-z * z)
}

/// x / (1 + exp(-x)).
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_has_its_stated_error() {
        for i in -8700..=8700 {
            let x = i as f32 / 100.0;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 3e-7, "exp({x}): relative error {error}");
        }
        assert!(exp(f32::NAN).is_nan());
    }

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
    fn erf_and_the_activations_have_their_stated_errors() {
        for i in -120_000..=120_000 {
            let x = i as f32 * 5e-5;
            let wide = f64::from(x);
            let error = (f64::from(erf(x)) - erf_f64(wide)).abs();
            assert!(error < 1e-7, "erf({x}): error {error}");
            let expected = 0.5 * wide * (1.0 + erf_f64(wide / 2f64.sqrt()));
            let error = (f64::from(gelu(x)) - expected).abs() / wide.abs().max(1.0);
            assert!(error < 1e-7, "gelu({x}): error {error}");
            let density = (-0.5 * wide * wide).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let expected = 0.5 * (1.0 + erf_f64(wide / 2f64.sqrt())) + wide * density;
            let error = (f64::from(gelu_slope(x)) - expected).abs();
            assert!(error < 3e-7, "gelu_slope({x}): error {error}");
            let expected = wide / (1.0 + (-wide).exp());
            let error = (f64::from(silu(x)) - expected).abs() / expected.abs().max(1e-30);
            assert!(error < 1e-6, "silu({x}): relative error {error}");
        }
    }
}
