//! The patterns of the literature by name, with their sizes: `tw:128`, `bw:128x64`, `vnm:64:2:8`, …

use super::{AxisId, Keep, Pattern, PatternBuilder, PatternError, Ratio};
use std::fmt;
use std::str::FromStr;

/// What can be named: form, and what it is.
pub const NAMED_PATTERNS: [(&str, &str); 16] = [
    ("dense", "everything kept"),
    ("ew", "element-wise: one threshold over all elements (unstructured)"),
    ("vw:L", "vector-wise, balanced: each row keeps the same part of every L columns"),
    ("N:M", "N of every M columns of a row, e.g. 2:4"),
    ("perm-N:M", "columns in an order found by pruning, then N of every M"),
    ("bw:GxB", "block-wise, balanced: each row of GxB blocks (n x k) keeps the same number"),
    ("bw-global:GxB", "block-wise: one threshold over all GxB blocks"),
    ("tw:G", "tile-wise: each tile of G rows keeps the same number of columns"),
    ("tw-global:G", "tile-wise: one threshold over the columns of all tiles of G rows"),
    ("tw2:G", "tile-wise after whole rows were dropped; each step keeps the square root of the ratio"),
    ("tvw:G", "tile-vector-wise: tile-wise at twice the ratio, then 2 of 4 of the columns left"),
    ("vnm:V[:2:M]", "V:N:M: 4 of M columns in each block of V rows, then 2 of those 4 in each row"),
    ("perm-vnm:V[:2:M]", "columns in an order found by pruning, then V:N:M"),
    ("shfl-bw:GxB", "rows in an order found by pruning, then block-wise"),
    ("shfl-vw:G", "rows in an order found by pruning, then tile-wise by G rows"),
    ("hybrid:GxB/gxb", "blocks inside blocks that they divide: each level keeps the square root of the ratio"),
];

/// A named pattern with its sizes; [`Named::pattern`] applies it to a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Named {
    /// Everything kept.
    Dense,
    /// Element-wise.
    ElementWise,
    /// Vector-wise: balanced in vectors of `len` columns.
    VectorWise {
        /// Columns a vector.
        len: usize,
    },
    /// `kept` of `of` columns.
    NOfM {
        /// N.
        kept: usize,
        /// M.
        of: usize,
        /// Columns in an order found by pruning, the same for all rows.
        permuted: bool,
    },
    /// Block-wise.
    BlockWise {
        /// Rows a block.
        rows: usize,
        /// Columns a block.
        columns: usize,
        /// One threshold over all blocks instead of a count in each row of blocks.
        global: bool,
    },
    /// Tile-wise (TW1).
    TileWise {
        /// Rows a tile.
        rows: usize,
        /// One threshold over all tiles instead of a count in each.
        global: bool,
    },
    /// Tile-wise after dropping rows (TW2).
    TileWise2 {
        /// Rows a tile.
        rows: usize,
    },
    /// Tile-vector-wise.
    TileVectorWise {
        /// Rows a tile.
        rows: usize,
    },
    /// V:N:M with N = 2.
    VNM {
        /// Rows a block.
        rows: usize,
        /// M; `None` takes the one that the keep ratio asks for, 2 / ratio.
        of: Option<usize>,
        /// Columns in an order found by pruning, the same for all rows.
        permuted: bool,
    },
    /// Shuffled block-wise; tile-wise where `columns` is `None`.
    Shuffled {
        /// Rows a block.
        rows: usize,
        /// Columns a block.
        columns: Option<usize>,
    },
    /// Two levels of blocks.
    Hybrid {
        /// Rows and columns of the outer blocks.
        outer: (usize, usize),
        /// Rows and columns of the inner blocks.
        inner: (usize, usize),
    },
}

impl Named {
    /// The keep ratio that the name itself fixes, as N:M does.
    pub fn fixed_keep(&self) -> Option<f64> {
        match *self {
            Named::Dense => Some(1.0),
            Named::NOfM { kept, of, .. } => Some(kept as f64 / of as f64),
            Named::VNM { of: Some(of), .. } => Some(2.0 / of as f64),
            _ => None,
        }
    }

    /// The pattern for a weight of n x k that keeps `keep` of its elements, as nearly as its units allow.
    ///
    /// # Errors
    /// [`PatternError::Name`] where the name fixes another ratio or cannot reach this one; else as [`PatternBuilder`].
    pub fn pattern(&self, n: usize, k: usize, keep: f64) -> Result<Pattern, PatternError> {
        let ratio = Ratio::new(keep)?;
        if let Some(fixed) = self.fixed_keep()
            && (fixed - keep).abs() > 1e-6
        {
            return Err(self.cannot(keep, format!("a keep ratio of {fixed}, which its name fixes")));
        }
        let (row, column) = (AxisId::N, AxisId::K);
        let mut b = PatternBuilder::new(n, k)?;
        match *self {
            Named::Dense => {}
            Named::ElementWise => {
                let all = b.join(row, column)?;
                b.skip(all, &[], Keep::Ratio(ratio))?;
            }
            Named::VectorWise { len } => {
                let (vector, within) = b.split(column, len)?;
                b.skip(within, &[row, vector], Keep::Ratio(ratio))?;
            }
            Named::NOfM { kept, of, permuted } => {
                let column = if permuted { b.permute(column)? } else { column };
                let (group, within) = b.split(column, of)?;
                let keep = if of <= k { Keep::Of { kept, of } } else { Keep::Ratio(ratio) };
                b.skip(within, &[row, group], keep)?;
            }
            Named::BlockWise { rows, columns, global } => {
                let (no, ni) = b.split(row, rows)?;
                let (ko, ki) = b.split(column, columns)?;
                b.reorder(&[no, ko, ki, ni])?;
                if global {
                    let blocks = b.join(no, ko)?;
                    b.skip(blocks, &[], Keep::Ratio(ratio))?;
                } else {
                    b.skip(ko, &[no], Keep::Ratio(ratio))?;
                }
            }
            Named::TileWise { rows, global } => {
                let keep = if global { Keep::Ragged(ratio) } else { Keep::Ratio(ratio) };
                tile_wise(&mut b, row, rows, keep)?;
            }
            Named::TileWise2 { rows } => {
                let step = Keep::Ratio(Ratio::new(keep.sqrt())?);
                let left = b.skip(row, &[], step)?;
                tile_wise(&mut b, left, rows, step)?;
            }
            Named::TileVectorWise { rows } => {
                if keep > 0.5 + 1e-6 {
                    return Err(self.cannot(keep, "a keep ratio of at most 0.5: 2 of 4 of what the tiles keep".into()));
                }
                let (no, ni) = b.split(row, rows)?;
                let left = b.skip(column, &[no], Keep::Ratio(Ratio::new((2.0 * keep).min(1.0))?))?;
                let (group, within) = b.split(left, 4)?;
                two_of_four(&mut b, within, &[no, ni, group])?;
            }
            Named::VNM { rows, of, permuted } => {
                let of = match of {
                    Some(of) => of,
                    None if keep <= 0.5 + 1e-6 => (2.0 / keep).round() as usize,
                    None => return Err(self.cannot(keep, "a keep ratio of at most 0.5: 2 of M columns, M >= 4".into())),
                };
                let column = if permuted { b.permute(column)? } else { column };
                let (no, ni) = b.split(row, rows)?;
                let (group, within) = b.split(column, of)?;
                let width = b.axis(within).map_or(of, |a| a.len);
                let left = b.skip(within, &[no, group], Keep::Count(width.min(4)))?;
                b.reorder(&[no, ni, group, left])?;
                two_of_four(&mut b, left, &[no, ni, group])?;
            }
            Named::Shuffled { rows, columns } => {
                let shuffled = b.permute(row)?;
                match columns {
                    None => tile_wise(&mut b, shuffled, rows, Keep::Ratio(ratio))?,
                    Some(columns) => {
                        let (no, ni) = b.split(shuffled, rows)?;
                        let (ko, ki) = b.split(column, columns)?;
                        b.reorder(&[no, ko, ki, ni])?;
                        b.skip(ko, &[no], Keep::Ratio(ratio))?;
                    }
                }
            }
            Named::Hybrid { outer, inner } => {
                let step = Keep::Ratio(Ratio::new(keep.sqrt())?);
                let (n0, rest) = b.split(row, outer.0)?;
                let (n1, n2) = b.split(rest, inner.0)?;
                let (k0, rest) = b.split(column, outer.1)?;
                let (k1, k2) = b.split(rest, inner.1)?;
                b.reorder(&[n0, k0, n1, k1, k2, n2])?;
                let left = b.skip(k0, &[n0], step)?;
                let kept = b.skip(k1, &[n0, left, n1], step)?;
                b.reorder(&[n0, n1, left, kept, k2, n2])?;
            }
        }
        Ok(b.build())
    }

    fn cannot(&self, keep: f64, expected: String) -> PatternError {
        PatternError::Name { found: format!("{self}` at a keep ratio of `{keep}"), expected }
    }
}

/// Tiles of `rows` of the loop `row`, each with its own columns; the tile's rows innermost.
fn tile_wise(b: &mut PatternBuilder, row: AxisId, rows: usize, keep: Keep) -> Result<(), PatternError> {
    let (no, ni) = b.split(row, rows)?;
    let left = b.skip(AxisId::K, &[no], keep)?;
    b.reorder(&[no, left, ni])
}

/// 2 of 4, or all of a loop that is shorter because the weight is.
fn two_of_four(b: &mut PatternBuilder, within: AxisId, per: &[AxisId]) -> Result<(), PatternError> {
    let len = b.axis(within).map_or(4, |a| a.len);
    let keep = if len == 4 { Keep::Of { kept: 2, of: 4 } } else { Keep::Count(len.min(2)) };
    b.skip(within, per, keep).map(|_| ())
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = |permuted: bool| if permuted { "perm-" } else { "" };
        match *self {
            Named::Dense => write!(f, "dense"),
            Named::ElementWise => write!(f, "ew"),
            Named::VectorWise { len } => write!(f, "vw:{len}"),
            Named::NOfM { kept, of, permuted } => write!(f, "{}{kept}:{of}", order(permuted)),
            Named::BlockWise { rows, columns, global } => {
                write!(f, "bw{}:{rows}x{columns}", if global { "-global" } else { "" })
            }
            Named::TileWise { rows, global } => write!(f, "tw{}:{rows}", if global { "-global" } else { "" }),
            Named::TileWise2 { rows } => write!(f, "tw2:{rows}"),
            Named::TileVectorWise { rows } => write!(f, "tvw:{rows}"),
            Named::VNM { rows, of: None, permuted } => write!(f, "{}vnm:{rows}", order(permuted)),
            Named::VNM { rows, of: Some(of), permuted } => write!(f, "{}vnm:{rows}:2:{of}", order(permuted)),
            Named::Shuffled { rows, columns: None } => write!(f, "shfl-vw:{rows}"),
            Named::Shuffled { rows, columns: Some(columns) } => write!(f, "shfl-bw:{rows}x{columns}"),
            Named::Hybrid { outer, inner } => {
                write!(f, "hybrid:{}x{}/{}x{}", outer.0, outer.1, inner.0, inner.1)
            }
        }
    }
}

impl FromStr for Named {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Named, PatternError> {
        parse(text.trim()).ok_or_else(|| {
            let forms: Vec<&str> = NAMED_PATTERNS.iter().map(|(form, _)| *form).collect();
            PatternError::Name { found: text.to_string(), expected: format!("one of {}", forms.join(", ")) }
        })
    }
}

fn parse(text: &str) -> Option<Named> {
    let size = |t: &str| t.parse::<usize>().ok().filter(|&s| (1..1 << 31).contains(&s));
    let block = |t: &str| {
        let (rows, columns) = t.split_once('x')?;
        Some((size(rows)?, size(columns)?))
    };
    let Some((name, sizes)) = text.split_once(':') else {
        return match text {
            "dense" => Some(Named::Dense),
            "ew" => Some(Named::ElementWise),
            _ => None,
        };
    };
    let (name, permuted) = match name.strip_prefix("perm-") {
        // Of the others the order of columns changes nothing, or rows are what is ordered.
        Some(rest) if rest == "vnm" || size(rest).is_some() => (rest, true),
        Some(_) => return None,
        None => (name, false),
    };
    Some(match name {
        "vw" => Named::VectorWise { len: size(sizes)? },
        "bw" | "bw-global" => {
            let (rows, columns) = block(sizes)?;
            Named::BlockWise { rows, columns, global: name == "bw-global" }
        }
        "tw" | "tw-global" => Named::TileWise { rows: size(sizes)?, global: name == "tw-global" },
        "tw2" => Named::TileWise2 { rows: size(sizes)? },
        "tvw" => Named::TileVectorWise { rows: size(sizes)? },
        "vnm" => match sizes.split(':').collect::<Vec<_>>()[..] {
            [rows] => Named::VNM { rows: size(rows)?, of: None, permuted },
            [rows, "2", of] => Named::VNM { rows: size(rows)?, of: Some(size(of).filter(|&of| of >= 4)?), permuted },
            _ => return None,
        },
        "shfl-vw" => Named::Shuffled { rows: size(sizes)?, columns: None },
        "shfl-bw" => {
            let (rows, columns) = block(sizes)?;
            Named::Shuffled { rows, columns: Some(columns) }
        }
        "hybrid" => {
            let (outer, inner) = sizes.split_once('/')?;
            let (outer, inner) = (block(outer)?, block(inner)?);
            // Of other sizes, the inner blocks would leave the outer ones' edges ragged, and keep more than was asked.
            let divides = outer.0.is_multiple_of(inner.0) && outer.1.is_multiple_of(inner.1);
            divides.then_some(Named::Hybrid { outer, inner })?
        }
        _ => {
            let (kept, of) = (size(name)?, size(sizes)?);
            (kept <= of).then_some(Named::NOfM { kept, of, permuted })?
        }
    })
}
