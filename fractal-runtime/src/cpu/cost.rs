//! How long a weight is expected to take, so that a caller can choose between a pattern's own tiles, coarser tiles with
//! the finer zeros stored, and the dense product. Input: [`Work`]. Output: seconds.
//!
//! The rates are for one core at 3.6 GHz with AVX-512 (Zen 5), fitted to runs of 64..4096 a side; other machines scale
//! all of them about alike, and the choice needs only their ratios.

use super::dense::FEW_TOKENS;
use super::raw::{LANES, MAX_FEW};
use fractal_dsl::DType;

/// A way to run a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// [`execute`](super::execute()) of a plan.
    Tiles(PlanShape),
    /// [`dense`](super::dense()).
    Dense {
        /// Output features.
        n: usize,
        /// Input features.
        k: usize,
    },
}

/// What the time of a plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanShape {
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Rows of a tile.
    pub rows: usize,
    /// Stored weights, zeros among them.
    pub kept: usize,
}

/// Multiply-adds a second of one core, in tiles of eight rows and more and in the dense product.
const PEAK: f64 = 112e9;
/// Multiply-adds a second where vectors lie along few columns' rows.
const FEW: f64 = 55e9;
/// Weights a second where a row on its own meets a single column: each waits for its own element of X.
const SINGLE: f64 = 1.6e9;
/// Elements of X packed, or of Y finished and stored, a second.
const EDGE: f64 = 2.5e9;
/// The same of the dense product, where the library packs while it multiplies.
const DENSE_EDGE: f64 = 10e9;
/// 16-bit elements widened or narrowed a second, on the way to and from the dense product.
const CONVERT: f64 = 8e9;
/// Weights a second that the library packs for a product with few columns.
const DENSE_PACK: f64 = 3.4e9;
/// Columns that one reading of the weights serves.
const SLICE: usize = 256;
/// Seconds to enter a kernel, and the kept positions of a low or of a taller tile between two entries.
const ENTRY: f64 = 10e-9;
const ENTRY_POSITIONS: (f64, f64) = (64.0, 256.0);
/// Seconds to start and join the threads of a call.
const CALL: f64 = 5e-6;

/// The part of [`PEAK`] that tiles of `rows` rows reach: with fewer rows a loaded row of X is reused less often.
fn efficiency(rows: usize) -> f64 {
    match rows {
        // A row on its own has two sets of sums and a kernel for many rows; 0.7 on an idle machine, less beside others.
        0 | 1 => 0.58,
        2 => 0.55,
        3 => 0.65,
        4..8 => 0.75,
        _ => 1.0,
    }
}

/// Seconds to read weights and indices once in a core, in pieces as long as tiles of `rows` rows make them: from memory,
/// or from a cache where they fit it.
fn read(bytes: f64, rows: usize) -> f64 {
    let cached = if bytes < (8 << 20) as f64 { 3.0 } else { 1.0 };
    let from_memory = match rows {
        0..4 => 8e9,
        4..LANES => 10e9,
        _ => 16e9,
    };
    bytes / (from_memory * cached)
}

/// Expected seconds for m columns on `threads` cores.
pub fn seconds(work: &Work, m: usize, dtype: DType, threads: usize) -> f64 {
    let threads = threads.max(1) as f64;
    let busy = match work {
        Work::Tiles(shape) => tiles(shape, m, dtype),
        Work::Dense { n, k } => dense(*n, *k, m, dtype),
    };
    busy / threads + CALL
}

/// Expected seconds of single elements on top of tiles, for m columns on `threads` cores.
pub fn residue_seconds(elements: usize, m: usize, threads: usize) -> f64 {
    let columns = if m <= MAX_FEW { m } else { m.next_multiple_of(LANES) };
    let products = elements as f64 * (columns as f64 / (PEAK * efficiency(1))).max(1.0 / SINGLE);
    products / threads.max(1) as f64
}

fn tiles(shape: &PlanShape, m: usize, dtype: DType) -> f64 {
    let PlanShape { n, k, rows, kept } = *shape;
    let rows = rows.clamp(1, n.max(1));
    let tiles = n.div_ceil(rows) as f64;
    let density = kept as f64 / (n * k).max(1) as f64;
    // Rows of X that at least one tile keeps, if tiles choose independently.
    let used = k as f64 * (1.0 - (1.0 - density.min(1.0)).powf(tiles));
    let kept = kept as f64;
    let positions = kept / rows as f64;
    let stream = read(kept * dtype.bytes() as f64 + positions * 4.0, rows);
    let entries = ENTRY * positions / if rows < 4 { ENTRY_POSITIONS.0 } else { ENTRY_POSITIONS.1 };
    if m <= few(rows as f64) {
        let edges = (used + n as f64) * m as f64 / EDGE;
        // A block of fewer rows leaves lanes of its vectors unused.
        let lanes = LANES as f64 / rows.min(LANES) as f64;
        let products = if rows == 1 { kept / SINGLE } else { kept * lanes * m as f64 / FEW };
        // Sums lie across the rows and are turned once an entry.
        return products + stream + 4.0 * entries + edges;
    }
    let columns = m.next_multiple_of(LANES);
    // The sums of one row and one vector wait for each other.
    let busy = if rows == 1 { columns.max(2 * LANES) } else { columns };
    let products = kept * busy as f64 / (PEAK * efficiency(rows));
    let edges = (used + n as f64) * columns as f64 / EDGE;
    products + stream * columns.div_ceil(SLICE) as f64 + entries * columns.div_ceil(4 * LANES) as f64 + edges
}

/// The most columns that a plan whose blocks have `rows` rows on average takes as few: a step of the kernel is then an
/// FMA for each column, and otherwise one for each row.
pub(super) fn few(rows: f64) -> usize {
    (rows.round() as usize).min(MAX_FEW)
}

fn dense(n: usize, k: usize, m: usize, dtype: DType) -> f64 {
    let (weights, edges) = ((n * k) as f64, ((n + k) * m) as f64);
    // With few tokens the widened weights do not leave the core's cache.
    let rate = if m <= FEW_TOKENS { 2.0 * CONVERT } else { CONVERT };
    let converted = if dtype == DType::F32 { 0.0 } else { (weights + edges) / rate };
    if m == 1 {
        return read(weights * dtype.bytes() as f64, n).max(converted);
    }
    let columns = m.next_multiple_of(LANES) as f64;
    (weights * columns / PEAK).max(weights / DENSE_PACK) + edges / DENSE_EDGE + converted
}
