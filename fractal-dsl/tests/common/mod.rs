//! Random legal patterns and data for property tests.

use fractal_dsl::pattern::{Axis, AxisId, AxisKind, Keep, Pattern, PatternBuilder, Ratio};
use proptest::prelude::*;

/// A pattern of up to `codes.len()` primitives: each code picks a primitive and its operands among the loops there are;
/// primitives that are not legal there are passed over.
pub fn pattern_from_codes(n: usize, k: usize, codes: &[(u8, u8, u8, u8)]) -> Pattern {
    let mut b = PatternBuilder::new(n, k).expect("dimensions in range");
    for &(op, x, y, z) in codes {
        let order = b.order().to_vec();
        let pick = |code: u8| order[code as usize % order.len()];
        let len = |b: &PatternBuilder, axis: AxisId| b.axis(axis).map_or(1, |a: &Axis| a.len);
        match op % 8 {
            0..=2 => {
                let axis = pick(x);
                let factor = 1 + y as usize % len(&b, axis).min(9);
                let _ = b.split(axis, factor);
            }
            3..=5 => {
                let axis = pick(x);
                let per: Vec<AxisId> = order
                    .iter()
                    .enumerate()
                    .filter(|(i, a)| **a != axis && y >> (i % 8) & 1 == 1)
                    .map(|(_, a)| *a)
                    .collect();
                let length = len(&b, axis);
                let part = Ratio::new((1.0 + f64::from(z % 8)) / 8.0).expect("in (0, 1]");
                let keep = match z / 8 % 4 {
                    0 => Keep::Count(1 + z as usize % length),
                    1 => Keep::Ragged(part),
                    2 => Keep::Of { kept: 1 + z as usize % length, of: length },
                    _ => Keep::Ratio(part),
                };
                let _ = b.skip(axis, &per, keep);
            }
            6 => {
                let _ = b.join(pick(x), pick(y));
            }
            _ => {
                let axis = pick(x);
                if b.axis(axis).is_some_and(|a| a.kind != AxisKind::Mixed) && z % 2 == 0 {
                    let _ = b.permute(axis);
                } else {
                    let _ = b.reorder(&[axis, pick(y)]);
                }
            }
        }
    }
    b.build()
}

prop_compose! {
    /// A random pattern of a small weight, with scores.
    pub fn pattern_and_scores()(n in 1usize..40, k in 1usize..40)(
        codes in proptest::collection::vec(any::<(u8, u8, u8, u8)>(), 0..7),
        scores in proptest::collection::vec(1u16..1000, n * k),
        n in Just(n), k in Just(k),
    ) -> (Pattern, Vec<f32>) {
        (pattern_from_codes(n, k, &codes), scores.into_iter().map(f32::from).collect())
    }
}
