//! Which patterns are tried: (n, k, keep ratio) -> tilings of at most three levels an axis, with what each level skips.
//!
//! Levels are blocks inside blocks. Where the innermost keeps 2 of 4, the levels around it keep twice the ratio.

use fractal_dsl::pattern::{AxisId, Keep, Named, Pattern, PatternBuilder, PatternError, Ratio, Step};
use std::fmt;

/// Blocks of one level: rows, columns, and the part of them that is kept in each row of blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Rows a block.
    pub rows: usize,
    /// Columns a block.
    pub columns: usize,
    /// The part that is kept.
    pub keep: f64,
}

/// A pattern without its sizes.
#[derive(Clone, Debug, PartialEq)]
pub enum Tiling {
    /// One of the literature, at a keep ratio.
    Named(Named, f64),
    /// Blocks inside blocks.
    Nest {
        /// From the coarsest.
        levels: Vec<Level>,
        /// Whether each row keeps 2 of every 4 columns that the levels leave.
        pairs: bool,
    },
}

impl Tiling {
    /// The pattern for a weight of n x k.
    ///
    /// # Errors
    /// Where the sizes do not allow it.
    pub fn pattern(&self, n: usize, k: usize) -> Result<Pattern, PatternError> {
        let (levels, pairs) = match self {
            Tiling::Named(named, keep) => return named.pattern(n, k, named.fixed_keep().unwrap_or(*keep)),
            Tiling::Nest { levels, pairs } => (levels, *pairs),
        };
        let mut b = PatternBuilder::new(n, k)?;
        let (mut row, mut column) = (AxisId::N, AxisId::K);
        // The loops outside the blocks of the level: of rows, and of columns that are left.
        let (mut rows, mut columns) = (Vec::new(), Vec::new());
        for level in levels {
            let (no, ni) = b.split(row, level.rows)?;
            rows.push(no);
            let regions: Vec<AxisId> = rows.iter().chain(&columns).copied().collect();
            let keep = Keep::Ratio(Ratio::new(level.keep)?);
            if level.columns == 1 {
                column = b.skip(column, &regions, keep)?;
            } else {
                let (ko, ki) = b.split(column, level.columns)?;
                columns.push(b.skip(ko, &regions, keep)?);
                column = ki;
            }
            row = ni;
        }
        if pairs {
            let (group, within) = b.split(column, 4)?;
            let len = b.axis(within).map_or(4, |axis| axis.len);
            let keep = if len == 4 { Keep::Of { kept: 2, of: 4 } } else { Keep::Count(len.min(2)) };
            let regions: Vec<AxisId> =
                rows.iter().copied().chain([row]).chain(columns.clone()).chain([group]).collect();
            let left = b.skip(within, &regions, keep)?;
            let order: Vec<AxisId> = rows.into_iter().chain([row]).chain(columns).chain([group, left]).collect();
            b.reorder(&order)?;
        } else {
            let order: Vec<AxisId> = rows.into_iter().chain(columns).chain([column, row]).collect();
            b.reorder(&order)?;
        }
        Ok(b.build())
    }

    /// Its blocks without what they keep: the same for tilings that differ in their ratios alone.
    pub fn shape(&self) -> String {
        match self {
            Tiling::Named(named, _) => named.to_string(),
            Tiling::Nest { levels, pairs } => {
                let level = |l: &Level| format!("{}x{}", l.rows, l.columns);
                let text: Vec<String> = levels.iter().map(level).collect();
                format!("{}{}", text.join("/"), if *pairs { "+2:4" } else { "" })
            }
        }
    }
}

impl fmt::Display for Tiling {
    /// A name for tables: `tw:128`, `128x64^50%/128x1^50%+2:4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tiling::Named(named, _) => write!(f, "{named}"),
            Tiling::Nest { levels, pairs } => {
                let percent =
                    |keep: f64| format!("{:.2}", keep * 100.0).trim_end_matches('0').trim_end_matches('.').to_string();
                let level = |l: &Level| format!("{}x{}^{}%", l.rows, l.columns, percent(l.keep));
                let text: Vec<String> = levels.iter().map(level).collect();
                write!(f, "{}{}", text.join("/"), if *pairs { "+2:4" } else { "" })
            }
        }
    }
}

/// The patterns of the literature that every search measures, and that its result must not be behind.
pub fn fixed(keep: f64) -> Vec<Tiling> {
    let names = ["bw:16x16", "bw:32x32", "bw:64x64", "bw:128x64", "tw:64", "tw:128", "2:4", "vnm:64"];
    let named = names.iter().filter_map(|name| name.parse::<Named>().ok());
    // What fixes another ratio is no pattern of this sparsity.
    named
        .filter(|named| named.fixed_keep().is_none_or(|fixed| (fixed - keep).abs() < 1e-6))
        .map(|named| Tiling::Named(named, keep))
        .collect()
}

/// Heights and widths of blocks.
const ROWS: [usize; 5] = [16, 32, 64, 128, 256];
const COLUMNS: [usize; 6] = [1, 4, 8, 16, 32, 64];
/// What a coarse level keeps above a finer one.
const COARSE: [f64; 3] = [0.5, 0.625, 0.75];

/// Every tiling for a weight of n x k that keeps `keep` of it, the fixed ones first; of all of it, the dense one alone.
pub fn tilings(n: usize, k: usize, keep: f64) -> Vec<Tiling> {
    if keep >= 1.0 {
        return vec![Tiling::Named(Named::Dense, 1.0)];
    }
    let mut tilings = fixed(keep);
    let fits = |rows: usize, columns: usize| rows <= n.max(16) && columns <= k;
    let nest = |levels: &[(usize, usize, f64)], pairs| Tiling::Nest {
        levels: levels.iter().map(|&(rows, columns, keep)| Level { rows, columns, keep }).collect(),
        pairs,
    };
    for rows in ROWS {
        for columns in COLUMNS.into_iter().filter(|&columns| fits(rows, columns)) {
            tilings.push(nest(&[(rows, columns, keep)], false));
            let twice = 2.0 * keep;
            if twice <= 1.0 + 1e-9 && columns != 1 && columns >= 4 && k >= 4 {
                tilings.push(nest(&[(rows, columns, twice.min(1.0))], true));
            }
        }
        if !fits(rows, 1) {
            continue;
        }
        let global = [
            Named::TileWise { rows, global: true },
            Named::BlockWise { rows, columns: 16, global: true },
            Named::BlockWise { rows, columns: 64, global: true },
        ];
        tilings.extend(global.map(|named| Tiling::Named(named, keep)));
        if keep <= 0.5 {
            tilings.push(Tiling::Named(Named::TileVectorWise { rows }, keep));
            tilings.push(Tiling::Named(Named::VNM { rows, of: None, permuted: false }, keep));
        }
    }
    // A coarse level of blocks, and tiles or blocks inside those that are left.
    for (outer_rows, outer_columns) in [(128, 64), (128, 32), (256, 64), (64, 64)] {
        for coarse in COARSE.into_iter().filter(|&coarse| coarse > keep + 1e-9) {
            for (rows, columns) in [(128, 1), (128, 8), (64, 1), (64, 8), (32, 16), (64, 16)] {
                let inside = rows <= outer_rows && columns < outer_columns;
                if inside && fits(outer_rows, outer_columns) {
                    tilings.push(nest(&[(outer_rows, outer_columns, coarse), (rows, columns, keep / coarse)], false));
                    let twice = 2.0 * keep / coarse;
                    if twice <= 1.0 + 1e-9 && columns == 8 {
                        tilings
                            .push(nest(&[(outer_rows, outer_columns, coarse), (rows, columns, twice.min(1.0))], true));
                    }
                }
            }
        }
    }
    for rows in [64, 128] {
        if keep <= 0.5 {
            tilings.push(Tiling::Named(Named::VNM { rows, of: None, permuted: true }, keep));
        }
        tilings.push(Tiling::Named(Named::TileWise2 { rows }, keep));
        tilings.push(Tiling::Named(Named::Shuffled { rows, columns: None }, keep));
        tilings.push(Tiling::Named(Named::Shuffled { rows, columns: Some(64) }, keep));
    }
    // The same pattern under two names, what the sizes do not allow, and nests that cannot keep the ratio by whole blocks.
    let mut seen = Vec::new();
    tilings.retain(|tiling| match tiling.pattern(n, k) {
        Ok(pattern) if !seen.contains(&pattern) => {
            let near = (density(&pattern) / keep - 1.0).abs() < 0.04;
            seen.push(pattern);
            near || matches!(tiling, Tiling::Named(..))
        }
        _ => false,
    });
    tilings
}

/// The part of all elements that the skips leave.
fn density(pattern: &Pattern) -> f64 {
    let part = |(number, step): (usize, &Step)| match step {
        Step::Skip { axis, keep, .. } => match (pattern.kept_per_region(number), keep) {
            (Some(kept), _) => kept as f64 / pattern.axis(*axis).len as f64,
            (None, Keep::Ragged(ratio)) => ratio.fraction(),
            (None, _) => 1.0,
        },
        _ => 1.0,
    };
    pattern.steps().iter().enumerate().map(part).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tiling_keeps_what_it_is_asked_for() {
        for (n, k, keep) in [(1024, 1024, 0.25), (512, 2048, 0.5), (768, 768, 0.0625)] {
            let all = tilings(n, k, keep);
            assert!(all.len() > 60, "{} tilings", all.len());
            let scores: Vec<f32> = (0..n * k).map(|at| (at * 7919 % 65_537) as f32).collect();
            for tiling in all.iter().step_by(7) {
                let pattern = tiling.pattern(n, k).unwrap();
                let kept = pattern.mask(&pattern.project(&scores).unwrap()).unwrap().density();
                assert!((kept / keep - 1.0).abs() < 0.05, "{tiling} keeps {kept} of {n} x {k}, asked for {keep}");
            }
        }
    }

    #[test]
    fn names_tell_levels() {
        let level = |rows, columns, keep| Level { rows, columns, keep };
        let tiling = Tiling::Nest { levels: vec![level(128, 64, 0.5), level(64, 8, 0.625)], pairs: true };
        assert_eq!(tiling.to_string(), "128x64^50%/64x8^62.5%+2:4");
    }

    #[test]
    fn a_weight_smaller_than_the_blocks_has_tilings() {
        assert!(!tilings(16, 8, 0.5).is_empty());
        tilings(3, 2, 0.5);
        tilings(1, 1, 1.0);
    }
}
