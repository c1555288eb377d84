//! Whole programs on integers: interpreted loops against a masked product in i64, bit for bit.

use crate::{Form, LowerError, Operands, Schedule, Tables, interpret, lower, verify};
use fractal_dsl::pattern::{Mask, Pattern, PatternError};

/// Y[n, m] = sum over k of w[n, k] x[k, m] where the mask keeps w; knows no IR.
pub(super) fn oracle(mask: &Mask, w: &[f32], x: &[f32], m: usize) -> Vec<f32> {
    let (n, k) = (mask.n(), mask.k());
    let mut y = vec![0i64; n * m];
    for row in 0..n {
        for column in (0..k).filter(|&column| mask.contains(row, column)) {
            for token in 0..m {
                y[row * m + token] += w[row * k + column] as i64 * x[column * m + token] as i64;
            }
        }
    }
    y.into_iter().map(|v| v as f32).collect()
}

pub(super) fn integers(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 59) as i64 - 16) as f32
    };
    (0..len).map(|_| next()).collect()
}

/// Runs `pattern` with the weights that `mask` keeps, in every form it has.
///
/// # Errors
/// Where the pattern finds no way to the mask.
pub(super) fn check(pattern: &Pattern, mask: &Mask, m: usize, seed: u64) -> Result<(), PatternError> {
    let (n, k) = (pattern.n(), pattern.k());
    let selection = pattern.admits(mask)?;
    let (w, x) = (integers(n * k, seed), integers(k * m, seed ^ 77));
    let packed = pattern.pack(&selection, &mask.apply(&w)?)?;
    let expected = oracle(mask, &w, &x, m);
    for form in [Form::Scalar, Form::Condensed] {
        let ir = match lower(pattern, &Schedule { form, m_tile: 3, epilogue: vec![] }) {
            Ok(ir) => ir,
            Err(LowerError::NotCondensable { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        verify(&ir).unwrap_or_else(|e| panic!("{e:?}\n{ir}"));
        let operands = Operands { values: &packed.values, x: &x, m, ..Operands::default() };
        let y = interpret(&ir, &Tables::of(&packed), &operands).unwrap_or_else(|e| panic!("{e}\n{ir}"));
        assert_eq!(y, expected, "{form:?} of {:?}\n{ir}", pattern.steps());
    }
    Ok(())
}
