//! How long a weight is expected to take, so that a caller can choose between a pattern's own tiles, coarser tiles with
//! the finer zeros stored, and the dense product. Input: [`Work`]. Output: seconds.
//!
//! The rates are for one core at 3.6 GHz with AVX-512 (Zen 5), fitted to runs of 64..4096 a side; other machines scale
//! all of them about alike, and the choice needs only their ratios.

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

/// Multiply-adds a second of one core in tiles of eight rows and more.
const PEAK: f64 = 110e9;
/// Multiply-adds a second of one core in the dense product.
const DENSE: f64 = 110e9;
/// Elements of X packed, or of Y finished and stored, a second.
const EDGE: f64 = 2.5e9;
/// Bytes of weights and indices read a second where each serves only a few columns.
const STREAM: f64 = 12e9;
/// Seconds to start and join the threads of a call.
const CALL: f64 = 5e-6;

/// The part of [`PEAK`] that tiles of `rows` rows reach: with fewer rows a loaded row of X is reused less often.
fn efficiency(rows: usize) -> f64 {
    match rows {
        0 | 1 => 0.38,
        2 => 0.55,
        3 => 0.7,
        4..8 => 0.88,
        _ => 1.0,
    }
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

fn tiles(shape: &PlanShape, m: usize, dtype: DType) -> f64 {
    let PlanShape { n, k, rows, kept } = *shape;
    let rows = rows.clamp(1, n.max(1));
    let tiles = n.div_ceil(rows) as f64;
    let density = kept as f64 / (n * k).max(1) as f64;
    // Rows of X that at least one tile keeps, if tiles choose independently.
    let used = k as f64 * (1.0 - (1.0 - density.min(1.0)).powf(tiles));
    let few = m <= if rows == 1 { 1 } else { MAX_FEW };
    // Few columns run at the weights' pace, and a tile without a full block of rows has no vectors then.
    let (columns, rate) = match (few, rows >= LANES) {
        (true, true) => (m as f64, PEAK * 0.5),
        (true, false) => (m as f64, PEAK / LANES as f64),
        (false, _) => (m.next_multiple_of(LANES) as f64, PEAK * efficiency(rows)),
    };
    let products = kept as f64 * columns / rate;
    let index_bytes = 4.0 / rows as f64;
    let stream = kept as f64 * (dtype.bytes() as f64 + index_bytes) / STREAM;
    let edges = (used + n as f64) * columns / EDGE;
    // Each row of a low tile enters the kernel anew for every panel of columns.
    let entries = tiles * (columns / (4 * LANES) as f64).ceil() * 20e-9;
    products.max(stream) + edges + entries
}

fn dense(n: usize, k: usize, m: usize, dtype: DType) -> f64 {
    let (n, k, m) = (n as f64, k as f64, m as f64);
    let converted = if dtype == DType::F32 { 0.0 } else { (n * k + k * m + n * m) / EDGE };
    (n * k * m / DENSE).max(n * k * dtype.bytes() as f64 / STREAM) + (k + n) * m / EDGE + converted
}
