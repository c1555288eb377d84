//! What a candidate costs. A caller who has measured its machine brings its own [`CostModel`].

use super::facts::{Facts, Tiles};
use super::target::Target;
use crate::request::KernelRequest;
use fractal_dsl::pattern::Pattern;
use fractal_dsl::{DType, Intrinsic};

/// Estimates of a candidate's time, in any unit that is the same for all of them.
pub trait CostModel {
    /// The kernel of `request` on `pattern` for `m` tokens. A request without an instruction runs element by element.
    fn cost(&self, pattern: &Pattern, facts: &Facts, request: &KernelRequest, m: usize) -> f64;

    /// Turning operands that lie token-major, before and after the kernel.
    fn turn(&self, _pattern: &Pattern, _m: usize) -> f64 {
        0.0
    }

    /// An epilogue in a kernel of its own.
    fn apart(&self, _pattern: &Pattern, _m: usize) -> f64 {
        0.0
    }
}

/// A roofline: of each step the longer of multiplying and loading; then as many rounds as the multiprocessors need. Cycles.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// The machine.
    pub target: Target,
    /// Element type of the operands.
    pub dtype: DType,
    /// Dense 16-bit multiply-adds of tensor cores, a cycle and multiprocessor.
    pub tensor: f64,
    /// FFMA a cycle and multiprocessor.
    pub ffma: f64,
    /// Bytes a cycle from the second-level cache into a multiprocessor.
    pub bytes: f64,
    /// Bytes of results a cycle out of a multiprocessor.
    pub out: f64,
    /// Cycles from a launch until its first step is multiplied, and of its last one's way out.
    pub fill: f64,
}

impl Roofline {
    /// An H200, with the constants of the runtime's own choice of kernels.
    pub fn h200(dtype: DType) -> Roofline {
        Roofline { target: Target::h200(), dtype, tensor: 2048.0, ffma: 128.0, bytes: 56.0, out: 16.0, fill: 2700.0 }
    }

    /// Kept columns of a block of `rows` rows: the union where tiles share it.
    fn columns(&self, rows: usize, tiles: &Tiles, facts: &Facts, sparse: bool) -> f64 {
        if sparse || tiles.rows >= rows || tiles.tiles <= 1 {
            return tiles.mean_columns;
        }
        let together = rows.div_ceil(tiles.rows).min(tiles.tiles) as f64;
        let dropped = 1.0 - (tiles.mean_columns / facts.k as f64).clamp(0.0, 1.0);
        facts.k as f64 * (1.0 - dropped.powf(together))
    }
}

impl CostModel for Roofline {
    fn cost(&self, _: &Pattern, facts: &Facts, request: &KernelRequest, m: usize) -> f64 {
        let processors = self.target.multiprocessors as f64;
        let Some(intrinsic) = request.intrinsic else {
            return self.fill + 4.0 * facts.kept * m as f64 / (self.ffma * processors);
        };
        let sparse = intrinsic.is_sparse();
        let tiles = if sparse { facts.sparse } else { facts.dense };
        let (Some(tiles), Some(rows), Some(tokens)) = (tiles, request.rows, request.tokens) else {
            return f64::INFINITY;
        };
        let (split, share) = (request.split.unwrap_or(1).max(1) as f64, request.share.unwrap_or(1).max(1) as f64);
        let (row_blocks, step) = (facts.n.div_ceil(rows).max(tiles.tiles.min(facts.n.div_ceil(rows))), 64.0);
        let stored = if sparse { step / 2.0 } else { step };
        // The older instruction reaches less of the tensor cores, and narrow tiles less still.
        let rate = match intrinsic {
            Intrinsic::Ffma => self.ffma * 0.9,
            Intrinsic::MmaSync | Intrinsic::MmaSp => self.tensor * 0.55,
            Intrinsic::Wgmma | Intrinsic::WgmmaSp => self.tensor,
        };
        let size = self.dtype.bytes() as f64;
        let (r, t) = (rows as f64, tokens as f64);
        let multiply = r * t * stored / rate;
        // Boxes are brought by the copy engine, whose instructions are few.
        let gather = if request.run.unwrap_or(1) > 1 { 1.0 } else { 1.08 };
        let x_bytes = step * t * size * gather;
        // Blocks that share weights have gained nothing where they were measured.
        let w_bytes = r * stored * size;
        let steps = (self.columns(rows, &tiles, facts, sparse) / step).ceil().max(1.0);
        let results = r * t * size / self.out / split + if split > 1.0 { 1000.0 + 17.0 * r * t / 128.0 } else { 0.0 };
        let items = (row_blocks * m.div_ceil(tokens)) as f64;
        let stages = request.stages.unwrap_or(3) as f64;
        let meet = if share > 1.0 { 1200.0 } else { 0.0 };
        // Few stages leave loads unhidden.
        let exposed = 1.0 + 0.2 / stages;
        if request.resident == Some(true) {
            let busy = items.min(processors).max(1.0);
            let item = (steps * multiply.max(x_bytes / self.bytes) * exposed).max(0.75 * results);
            return self.fill + steps * w_bytes / self.bytes + (items / busy).ceil() * item + results;
        }
        let step_cycles = multiply.max((x_bytes + w_bytes) / self.bytes) * exposed;
        let teams = (processors / split).floor().max(1.0);
        self.fill + meet + (items / teams).ceil() * ((steps / split).ceil() * step_cycles + results)
    }

    fn turn(&self, pattern: &Pattern, m: usize) -> f64 {
        let bytes = 2 * (pattern.n() + pattern.k()) * m * self.dtype.bytes();
        2.0 * self.fill + bytes as f64 / (self.bytes * 0.5 * self.target.multiprocessors as f64)
    }

    fn apart(&self, pattern: &Pattern, m: usize) -> f64 {
        let bytes = 2 * pattern.n() * m * self.dtype.bytes();
        self.fill + bytes as f64 / (self.bytes * 0.5 * self.target.multiprocessors as f64)
    }
}
