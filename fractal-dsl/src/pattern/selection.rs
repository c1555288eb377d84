//! Masks, and the choices that lead to them.

use super::walk::Walk;
use super::{AxisId, Pattern, PatternError, Step};
use fixedbitset::FixedBitSet;
use std::borrow::Cow;

/// Which elements of W[n, k] are kept: one bit an element, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    n: usize,
    k: usize,
    bits: FixedBitSet,
}

impl Mask {
    /// A mask that keeps nothing.
    ///
    /// # Panics
    /// Where it does not fit the address space.
    pub fn empty(n: usize, k: usize) -> Mask {
        let elements = n.checked_mul(k).unwrap_or_else(|| panic!("mask of {n}x{k}: too many elements"));
        Mask { n, k, bits: FixedBitSet::with_capacity(elements) }
    }

    /// The mask of the elements for which `keep(n, k)` holds.
    pub fn from_fn(n: usize, k: usize, mut keep: impl FnMut(usize, usize) -> bool) -> Mask {
        let mut mask = Mask::empty(n, k);
        for row in 0..n {
            for column in 0..k {
                mask.bits.set(row * k + column, keep(row, column));
            }
        }
        mask
    }

    /// Rows.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Whether element (n, k) is kept; false outside the weight.
    pub fn contains(&self, n: usize, k: usize) -> bool {
        n < self.n && k < self.k && self.bits.contains(n * self.k + k)
    }

    /// Keeps element (n, k).
    ///
    /// # Panics
    /// Where (n, k) lies outside the weight.
    pub fn insert(&mut self, n: usize, k: usize) {
        assert!(n < self.n && k < self.k, "element ({n}, {k}) of a {}x{} mask", self.n, self.k);
        self.bits.insert(n * self.k + k);
    }

    /// Kept elements.
    pub fn count(&self) -> usize {
        self.bits.count_ones(..)
    }

    /// Kept elements over all.
    pub fn density(&self) -> f64 {
        self.count() as f64 / (self.n * self.k) as f64
    }

    /// Whether every element that `self` keeps is kept by `other`.
    pub fn is_subset(&self, other: &Mask) -> bool {
        self.n == other.n && self.k == other.k && self.bits.is_subset(&other.bits)
    }

    /// The weights with everything dropped set to zero.
    ///
    /// # Errors
    /// [`PatternError::Shape`] unless `weights` has n*k elements.
    pub fn apply<T: Copy + Default>(&self, weights: &[T]) -> Result<Vec<T>, PatternError> {
        check_len("weights", weights.len(), self.n, self.k)?;
        let mut kept = vec![T::default(); weights.len()];
        for at in self.bits.ones() {
            kept[at] = weights[at];
        }
        Ok(kept)
    }
}

/// The iterations that one skip keeps, region by region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// `offsets[r]..offsets[r + 1]` are the places of region r in `kept`; one more entry than regions.
    pub offsets: Vec<u32>,
    /// Kept iterations of the skipped axis; the place within the region is the value of the new axis.
    pub kept: Vec<u32>,
}

impl Kept {
    /// Regions.
    pub fn regions(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// The kept iterations of one region.
    pub fn region(&self, region: usize) -> &[u32] {
        &self.kept[self.offsets[region] as usize..self.offsets[region + 1] as usize]
    }
}

/// What pruning chose for one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Level {
    /// Of a skip.
    Kept(Kept),
    /// Of a permutation: `order[new] = old`.
    Order(Vec<u32>),
}

/// The choices of every skip and permutation of a pattern, in the order of its steps: a mask with the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// One level a skip or permutation.
    pub levels: Vec<Level>,
}

impl Selection {
    /// The level of each step of `pattern`, with the step's number; steps without a choice are passed over.
    pub fn of_steps<'a>(&'a self, pattern: &'a Pattern) -> impl Iterator<Item = (usize, &'a Level)> {
        choice_steps(pattern).zip(&self.levels)
    }

    /// Whether every index and length fits `pattern`.
    ///
    /// # Errors
    /// [`PatternError::Selection`] names the first step that does not fit.
    pub fn check(&self, pattern: &Pattern) -> Result<(), PatternError> {
        let steps: Vec<usize> = choice_steps(pattern).collect();
        let mismatch = |step: usize, expected: String, found: String| PatternError::Selection { step, expected, found };
        if steps.len() != self.levels.len() {
            let expected = format!("{} levels", steps.len());
            return Err(mismatch(pattern.steps().len(), expected, self.levels.len().to_string()));
        }
        for (step, level) in steps.into_iter().zip(&self.levels) {
            match (&pattern.steps()[step], level) {
                (Step::Skip { axis, per, .. }, Level::Kept(kept)) => {
                    check_kept(kept, pattern.regions(per), pattern.axis(*axis).len, pattern.kept_per_region(step))
                        .map_err(|(expected, found)| mismatch(step, expected, found))?;
                }
                (Step::Permute { axis, .. }, Level::Order(order)) => {
                    let len = pattern.axis(*axis).len;
                    let mut seen = FixedBitSet::with_capacity(len);
                    let fits = order.len() == len && order.iter().all(|&o| (o as usize) < len && !seen.put(o as usize));
                    if !fits {
                        let found = format!("{} entries that are none", order.len());
                        return Err(mismatch(step, format!("a permutation of {len} iterations"), found));
                    }
                }
                _ => return Err(mismatch(step, "a level of the step's kind".into(), "the other kind".into())),
            }
        }
        Ok(())
    }

    /// Whether every region keeps as many iterations as it may and has, and only such as hold an element, as pruning and
    /// covers choose them. [`Selection::check`] lets fewer pass, and iterations of a tail's padding; kernels need neither
    /// to be right, but packing leaves places for all that a region may keep.
    ///
    /// # Errors
    /// [`PatternError::Selection`] names the first step that does not fit.
    pub fn check_filled(&self, pattern: &Pattern) -> Result<(), PatternError> {
        self.check(pattern)?;
        let mut walk = Walk::new(pattern);
        let (mut exists, mut places) = (Vec::new(), Vec::new());
        for (step, level) in self.of_steps(pattern) {
            if let (Step::Skip { axis, per, out, .. }, Level::Kept(kept)) = (&pattern.steps()[step], level) {
                let len = pattern.axis(*axis).len;
                let most = pattern.kept_per_region(step);
                exists.clear();
                // Without a tail there is nothing but elements.
                if pattern.axis(*out).tail {
                    exists.resize(kept.regions() * len, false);
                    for n in 0..pattern.n() {
                        walk.row(n, step);
                        walk.places(per, *axis, &mut places);
                        (0..pattern.k()).filter(|&k| walk.alive(k)).for_each(|k| exists[places[k]] = true);
                    }
                }
                for region in 0..kept.regions() {
                    let exists = exists.get(region * len..(region + 1) * len);
                    check_filled(kept.region(region), len, exists, most).map_err(|(expected, found)| {
                        PatternError::Selection { step, expected: format!("{expected} in region {region}"), found }
                    })?;
                }
            }
            walk.choose(step, level);
        }
        Ok(())
    }
}

/// `exists` tells which of the `len` iterations hold an element; `None`: all do.
fn check_filled(
    kept: &[u32],
    len: usize,
    exists: Option<&[bool]>,
    most: Option<usize>,
) -> Result<(), (String, String)> {
    let empty = exists.and_then(|exists| kept.iter().find(|&&iteration| !exists[iteration as usize]));
    if let Some(empty) = empty {
        return Err(("iterations that hold an element".into(), format!("{empty}, which holds none")));
    }
    let there = exists.map_or(len, |exists| exists.iter().filter(|&&there| there).count());
    match most.map_or(0, |most| most.min(there)) {
        least if kept.len() < least => Err((format!("{least} iterations"), kept.len().to_string())),
        _ => Ok(()),
    }
}

fn check_kept(kept: &Kept, regions: usize, len: usize, most: Option<usize>) -> Result<(), (String, String)> {
    let offsets = &kept.offsets;
    if offsets.len() != regions.saturating_add(1) || offsets[0] != 0 || offsets[regions] as usize != kept.kept.len() {
        return Err((format!("{regions} regions"), format!("{} offsets", offsets.len())));
    }
    if let Some(at) = offsets.windows(2).position(|w| w[0] > w[1]) {
        return Err(("rising offsets".into(), format!("{} before {}", offsets[at], offsets[at + 1])));
    }
    let most = most.unwrap_or(len);
    for region in 0..regions {
        let kept = kept.region(region);
        if kept.len() > most {
            return Err((format!("at most {most} iterations in region {region}"), kept.len().to_string()));
        }
        let mut sorted = Cow::Borrowed(kept);
        if !kept.is_sorted() {
            sorted.to_mut().sort_unstable();
        }
        if let Some(pair) = sorted.windows(2).find(|w| w[0] == w[1]) {
            return Err((format!("each iteration once in region {region}"), format!("{} twice", pair[0])));
        }
        if let Some(&last) = sorted.last().filter(|&&last| last as usize >= len) {
            return Err((format!("iterations below {len} in region {region}"), last.to_string()));
        }
    }
    Ok(())
}

/// The numbers of the steps that hold a choice.
pub(crate) fn choice_steps(pattern: &Pattern) -> impl Iterator<Item = usize> {
    pattern.steps().iter().enumerate().filter(|(_, step)| is_choice(step)).map(|(number, _)| number)
}

pub(crate) fn is_choice(step: &Step) -> bool {
    matches!(step, Step::Skip { .. } | Step::Permute { .. })
}

pub(crate) fn check_len(what: &'static str, found: usize, n: usize, k: usize) -> Result<(), PatternError> {
    if found == n * k { Ok(()) } else { Err(PatternError::Shape { what, found, expected: n * k, n, k }) }
}

/// The flat number of the region in which the axes `per` have the given values; `None` where one is dropped.
pub(crate) fn flat(pattern: &Pattern, per: &[AxisId], value: impl Fn(AxisId) -> Option<usize>) -> Option<usize> {
    per.iter().try_fold(0, |flat, &axis| Some(flat * pattern.axis(axis).len + value(axis)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "too many elements")]
    fn masks_never_wrap_to_fewer_bits() {
        Mask::empty(1 << (usize::BITS - 1), 2);
    }
}
