//! A pattern by name with a sparse residue: `tw:128+1%`, tiles and single elements restored on top of them.

use super::{Named, Pattern, PatternError, Ratio};
use std::fmt;
use std::str::FromStr;

/// A named pattern, and what part of all elements is restored on top of it, `+P%` behind the name.
///
/// ```
/// use fractal_dsl::pattern::PatternSpec;
///
/// let spec: PatternSpec = "tw:128+1%".parse()?;
/// // A quarter is kept: 24 % by the tiles, 1 % by the residue.
/// assert_eq!(spec.pattern(1024, 1024, 0.25)?, spec.named.pattern(1024, 1024, 0.24)?);
/// # Ok::<(), fractal_dsl::pattern::PatternError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PatternSpec {
    /// The pattern.
    pub named: Named,
    /// The residue's part of all n*k elements.
    pub residue: Option<Ratio>,
}

impl PatternSpec {
    /// The residue's part of all elements; 0 where there is none.
    pub fn share(&self) -> f64 {
        self.residue.map_or(0.0, Ratio::fraction)
    }

    /// The keep ratio that the name itself fixes, residue included: 0.51 of `2:4+1%`.
    pub fn fixed_keep(&self) -> Option<f64> {
        self.named.fixed_keep().map(|keep| keep + self.share())
    }

    /// The pattern for a weight of n x k that keeps `keep` of its elements together with the residue.
    ///
    /// # Errors
    /// [`PatternError::Name`] where the residue alone is as much; else as [`Named::pattern`].
    pub fn pattern(&self, n: usize, k: usize, keep: f64) -> Result<Pattern, PatternError> {
        let Some(residue) = self.residue else { return self.named.pattern(n, k, keep) };
        let own = keep - residue.fraction();
        if own < 1e-6 {
            let found = format!("{self}` at a keep ratio of `{keep}");
            return Err(PatternError::Name { found, expected: format!("a keep ratio above {residue}, its residue's") });
        }
        self.named.pattern(n, k, own)
    }
}

impl From<Named> for PatternSpec {
    fn from(named: Named) -> PatternSpec {
        PatternSpec { named, residue: None }
    }
}

impl fmt::Display for PatternSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.residue {
            Some(residue) => write!(f, "{}+{residue}", self.named),
            None => write!(f, "{}", self.named),
        }
    }
}

impl FromStr for PatternSpec {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<PatternSpec, PatternError> {
        let Some((name, share)) = text.split_once('+') else { return Ok(text.parse::<Named>()?.into()) };
        let named = name.parse()?;
        let percent = share.trim().strip_suffix('%').and_then(|percent| percent.parse::<f64>().ok());
        let residue = percent.and_then(|percent| Ratio::percent(percent).ok()).filter(|&ratio| ratio < Ratio::ALL);
        let expected = || "a residue below 100 % behind a pattern's name, such as `tw:128+1%`".to_string();
        let residue = residue.ok_or_else(|| PatternError::Name { found: text.into(), expected: expected() })?;
        Ok(PatternSpec { named, residue: Some(residue) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_residue_are_read_and_written() {
        for text in ["tw:128+1%", "2:4+0.5%", "bw-global:32x16+12.5%", "tvw:64"] {
            assert_eq!(text.parse::<PatternSpec>().unwrap().to_string(), text);
        }
        assert_eq!(" tw:16 + 2% ".parse::<PatternSpec>().unwrap().to_string(), "tw:16+2%");
        for text in ["tw:128+", "tw:128+1", "tw:128+0%", "tw:128+100%", "tw:128+-1%", "tw:128+x%", "tw:128+1%+1%"] {
            let error = text.parse::<PatternSpec>().unwrap_err().to_string();
            let expected = "a residue below 100 % behind a pattern's name, such as `tw:128+1%`";
            assert_eq!(error, format!("`{text}` is no pattern: expected {expected}"));
        }
        assert!("tw:0+1%".parse::<PatternSpec>().unwrap_err().to_string().starts_with("`tw:0` is no pattern"));
    }

    #[test]
    fn the_pattern_keeps_what_the_residue_leaves() {
        let spec = |text: &str| text.parse::<PatternSpec>().unwrap();
        assert_eq!(spec("2:4+1%").fixed_keep(), Some(0.51));
        let pattern = spec("2:4+1%").pattern(8, 16, 0.51).unwrap();
        assert_eq!(pattern, Named::NOfM { kept: 2, of: 4, permuted: false }.pattern(8, 16, 0.5).unwrap());
        let error = spec("tw:16+25%").pattern(64, 64, 0.25).unwrap_err().to_string();
        let expected =
            "`tw:16+25%` at a keep ratio of `0.25` is no pattern: expected a keep ratio above 25%, its residue's";
        assert_eq!(error, expected);
    }
}
