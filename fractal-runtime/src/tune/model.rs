//! A kernel, a weight's tables and a number of tokens -> microseconds expected, before anything is compiled.
//!
//! A roofline by instruction gives cycles: what the multiplications and the bytes of a step take, waves and their tails, the
//! longest tile, and what launches and cluster meetings cost. What it leaves out is learned: a linear correction of its
//! logarithm for each family of kernels, fitted to kernels that were timed on the device (ridge regression).

use crate::cuda::choose::cycles;
use crate::cuda::divide::expected_cycles;
use crate::cuda::{Gpu, Load};
use fractal_dsl::Intrinsic;
use fractal_sched::codegen::KernelConfig;
use serde::{Deserialize, Serialize};

/// What a prediction is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// The kernel.
    pub config: KernelConfig,
    /// Tiles and steps of the weight's tables.
    pub load: Load,
    /// Kept columns of all tiles, in whole steps.
    pub columns: usize,
    /// Rows of the weight.
    pub n: usize,
    /// Columns of the weight.
    pub k: usize,
    /// Tokens.
    pub m: usize,
}

/// Kernels that have the same things to say about their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// CUDA cores.
    Ffma,
    /// `mma_sync` and `mma_sp`.
    Mma,
    /// For few tokens.
    Decode,
    /// `wgmma`.
    Wgmma,
    /// `wgmma_sp`.
    WgmmaSp,
    /// `wgmma` and `wgmma_sp` with weights that stay.
    Resident,
}

impl Work {
    /// How many numbers the correction looks at.
    pub(super) const FEATURES: usize = 27;

    /// The kernel's kind.
    pub fn kind(&self) -> Kind {
        match self.config.intrinsic {
            _ if self.config.decode.is_some() => Kind::Decode,
            _ if self.config.resident > 0 => Kind::Resident,
            Intrinsic::Ffma => Kind::Ffma,
            Intrinsic::MmaSync | Intrinsic::MmaSp => Kind::Mma,
            Intrinsic::Wgmma => Kind::Wgmma,
            Intrinsic::WgmmaSp => Kind::WgmmaSp,
        }
    }

    /// Cycles by the roofline.
    pub fn cycles(&self, gpu: Gpu) -> f64 {
        let Work { config, load, columns, m, .. } = self;
        match self.kind() {
            Kind::Wgmma | Kind::WgmmaSp | Kind::Resident => cycles(config, *load, *m, gpu.sms),
            Kind::Ffma => 2500.0 + expected_cycles(gpu, config, (load.tiles, *columns), *m),
            Kind::Mma => self.mma_cycles(gpu),
            Kind::Decode => self.decode_cycles(gpu),
        }
    }

    /// Blocks of `mma_sync` and `mma_sp`: several a multiprocessor, which share its tensor cores and its way to the cache.
    fn mma_cycles(&self, gpu: Gpu) -> f64 {
        let Work { config, load, m, .. } = self;
        let items = (load.tiles * m.div_ceil(config.tokens)) as f64;
        let together = (gpu.shared_per_sm / (config.shared_bytes() + 1024)).clamp(1, 2048 / config.threads()) as f64;
        let multiply = (config.rows * config.tokens * config.stored_step()) as f64 / 1024.0;
        let bytes = (config.x_bytes() + config.w_bytes() + config.position_bytes()) as f64 / 40.0;
        let steps = load.steps as f64 / load.tiles.max(1) as f64;
        // A lone block waits for its loads.
        let lone = 600.0 / (config.stages - 1).max(1) as f64;
        let busiest = (items / gpu.sms as f64).ceil();
        let rounds = (busiest / together).ceil();
        let results = (config.rows * config.tokens * config.dtype.bytes()) as f64 / 16.0;
        let each = steps * multiply.max(bytes);
        2500.0
            + (busiest * (each + results)).max(rounds * steps * lone)
            + (load.longest as f64 - steps).max(0.0) * multiply
    }

    /// Few tokens: each block streams its rows' weights and gathers X for itself.
    fn decode_cycles(&self, gpu: Gpu) -> f64 {
        let Work { config, load, .. } = self;
        let Some(decode) = config.decode else { return f64::INFINITY };
        let blocks = (load.tiles * (config.rows / decode.slab)) as f64;
        let step_bytes = (decode.slab * config.step * config.dtype.bytes()) as f64;
        let gathered = (config.step * config.tokens * config.dtype.bytes()) as f64;
        let steps = load.steps as f64 / load.tiles.max(1) as f64;
        let busiest = (blocks / gpu.sms as f64).ceil();
        // 21 bytes a cycle and multiprocessor from memory, 40 from the cache.
        let streamed = steps * (step_bytes / 21.0).max(gathered / 40.0);
        2500.0 + busiest * streamed
    }

    /// What the correction looks at.
    pub(super) fn features(&self, gpu: Gpu) -> Vec<f64> {
        let Work { config, load, n, k, m, .. } = self;
        let ln = |v: f64| v.max(1e-9).ln();
        let tiles = load.tiles.max(1) as f64;
        let steps = load.steps as f64 / tiles;
        let tokens = m.div_ceil(config.tokens * config.share).max(1) as f64;
        let slabs = config.decode.map_or(config.slabs(), |d| config.rows / d.slab) as f64;
        let blocks = tiles * slabs * tokens * (config.split * config.share) as f64;
        let waves = blocks / gpu.sms as f64;
        let is = |yes: bool| if yes { 1.0 } else { 0.0 };
        let division = config.division.map_or((0.0, 0.0), |d| (ln((d.warp.0 * d.warp.1) as f64), ln(d.groups as f64)));
        vec![
            1.0,
            ln(self.cycles(gpu)),
            ln(steps.max(1.0)),
            ln(waves),
            waves.ceil() / waves.max(1e-6) - 1.0,
            is(waves < 1.0) * ln(waves),
            ln(config.tokens as f64),
            ln(config.rows as f64),
            is(config.split == 2),
            is(config.split == 4),
            is(config.share > 1),
            is(config.column_run > 0),
            is(config.column_run > 0) * ln(config.column_run.max(1) as f64),
            is(config.runs),
            is(config.stored_zeros),
            ln(load.longest as f64 / steps.max(1.0)),
            ln(*m as f64),
            ln(*n as f64),
            ln(*k as f64),
            config.stages as f64,
            (config.resident.max(4) as f64 / 4.0).log2(),
            is(config.intrinsic.is_sparse()),
            is(config.vector < 8),
            config.decode.map_or(0.0, |d| ln(d.slab as f64)),
            config.decode.map_or(0.0, |d| ln(d.warps as f64)),
            division.0,
            division.1,
        ]
    }
}
