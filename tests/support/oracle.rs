//! A masked GEMM written out in f64. It knows tensors as slices and nothing of patterns, packing or loops.

/// One step of the epilogue, with its data.
pub enum Step {
    Bias(Vec<f32>),
    Residual(Vec<f32>),
    Relu,
    Gelu,
    Silu,
    Scale(f32),
}

/// The exact result and, element by element, the sum of the magnitudes of what was added up.
pub struct Expected {
    pub y: Vec<f64>,
    pub magnitude: Vec<f64>,
}

/// `y[n, m] = epilogue(sum over kept k of w[n, k] * x[k, m])`; dropped weights are never multiplied.
pub fn masked_gemm(
    w: &[f32],
    kept: &dyn Fn(usize, usize) -> bool,
    x: &[f32],
    shape: (usize, usize, usize),
    epilogue: &[Step],
) -> Expected {
    let (n, k, m) = shape;
    let (mut y, mut magnitude) = (vec![0.0f64; n * m], vec![0.0f64; n * m]);
    for row in 0..n {
        for column in (0..k).filter(|&c| kept(row, c)) {
            let weight = f64::from(w[row * k + column]);
            for token in 0..m {
                let product = weight * f64::from(x[column * m + token]);
                y[row * m + token] += product;
                magnitude[row * m + token] += product.abs();
            }
        }
    }
    for (at, value) in y.iter_mut().enumerate() {
        for step in epilogue {
            *value = match step {
                Step::Bias(bias) => {
                    magnitude[at] += f64::from(bias[at / m].abs());
                    *value + f64::from(bias[at / m])
                }
                Step::Residual(residual) => {
                    magnitude[at] += f64::from(residual[at].abs());
                    *value + f64::from(residual[at])
                }
                Step::Relu => value.max(0.0),
                // The limit, where the product would be NaN.
                Step::Gelu if *value == f64::NEG_INFINITY => 0.0,
                // The normal distribution's integral by its series: slow, and unlike any kernel's.
                Step::Gelu => *value * normal_integral(*value),
                Step::Silu => *value / (1.0 + (-*value).exp()),
                Step::Scale(factor) => {
                    magnitude[at] *= f64::from(factor.abs());
                    *value * f64::from(*factor)
                }
            };
        }
    }
    Expected { y, magnitude }
}

/// Phi(x) by its Taylor series about 0 (Abramowitz and Stegun, 26.2.11); beyond 8 it is 0 or 1 to within 1e-15.
fn normal_integral(x: f64) -> f64 {
    if x.abs() > 8.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while term.abs() > 1e-18 * sum.abs() {
        odd += 2.0;
        term *= x * x / odd;
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}
