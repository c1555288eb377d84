//! Activations in plain f32 arithmetic without branches, so that they vectorise in any instruction set.
//! The polynomials are weighted minimax fits made for this file; `tests` hold their errors against f64.

/// Coefficients from the constant term on.
#[inline(always)]
fn horner<const N: usize>(c: [f32; N], x: f32) -> f32 {
    let mut sum = c[N - 1];
    for i in (0..N - 1).rev() {
        sum = sum * x + c[i];
    }
    sum
}

/// 2^x, x clamped to the range of normal numbers.
#[inline(always)]
pub(super) fn exp2(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    let x = if x < -126.0 { -126.0 } else { x };
    let x = if x > 126.0 { 126.0 } else { x };
    let shifted = x + ROUND;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    let fraction = x - (shifted - ROUND);
    let c =
        [1.0, std::f32::consts::LN_2, 0.240_226_47, 0.055_503_288, 0.009_618_489, 0.001_339_993_1, 0.000_153_458_08];
    horner(c, fraction) * power
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
pub(super) fn erf(x: f32) -> f32 {
    let z = x.abs();
    let small = x + x * erf_ratio(x * x);
    let large = (1.0 - erfc_above_one(z)).copysign(x);
    if z > 1.0 { large } else { small }
}

/// x * (1 + erf(x / sqrt 2)) / 2; below -sqrt 2 through erfc, since 1 + erf would cancel.
#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    let half = 0.5 * x;
    let z = x * std::f32::consts::FRAC_1_SQRT_2;
    let small = half + half * (z + z * erf_ratio(z * z));
    let tail = if z.abs() > 4.0 { 0.0 } else { half * erfc_above_one(z.abs()) };
    let large = if x > 0.0 { x - tail } else { tail };
    if z.abs() > 1.0 { large } else { small }
}

/// x / (1 + exp(-x)).
#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + exp2(-x * std::f32::consts::LOG2_E))
}
