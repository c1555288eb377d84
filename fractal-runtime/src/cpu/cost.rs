//! How long a plan is expected to take, so that a caller can choose between a pattern's own tiles, coarser tiles with
//! the finer zeros stored, and one dense tile. Input: a [`PlanShape`]. Output: seconds.
//!
//! The rates are for one core at 3.6 GHz with AVX-512 (Zen 5), fitted to runs of 128..4096 a side; other machines scale
//! all of them about alike, and the choice needs only their ratios.

use super::raw::{LANES, MAX_FEW};
use fractal_dsl::DType;

/// What the cost of a plan depends on.
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

/// Expected seconds of [`execute`](super::execute()) for a plan of this shape and m columns, on `threads` cores.
pub fn seconds(shape: &PlanShape, m: usize, dtype: DType, threads: usize) -> f64 {
    let PlanShape { n, k, rows, kept } = *shape;
    let (rows, threads) = (rows.clamp(1, n.max(1)), threads.max(1) as f64);
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
    (products.max(stream) + edges + entries) / threads + CALL
}
