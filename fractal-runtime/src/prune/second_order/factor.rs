//! A part of the Hessian -> its Cholesky factor, and what is read from the inverse.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{LltRegularization, cholesky_in_place, cholesky_in_place_scratch};
use faer::linalg::triangular_inverse::invert_lower_triangular;
use faer::linalg::triangular_solve::{solve_lower_triangular_in_place, solve_upper_triangular_in_place};
use faer::{Mat, MatMut, Par, Spec};
use std::cmp::Ordering;

/// The lower factor L of a symmetric positive definite matrix L L'.
pub(super) struct Factor {
    lower: Mat<f64>,
    par: Par,
}

/// What is added to the diagonal at first, of its greatest value, where rounding has left no positive pivot.
const LEAST_PIVOT: f64 = 1e-10;

impl Factor {
    /// Of the rows and columns `support` of a symmetric matrix \[k, k\] whose lower triangle is there, in their order.
    pub(super) fn of(hessian: &[f64], k: usize, support: &[usize], par: Par) -> Factor {
        let at = |i: usize, j: usize| if i >= j { hessian[i * k + j] } else { hessian[j * k + i] };
        let len = support.len();
        let greatest = support.iter().map(|&j| at(j, j)).fold(0.0, f64::max);
        let greatest = if greatest > 0.0 { greatest } else { 1.0 };
        let mut memory = MemBuffer::new(cholesky_in_place_scratch::<f64>(len, par, Spec::default()));
        let mut more = 0.0;
        let lower = loop {
            let value = |i: usize, j: usize| match i.cmp(&j) {
                Ordering::Less => 0.0,
                Ordering::Equal => at(support[i], support[i]) + more,
                Ordering::Greater => at(support[i], support[j]),
            };
            let mut lower = Mat::from_fn(len, len, value);
            let stack = MemStack::new(&mut memory);
            let done = cholesky_in_place(lower.as_mut(), LltRegularization::default(), par, stack, Spec::default());
            if done.is_ok() && (0..len).all(|j| lower[(j, j)].is_finite()) {
                break lower;
            }
            // Rounding, or inputs that depend on each other, have left no positive pivot: soon there is one.
            more = if more == 0.0 { greatest * LEAST_PIVOT } else { more * 10.0 };
        };
        Factor { lower, par }
    }

    /// Solves for each column of `sides` \[support, columns\], column-major, in place.
    pub(super) fn solve(&self, sides: &mut [f64]) {
        let len = self.lower.nrows();
        if len == 0 {
            return;
        }
        let columns = sides.len() / len;
        let mut sides = MatMut::from_column_major_slice_mut(sides, len, columns);
        solve_lower_triangular_in_place(self.lower.as_ref(), sides.as_mut(), self.par);
        solve_upper_triangular_in_place(self.lower.transpose(), sides.as_mut(), self.par);
    }

    /// The inverse of L.
    pub(super) fn inverse(&self) -> InverseFactor {
        let len = self.lower.nrows();
        let mut inverse = Mat::zeros(len, len);
        invert_lower_triangular(inverse.as_mut(), self.lower.as_ref(), self.par);
        InverseFactor { inverse }
    }
}

/// The inverse of L: the inverse of the matrix is its transpose times it.
pub(super) struct InverseFactor {
    inverse: Mat<f64>,
}

impl InverseFactor {
    /// Column j, from its diagonal down.
    fn column(&self, j: usize) -> &[f64] {
        &self.inverse.col(j).try_as_col_major().expect("columns are contiguous").as_slice()[j..]
    }

    /// A diagonal value of the inverse matrix.
    pub(super) fn diagonal(&self, j: usize) -> f64 {
        self.column(j).iter().map(|v| v * v).sum()
    }

    /// The Cholesky factor, row-major, of the inverse matrix' block of these columns.
    pub(super) fn block(&self, columns: std::ops::Range<usize>) -> Vec<f64> {
        let (begin, width) = (columns.start, columns.len());
        let mut block = vec![0.0; width * width];
        for i in 0..width {
            let a = self.column(begin + i);
            for j in 0..=i {
                // Both from the diagonal of i, the later one, down.
                let b = &self.column(begin + j)[i - j..];
                block[i * width + j] = a.iter().zip(b).map(|(a, b)| a * b).sum();
            }
        }
        small_cholesky(&mut block, width);
        block
    }

    /// Row i of the upper factor U of the inverse matrix U'U, where this is of the matrix with its order reversed; from the diagonal on.
    pub(super) fn reversed_row(&self, i: usize, row: &mut [f64]) {
        let len = self.inverse.nrows();
        for (at, j) in (i..len).enumerate() {
            row[at] = self.inverse[(len - 1 - i, len - 1 - j)];
        }
    }
}

/// Factors in place; the upper triangle stays as it is.
fn small_cholesky(a: &mut [f64], len: usize) {
    for j in 0..len {
        let sum: f64 = a[j * len..][..j].iter().map(|v| v * v).sum();
        let pivot = (a[j * len + j] - sum).max(a[j * len + j] * LEAST_PIVOT).max(f64::MIN_POSITIVE).sqrt();
        a[j * len + j] = pivot;
        for i in j + 1..len {
            let sum: f64 = (0..j).map(|p| a[i * len + p] * a[j * len + p]).sum();
            a[i * len + j] = (a[i * len + j] - sum) / pivot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A positive definite matrix [k, k], both triangles.
    fn matrix(k: usize) -> Vec<f64> {
        let value = |i: usize, j: usize| ((i * 37 + j * 101) % 64) as f64 / 64.0 - 0.5;
        let mut a = vec![0.0; k * k];
        for i in 0..k {
            for j in 0..k {
                a[i * k + j] = (0..k).map(|p| value(i, p) * value(j, p)).sum::<f64>() + if i == j { 0.1 } else { 0.0 };
            }
        }
        a
    }

    #[test]
    fn factors_solve_and_tell_of_the_inverse() {
        let (k, support) = (13, [1usize, 2, 5, 6, 9, 12]);
        let a = matrix(k);
        let s = support.len();
        let sub = |i: usize, j: usize| a[support[i] * k + support[j]];
        let factor = Factor::of(&a, k, &support, Par::Seq);
        // Columns of the inverse, by solving for unit vectors.
        let mut inverse = vec![0.0; s * s];
        (0..s).for_each(|i| inverse[i * s + i] = 1.0);
        factor.solve(&mut inverse);
        for i in 0..s {
            for j in 0..s {
                let product: f64 = (0..s).map(|p| sub(i, p) * inverse[j * s + p]).sum();
                assert!((product - f64::from(u8::from(i == j))).abs() < 1e-9, "{product} at {i}, {j}");
            }
        }
        let lower = factor.inverse();
        (0..s).for_each(|j| assert!((lower.diagonal(j) / inverse[j * s + j] - 1.0).abs() < 1e-9));
        let block = lower.block(2..5);
        for i in 0..3 {
            for j in 0..=i {
                let product: f64 = (0..=j).map(|p| block[i * 3 + p] * block[j * 3 + p]).sum();
                assert!((product - inverse[(i + 2) * s + j + 2]).abs() < 1e-9 * product.abs().max(1.0));
            }
        }
        let backwards: Vec<usize> = support.iter().rev().copied().collect();
        let reversed = Factor::of(&a, k, &backwards, Par::Seq).inverse();
        let mut rows = vec![vec![0.0; s]; s];
        for (i, row) in rows.iter_mut().enumerate() {
            reversed.reversed_row(i, &mut row[i..]);
        }
        for i in 0..s {
            for j in 0..s {
                let product: f64 = (0..s).map(|p| rows[p][i] * rows[p][j]).sum();
                assert!((product - inverse[i * s + j]).abs() < 1e-9 * product.abs().max(1.0), "{product} at {i}, {j}");
            }
        }
    }

    #[test]
    fn a_matrix_of_too_little_rank_is_factored_all_the_same() {
        let ones = vec![1.0; 16];
        let mut sides = vec![1.0; 4];
        Factor::of(&ones, 4, &[0, 1, 2, 3], Par::Seq).solve(&mut sides);
        assert!(sides.iter().all(|v| v.is_finite()) && (sides.iter().sum::<f64>() - 1.0).abs() < 1e-3, "{sides:?}");
        let mut sides = vec![1.0; 4];
        Factor::of(&[0.0; 16], 4, &[0, 1, 2, 3], Par::Seq).solve(&mut sides);
        assert!(sides.iter().all(|v| v.is_finite()), "{sides:?}");
    }
}
