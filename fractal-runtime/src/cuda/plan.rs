//! What can be known of a GEMM's kernels without a GPU: the instruction, the tables of a weight, and which configuration
//! runs for how many tokens.

use super::choose::{self, Load};
use super::divide::{CHOICES, Choice, Gpu, default_choice, least_time};
use super::tiles::{DeviceTiles, choose_rows, lay_out};
use crate::backend::lower_checked;
use crate::error::Error;
use crate::gemm::Gemm;
use crate::prune::{PruneError, Pruned};
use crate::record::{RecordedTile, record_tiles};
use fractal_dsl::pattern::{AxisKind, Packed, Pattern, Step};
use fractal_dsl::{DType, Intrinsic, Layout};
use fractal_sched::codegen::{CudaSource, Decode, KernelConfig, Provenance, emit};
use fractal_sched::loop_ir::{Expr, Stmt};
use fractal_sched::{Form, LoopIr};

/// Up to so many tokens, `wgmma`'s tiles are too wide.
const DECODE_TOKENS: usize = 32;

/// Kernels count tokens in an `int`.
pub(super) const MOST_TOKENS: usize = i32::MAX as usize;

/// Boxes of X a step, at most.
const MOST_BOXES: usize = 32;

/// What is chosen for a GEMM before there is a weight.
#[derive(Clone, Debug)]
pub struct KernelPlan {
    pub(super) gemm: Gemm,
    /// The pattern whose tiles run: the GEMM's own, or the one without the 2-of-4 skip that the instruction does.
    pub(super) pattern: Pattern,
    ir: LoopIr,
    pub(super) intrinsic: Intrinsic,
    /// Whether `wgmma` runs there.
    hopper: bool,
    provenance: Provenance,
}

impl KernelPlan {
    /// Chooses the instruction for a GPU of compute capability `sm` (80, 90, …).
    ///
    /// # Errors
    /// Where the pattern cannot be lowered.
    pub fn new(gemm: &Gemm, sm: u32) -> Result<KernelPlan, Error> {
        let own = gemm.pattern().executed();
        let tensor_core = gemm.dtype() != DType::F32 && sm >= Intrinsic::MmaSync.min_sm();
        let lowered = |pattern: &Pattern| {
            lower_checked(&Gemm::new(pattern.clone(), gemm.dtype()), Form::Condensed, 1).map(|ir| (pattern.clone(), ir))
        };
        let groups = if tensor_core && two_of_four(&own) { own.coarser() } else { None };
        let sparse = match groups {
            Some(pattern) => Some(lowered(&pattern)?).filter(|(_, ir)| groups_of_four(&ir.body)),
            None => None,
        };
        let (intrinsic, (pattern, ir)) = match sparse {
            Some(sparse) => (Intrinsic::MmaSp, sparse),
            None if tensor_core => (Intrinsic::MmaSync, lowered(&own)?),
            None => (Intrinsic::Ffma, lowered(&own)?),
        };
        let size = format!("{} x {} weight", own.n(), own.k());
        let provenance = match gemm.source() {
            Some((name, lines)) => Provenance { title: format!("{name}, {size}"), statements: lines.to_vec() },
            None => Provenance::of_pattern(size, gemm.pattern()),
        };
        Ok(KernelPlan { gemm: gemm.clone(), pattern, ir, intrinsic, hopper: sm == 90, provenance })
    }

    /// The instruction.
    pub fn intrinsic(&self) -> Intrinsic {
        self.intrinsic
    }

    /// The configuration for blocks of `rows` rows and `tokens` tokens, with X aligned to `vector` elements.
    pub fn config(&self, rows: usize, stored_zeros: bool, tokens: usize, vector: usize) -> KernelConfig {
        let (step, stages) = match self.intrinsic {
            Intrinsic::Ffma => return self.ffma_config(rows, stored_zeros, vector, default_choice(rows, tokens)),
            Intrinsic::MmaSp => (64, 4),
            _ => (64, 3),
        };
        KernelConfig { tokens, step, stages, vector, ..self.base(self.intrinsic, rows, stored_zeros) }
    }

    /// What all configurations of this plan on such tables have alike.
    fn base(&self, intrinsic: Intrinsic, rows: usize, stored_zeros: bool) -> KernelConfig {
        KernelConfig {
            intrinsic,
            dtype: self.gemm.dtype(),
            rows,
            tokens: 64,
            step: 64,
            stages: 3,
            split: 1,
            share: 1,
            resident: 0,
            vector: 1,
            decode: None,
            division: None,
            output: self.gemm.output(),
            runs: false,
            column_run: 0,
            stored_zeros,
            epilogue: self.gemm.steps().to_vec(),
        }
    }

    /// Every `ffma` kernel on tables of `rows` rows.
    pub fn ffma_configs(&self, rows: usize, stored_zeros: bool, vector: usize) -> Vec<KernelConfig> {
        let configs = CHOICES.iter().map(|&choice| self.ffma_config(rows, stored_zeros, vector, choice));
        configs.filter(|config| config.check().is_ok()).collect()
    }

    /// The configuration of an `ffma` kernel for tables of `rows` rows, with this division.
    fn ffma_config(&self, rows: usize, stored_zeros: bool, vector: usize, choice: Choice) -> KernelConfig {
        KernelConfig {
            tokens: choice.tokens,
            step: 16,
            stages: choice.stages,
            vector,
            division: Some(choice.division),
            ..self.base(Intrinsic::Ffma, rows, stored_zeros)
        }
    }

    /// The configuration of Hopper's own kernel on the same tables, where it has one: tiles of 64 or 128 rows, with as many
    /// stages as fit. It reads and writes features first; a call turns what lies the other way.
    pub fn hopper_config(
        &self,
        rows: usize,
        traits: Traits,
        tokens: usize,
        [split, share]: [usize; 2],
    ) -> Option<KernelConfig> {
        let intrinsic = match self.intrinsic {
            Intrinsic::MmaSync if self.hopper => Intrinsic::Wgmma,
            Intrinsic::MmaSp if self.hopper => Intrinsic::WgmmaSp,
            _ => return None,
        };
        let base = KernelConfig { output: Layout::FeatureMajor, ..self.config(rows, traits.stored_zeros, tokens, 8) };
        let runs = traits.runs && !traits.stored_zeros;
        // The copy engine takes about 20 cycles a box.
        let boxes = tokens / 64 * (64 / traits.column_run.max(1));
        let column_run = if boxes <= MOST_BOXES { traits.column_run } else { 0 };
        let with = |stages| KernelConfig { intrinsic, stages, split, share, runs, column_run, ..base.clone() };
        (3..=6).rev().map(with).find(|config| config.check().is_ok())
    }

    /// Every Hopper configuration on tables of so many rows.
    pub fn hopper_configs(&self, rows: usize, traits: Traits) -> impl Iterator<Item = KernelConfig> + '_ {
        [64, 128, 256, 512].into_iter().flat_map(move |tokens| {
            let clusters = [[1, 1], [2, 1], [4, 1], [1, 2]];
            clusters.into_iter().filter_map(move |cluster| self.hopper_config(rows, traits, tokens, cluster))
        })
    }

    /// The Hopper kernel that keeps up to `steps` steps of a tile's weights in shared memory, where there is one.
    pub fn resident_config(&self, rows: usize, traits: Traits, steps: usize) -> Option<KernelConfig> {
        let base = self.hopper_config(rows, traits, 128, [1, 1])?;
        let resident = if steps <= 4 { 4 } else { 8 };
        let with = |stages| KernelConfig { resident, stages, ..base.clone() };
        (3..=8).rev().map(with).find(|config| steps <= resident && config.check().is_ok())
    }

    /// The configuration of the kernel for few tokens on the same tables, where it has one: dense tiles of 16-bit types.
    pub fn decode_config(
        &self,
        rows: usize,
        stored_zeros: bool,
        tokens: usize,
        vector: usize,
        decode: Decode,
    ) -> Option<KernelConfig> {
        let config = self.config(rows, stored_zeros, tokens, vector);
        let stages = if decode.slab > 32 { 2 } else { 4 };
        let config = KernelConfig { stages, decode: Some(decode), ..config };
        config.check().is_ok().then_some(config)
    }

    /// The kernel that runs for m tokens on such tables on a GPU: the one with the least expected time. Needs no GPU.
    pub fn choose(&self, tables: &TableShape, m: usize, gpu: Gpu) -> KernelConfig {
        let &TableShape { rows, traits, load, .. } = tables;
        // No launch takes more.
        let m = m.min(MOST_TOKENS);
        let dtype = self.gemm.dtype();
        if m.is_multiple_of(8) && m > DECODE_TOKENS {
            // Its blocks share items evenly, not steps.
            let resident = if load.is_uneven() { None } else { self.resident_config(rows, traits, load.longest) };
            let configs = self.hopper_configs(rows, traits).chain(resident);
            if let Some(config) = choose::cheapest(configs, load, m, gpu.sms) {
                return config;
            }
        }
        let vector =
            (0..=4).rev().map(|p| 1usize << p).find(|v| v * dtype.bytes() <= 16 && m.is_multiple_of(*v)).unwrap_or(1);
        if self.intrinsic == Intrinsic::Ffma {
            let kernels = self.ffma_configs(rows, traits.stored_zeros, vector);
            if let Some(config) = least_time(gpu, kernels, (load.tiles, tables.columns), m) {
                return config;
            }
        }
        // Up to 32 tokens. Each block gathers X for itself, so blocks are as high as leaves enough of them; where they are
        // few, more warps keep as many loads under way.
        let of_sms = |slab: usize| (load.tiles * (rows / slab)) as f64 / gpu.sms as f64;
        let few = [8, 16, 32].into_iter().find(|&tokens| m <= tokens).and_then(|tokens| {
            let slab = match rows {
                64.. if tokens == 32 && of_sms(64) >= 1.25 => 64,
                32.. if of_sms(32) >= 0.9 => 32,
                _ => 16,
            };
            let warps = if of_sms(slab) >= 1.25 { 8 } else { 16 };
            self.decode_config(rows, traits.stored_zeros, tokens, vector, Decode { slab, warps })
        });
        // Tokens a block: as many as there are, but no fewer blocks than multiprocessors if it can be had.
        let choices = [128usize, 64, 32, 16];
        let fits = |tokens: usize| tokens < 2 * m.max(1) && load.tiles * m.div_ceil(tokens) >= gpu.sms;
        let least = *choices.iter().rev().find(|&&t| t >= m.min(32)).unwrap_or(&choices[0]);
        let tokens = choices.iter().copied().find(|&tokens| fits(tokens)).unwrap_or(least);
        few.unwrap_or_else(|| self.config(rows, traits.stored_zeros, tokens, vector))
    }

    /// The source of a configuration.
    ///
    /// # Errors
    /// A sentence, where the configuration is none.
    pub fn source(&self, config: &KernelConfig) -> Result<CudaSource, String> {
        emit(config, &self.provenance)
    }

    /// The tables of a weight, with the least configuration of a kernel that reads them; needs no GPU.
    ///
    /// # Errors
    /// Where the weight is not of this plan's pattern.
    pub fn lay_out(&self, weight: &Pruned) -> Result<(KernelConfig, DeviceTiles), Error> {
        let (tiles, packed) = self.tiles(weight)?;
        let (rows, stored_zeros) = self.block_rows(&tiles);
        let config = self.config(rows, stored_zeros, 64, 1);
        let tables = lay_out(&config, &tiles, &packed.values, self.pattern.n(), weight.kept())
            .map_err(|reason| Error::Layout { kernel: config.name(), reason })?;
        Ok((config, tables))
    }

    fn tiles(&self, weight: &Pruned) -> Result<(Vec<RecordedTile>, Packed<f32>), Error> {
        let packed = if self.pattern == *weight.packed_pattern() {
            weight.packed().clone()
        } else {
            let selection = weight.packed_pattern().coarser_selection(&weight.packed().selection());
            self.pattern.pack(&selection, &weight.packed().unpack()).map_err(PruneError::from)?
        };
        Ok((record_tiles(&self.ir, &packed)?, packed))
    }

    fn block_rows(&self, tiles: &[RecordedTile]) -> (usize, bool) {
        if self.intrinsic == Intrinsic::MmaSp {
            let highest = tiles.iter().map(|t| t.rows.len()).max().unwrap_or(16);
            let rows = [16, 32, 64].into_iter().find(|&rows| rows >= highest).unwrap_or(128);
            return (rows, false);
        }
        // Parts of the peak, estimated from what a block of that height loads for each multiplication.
        let efficiency = match (self.intrinsic, self.hopper) {
            (Intrinsic::Ffma, _) => [0.4, 0.7, 0.9, 1.0],
            (_, false) => [0.25, 0.45, 0.75, 1.0],
            (_, true) => [0.15, 0.3, 0.72, 1.0],
        };
        choose_rows(tiles, self.pattern.n(), efficiency)
    }
}

/// Whether the finest skip keeps at most two of four columns.
fn two_of_four(pattern: &Pattern) -> bool {
    let skip = pattern.steps().iter().enumerate().rfind(|(_, s)| matches!(s, Step::Skip { .. }));
    skip.is_some_and(|(number, step)| match step {
        Step::Skip { axis, .. } => {
            pattern.axis(*axis).len == 4
                && pattern.axis(*axis).kind == AxisKind::Reduction
                && pattern.kept_per_region(number).is_some_and(|kept| kept <= 2)
        }
        _ => false,
    })
}

/// Whether the tile's columns come in groups of four, in tiles of at least 16 rows.
fn groups_of_four(stmts: &[Stmt]) -> bool {
    stmts.iter().any(|stmt| match stmt {
        Stmt::For { body, .. } | Stmt::If { body, .. } => groups_of_four(body),
        Stmt::Mma { weights, .. } => {
            let rows = weights.rows.iter().map(|l| if let Expr::Int(e) = l.extent { e } else { 1 }).product::<i64>();
            rows >= 16 && weights.columns.last().is_some_and(|l| l.extent == Expr::Int(4))
        }
        _ => false,
    })
}

/// What a weight's tables have that Hopper's kernels can make use of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Whether the rows of each 64 of a tile follow one another.
    pub runs: bool,
    /// Whether tiles store zeros of dropped weights.
    pub stored_zeros: bool,
    /// Columns that follow one another, in all groups of so many: 64, 32, 16, 8, or 0.
    pub column_run: usize,
}

/// What the choice of a kernel depends on in a weight's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// Rows a tile.
    pub rows: usize,
    /// What else kernels can make use of.
    pub traits: Traits,
    /// Kept columns of all tiles, in whole steps.
    pub columns: usize,
    pub(super) load: Load,
}

impl TableShape {
    /// Of tables laid out for `config`, of a weight of `n` rows and `k` columns.
    pub fn new(config: &KernelConfig, tables: &DeviceTiles, [n, k]: [usize; 2]) -> TableShape {
        let steps = |tile: &[i32]| (tile[1] - tile[0]) as usize;
        TableShape {
            rows: config.rows,
            traits: Traits {
                runs: tables.runs(config.rows, n),
                stored_zeros: config.stored_zeros,
                column_run: tables.column_run(k),
            },
            columns: tables.columns.len(),
            load: Load {
                tiles: tables.blocks(),
                steps: tables.begin.windows(2).map(steps).sum(),
                longest: tables.begin.windows(2).map(steps).max().unwrap_or(0),
            },
        }
    }
}
