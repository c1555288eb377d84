//! How many iterations a skip keeps.

use super::PatternError;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A keep ratio in (0, 1], held in parts per million so that equal ratios are equal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Ratio(u32);

impl Ratio {
    const ONE: u32 = 1_000_000;

    /// Every iteration is kept.
    pub const ALL: Ratio = Ratio(Ratio::ONE);

    /// A ratio from a fraction such as `0.25`, rounded to parts per million.
    ///
    /// # Errors
    /// [`PatternError::KeepRatio`] unless `0 < fraction <= 1` after rounding.
    pub fn new(fraction: f64) -> Result<Ratio, PatternError> {
        let parts = (fraction * f64::from(Ratio::ONE)).round();
        if parts >= 1.0 && parts <= f64::from(Ratio::ONE) {
            Ok(Ratio(parts as u32))
        } else {
            Err(PatternError::KeepRatio { found: fraction })
        }
    }

    /// A ratio from a percentage such as `6.25`.
    ///
    /// # Errors
    /// As [`Ratio::new`].
    pub fn percent(percent: f64) -> Result<Ratio, PatternError> {
        Ratio::new(percent / 100.0)
    }

    /// The ratio as a fraction.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(Ratio::ONE)
    }

    /// The count this ratio keeps of `len`: rounded half up, at least one of a non-empty set.
    pub fn of(self, len: usize) -> usize {
        let one = u128::from(Ratio::ONE);
        let kept = (len as u128 * u128::from(self.0) + one / 2) / one;
        (kept as usize).clamp(usize::from(len > 0), len)
    }
}

impl TryFrom<f64> for Ratio {
    type Error = PatternError;
    fn try_from(fraction: f64) -> Result<Ratio, PatternError> {
        Ratio::new(fraction)
    }
}

impl From<Ratio> for f64 {
    fn from(ratio: Ratio) -> f64 {
        ratio.fraction()
    }
}

impl fmt::Display for Ratio {
    /// As a percentage, with as many decimals as the value has: `50%`, `6.25%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 10_000, self.0 % 10_000);
        if rest == 0 {
            write!(f, "{whole}%")
        } else {
            let digits = format!("{rest:04}");
            write!(f, "{whole}.{}%", digits.trim_end_matches('0'))
        }
    }
}

/// How many of a loop's iterations a skip keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// This many in every region.
    Count(usize),
    /// This part of the loop's length in every region (balanced), by [`Ratio::of`].
    Ratio(Ratio),
    /// `kept` of `of` in every region; the loop's length must be `of`.
    Of {
        /// How many are kept.
        kept: usize,
        /// The length that the loop must have.
        of: usize,
    },
    /// One threshold over all regions: this part of all iterations, each region its own count.
    Ragged(Ratio),
    /// One threshold over all regions that keeps this many iterations in total.
    RaggedCount(usize),
}

impl Keep {
    /// Whether each region keeps a count of its own.
    pub fn is_ragged(self) -> bool {
        matches!(self, Keep::Ragged(_) | Keep::RaggedCount(_))
    }
}

impl fmt::Display for Keep {
    /// As in DSL text: `16`, `50%`, `2 of 4`, `ragged 25%`, `ragged 4096`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keep::Count(count) => write!(f, "{count}"),
            Keep::Ratio(ratio) => write!(f, "{ratio}"),
            Keep::Of { kept, of } => write!(f, "{kept} of {of}"),
            Keep::Ragged(ratio) => write!(f, "ragged {ratio}"),
            Keep::RaggedCount(count) => write!(f, "ragged {count}"),
        }
    }
}
