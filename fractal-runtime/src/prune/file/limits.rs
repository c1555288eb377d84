//! What reading may take: a header of a few bytes can name a weight of a terabyte.

use super::error::LayerFault;
use fractal_dsl::pattern::{Pattern, Step};

/// What a file may take in memory while it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadLimits {
    /// Entries of weights, nests and tables over all layers; each takes up to 8 bytes for a moment. `None` allows 4096 for
    /// each byte of the file, and 2^26 to the smallest.
    pub entries: Option<usize>,
}

impl ReadLimits {
    const EACH_BYTE: usize = 4096;
    const LEAST: usize = 1 << 26;

    /// What a file of so many bytes may take.
    pub(super) fn budget(&self, bytes: usize) -> Budget {
        Budget(self.entries.unwrap_or(bytes.saturating_mul(ReadLimits::EACH_BYTE).max(ReadLimits::LEAST)))
    }
}

/// Entries that are left.
pub(super) struct Budget(usize);

impl Budget {
    /// Takes what a weight of this pattern needs, before anything of it is made.
    pub fn take(&mut self, pattern: &Pattern) -> Result<(), LayerFault> {
        let found = entries(pattern).saturating_add(entries(&pattern.executed()));
        match self.0.checked_sub(found) {
            Some(left) => self.0 = left,
            None => {
                let (n, k) = (pattern.n(), pattern.k());
                return Err(LayerFault::TooLarge { n, k, found, limit: self.0 });
            }
        }
        Ok(())
    }
}

/// The elements, the nest with its padding, the iterations of every skip, and a row's value on every axis.
fn entries(pattern: &Pattern) -> usize {
    let elements = pattern.n().saturating_mul(pattern.k());
    let row = pattern.k().saturating_mul(pattern.axes().len());
    let tables = pattern.steps().iter().map(|step| match step {
        Step::Skip { axis, per, .. } => pattern.regions(per).saturating_add(1).saturating_mul(pattern.axis(*axis).len),
        Step::Permute { axis, .. } => pattern.axis(*axis).len,
        _ => 0,
    });
    tables.fold(elements, usize::saturating_add).saturating_add(pattern.regions(pattern.order())).saturating_add(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fractal_dsl::pattern::Named;

    /// Of the patterns by name, one part in thousands may be kept.
    #[test]
    fn what_pruning_makes_is_within_the_limits() {
        for name in ["ew", "tw:128", "bw-global:32x32", "vnm:64", "shfl-bw:64x64", "hybrid:128x64/32x16"] {
            for size in [4096, 16_384] {
                for keep in [0.5, 0.1, 0.002] {
                    let pattern = name.parse::<Named>().unwrap().pattern(size, size, keep).unwrap();
                    let stored = (size * size) as f64 * keep * 2.0;
                    let result = ReadLimits::default().budget(stored as usize).take(&pattern);
                    assert_eq!(result, Ok(()), "{name} {size} {keep}");
                }
            }
        }
    }

    #[test]
    fn what_a_forged_header_claims_is_not() {
        let pattern = Pattern::dense(1 << 20, 1 << 20).unwrap();
        let fault = ReadLimits::default().budget(1000).take(&pattern).unwrap_err();
        assert!(fault.to_string().contains("expected at most 67108864 for a file of this length"), "{fault}");
    }
}
