//! The configuration of one generated kernel: a small printable record, from which everything else follows.

use super::{Decode, hopper};
use crate::schedule::EpilogueStep;
use fractal_dsl::{DType, Intrinsic, Layout};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Shared memory that a block of Hopper may have.
const SHARED_BYTES: usize = 227 * 1024;

/// Tile sizes and choices of one CUDA kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelConfig {
    /// The instruction that multiplies.
    pub intrinsic: Intrinsic,
    /// Storage type of W, X and Y.
    pub dtype: DType,
    /// Rows of W a block: 16, 32, 64 or 128.
    pub rows: usize,
    /// Tokens a block: 64 to 512 for Hopper's kernels, 16 to 128 for `mma_sync` and `mma_sp`, 8 to 32 for decode.
    pub tokens: usize,
    /// Kept columns a step of the main loop: 64; 16 for `ffma`.
    pub step: usize,
    /// Steps, or [halves of them](KernelConfig::x_step), in flight from global to shared memory: 2 to 8; 3 to 8 for Hopper's kernels.
    pub stages: usize,
    /// Blocks, a cluster, that share the steps of a tile: 1, 2 or 4 for Hopper's kernels, 1 elsewhere.
    pub split: usize,
    /// Blocks, a cluster, that take the same tile with tokens that follow one another and share its weights: 1 or 2 for
    /// Hopper's kernels, 1 elsewhere.
    pub share: usize,
    /// Of Hopper's kernels whose weights stay in shared memory: the most steps of a tile, 4 or 8, of one of 64 rows also 12 or 16;
    /// 0 where they come by stages.
    pub resident: usize,
    /// Elements of X a copy: its rows must be aligned to this many, so tokens must be a multiple.
    pub vector: usize,
    /// Of kernels for few tokens: how a block is made.
    pub decode: Option<Decode>,
    /// Of `ffma` kernels: how a block and its threads divide a tile.
    pub division: Option<Division>,
    /// Layout of Y and of residuals.
    pub output: Layout,
    /// Whether the rows of each half of a tile follow one another in Y, so that Hopper's kernels leave stores to the copy
    /// engine.
    pub runs: bool,
    /// Of Hopper's kernels: columns that follow one another in all groups of so many (8, 16, 32 or 64), so that the copy engine
    /// brings X; 0 where rows of X come one by one.
    pub column_run: usize,
    /// Whether tiles store zeros of elements that the pattern drops.
    pub stored_zeros: bool,
    /// Whether single elements are restored on top of the tiles.
    #[serde(default)]
    pub residue: bool,
    /// What follows the multiplication.
    pub epilogue: Vec<EpilogueStep>,
}

/// How the blocks and threads of an `ffma` kernel divide a tile of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Division {
    /// Rows a block: the tile's, or a slab of them.
    pub rows: usize,
    /// Rows and tokens of a warp.
    pub warp: (usize, usize),
    /// Groups of warps, each with all of the block's results from its own columns.
    pub groups: usize,
    /// Columns a stage, of all groups: whole steps of the tables.
    pub columns: usize,
}

impl KernelConfig {
    /// Of a warp's lanes, those that lie along the rows.
    pub fn row_lanes(&self) -> usize {
        // Threads' tiles are as square as can be.
        let (rows, tokens) = self.warp_tile();
        if rows < 32 || 2 * rows <= tokens { 4 } else { 8 }
    }

    /// Blocks that a multiprocessor should have registers for.
    pub fn blocks_per_sm(&self) -> usize {
        let Some(division) = self.division else { return 1 };
        // Registers for the results, the operands of two columns and addresses: 255, 168, 128 or 96 a thread.
        let threads = match division.warp.0 * division.warp.1 / 32 {
            128.. => 256,
            96.. => 384,
            64.. if self.threads() < 256 => 384,
            48.. => 512,
            _ => 640,
        };
        (threads / self.threads()).max(1)
    }

    /// Blocks along the rows of a tile of the tables.
    pub fn slabs(&self) -> usize {
        self.division.map_or(1, |division| self.rows / division.rows)
    }

    /// Elements of W stored for one row and step: half of the columns where 2 of 4 are kept.
    pub fn stored_step(&self) -> usize {
        if self.intrinsic.is_sparse() { self.step / 2 } else { self.step }
    }

    /// Whether the kernel is one of Hopper's own.
    pub fn is_hopper(&self) -> bool {
        matches!(self.intrinsic, Intrinsic::Wgmma | Intrinsic::WgmmaSp)
    }

    /// Of Hopper's kernels whose weights come by stages: whether those of the first steps come before the kernel's turn. Wide
    /// tiles gain nothing by it. The one warp that brings boxes has no time to tell early steps apart where it brings positions, too,
    /// or several boxes a step; and covers have many steps (docs/perf-log.md).
    pub fn has_early_weights(&self) -> bool {
        let few_boxes = self.column_run == self.step && !self.intrinsic.is_sparse() && !self.stored_zeros;
        self.tokens <= 128 && (self.column_run == 0 || few_boxes)
    }

    /// Most tokens of a call for a weight of k columns, by how the kernel counts rows of X; `usize::MAX / k` is no bound.
    pub fn most_tokens(&self, k: usize) -> usize {
        hopper::most_of_x(self) / k.max(1)
    }

    /// Bytes of positions a step, of 2-of-4 kernels.
    pub fn position_bytes(&self) -> usize {
        if self.intrinsic.is_sparse() { self.rows / 16 * 32 * 4 } else { 0 }
    }

    /// Bytes of a stage; those of Hopper's kernels begin at multiples of 1024, which the swizzle needs.
    pub fn stage_bytes(&self) -> usize {
        let w_bytes = if self.resident > 0 { 0 } else { self.w_bytes() + self.position_bytes() };
        let bytes = self.x_bytes() + w_bytes;
        if self.is_hopper() { bytes.next_multiple_of(1024) } else { bytes }
    }

    /// Rows and tokens of a warp's tile.
    pub fn warp_tile(&self) -> (usize, usize) {
        self.division.map_or((self.rows.min(64), self.tokens.min(32)), |division| division.warp)
    }

    /// Threads a block.
    pub fn threads(&self) -> usize {
        if self.is_hopper() {
            // Two warpgroups that multiply, and one that copies.
            return 3 * 128;
        }
        if let Some(decode) = self.decode {
            return decode.warps * 32;
        }
        let (rows, tokens) = self.warp_tile();
        let (block_rows, groups) = self.division.map_or((self.rows, 1), |division| (division.rows, division.groups));
        (block_rows / rows) * (self.tokens / tokens) * groups * 32
    }

    /// Of kernels whose weights stay in shared memory: the tokens of a block with so many rows; as large a tile whatever they are.
    pub fn resident_tokens(rows: usize) -> usize {
        128 * 128 / rows.max(1)
    }

    /// The same: for how many steps of a tile there is a kernel that keeps `steps` of so many rows; none where these are too many.
    /// With 2 of 4 kept there is room for more, but from 12 steps of 128 rows on wider tiles are faster (docs/perf-log.md).
    pub fn resident_steps(rows: usize, steps: usize) -> Option<usize> {
        let most: &[usize] = match rows {
            64 => &[4, 8, 12, 16],
            128 => &[4, 8],
            _ => &[],
        };
        most.iter().copied().find(|&most| steps <= most)
    }

    /// Columns of X a stage of Hopper's kernels: those of a step; half of them where many whole weights stay, whose stages must be
    /// smaller for enough to fit. Boxes of half a step were slower than fewer stages (docs/perf-log.md).
    pub fn x_step(&self) -> usize {
        let halves = self.resident > 8 && self.column_run == 0 && !self.intrinsic.is_sparse();
        if halves { self.step / 2 } else { self.step }
    }

    /// Bytes of X a stage.
    pub fn x_bytes(&self) -> usize {
        self.division.map_or(self.x_step(), |division| division.columns) * self.tokens * self.dtype.bytes()
    }

    /// Bytes of W a stage.
    pub fn w_bytes(&self) -> usize {
        let elements = self.division.map_or(self.rows * self.stored_step(), |d| d.rows * d.columns);
        elements * self.dtype.bytes()
    }

    /// Dynamic shared memory a block, bytes.
    pub fn shared_bytes(&self) -> usize {
        if let Some(decode) = self.decode {
            return decode.shared_bytes(self);
        }
        let extra = if self.is_hopper() {
            hopper::staging_bytes(self) + hopper::exchange_bytes(self) + hopper::BARRIER_BYTES
        } else {
            0
        };
        let resident = self.resident * (self.w_bytes() + self.position_bytes());
        let stages = self.stages * self.stage_bytes() + resident + extra;
        // The sums of all groups take the place of the stages; the row numbers follow.
        self.division.map_or(stages, |d| stages.max(d.groups * d.rows * self.tokens * 4) + d.rows * 4)
    }

    /// Of Hopper's kernels: tokens that a warp or warpgroup stores at a time.
    pub fn chunk(&self) -> usize {
        hopper::chunk(self)
    }

    /// Whether the epilogue has a function that takes many registers.
    pub(super) fn is_curved(&self) -> bool {
        self.epilogue.iter().any(|step| matches!(step, EpilogueStep::Gelu | EpilogueStep::Silu))
    }

    /// Bias operands of the epilogue.
    pub fn biases(&self) -> usize {
        count(&self.epilogue, |s| if let EpilogueStep::Bias(number) = s { Some(*number) } else { None })
    }

    /// Residual operands of the epilogue.
    pub fn residuals(&self) -> usize {
        count(&self.epilogue, |s| if let EpilogueStep::Residual(number) = s { Some(*number) } else { None })
    }

    /// The kernel's name in its source: instruction, type and tile.
    pub fn name(&self) -> String {
        let intrinsic = self.intrinsic.name();
        let covered = if self.stored_zeros { "_covered" } else { "" };
        let runs = if self.runs { "_runs" } else { "" };
        let boxes = if self.column_run > 0 { format!("_boxes{}", self.column_run) } else { String::new() };
        let resident = if self.resident > 0 { format!("_resident{}", self.resident) } else { String::new() };
        let split = if self.split > 1 { format!("_split{}", self.split) } else { String::new() };
        let share = if self.share > 1 { format!("_share{}", self.share) } else { String::new() };
        let block = self.decode.map_or(String::new(), |d| format!("_decode{}x{}", d.slab, d.warps));
        let division = self.division.map_or(String::new(), |d| {
            let slab = if d.rows == self.rows { String::new() } else { format!("_slab{}", d.rows) };
            format!("{slab}_warp{}x{}_groups{}", d.warp.0, d.warp.1, d.groups)
        });
        let residue = if self.residue { "_residue" } else { "" };
        format!(
            "gemm_{intrinsic}_{}_{}x{}x{}{division}{block}{split}{share}{resident}{boxes}{runs}{covered}{residue}",
            self.dtype, self.rows, self.tokens, self.step
        )
    }

    /// What keeps this record from being a kernel.
    ///
    /// # Errors
    /// A sentence that says what was expected and found.
    pub fn check(&self) -> Result<(), String> {
        self.check_ranges()?;
        self.check_family()?;
        if self.threads() > 1024 {
            return Err(format!("threads: expected at most 1024 a block, found {}", self.threads()));
        }
        if self.shared_bytes() > SHARED_BYTES {
            return Err(format!("shared memory: expected at most {SHARED_BYTES} bytes, found {}", self.shared_bytes()));
        }
        Ok(())
    }

    /// Numbers for which nothing else here overflows or divides by zero.
    fn check_ranges(&self) -> Result<(), String> {
        let mut numbers = vec![
            ("rows", self.rows, 128),
            ("tokens", self.tokens, 512),
            ("step", self.step, 64),
            ("stages", self.stages, 8),
            ("split", self.split, 4),
            ("share", self.share, 2),
            ("vector", self.vector, 8),
        ];
        if let Some(Decode { slab, warps }) = self.decode {
            numbers.extend([("slab", slab, 128), ("warps", warps, 32)]);
        }
        if let Some(Division { rows, warp, groups, columns }) = self.division {
            let more = [("warp rows", warp.0), ("warp tokens", warp.1), ("groups", groups), ("columns", columns)];
            numbers.push(("rows of a block", rows, 128));
            numbers.extend(more.map(|(what, number)| (what, number, 512)));
        }
        match numbers.into_iter().find(|(_, number, most)| !(1..=*most).contains(number)) {
            Some((what, number, most)) => Err(format!("{what}: expected 1 to {most}, found {number}")),
            None => Ok(()),
        }
    }

    fn check_family(&self) -> Result<(), String> {
        if let Some(decode) = self.decode {
            if self.split * self.share != 1 || self.runs || self.column_run > 0 || self.division.is_some() {
                return Err("decode: expected no split, share, runs, boxes or division beside it".into());
            }
            return decode.check(self);
        }
        let half = self.dtype != DType::F32;
        let wrong =
            |what: &str, expected: &str, found: usize| Err(format!("{what}: expected {expected}, found {found}"));
        match self.intrinsic {
            Intrinsic::Ffma => {
                let Some(division) = &self.division else { return Err("ffma: expected a division, found none".into()) };
                self.check_division(division)?;
            }
            _ if self.division.is_some() => return Err(format!("{}: divisions are of ffma", self.intrinsic.name())),
            Intrinsic::Wgmma | Intrinsic::WgmmaSp if half => return self.check_wgmma(),
            Intrinsic::MmaSync | Intrinsic::MmaSp if half => {}
            Intrinsic::MmaSync | Intrinsic::MmaSp => {
                return Err(format!("{}: expected f16 or bf16, found {}", self.intrinsic.name(), self.dtype));
            }
            other => return Err(format!("intrinsic: expected ffma, mma_sync or mma_sp, found {}", other.name())),
        }
        if ![16, 32, 64, 128].contains(&self.rows) {
            return wrong("rows", "16, 32, 64 or 128", self.rows);
        }
        if self.division.is_none() && ![16, 32, 64, 128].contains(&self.tokens) {
            return wrong("tokens", "a power of two up to 128 that the instruction's tile divides", self.tokens);
        }
        let steps: &[usize] = match self.intrinsic {
            Intrinsic::Ffma => &[16],
            Intrinsic::MmaSp => &[64],
            _ => &[32, 64],
        };
        if !steps.contains(&self.step) {
            return wrong("step", "one that the instruction's depth divides", self.step);
        }
        if self.split * self.share != 1 || self.runs || self.resident > 0 || self.column_run > 0 {
            return wrong("split, share, runs, resident, column run", "1, 1, false, 0, 0", self.split);
        }
        if !(2..=8).contains(&self.stages) {
            return wrong("stages", "2 to 8", self.stages);
        }
        if !self.vector.is_power_of_two() || self.vector * self.dtype.bytes() > 16 {
            return wrong("vector", "a power of two of at most 16 bytes", self.vector);
        }
        Ok(())
    }
}

impl KernelConfig {
    fn check_division(&self, division: &Division) -> Result<(), String> {
        let Division { rows, warp, groups, columns } = *division;
        let (row_lanes, token_lanes) = (self.row_lanes(), 32 / self.row_lanes());
        let pieces = warp.0.is_multiple_of(4 * row_lanes) && warp.1.is_multiple_of(4 * token_lanes);
        let whole = rows.is_multiple_of(warp.0) && self.tokens.is_multiple_of(warp.1) && self.rows.is_multiple_of(rows);
        let slices = columns.is_multiple_of(self.step) && columns.is_multiple_of(2 * groups);
        if !(pieces && whole && slices) || groups == 0 || self.tokens < 32 || warp.0 * warp.1 > 64 * 64 {
            return Err(format!(
                "division: expected warps of at most 64 x 64 that divide the block, whose rows divide the tile's, and \
                 stages of whole steps that groups share evenly, found {} of {} rows, {} tokens, {division:?}",
                rows, self.rows, self.tokens
            ));
        }
        Ok(())
    }

    fn check_wgmma(&self) -> Result<(), String> {
        let tokens: &[usize] = if self.rows == 128 { &[64, 128, 256] } else { &[128, 256, 512] };
        let fits =
            [64, 128].contains(&self.rows) && tokens.contains(&self.tokens) && self.step == 64 && self.vector == 8;
        let split = [1, 2, 4].contains(&self.split) && (self.split == 1 || self.share == 1);
        let resident = self.resident == 0
            || KernelConfig::resident_steps(self.rows, self.resident) == Some(self.resident)
                && (self.tokens, self.split * self.share) == (KernelConfig::resident_tokens(self.rows), 1)
                && !self.stored_zeros;
        if !resident {
            return Err(format!(
                "resident: expected 0, or with no split and no stored zeros 4 or 8 of 128 rows and 128 tokens or 4, 8, 12 or 16 of 64 \
                 rows and 256 tokens, found {self}"
            ));
        }
        if self.share > 1 && (self.rows, self.tokens, self.intrinsic) != (128, 256, Intrinsic::Wgmma) {
            return Err(format!("share: expected 1, or 2 with wgmma, 128 rows and 256 tokens, found {self}"));
        }
        if ![0, 8, 16, 32, 64].contains(&self.column_run) {
            return Err(format!("column run: expected 0, 8, 16, 32 or 64, found {}", self.column_run));
        }
        if !fits || !split || self.output != Layout::FeatureMajor || !(3..=8).contains(&self.stages) {
            return Err(format!(
                "{}: expected 128 rows and 64, 128 or 256 tokens or 64 rows and 128, 256 or 512 tokens, steps of 64, \
                 vectors of 8, 1, 2 or 4 blocks a tile, feature-major results, found {:?}, {} stages, {self}",
                self.intrinsic.name(),
                self.output,
                self.stages
            ));
        }
        if self.runs && self.stored_zeros {
            return Err("runs: expected none where stored zeros may need a repair of what is stored".into());
        }
        if self.stored_zeros && self.intrinsic.is_sparse() {
            return Err("wgmma_sp: expected no stored zeros, since a place holds two of four".into());
        }
        // Half of a warpgroup's tokens are sums of a thread; what else it needs must fit beside them.
        let curved = self.is_curved();
        let (residuals, zeros) = (self.residuals(), self.stored_zeros);
        let crowded = match hopper::group_tokens(self) {
            256 => {
                self.split > 1
                    || residuals > 1
                    || curved && (zeros || residuals > 0)
                    || self.residue && residuals > 0 && !self.runs
            }
            128 => {
                residuals > 1
                    || (curved || self.resident > 0 && self.residue) && residuals > 0 && !self.runs
                    || curved && residuals > 0 && self.residue && self.resident > 0 && self.intrinsic.is_sparse()
                    || zeros && self.split > 1
            }
            _ => false,
        };
        if crowded {
            return Err(format!(
                "tokens: {} leave no registers for this epilogue, residue, split or repair of stored zeros; take fewer",
                self.tokens
            ));
        }
        Ok(())
    }
}

fn count(steps: &[EpilogueStep], number: impl Fn(&EpilogueStep) -> Option<usize>) -> usize {
    steps.iter().filter_map(number).max().map_or(0, |most| most + 1)
}

impl fmt::Display for KernelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}: {} rows x {} tokens x {} columns, {} stages, {} threads, {} bytes of shared memory, vectors of {}",
            self.intrinsic.name(),
            self.dtype,
            self.rows,
            self.tokens,
            self.step,
            self.stages,
            self.threads(),
            self.shared_bytes(),
            self.vector
        )?;
        if self.resident > 0 {
            write!(f, ", at most {} steps of W resident", self.resident)?;
        }
        if self.split > 1 {
            write!(f, ", {} blocks a tile", self.split)?;
        }
        if self.share > 1 {
            write!(f, ", {} blocks share weights", self.share)?;
        }
        if let Some(Decode { slab, warps }) = self.decode {
            write!(f, ", decode: slabs of {slab} rows, {warps} warps")?;
        }
        if let Some(Division { rows, warp, groups, columns }) = &self.division {
            let (warp_rows, warp_tokens) = warp;
            write!(
                f,
                ", {rows} rows a block, warps of {warp_rows} x {warp_tokens} in {groups} groups, {columns} columns a stage"
            )?;
        }
        if self.residue {
            write!(f, ", a residue")?;
        }
        for step in &self.epilogue {
            write!(f, " | {step}")?;
        }
        Ok(())
    }
}
