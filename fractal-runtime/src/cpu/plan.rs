//! What the CPU executes: a pruned weight as tiles of rows that keep the same k positions.
//! Input: a [`TilePlan`] made from LoopIr. Output: a [`ValidPlan`], after which nothing can go out of bounds.

use super::cost::few;
use super::matrix::Elements;
use super::raw::{Bounded, BoundedIndices, DistinctRows};
use crate::prune::Residue;
use fractal_dsl::DType;
use half::{bf16, f16};
use std::ops::Range;

/// Rows of a tile whose values lie together: see [`TilePlan::values`].
pub const ROW_BLOCK: usize = 16;

/// Rows of a tile at most once a plan is valid.
const TILE_ROWS: usize = 8 * ROW_BLOCK;

/// A pruned weight W[n, k] as the CPU reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct TilePlan {
    /// Output features, the rows of W and Y.
    pub n: usize,
    /// Input features, the columns of W and the rows of X.
    pub k: usize,
    /// Storage type of x, y and the values.
    pub dtype: DType,
    /// The tiles; a row of W is in one tile at most, and a row in none is zero.
    pub tiles: Vec<Tile>,
    /// Row lists of all tiles.
    pub rows: Vec<u32>,
    /// Lists of kept k positions of all tiles, each list strictly ascending.
    pub ks: Vec<u32>,
    /// Kept weights of all tiles. A tile's rows are cut into blocks of [`ROW_BLOCK`], the last one shorter; a block of h
    /// rows is stored k-major with its rows contiguous, as the micro-kernel broadcasts them (see [`Tile::value_index`]).
    pub values: Values,
}

/// Rows that keep the same k positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// This tile's part of [`TilePlan::rows`].
    pub rows: Range<u32>,
    /// This tile's part of [`TilePlan::ks`].
    pub ks: Range<u32>,
    /// Where this tile's `rows.len() * ks.len()` values begin.
    pub values: usize,
}

impl Tile {
    /// Where the weight of the tile's row `r` and kept position `kk` (both counted within the tile) is in
    /// [`TilePlan::values`].
    pub fn value_index(&self, r: usize, kk: usize) -> usize {
        let (rows, ks) = (self.rows.len(), self.ks.len());
        let start = r - r % ROW_BLOCK;
        let height = ROW_BLOCK.min(rows - start);
        self.values + start * ks + kk * height + r % ROW_BLOCK
    }
}

/// Kept weights in their storage type.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// binary32.
    F32(Vec<f32>),
    /// binary16.
    F16(Vec<f16>),
    /// bfloat16.
    BF16(Vec<bf16>),
}

impl Values {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Values::F32(v) => v.len(),
            Values::F16(v) => v.len(),
            Values::BF16(v) => v.len(),
        }
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Storage type.
    pub fn dtype(&self) -> DType {
        match self {
            Values::F32(_) => DType::F32,
            Values::F16(_) => DType::F16,
            Values::BF16(_) => DType::BF16,
        }
    }

    /// `len` zeros of type `dtype`.
    pub fn zeros(dtype: DType, len: usize) -> Values {
        match dtype {
            DType::F32 => Values::F32(vec![0.0; len]),
            DType::F16 => Values::F16(vec![f16::ZERO; len]),
            DType::BF16 => Values::BF16(vec![bf16::ZERO; len]),
        }
    }

    /// Rounds `value` to the storage type and writes it at `index`.
    ///
    /// # Panics
    /// When `index` is past the end.
    pub fn set(&mut self, index: usize, value: f32) {
        match self {
            Values::F32(v) => v[index] = value,
            Values::F16(v) => v[index] = f16::from_f32(value),
            Values::BF16(v) => v[index] = bf16::from_f32(value),
        }
    }

    pub(super) fn elements(&self) -> Elements<'_> {
        match self {
            Values::F32(v) => Elements::F32(v),
            Values::F16(v) => Elements::F16(v),
            Values::BF16(v) => Elements::BF16(v),
        }
    }
}

/// Why a [`TilePlan`] cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// An extent or a list is too long for 32-bit indices.
    #[error("{what}: {got} does not fit 32-bit indices")]
    TooLarge {
        /// Which extent.
        what: &'static str,
        /// Its value.
        got: usize,
    },
    /// The values are not of the plan's storage type.
    #[error("values: expected {expected}, got {got}")]
    DType {
        /// The plan's type.
        expected: DType,
        /// The values' type.
        got: DType,
    },
    /// A tile's range leaves its list.
    #[error("tile {tile}: {list} {start}..{end} leaves its list of {len}")]
    Range {
        /// Tile number.
        tile: usize,
        /// `rows`, `ks` or `values`.
        list: &'static str,
        /// Start of the range.
        start: usize,
        /// End of the range.
        end: usize,
        /// Length of the list.
        len: usize,
    },
    /// A row is not below n.
    #[error("tile {tile}: row {row} is not below n = {n}")]
    Row {
        /// Tile number.
        tile: usize,
        /// The row.
        row: u32,
        /// Output features.
        n: usize,
    },
    /// A row is listed twice.
    #[error("tile {tile}: row {row} is in a tile already")]
    RowTwice {
        /// Tile number of the second listing.
        tile: usize,
        /// The row.
        row: u32,
    },
    /// A kept position is not below k.
    #[error("tile {tile}: kept position {position} is not below k = {k}")]
    Kept {
        /// Tile number.
        tile: usize,
        /// The position.
        position: u32,
        /// Input features.
        k: usize,
    },
    /// A tile's kept positions do not ascend.
    #[error("tile {tile}: kept position {got} follows {previous}; positions must ascend")]
    Order {
        /// Tile number.
        tile: usize,
        /// The position before.
        previous: u32,
        /// The position found.
        got: u32,
    },
}

/// A plan whose every index was checked, with what the executor derives from it once.
#[derive(Clone, Debug)]
pub struct ValidPlan {
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) tiles: Vec<Tile>,
    /// Rows of X that any tile keeps, ascending: only these are packed.
    pub(super) used: Vec<u32>,
    /// The tiles' ks as positions in `used`.
    pub(super) ks: BoundedIndices,
    pub(super) values: Values,
    /// All rows of n: those of the tiles in the tiles' order, then those in no tile.
    pub(super) order: DistinctRows,
    /// Where each tile's rows begin in `order`; one entry more than tiles.
    pub(super) first_row: Vec<usize>,
    /// Rows of X that one pass over a tile reads, so that they stay in the L1 cache between row blocks.
    pub(super) k_block: usize,
    /// For each tile `blocks + 1` ends in its ks: list b holds those at `b * k_block .. (b + 1) * k_block` of `used`.
    splits: Vec<u32>,
    /// Whether most of the work is in tiles too low to reuse a loaded row of X.
    pub(super) row_wise: bool,
    /// The most columns of X for which vectors lie along n instead of m.
    pub(super) few: usize,
    /// Single elements on top of the tiles.
    residue: Option<Box<Restored>>,
}

/// A [`Residue`], its columns as positions in [`ValidPlan::used`].
#[derive(Clone, Debug)]
struct Restored {
    offsets: Vec<u32>,
    ks: BoundedIndices,
    values: Vec<f32>,
}

impl TilePlan {
    /// Checks every range and index, and derives what execution needs.
    ///
    /// # Errors
    /// The first [`PlanError`] found.
    pub fn validate(self) -> Result<ValidPlan, PlanError> {
        self.validate_with(None)
    }

    /// The same with the residue of an n x k weight on top.
    pub(super) fn validate_with(mut self, residue: Option<&Residue>) -> Result<ValidPlan, PlanError> {
        let lists = [("n", self.n), ("k", self.k), ("rows", self.rows.len()), ("ks", self.ks.len())];
        for (what, got) in lists {
            if u32::try_from(got).is_err() {
                return Err(PlanError::TooLarge { what, got });
            }
        }
        if self.values.dtype() != self.dtype {
            return Err(PlanError::DType { expected: self.dtype, got: self.values.dtype() });
        }
        let mut seen = vec![false; self.n];
        for (t, tile) in self.tiles.iter().enumerate() {
            self.check_ranges(t, tile)?;
            self.check_rows(t, tile, &mut seen)?;
            self.check_kept(t, tile)?;
        }
        self.cut_tall_tiles();
        let mut order = Vec::with_capacity(self.n);
        let mut first_row = vec![0];
        for tile in &self.tiles {
            order.extend(&self.rows[tile.rows.start as usize..tile.rows.end as usize]);
            first_row.push(order.len());
        }
        order.extend((0..self.n as u32).filter(|&r| !seen[r as usize]));

        let mut row_work = 0;
        for tile in self.tiles.iter().filter(|t| t.rows.len() < 4) {
            row_work += tile.rows.len() * tile.ks.len();
        }
        let row_wise = 2 * row_work > self.values.len();
        let blocks: usize = self.tiles.iter().map(|t| t.rows.len().div_ceil(ROW_BLOCK) * t.ks.len()).sum();
        let few = few(self.values.len() as f64 / blocks.max(1) as f64);
        let used = self.compact(residue.map_or(&[], Residue::columns));
        let place = |column: &u32| used.binary_search(column).map_or(u32::MAX, |at| at as u32);
        let residue = residue.map(|residue| {
            let ks = BoundedIndices::new(residue.columns().iter().map(place).collect(), used.len());
            let (offsets, values) = (residue.offsets().to_vec(), residue.values().to_vec());
            Box::new(Restored { offsets, ks: ks.expect("its columns are used"), values })
        });
        let k_block = self.k_block(row_wise, used.len());
        let splits = self.splits(k_block, used.len());
        Ok(ValidPlan {
            n: self.n,
            k: self.k,
            tiles: self.tiles,
            ks: BoundedIndices::new(self.ks, used.len()).expect("positions were checked one by one"),
            used,
            values: self.values,
            order: DistinctRows::new(order, self.n).expect("rows were checked one by one"),
            first_row,
            k_block,
            splits,
            row_wise,
            few,
            residue,
        })
    }

    fn check_ranges(&self, t: usize, tile: &Tile) -> Result<(), PlanError> {
        let start = tile.values;
        let end = start.saturating_add(tile.rows.len().saturating_mul(tile.ks.len()));
        let ranges = [
            ("rows", tile.rows.start as usize, tile.rows.end as usize, self.rows.len()),
            ("ks", tile.ks.start as usize, tile.ks.end as usize, self.ks.len()),
            ("values", start, end, self.values.len()),
        ];
        for (list, start, end, len) in ranges {
            if start > end || end > len {
                return Err(PlanError::Range { tile: t, list, start, end, len });
            }
        }
        Ok(())
    }

    fn check_rows(&self, t: usize, tile: &Tile, seen: &mut [bool]) -> Result<(), PlanError> {
        for &row in &self.rows[tile.rows.start as usize..tile.rows.end as usize] {
            match seen.get_mut(row as usize) {
                None => return Err(PlanError::Row { tile: t, row, n: self.n }),
                Some(true) => return Err(PlanError::RowTwice { tile: t, row }),
                Some(s) => *s = true,
            }
        }
        Ok(())
    }

    fn check_kept(&self, t: usize, tile: &Tile) -> Result<(), PlanError> {
        let ks = &self.ks[tile.ks.start as usize..tile.ks.end as usize];
        if let Some(pair) = ks.windows(2).find(|p| p[0] >= p[1]) {
            return Err(PlanError::Order { tile: t, previous: pair[0], got: pair[1] });
        }
        match ks.last() {
            Some(&position) if position as usize >= self.k => Err(PlanError::Kept { tile: t, position, k: self.k }),
            _ => Ok(()),
        }
    }

    /// Renumbers ks to count only the positions that some tile keeps or that are `restored`, and returns those.
    fn compact(&mut self, restored: &[u32]) -> Vec<u32> {
        let mut number = vec![u32::MAX; self.k];
        restored.iter().for_each(|&p| number[p as usize] = 0);
        for tile in &self.tiles {
            for &p in &self.ks[tile.ks.start as usize..tile.ks.end as usize] {
                number[p as usize] = 0;
            }
        }
        let used: Vec<u32> = (0..self.k as u32).filter(|&p| number[p as usize] == 0).collect();
        for (i, &p) in used.iter().enumerate() {
            number[p as usize] = i as u32;
        }
        // A list entry that no tile reads may be anything; 0 is as good, but for a bound of 0 there is none to keep.
        if used.is_empty() {
            self.ks.clear();
            self.tiles.iter_mut().for_each(|t| t.ks = 0..0);
        }
        for p in &mut self.ks {
            *p = number.get(*p as usize).copied().filter(|&i| i != u32::MAX).unwrap_or(0);
        }
        used
    }

    /// Cuts tall tiles, so that the sums of one stay in the L2 cache and threads can share its rows. A cut at a multiple
    /// of [`ROW_BLOCK`] leaves the values where they are.
    fn cut_tall_tiles(&mut self) {
        let cut = |tile: &Tile| {
            let (rows, kept, values) = (tile.rows.clone(), tile.ks.clone(), tile.values);
            rows.clone().step_by(TILE_ROWS).map(move |start| Tile {
                rows: start..rows.end.min(start + TILE_ROWS as u32),
                ks: kept.clone(),
                values: values + (start - rows.start) as usize * kept.len(),
            })
        };
        self.tiles = self.tiles.iter().flat_map(cut).collect();
    }

    /// A tile is worked in k blocks so that what it reads stays near: 256 kept positions of a 48-column panel fill a
    /// 48 KiB L1 cache. A row-wise plan wants all rows of X in its block there, 128 of a 64-column panel, yet with few
    /// kept positions a block the time goes to loading and storing sums; 64 positions from L2 are the better end.
    fn k_block(&self, row_wise: bool, used: usize) -> usize {
        let kept: usize = self.tiles.iter().map(|t| t.ks.len()).sum();
        let per_tile = (kept / self.tiles.len().max(1)).max(1);
        let block = if row_wise { (64 * used / per_tile).max(128) } else { 256 * used / per_tile };
        block.clamp(1, used.max(1))
    }

    fn splits(&self, k_block: usize, used: usize) -> Vec<u32> {
        let blocks = used.div_ceil(k_block);
        let mut splits = Vec::with_capacity(self.tiles.len() * (blocks + 1));
        for tile in &self.tiles {
            let ks = &self.ks[tile.ks.start as usize..tile.ks.end as usize];
            splits.push(0);
            let mut end = 0;
            for b in 1..=blocks {
                end += ks[end..].partition_point(|&p| (p as usize) < b * k_block);
                splits.push(end as u32);
            }
        }
        splits
    }
}

impl ValidPlan {
    /// Output features.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Storage type of x, y and the values.
    pub fn dtype(&self) -> DType {
        self.values.dtype()
    }

    /// The tiles as they run: tall ones of the [`TilePlan`] cut.
    pub fn tiles(&self) -> &[Tile] {
        &self.tiles
    }

    /// Kept weights.
    pub fn kept(&self) -> usize {
        self.values.len()
    }

    /// Whether any row has elements on top of its tile's.
    pub(super) fn has_residue(&self) -> bool {
        self.residue.is_some()
    }

    /// The elements on top of the tiles that the row at `position` has: values, and positions of X.
    pub(super) fn restored(&self, position: usize) -> Option<(&[f32], Bounded<'_>)> {
        let residue = self.residue.as_ref()?;
        let row = self.order.row(position);
        let range = residue.offsets[row] as usize..residue.offsets[row + 1] as usize;
        (!range.is_empty()).then(|| (&residue.values[range.clone()], residue.ks.part(range)))
    }

    pub(super) fn k_blocks(&self) -> usize {
        self.used.len().div_ceil(self.k_block)
    }

    /// The part of tile `t`'s ks, counted within the tile, that lies in k block `b`.
    pub(super) fn split(&self, t: usize, b: usize) -> Range<usize> {
        let at = t * (self.k_blocks() + 1) + b;
        self.splits[at] as usize..self.splits[at + 1] as usize
    }
}
