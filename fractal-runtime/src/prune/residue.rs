//! Single elements restored on top of what a pattern keeps: scores -> [`Residue`].
//!
//! W is then a pattern's part and a few elements more (the hybrid of TW, SC 2020). Both are executed by one kernel: it adds
//! the residue to its sums before the epilogue.

use super::{Importance, PruneError, Pruned, checked, prune_by};
use crate::tensor::Tensor;
use fractal_dsl::pattern::{Mask, Pattern};
use std::ops::Range;

/// Of a row, at most so many times the elements that a row has on average: a longer one keeps its tile waiting.
const MOST_OF_AVERAGE: f64 = 4.0;

/// Restored elements, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Residue {
    places: Places,
    values: Vec<f32>,
}

/// Where restored elements are: row n has those at `columns[offsets[n]..offsets[n + 1]]`, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    offsets: Vec<u32>,
    columns: Vec<u32>,
}

impl Places {
    /// Checks lists for rows of `k` columns.
    pub(super) fn new(k: usize, offsets: Vec<u32>, columns: Vec<u32>) -> Result<Places, PruneError> {
        let wrong = |expected: String, found: String| Err(PruneError::Residue { expected, found });
        let rises = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if !rises || offsets.first() != Some(&0) || offsets.last().map(|&last| last as usize) != Some(columns.len()) {
            let found = format!("{} of which the last is {:?}", offsets.len(), offsets.last());
            return wrong(format!("offsets that rise from 0 to {}", columns.len()), found);
        }
        let places = Places { offsets, columns };
        for row in 0..places.rows() {
            let columns = &places.columns[places.range(row)];
            if let Some(pair) = columns.windows(2).find(|pair| pair[0] >= pair[1]) {
                return wrong(format!("columns that rise in row {row}"), format!("{} before {}", pair[0], pair[1]));
            }
            if let Some(&last) = columns.last().filter(|&&last| last as usize >= k) {
                return wrong(format!("columns below {k} in row {row}"), last.to_string());
            }
        }
        Ok(places)
    }

    fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    fn range(&self, row: usize) -> Range<usize> {
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }

    /// Elements of each row.
    pub(super) fn counts(&self) -> Vec<u32> {
        self.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    /// Columns of all rows.
    pub(super) fn columns(&self) -> &[u32] {
        &self.columns
    }

    /// Row and column of each element.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.rows()).flat_map(|row| self.columns[self.range(row)].iter().map(move |&column| (row, column as usize)))
    }

    /// Finite values there, as many.
    pub(super) fn with_values(self, values: Vec<f32>) -> Residue {
        assert_eq!(values.len(), self.columns.len(), "values of a residue");
        Residue { places: self, values }
    }

    /// The elements of weights \[n, k\] there.
    pub(super) fn residue_of(&self, weights: &[f32], k: usize) -> Residue {
        let values = self.iter().map(|(row, column)| weights[row * k + column]).collect();
        self.clone().with_values(values)
    }
}

impl Residue {
    /// Row n has the elements `offsets[n]..offsets[n + 1]`: their columns, ascending and below `k`, and their values.
    ///
    /// # Errors
    /// [`PruneError::Residue`]: the first list that is no such residue.
    pub fn new(k: usize, offsets: Vec<u32>, columns: Vec<u32>, values: Vec<f32>) -> Result<Residue, PruneError> {
        let wrong = |expected: String, found: String| Err(PruneError::Residue { expected, found });
        let places = Places::new(k, offsets, columns)?;
        if values.len() != places.columns.len() {
            return wrong(format!("{} values", places.columns.len()), values.len().to_string());
        }
        if let Some(value) = values.iter().find(|value| !value.is_finite()) {
            return wrong("finite values".into(), value.to_string());
        }
        Ok(Residue { places, values })
    }

    /// Of the elements that `mask` drops, those with the greatest scores, `share` of all elements. Of equal ones the first stay;
    /// none without a score is restored, nor more of a row than [`MOST_OF_AVERAGE`] allows: what a full row has left is
    /// taken from other rows.
    fn choose(weights: &[f32], scores: &[f32], mask: &Mask, share: f64) -> Result<Residue, PruneError> {
        let (n, k) = (mask.n(), mask.k());
        let most = (share * (n * k) as f64).round() as usize;
        let of_row = (MOST_OF_AVERAGE * share * k as f64).ceil() as usize;
        let mut chosen: Vec<usize> = Vec::new();
        for row in 0..n {
            let mut dropped: Vec<usize> = (0..k)
                .filter(|&c| !mask.contains(row, c))
                .map(|c| row * k + c)
                .filter(|&at| scores[at] > 0.0)
                .collect();
            keep_best(&mut dropped, scores, of_row);
            chosen.extend(dropped);
        }
        keep_best(&mut chosen, scores, most);
        if u32::try_from(chosen.len()).is_err() {
            let found = chosen.len().to_string();
            return Err(PruneError::Residue { expected: "fewer than 2^32 elements".into(), found });
        }
        chosen.sort_unstable();
        let mut offsets = vec![0; n + 1];
        chosen.iter().for_each(|at| offsets[at / k + 1] += 1);
        for row in 0..n {
            offsets[row + 1] += offsets[row];
        }
        let places = Places { offsets, columns: chosen.iter().map(|at| (at % k) as u32).collect() };
        Ok(places.residue_of(weights, k))
    }

    /// The same elements with other values, as many.
    pub(super) fn with_values(self, values: Vec<f32>) -> Residue {
        self.places.with_values(values)
    }

    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    /// Rows of the weight.
    pub fn rows(&self) -> usize {
        self.places.rows()
    }

    /// Restored elements.
    pub fn len(&self) -> usize {
        self.places.columns.len()
    }

    /// Whether nothing is restored.
    pub fn is_empty(&self) -> bool {
        self.places.columns.is_empty()
    }

    /// Columns, ascending, and values of row `n`; each value exactly one of the weight's type.
    ///
    /// # Panics
    /// Where there is no such row.
    pub fn row(&self, n: usize) -> (&[u32], &[f32]) {
        let range = self.places.range(n);
        (&self.places.columns[range.clone()], &self.values[range])
    }

    /// Where each row begins, and the end of the last.
    pub fn offsets(&self) -> &[u32] {
        &self.places.offsets
    }

    /// Columns of all rows.
    pub fn columns(&self) -> &[u32] {
        &self.places.columns
    }

    /// Values of all rows.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Row, column and value of each element.
    pub fn elements(&self) -> impl Iterator<Item = (usize, usize, f32)> {
        self.places.iter().zip(&self.values).map(|((row, column), &value)| (row, column, value))
    }

    /// Bytes with `element` bytes a value, offsets and columns included.
    pub fn bytes(&self, element: usize) -> usize {
        4 * (self.offsets().len() + self.len()) + element * self.values.len()
    }
}

/// Prunes `weight` [n, k] to `pattern` by `importance`, and restores of the elements that the pattern drops those with the
/// greatest scores: `share` of all n*k, over the whole weight, but of a row at most four times what a row has on average.
///
/// # Errors
/// [`PruneError`]; [`PruneError::Share`] unless `0 <= share < 1`.
pub fn prune_with_residue(
    pattern: &Pattern,
    weight: &Tensor,
    importance: &dyn Importance,
    share: f64,
) -> Result<Pruned, PruneError> {
    if !(0.0..1.0).contains(&share) {
        return Err(PruneError::Share { found: share });
    }
    let weights = checked(pattern, weight)?;
    let scores = importance.scores(&weights, pattern.n(), pattern.k())?;
    let pruned = prune_by(pattern, &weights, weight.dtype(), &scores)?;
    let residue = Residue::choose(&weights, &scores, &pattern.mask(&pruned.selection)?, share)?;
    Ok(if residue.is_empty() { pruned } else { pruned.restore(residue, &scores) })
}

impl Pruned {
    /// Adds a residue to a weight that has none; scores \[n, k\] tell what it retains.
    pub(super) fn restore(mut self, residue: Residue, scores: &[f32]) -> Pruned {
        let all = scores.iter().map(|&score| f64::from(score)).sum::<f64>();
        let k = self.pattern.k();
        let restored = residue.places.iter().map(|(row, column)| f64::from(scores[row * k + column])).sum::<f64>();
        if all > 0.0 {
            // The parts of all may round to more than 1.
            self.retained = (self.retained + restored / all).min(1.0);
        }
        self.kept += residue.len();
        self.residue = Some(residue);
        self
    }
}

/// Leaves the `most` of `places` with the greatest scores, in no order; of equal ones the first.
fn keep_best(places: &mut Vec<usize>, scores: &[f32], most: usize) {
    if places.len() > most {
        if most > 0 {
            places.select_nth_unstable_by(most - 1, |a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        }
        places.truncate(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Given, Magnitude, prune};
    use fractal_dsl::DType;
    use fractal_dsl::pattern::Named;

    fn scattered(n: usize, k: usize) -> Vec<f32> {
        (0..n * k).map(|at| (at * 7919 % 1009) as f32 / 1009.0 - 0.5).collect()
    }

    fn pattern(name: &str, n: usize, k: usize) -> Pattern {
        name.parse::<Named>().unwrap().pattern(n, k, 0.25).unwrap()
    }

    #[test]
    fn the_greatest_dropped_elements_are_restored_and_counted() {
        let (n, k) = (48, 100);
        let (pattern, w) = (pattern("tw:16", n, k), scattered(n, k));
        let weight = Tensor::from_f32(DType::BF16, n, k, &w).unwrap();
        let (plain, pruned) = (
            prune(&pattern, &weight, &Magnitude).unwrap(),
            prune_with_residue(&pattern, &weight, &Magnitude, 0.02).unwrap(),
        );
        let residue = pruned.residue().unwrap();
        assert_eq!(residue.len(), 96);
        assert_eq!(pruned.kept(), plain.kept() + 96);
        assert!((pruned.sparsity() - 0.73).abs() < 1e-9);
        assert_eq!(pruned.packed_bytes(), plain.packed_bytes() + 4 * (n + 1 + 96) + 2 * 96);
        let (w, mask) = (weight.to_f32(), pattern.mask(plain.selection()).unwrap());
        let dense: Vec<f32> =
            (0..n * k).map(|at| if pruned.mask().contains(at / k, at % k) { w[at] } else { 0.0 }).collect();
        assert_eq!(pruned.dense().to_f32(), dense);
        assert_eq!(pruned.mask().count(), pruned.kept());
        let kept: f64 = dense.iter().map(|w| f64::from(w.abs())).sum();
        let all: f64 = w.iter().map(|w| f64::from(w.abs())).sum();
        assert!((pruned.retained() - kept / all).abs() < 1e-12);
        // None that stays dropped is greater, and no row is full here.
        let least = residue.values().iter().fold(f32::INFINITY, |least, v| least.min(v.abs()));
        let left = (0..n * k).filter(|at| !pruned.mask().contains(at / k, at % k));
        assert!(left.map(|at| w[at].abs()).all(|w| w <= least));
        assert!(residue.elements().all(|(n, k, _)| !mask.contains(n, k)));
    }

    #[test]
    fn a_row_is_full_at_four_times_the_average_and_zeros_are_not_restored() {
        let (n, k) = (10, 100);
        let pattern = pattern("tw:10", n, k);
        // All of row 3 is worth more than anything else.
        let scores: Vec<f32> = (0..n * k).map(|at| if at / k == 3 { 1000.0 } else { (at % 89) as f32 }).collect();
        let weight = Tensor::from_f32(DType::F32, n, k, &scattered(n, k)).unwrap();
        let pruned = prune_with_residue(&pattern, &weight, &Given(scores), 0.05).unwrap();
        let residue = pruned.residue().unwrap();
        assert_eq!((residue.len(), residue.row(3).0.len()), (50, 20));
        let zeros = vec![0.0; n * k];
        let none = prune_with_residue(&pattern, &weight, &Given(zeros), 0.05).unwrap();
        assert!(none.residue().is_none());
        assert!(prune_with_residue(&pattern, &weight, &Magnitude, 0.0).unwrap().residue().is_none());
        for share in [-0.1, 1.0, f64::NAN] {
            let error = prune_with_residue(&pattern, &weight, &Magnitude, share).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("prune: a residue of {share} of the elements; expected a part from 0 to below 1")
            );
        }
    }

    #[test]
    fn lists_that_are_no_residue_are_refused() {
        let error = |offsets: &[u32], columns: &[u32], values: &[f32]| {
            Residue::new(4, offsets.to_vec(), columns.to_vec(), values.to_vec()).unwrap_err().to_string()
        };
        assert!(Residue::new(4, vec![0, 2, 2, 3], vec![1, 3, 0], vec![1.0, 2.0, 3.0]).is_ok());
        assert_eq!(
            error(&[0, 2], &[1], &[1.0]),
            "prune: residue: expected offsets that rise from 0 to 1, found 2 of which the last is Some(2)"
        );
        assert_eq!(error(&[0, 1], &[1], &[]), "prune: residue: expected 1 values, found 0");
        assert_eq!(error(&[0, 1], &[1], &[f32::NAN]), "prune: residue: expected finite values, found NaN");
        assert_eq!(
            error(&[0, 2], &[1, 1], &[1.0, 1.0]),
            "prune: residue: expected columns that rise in row 0, found 1 before 1"
        );
        assert_eq!(error(&[0, 0, 1], &[4], &[1.0]), "prune: residue: expected columns below 4 in row 1, found 4");
    }
}
