//! What can be known of a GEMM's kernels without a GPU: the instruction, the tables of a weight, and which configuration
//! runs for how many tokens.

use super::choose::{self, Load};
use super::divide::{Gpu, default_choice, least_time};
use super::residue::DeviceResidue;
use super::tiles::{DeviceTiles, HEIGHTS, choose_rows, lay_out, shares_blocks};
use crate::backend::lower_checked;
use crate::error::Error;
use crate::gemm::Gemm;
use crate::prune::{PruneError, Pruned, Residue};
use crate::record::{RecordedTile, record_tiles};
use fractal_dsl::pattern::{Packed, Pattern};
use fractal_dsl::{DType, Intrinsic, Layout};
use fractal_sched::codegen::{CudaSource, Decode, FFMA_BLOCKS, FfmaBlock, KernelConfig, Provenance, emit};
use fractal_sched::{Form, KernelRequest, LoopIr};
use std::ops::RangeInclusive;

/// Up to so many tokens, `wgmma`'s tiles are too wide, unless there are many.
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
    /// Whether `wgmma` runs there, and may.
    hopper: bool,
    provenance: Provenance,
}

impl KernelPlan {
    /// The instruction that is asked for, or the best one of a GPU of compute capability `sm` (80, 90, …).
    ///
    /// # Errors
    /// Where the pattern cannot be lowered; [`Error::Schedule`] where GPU, type or pattern lack what is asked for.
    pub fn new(gemm: &Gemm, sm: u32) -> Result<KernelPlan, Error> {
        let own = gemm.pattern().executed();
        let asked = gemm.request().intrinsic;
        if let Some(asked) = asked {
            can_run(asked, gemm, sm)?;
        }
        let may_be = |kind: fn(Intrinsic) -> bool| asked.is_none_or(kind);
        let tensor_core =
            gemm.dtype() != DType::F32 && sm >= Intrinsic::MmaSync.min_sm() && may_be(Intrinsic::is_tensor_core);
        let lowered = |pattern: &Pattern| {
            lower_checked(&Gemm::new(pattern.clone(), gemm.dtype()), Form::Condensed, 1).map(|ir| (pattern.clone(), ir))
        };
        let groups =
            if tensor_core && may_be(Intrinsic::is_sparse) && own.keeps_two_of_four() { own.coarser() } else { None };
        let sparse = match groups {
            Some(pattern) => Some(lowered(&pattern)?).filter(|(_, ir)| ir.columns_in_fours()),
            None => None,
        };
        let (intrinsic, (pattern, ir)) = match sparse {
            Some(sparse) => (Intrinsic::MmaSp, sparse),
            None if asked.is_some_and(Intrinsic::is_sparse) => {
                let reason =
                    "the pattern does not keep 2 of 4 columns, in groups of columns that at least 16 rows share";
                return Err(refused(gemm, reason.into(), "ask for a dense instruction".into()));
            }
            None if tensor_core => (Intrinsic::MmaSync, lowered(&own)?),
            None => (Intrinsic::Ffma, lowered(&own)?),
        };
        let size = format!("{} x {} weight", own.n(), own.k());
        let provenance = match gemm.source() {
            Some((name, lines)) => Provenance { title: format!("{name}, {size}"), statements: lines.to_vec() },
            None => Provenance::of_pattern(size, gemm.pattern()),
        };
        Ok(KernelPlan {
            gemm: gemm.clone(),
            pattern,
            ir,
            intrinsic,
            hopper: sm == 90 && may_be(Intrinsic::is_arch_specific),
            provenance,
        })
    }

    /// The same with more that is asked for; the instruction stays.
    pub(crate) fn with_request(&self, request: KernelRequest) -> KernelPlan {
        KernelPlan { gemm: self.gemm.clone().with_request(request), ..self.clone() }
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
            residue: false,
            epilogue: self.gemm.steps().to_vec(),
        }
    }

    /// Every `ffma` kernel on tables of `rows` rows.
    pub fn ffma_configs(&self, rows: usize, stored_zeros: bool, vector: usize) -> Vec<KernelConfig> {
        let stages = self.gemm.request().stages;
        let asked = |&choice: &FfmaBlock| FfmaBlock { stages: stages.unwrap_or(choice.stages), ..choice };
        let configs = FFMA_BLOCKS.iter().map(asked).map(|choice| self.ffma_config(rows, stored_zeros, vector, choice));
        configs.filter(|config| config.check().is_ok()).collect()
    }

    /// The configuration of an `ffma` kernel for tables of `rows` rows, with this division.
    fn ffma_config(&self, rows: usize, stored_zeros: bool, vector: usize, choice: FfmaBlock) -> KernelConfig {
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
    /// stages as fit and gain. It reads and writes features first; a call turns what lies the other way.
    pub fn hopper_config(
        &self,
        rows: usize,
        traits: Traits,
        tokens: usize,
        cluster: [usize; 2],
    ) -> Option<KernelConfig> {
        self.hopper_with(rows, traits, tokens, cluster, self.stages(3..=8))
    }

    /// The same with some number of these stages.
    fn hopper_with(
        &self,
        rows: usize,
        traits: Traits,
        tokens: usize,
        [split, share]: [usize; 2],
        stages: RangeInclusive<usize>,
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
        let column_run = match self.gemm.request().run {
            None if boxes > MOST_BOXES => 0,
            None => traits.column_run,
            Some(1) => 0,
            Some(run) if traits.column_run >= run && traits.column_run.is_multiple_of(run) => run,
            Some(_) => return None,
        };
        let residue = traits.residue;
        let with = |stages| KernelConfig { intrinsic, stages, split, share, runs, column_run, residue, ..base.clone() };
        // Unless asked for, more than six are for kernels that were measured with them (docs/perf-log.md).
        let asked = self.gemm.request().stages.is_some();
        let gains = |c: &KernelConfig| asked || c.stages <= 6 || c.column_run == 0 || c.has_early_weights();
        stages.rev().map(with).find(|config| config.check().is_ok() && gains(config))
    }

    /// The stages to try: the one number that is asked for, or all of these.
    fn stages(&self, all: RangeInclusive<usize>) -> RangeInclusive<usize> {
        self.gemm.request().stages.map_or(all, |stages| stages..=stages)
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
        let resident = KernelConfig::resident_steps(rows, steps)?;
        let of = |traits| {
            let base = self.hopper_with(rows, traits, KernelConfig::resident_tokens(rows), [1, 1], 3..=6)?;
            // Its stages are smaller, so that more of them fit.
            let with = |stages| KernelConfig { resident, stages, ..base.clone() };
            self.stages(3..=8).rev().map(with).find(|config| config.check().is_ok())
        };
        // Tiles of 64 rows need X at a rate that smaller boxes do not come at, nor do boxes fit beside the most whole weights.
        let small = rows == 64 && traits.column_run < 64 && self.gemm.request().run.is_none();
        let rows_of_x = Traits { column_run: 0, ..traits };
        if small { of(rows_of_x) } else { of(traits).or_else(|| of(rows_of_x)) }
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
        let stages = self.gemm.request().stages.unwrap_or(if decode.slab > 32 { 2 } else { 4 });
        let config = KernelConfig { stages, decode: Some(decode), ..config };
        config.check().is_ok().then_some(config)
    }

    /// Hopper's kernels for such tables.
    fn hopper_family(&self, tables: &TableShape) -> impl Iterator<Item = KernelConfig> + '_ {
        let &TableShape { rows, traits, load, .. } = tables;
        // Its blocks share items evenly, not steps.
        let resident = if load.is_uneven() { None } else { self.resident_config(rows, traits, load.longest) };
        self.hopper_configs(rows, traits).chain(resident)
    }

    /// The kernel for up to 32 tokens, as wide as any of the widths.
    fn few_tokens(&self, tables: &TableShape, m: usize, gpu: Gpu, widths: &[usize]) -> Option<KernelConfig> {
        let (rows, stored_zeros) = (tables.rows, tables.traits.stored_zeros);
        // Each block gathers X for itself, so blocks are as high as leaves enough of them; where they are few, more warps
        // keep as many loads under way.
        let of_sms = |slab: usize| (tables.load.tiles * (rows / slab)) as f64 / gpu.sms as f64;
        let tokens = widths.iter().copied().find(|&tokens| m <= tokens)?;
        let slab = match rows {
            64.. if tokens == 32 && of_sms(64) >= 1.25 => 64,
            32.. if of_sms(32) >= 0.9 => 32,
            _ => 16,
        };
        let warps = if of_sms(slab) >= 1.25 { 8 } else { 16 };
        let config = self.decode_config(rows, stored_zeros, tokens, self.vector(m), Decode { slab, warps })?;
        Some(KernelConfig { residue: tables.traits.residue, ..config })
    }

    /// The kernel of any number of tokens with so many a block.
    fn plain(&self, tables: &TableShape, m: usize, tokens: usize) -> KernelConfig {
        let config = self.config(tables.rows, tables.traits.stored_zeros, tokens, self.vector(m));
        let stages = self.gemm.request().stages.unwrap_or(config.stages);
        KernelConfig { stages, residue: tables.traits.residue, ..config }
    }

    /// The `ffma` kernels for such tables and m tokens.
    fn ffma_family(&self, tables: &TableShape, m: usize) -> impl Iterator<Item = KernelConfig> {
        let Traits { stored_zeros, residue, .. } = tables.traits;
        let kernels = self.ffma_configs(tables.rows, stored_zeros, self.vector(m));
        kernels.into_iter().map(move |config| KernelConfig { residue, ..config })
    }

    /// Elements of X a copy: as many as m allows.
    fn vector(&self, m: usize) -> usize {
        let bytes = self.gemm.dtype().bytes();
        (0..=4).rev().map(|p| 1usize << p).find(|v| v * bytes <= 16 && m.is_multiple_of(*v)).unwrap_or(1)
    }

    /// Every kernel for m tokens on such tables that is admitted, in no order.
    pub fn configs(&self, tables: &TableShape, m: usize, gpu: Gpu) -> Vec<KernelConfig> {
        let mut configs: Vec<KernelConfig> = Vec::new();
        if m.is_multiple_of(8) {
            configs.extend(self.hopper_family(tables));
        }
        if !self.only_hopper() {
            if self.intrinsic == Intrinsic::Ffma {
                configs.extend(self.ffma_family(tables, m));
            } else {
                configs.extend(PLAIN_TOKENS.map(|tokens| self.plain(tables, m, tokens)));
            }
            configs.extend(DECODE_WIDTHS.into_iter().filter_map(|width| self.few_tokens(tables, m, gpu, &[width])));
        }
        configs.retain(|config| self.admits(config, m, gpu));
        configs
    }

    /// The kernel that runs for m tokens on such tables on a GPU: of those that are asked for, the one with the least
    /// expected time. Needs no GPU.
    ///
    /// # Errors
    /// [`Error::Schedule`] where no kernel is what is asked for.
    pub fn choose(&self, tables: &TableShape, m: usize, gpu: Gpu) -> Result<KernelConfig, Error> {
        let load = tables.load;
        // No launch takes more.
        let m = m.min(MOST_TOKENS);
        let asked = self.gemm.request();
        let admitted = |config: &KernelConfig| self.admits(config, m, gpu);
        let hopper = || {
            let configs = self.hopper_family(tables).filter(|_| m.is_multiple_of(8)).filter(admitted);
            choose::cheapest(configs, load, m, gpu.sms)
        };
        // The copy engine streams weights faster than the kernel for few tokens, where tiles of 64 tokens leave no
        // multiprocessor idle for long.
        let streamed = m > DECODE_TOKENS / 2 && 2 * load.tiles > gpu.sms;
        if (m > DECODE_TOKENS || streamed)
            && let Some(config) = hopper()
        {
            return Ok(config);
        }
        if !self.only_hopper() {
            if self.intrinsic == Intrinsic::Ffma {
                let kernels = self.ffma_family(tables, m).filter(admitted).collect();
                if let Some(config) = least_time(gpu, kernels, (load.tiles, tables.columns), m) {
                    return Ok(config);
                }
            }
            let widths: Vec<usize> =
                DECODE_WIDTHS.into_iter().filter(|&width| asked.tokens.is_none_or(|asked| asked == width)).collect();
            // Tokens a block: as many as there are, but no fewer blocks than multiprocessors if it can be had.
            let fits = |tokens: usize| tokens < 2 * m.max(1) && load.tiles * m.div_ceil(tokens) >= gpu.sms;
            let least = *PLAIN_TOKENS.iter().rev().find(|&&t| t >= m.min(32)).unwrap_or(&PLAIN_TOKENS[0]);
            let best = PLAIN_TOKENS.into_iter().find(|&tokens| fits(tokens)).unwrap_or(least);
            let plain = [best].into_iter().chain(PLAIN_TOKENS).map(|tokens| self.plain(tables, m, tokens));
            let few = self.few_tokens(tables, m, gpu, &widths);
            if let Some(config) = few.into_iter().chain(plain).find(admitted) {
                return Ok(config);
            }
        }
        hopper().ok_or_else(|| self.no_kernel(tables, m, gpu))
    }

    /// Whether the configuration is a kernel that is asked for, that the GPU has room for and that takes so many tokens.
    fn admits(&self, config: &KernelConfig, m: usize, gpu: Gpu) -> bool {
        let fits = config.shared_bytes() <= gpu.shared_per_block && m <= config.most_tokens(self.pattern.k());
        fits && config.check().is_ok() && self.gemm.request().admits(config)
    }

    /// Whether nothing but Hopper's own kernels may run.
    fn only_hopper(&self) -> bool {
        self.gemm.request().intrinsic.is_some_and(Intrinsic::is_arch_specific)
    }

    fn no_kernel(&self, tables: &TableShape, m: usize, gpu: Gpu) -> Error {
        if self.only_hopper() && !m.is_multiple_of(8) {
            let reason = format!("its copies need a multiple of 8 tokens, found {m}");
            return refused(&self.gemm, reason, "add tokens, or leave the instruction open".into());
        }
        let intrinsic = self.gemm.request().intrinsic;
        let open = KernelPlan {
            gemm: self.gemm.clone().with_request(KernelRequest { intrinsic, ..KernelRequest::default() }),
            ..self.clone()
        };
        let mut there: Vec<String> =
            open.configs(tables, m, gpu).iter().map(|c| KernelRequest::of_config(c).to_string()).collect();
        there.sort();
        there.dedup();
        let reason = format!("no kernel for this weight and {m} tokens is so");
        refused(&self.gemm, reason, format!("there are:\n  {}", there.join("\n  ")))
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
        let (rows, stored_zeros) = self.block_rows(&tiles)?;
        let residue = weight.residue();
        let config = KernelConfig { residue: residue.is_some(), ..self.config(rows, stored_zeros, 64, 1) };
        let wrong = |reason| Error::Layout { kernel: config.name(), reason };
        let of_tiles = weight.kept() - residue.map_or(0, Residue::len);
        let mut tables = lay_out(&config, &tiles, &packed.values, self.pattern.n(), of_tiles).map_err(wrong)?;
        if let Some(residue) = residue {
            let most = || wrong(format!("expected fewer than 2^31 restored elements, found {}", residue.len()));
            tables.residue = Some(DeviceResidue::new(&tables.rows, residue).ok_or_else(most)?);
        }
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

    fn block_rows(&self, tiles: &[RecordedTile]) -> Result<(usize, bool), Error> {
        let heights = if self.only_hopper() { &HEIGHTS[2..] } else { &HEIGHTS };
        let sparse = self.intrinsic == Intrinsic::MmaSp;
        if let Some(rows) = self.gemm.request().rows {
            if !heights.contains(&rows) {
                let reason = format!("expected a tile of {heights:?} rows, found {rows}");
                return Err(refused(&self.gemm, reason, "ask for one of them, or leave it open".into()));
            }
            return Ok((rows, !sparse && shares_blocks(tiles, rows)));
        }
        if sparse {
            let highest = tiles.iter().map(|t| t.rows.len()).max().unwrap_or(16);
            let rows = heights.iter().copied().find(|&rows| rows >= highest).unwrap_or(128);
            return Ok((rows, false));
        }
        // Parts of the peak, estimated from what a block of that height loads for each multiplication.
        let of_heights = match (self.intrinsic, self.hopper) {
            (Intrinsic::Ffma, _) => [0.4, 0.7, 0.9, 1.0],
            (_, false) => [0.25, 0.45, 0.75, 1.0],
            (_, true) if self.only_hopper() => [0.0, 0.0, 0.74, 1.0],
            (_, true) => [0.15, 0.3, 0.74, 1.0],
        };
        let hopper = self.hopper && self.intrinsic == Intrinsic::MmaSync;
        let efficiency = |rows: usize, columns: Option<usize>| {
            // Weights that stay make 64 rows faster; 128 rows have them for fewer columns, with less to gain.
            let stay = columns.and_then(|columns| KernelConfig::resident_steps(64, columns.div_ceil(64)));
            let height = HEIGHTS.iter().position(|&height| height == rows).unwrap_or(0);
            if hopper && rows == 64 && stay.is_some() { 0.82 } else { of_heights[height] }
        };
        Ok(choose_rows(tiles, self.pattern.n(), efficiency))
    }
}

/// Tokens a block of the kernels of any number of tokens, most first.
const PLAIN_TOKENS: [usize; 4] = [128, 64, 32, 16];

/// Tokens of the kernels for few.
const DECODE_WIDTHS: [usize; 3] = [8, 16, 32];

fn refused(gemm: &Gemm, reason: String, offered: String) -> Error {
    Error::Schedule { asked: gemm.request().to_string(), reason, offered }
}

/// Whether a GPU of this compute capability has the instruction for the GEMM's type.
fn can_run(asked: Intrinsic, gemm: &Gemm, sm: u32) -> Result<(), Error> {
    let has = |intrinsic: Intrinsic| {
        (sm >= intrinsic.min_sm()) && (!intrinsic.is_arch_specific() || sm == intrinsic.min_sm())
    };
    let takes = |intrinsic: Intrinsic| intrinsic.dtypes().contains(&gemm.dtype());
    if has(asked) && takes(asked) {
        return Ok(());
    }
    let there: Vec<&str> = Intrinsic::ALL.into_iter().filter(|&i| has(i) && takes(i)).map(Intrinsic::name).collect();
    let reason = if has(asked) {
        format!("{asked} has no {} form", gemm.dtype())
    } else {
        let only = if asked.is_arch_specific() { " alone" } else { " and later" };
        format!("{asked} is of sm_{}{only}, and this GPU is sm_{sm}", asked.min_sm())
    };
    Err(refused(gemm, reason, format!("it runs {} with {}", gemm.dtype(), there.join(", "))))
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
    /// Whether single elements are restored on top of the tiles.
    pub residue: bool,
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
    /// Tiles and steps.
    pub load: Load,
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
                residue: tables.residue.is_some(),
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
