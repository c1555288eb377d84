//! Scores of a weight and a tiling -> the importance that it would retain, by pruning a sample of rows.
//!
//! Tiles of rows are pruned each for itself, so that some of them tell about all; a global threshold, and an order of rows,
//! are estimated only.

use super::space::Tiling;
use fractal_dsl::pattern::{Effort, Named, PatternError};

/// Elements of a sample, about.
const ELEMENTS: usize = 1 << 21;
/// Rows that stay together: the highest tiles.
const BLOCK: usize = 256;

/// The part of the sample that stands for all where pruning is a search: it takes as long as the rest together.
const SEARCHED: usize = 4;

/// The scores of a weight, or of a sample of its rows.
#[derive(Clone, Debug)]
pub struct Estimator {
    sample: Vec<f32>,
    /// Blocks of it.
    few: Vec<f32>,
    k: usize,
}

impl Estimator {
    /// Of scores [n, k].
    ///
    /// # Panics
    /// Where there are not n*k scores.
    pub fn new(scores: &[f32], n: usize, k: usize) -> Estimator {
        assert_eq!(scores.len(), n * k, "scores of {n} x {k}");
        let blocks = (ELEMENTS / (BLOCK * k).max(1)).max(1);
        let there = n / BLOCK;
        let sample = if n * k <= ELEMENTS || blocks >= there {
            scores.to_vec()
        } else {
            // Evenly spaced.
            (0..blocks).flat_map(|at| scores[at * there / blocks * BLOCK * k..][..BLOCK * k].iter().copied()).collect()
        };
        let few: Vec<f32> = sample.chunks((BLOCK * k).max(1)).step_by(SEARCHED).flatten().copied().collect();
        Estimator { sample, few, k }
    }

    /// The part of all importance that the greatest scores hold, `keep` of them: what no pattern of that ratio exceeds.
    pub fn most(&self, keep: f64) -> f64 {
        let kept = ((keep * self.sample.len() as f64).ceil() as usize).min(self.sample.len());
        let total = sum(&self.sample);
        if kept == self.sample.len() || total == 0.0 {
            return 1.0;
        }
        let mut scores = self.sample.clone();
        scores.select_nth_unstable_by(kept, |a, b| b.total_cmp(a));
        sum(&scores[..kept]) / total
    }

    /// The part of all importance that the tiling retains.
    ///
    /// # Errors
    /// Where the sizes do not allow it, or a score is not finite.
    pub fn retained(&self, tiling: &Tiling) -> Result<f64, PatternError> {
        let (sample, effort) =
            if is_searched(tiling) { (&self.few, Effort::Quick) } else { (&self.sample, Effort::Greedy) };
        let pattern = tiling.pattern(sample.len() / self.k.max(1), self.k)?;
        let mask = pattern.mask(&pattern.search(sample, effort)?)?;
        let (kept, total) = (sum(&mask.apply(sample)?), sum(sample));
        Ok(if total == 0.0 { 1.0 } else { kept / total })
    }
}

fn sum(scores: &[f32]) -> f64 {
    scores.iter().map(|&s| f64::from(s)).sum()
}

/// Whether a search is what the tiling is for: the greedy choice would tell too little of it.
fn is_searched(tiling: &Tiling) -> bool {
    let named = |named: &Named| {
        matches!(named, Named::TileVectorWise { .. } | Named::VNM { .. } | Named::NOfM { permuted: true, .. })
    };
    matches!(tiling, Tiling::Named(name, _) if named(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::space::tilings;

    #[test]
    fn a_sample_tells_about_the_whole() {
        let (n, k) = (8192, 1024);
        let mut state = 1u32;
        let scores: Vec<f32> = (0..n * k)
            .map(|at| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Columns that matter more than others, as in a real layer.
                (state >> 8) as f32 / (1 << 24) as f32 * if at % k % 5 == 0 { 2.0 } else { 1.0 }
            })
            .collect();
        let estimator = Estimator::new(&scores, n, k);
        assert!(estimator.sample.len() < scores.len());
        let names = ["tw:128", "bw:128x64", "tvw:64", "vnm:64"];
        for tiling in names.map(|name| Tiling::Named(name.parse::<Named>().unwrap(), 0.25)) {
            let pattern = tiling.pattern(n, k).unwrap();
            let mask = pattern.mask(&pattern.project(&scores).unwrap()).unwrap();
            let sum = |v: &[f32]| v.iter().map(|&s| f64::from(s)).sum::<f64>();
            let exact = sum(&mask.apply(&scores).unwrap()) / sum(&scores);
            let estimated = estimator.retained(&tiling).unwrap();
            assert!((estimated / exact - 1.0).abs() < 0.01, "{tiling}: {estimated} of {exact}");
        }
    }

    #[test]
    fn every_tiling_can_be_estimated() {
        let (n, k) = (96, 130);
        let scores: Vec<f32> = (0..n * k).map(|at| (at * 7919 % 1009) as f32).collect();
        let estimator = Estimator::new(&scores, n, k);
        for tiling in tilings(n, k, 0.5) {
            let retained = estimator.retained(&tiling).unwrap();
            assert!((0.3..=1.0).contains(&retained), "{tiling}: {retained}");
        }
        let nothing = Estimator::new(&[0.0; 16 * 16], 16, 16);
        assert_eq!(nothing.retained(&tilings(16, 16, 0.5)[0]).unwrap(), 1.0);
    }
}
