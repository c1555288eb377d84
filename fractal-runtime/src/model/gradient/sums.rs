//! Sums over the tokens of a feature, in an order that vectors can follow and that is always the same.

/// Independent sums: a multiple of every vector width in use.
const LANES: usize = 16;

/// The sum of all values.
#[inline(always)]
pub(super) fn sum(values: &[f32]) -> f32 {
    let (blocks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0f32; LANES];
    for block in blocks {
        for lane in 0..LANES {
            sums[lane] += block[lane];
        }
    }
    sums.iter().chain(rest).sum()
}

/// The sum of a b; both are of the same length.
#[inline(always)]
pub(super) fn sum_of_products(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}
