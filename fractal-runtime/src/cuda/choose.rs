//! The tile and the split of a Hopper kernel for a weight and a number of tokens: the one with the least estimated time.
//!
//! Units are cycles of a multiprocessor. A step of `rows` x `tokens` x 64 takes what the tensor cores need (2048
//! multiply-adds a cycle, twice that with 2 of 4 kept) or what its operands need on their way from the second-level cache,
//! whichever is longer. The constants were fitted to measurements on an H200 (docs/perf-log.md).

use fractal_sched::codegen::KernelConfig;
use serde::{Deserialize, Serialize};

/// Bytes a cycle into one multiprocessor.
const INTO_ONE: f64 = 56.0;
/// Bytes a cycle into all of them together, for each of 132.
const INTO_ALL: f64 = 47.0;
/// Cycles from a launch until its first step is multiplied, and of its last step's way out.
const FILL: f64 = 2700.0;
/// Bytes of results a cycle out of one multiprocessor.
const OUT: f64 = 16.0;
/// Bytes of X a cycle into one multiprocessor whose weights stay, where rows come one by one.
const ROWS_INTO_ONE: f64 = 42.0;
/// Bytes of results a cycle out of it beside them.
const BESIDE: f64 = 64.0;
/// Cycles for each of the tensor cores' where 128 rows with 2 of 4 kept stay: the operands of their narrow instructions come from
/// shared memory no faster.
const NARROW: f64 = 2.2;
/// Cycles to exchange sums in a cluster, fixed and by token of a warpgroup.
const EXCHANGE: (f64, f64) = (1000.0, 17.0);
/// Cycles that blocks that share weights take to meet, at their start and at their end.
const MEETINGS: f64 = 1200.0;
/// Of the multiprocessors, what clusters can use: they must not cross the groups in which the multiprocessors lie.
const CLUSTERED: f64 = 0.9;

/// What the estimate knows of a weight: its tiles and their steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Tiles of rows.
    pub tiles: usize,
    /// Steps of all tiles.
    pub steps: usize,
    /// Steps of the longest.
    pub longest: usize,
}

/// Rows of W whose even tiles run on the same tokens together: a wave of an H200 is then 32 tiles of 128 rows by four token
/// tiles, which asks memory for as much of W as of X.
const BAND: usize = 4096;

/// Those of uneven tiles: the fewer, the closer the longest stay to the beginning.
const UNEVEN_BAND: usize = 2048;

impl Load {
    /// Whether the longest tile has more than a step more than the average.
    pub fn is_uneven(&self) -> bool {
        self.longest * self.tiles > self.steps + self.tiles
    }

    /// Tiles of so many rows that run on the same tokens together.
    pub(super) fn band(&self, rows: usize) -> usize {
        let of_rows = if self.is_uneven() { UNEVEN_BAND } else { BAND };
        (of_rows / rows.max(1)).max(1)
    }
}

/// The estimated cycles of a Hopper kernel for `m` tokens on `multiprocessors`.
pub(crate) fn cycles(config: &KernelConfig, load: Load, m: usize, multiprocessors: usize) -> f64 {
    let items = load.tiles * m.div_ceil(config.tokens * config.share);
    if config.resident > 0 {
        return resident(config, load, items, multiprocessors);
    }
    let (split, cluster) = (config.split as f64, (config.split * config.share) as f64);
    let usable = if config.split > 1 { CLUSTERED * multiprocessors as f64 } else { multiprocessors as f64 };
    let teams = (usable / cluster).floor().max(1.0);
    let busy = (items as f64 * cluster).min(usable);
    let multiply = (config.rows * config.tokens * config.stored_step()) as f64 / 2048.0;
    let bytes = (config.x_bytes() + config.w_bytes() + config.position_bytes()) as f64;
    // Weights that blocks share leave the cache once, but that has gained nothing where it was measured: 0 to 1 % slower.
    let step = multiply.max(bytes / INTO_ONE).max(bytes / (INTO_ALL * multiprocessors as f64 / busy));
    let results = (config.rows * config.tokens * config.dtype.bytes()) as f64;
    let group_tokens = (config.rows * config.tokens) as f64 / 128.0;
    let exchange = if config.split > 1 { EXCHANGE.0 + EXCHANGE.1 * group_tokens } else { 0.0 };
    let finish = results / OUT / split + exchange;
    let average = (load.steps as f64 / load.tiles.max(1) as f64 / split).ceil() * step + finish;
    let longest = (load.longest as f64 / split).ceil() * step + finish;
    let meetings = if config.share > 1 { MEETINGS } else { 0.0 };
    FILL + meetings + longest.max((items as f64 / teams).ceil() * average)
}

/// Weights first; then one warpgroup's results leave while the other multiplies, whichever takes longer.
fn resident(config: &KernelConfig, load: Load, items: usize, multiprocessors: usize) -> f64 {
    let busy = items.min(multiprocessors).max(1);
    let narrow = if config.intrinsic.is_sparse() && config.tokens < 256 { NARROW } else { 1.0 };
    let multiply = (config.rows * config.tokens * config.stored_step()) as f64 / 2048.0 * narrow;
    let rate = INTO_ONE.min(INTO_ALL * multiprocessors as f64 / busy as f64);
    let into = if config.column_run > 0 { rate } else { rate.min(ROWS_INTO_ONE) };
    let results = (config.rows * config.tokens * config.dtype.bytes()) as f64;
    // Results leave by the way that X comes.
    let loaded = (load.longest * config.step * config.tokens * config.dtype.bytes()) as f64 / into + results / BESIDE;
    let item = (load.longest as f64 * multiply).max(loaded).max(0.75 * results / OUT);
    let weights = (load.longest * (config.w_bytes() + config.position_bytes())) as f64 / rate;
    FILL + weights + items.div_ceil(busy) as f64 * item + results / OUT
}

/// Blocks of a Hopper kernel's launch on so many multiprocessors.
pub fn blocks(config: &KernelConfig, tiles: usize, m: usize, multiprocessors: usize) -> usize {
    let token_tiles = m.div_ceil(config.tokens * config.share);
    let items = tiles * token_tiles;
    if config.split > 1 {
        // Blocks that share a tile take one; others are persistent.
        return items * config.split;
    }
    let teams = items.min((multiprocessors / config.share).max(1));
    if config.resident > 0 && tiles <= multiprocessors {
        // As many blocks for each tile, where none has more to do for it: they go over the same tokens at the same time, so
        // that X comes from memory once.
        let of_tile = (multiprocessors / tiles).min(token_tiles);
        if token_tiles.div_ceil(of_tile) <= items.div_ceil(teams) {
            return tiles * of_tile;
        }
    }
    teams * config.share
}

/// The cheapest of the configurations; none of none.
pub fn cheapest(
    configs: impl Iterator<Item = KernelConfig>,
    load: Load,
    m: usize,
    multiprocessors: usize,
) -> Option<KernelConfig> {
    configs
        .map(|config| (cycles(&config, load, m, multiprocessors), config))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, config)| config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gemm;
    use crate::cuda::{KernelPlan, Traits};
    use fractal_dsl::DType;
    use fractal_dsl::pattern::Named;

    /// What an H200 runs for tiles of so many rows that share columns, at 75 % of n x k and m tokens.
    fn name(rows: usize, n: usize, k: usize, m: usize) -> String {
        let pattern = format!("tw:{rows}").parse::<Named>().unwrap().pattern(n, k, 0.25).unwrap();
        let plan = KernelPlan::new(&Gemm::new(pattern, DType::F16), 90).unwrap();
        let longest = (k / 4).div_ceil(64);
        let load = Load { tiles: n.div_ceil(rows), steps: n.div_ceil(rows) * longest, longest };
        let traits = Traits { runs: true, stored_zeros: false, column_run: 0, residue: false };
        let configs = plan.hopper_configs(rows, traits).chain(plan.resident_config(rows, traits, longest));
        cheapest(configs, load, m, 132).unwrap().name()
    }

    #[test]
    fn bands_have_as_many_rows_whatever_a_tile_has() {
        let even = Load { tiles: 64, steps: 1024, longest: 16 };
        let uneven = Load { longest: 18, ..even };
        let bands = |load: Load| [64, 128, 8192, 0].map(|rows| load.band(rows));
        assert_eq!((bands(even), bands(uneven)), ([64, 32, 1, 4096], [32, 16, 1, 2048]));
    }

    #[test]
    fn blocks_fill_the_multiprocessors() {
        let pattern = "tw:128".parse::<Named>().unwrap().pattern(4096, 1024, 0.25).unwrap();
        let plan = KernelPlan::new(&Gemm::new(pattern, DType::F16), 90).unwrap();
        let traits = Traits { runs: true, stored_zeros: false, column_run: 0, residue: false };
        let resident = plan.resident_config(128, traits, 4).unwrap();
        // 4 of 132 blocks are left out where they would only get the others out of step.
        for (tiles, m, expected) in [(32, 8192, 128), (64, 8192, 128), (24, 4096, 132), (3, 130, 6), (200, 256, 132)] {
            assert_eq!(blocks(&resident, tiles, m, 132), expected, "{tiles} tiles, {m} tokens");
        }
        let of = |tokens, cluster| plan.hopper_config(128, traits, tokens, cluster).unwrap();
        assert_eq!(blocks(&of(256, [1, 2]), 32, 8192, 132), 132);
        assert_eq!(blocks(&of(256, [1, 2]), 3, 600, 132), 12);
        assert_eq!(blocks(&of(128, [4, 1]), 3, 300, 132), 36);
    }

    #[test]
    fn weights_stay_where_there_is_room() {
        let pattern = "tw:64".parse::<Named>().unwrap().pattern(4096, 4096, 0.25).unwrap();
        let plan = KernelPlan::new(&Gemm::new(pattern, DType::F16), 90).unwrap();
        let of = |rows, column_run, steps| {
            let traits = Traits { runs: true, stored_zeros: false, column_run, residue: false };
            plan.resident_config(rows, traits, steps)
                .map(|c| (c.tokens, c.resident, c.column_run, c.x_step(), c.stages))
        };
        // Small boxes give way to rows, and so do all where no three steps of X fit.
        for (rows, run, steps, expected) in [
            (128, 64, 4, Some((128, 4, 64, 64, 6))),
            (128, 16, 5, Some((128, 8, 16, 64, 4))),
            (128, 0, 9, None),
            (64, 64, 1, Some((256, 4, 64, 64, 5))),
            (64, 16, 4, Some((256, 4, 0, 64, 5))),
            (64, 64, 8, Some((256, 8, 64, 64, 4))),
            (64, 64, 9, Some((256, 12, 64, 64, 3))),
            (64, 0, 12, Some((256, 12, 0, 32, 7))),
            (64, 64, 13, Some((256, 16, 0, 32, 5))),
            (64, 0, 17, None),
            (32, 0, 1, None),
        ] {
            assert_eq!(of(rows, run, steps), expected, "{steps} steps of {rows} rows, runs of {run}");
        }
        // With 2 of 4 kept, half as large, with positions.
        let pattern = "2:4".parse::<Named>().unwrap().pattern(4096, 4096, 0.5).unwrap();
        let plan = KernelPlan::new(&Gemm::new(pattern, DType::F16), 90).unwrap();
        for (rows, run, steps, expected) in [
            (128, 64, 8, Some(("128x128x64_resident8_boxes64", 64, 7))),
            (128, 0, 9, None),
            (64, 0, 8, Some(("64x256x64_resident8", 64, 4))),
            (64, 16, 13, Some(("64x256x64_resident16", 64, 4))),
        ] {
            let traits = Traits { runs: false, stored_zeros: false, column_run: run, residue: false };
            let config = plan.resident_config(rows, traits, steps);
            let found = config.map(|c| (c.name(), c.x_step(), c.stages));
            let expected = expected.map(|(name, step, stages)| (format!("gemm_wgmma_sp_f16_{name}"), step, stages));
            assert_eq!(found, expected, "{steps} steps of {rows} rows, runs of {run}");
        }
    }

    #[test]
    fn weights_with_two_of_four_stay_where_that_was_faster() {
        let pattern = "tvw:128".parse::<Named>().unwrap().pattern(4096, 1024, 0.25).unwrap();
        let plan = KernelPlan::new(&Gemm::new(pattern, DType::F16), 90).unwrap();
        let traits = Traits { runs: true, stored_zeros: false, column_run: 0, residue: false };
        for (rows, n, steps, m, expected) in [
            (128, 4096, 8, 8192, "128x128x64_resident8"),
            (128, 3072, 6, 4096, "128x128x64_resident8"),
            (128, 4096, 4, 1024, "128x128x64_resident4"),
            (128, 4096, 8, 1024, "128x256x64"),
            (64, 4096, 8, 8192, "64x256x64_resident8"),
            (64, 4096, 16, 4096, "64x256x64_resident16"),
            (64, 4096, 8, 1024, "64x512x64"),
        ] {
            let load = Load { tiles: n / rows, steps: n / rows * steps, longest: steps };
            let configs = plan.hopper_configs(rows, traits).chain(plan.resident_config(rows, traits, steps));
            let name = cheapest(configs, load, m, 132).unwrap().name();
            assert_eq!(name, format!("gemm_wgmma_sp_f16_{expected}_runs"), "{steps} steps of {rows} rows, {n}, {m}");
        }
    }

    #[test]
    fn tiles_fill_the_multiprocessors() {
        for (rows, n, k, m, expected) in [
            (128, 4096, 4096, 4096, "128x256x64"),
            (128, 4096, 1024, 8192, "128x128x64_resident4"),
            (128, 3072, 768, 4096, "128x128x64_resident4"),
            (128, 4200, 200, 1032, "128x128x64_resident4"),
            (128, 2180, 330, 2200, "128x128x64_resident4"),
            (128, 1024, 4096, 1024, "128x64x64"),
            (128, 1024, 1024, 1024, "128x64x64"),
            (128, 768, 3072, 512, "128x64x64_split2"),
            (64, 64, 576, 3136, "64x128x64"),
            (128, 11008, 4096, 32, "128x64x64"),
            (64, 4096, 1024, 8192, "64x256x64_resident4"),
            (64, 4096, 2048, 4096, "64x256x64_resident8"),
            (64, 4096, 3072, 4096, "64x256x64_resident12"),
            (64, 4096, 4096, 4096, "64x256x64_resident16"),
            (64, 4096, 1024, 1024, "64x256x64_resident4"),
            (64, 4096, 11008, 4096, "64x512x64"),
            (64, 1024, 1024, 1024, "64x128x64"),
        ] {
            assert_eq!(name(rows, n, k, m), format!("gemm_wgmma_f16_{expected}_runs"), "{n}/{k}/{m}");
        }
    }
}
