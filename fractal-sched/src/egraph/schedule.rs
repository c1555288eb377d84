//! Schedules as choices that are closed one after the other, and the kernel that a closed schedule denotes.

use super::facts::{Facts, Tiles};
use super::target::Target;
use crate::codegen::{Decode, FFMA_BLOCKS, KernelConfig};
use crate::request::KernelRequest;
use crate::schedule::EpilogueStep;
use fractal_dsl::{DType, Intrinsic, Layout};
use std::fmt;
use std::str::FromStr;

/// One choice of a schedule. They are closed in the order in which they stand here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Choice {
    /// Element by element; nothing else is left to choose.
    Scalar,
    /// Kept rows of X are condensed, in boxes of so many that follow one another; 1: row by row.
    Condense(usize),
    /// The instruction.
    Tensorize(Intrinsic),
    /// Rows of W a tile.
    TileN(usize),
    /// Tokens a tile.
    TileM(usize),
    /// Kept columns a step.
    TileK(usize),
    /// Operands that lie token-major are turned around the kernel.
    Turn(bool),
    /// The epilogue is part of the kernel.
    Fuse(bool),
    /// Blocks that share the steps of a tile, and blocks that share its weights.
    Cluster(usize, usize),
    /// Weights stay in shared memory.
    Resident(bool),
    /// Stages of copies.
    Pipeline(usize),
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Scalar => write!(f, "scalar"),
            Choice::Condense(run) => write!(f, "condense:{run}"),
            Choice::Tensorize(intrinsic) => write!(f, "tensorize:{intrinsic}"),
            Choice::TileN(rows) => write!(f, "tile-n:{rows}"),
            Choice::TileM(tokens) => write!(f, "tile-m:{tokens}"),
            Choice::TileK(step) => write!(f, "tile-k:{step}"),
            Choice::Turn(turned) => write!(f, "turn:{turned}"),
            Choice::Fuse(fused) => write!(f, "fuse:{fused}"),
            Choice::Cluster(split, share) => write!(f, "cluster:{split}x{share}"),
            Choice::Resident(resident) => write!(f, "resident:{resident}"),
            Choice::Pipeline(stages) => write!(f, "pipeline:{stages}"),
        }
    }
}

impl FromStr for Choice {
    type Err = ();

    fn from_str(text: &str) -> Result<Choice, ()> {
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        let number = || value.parse::<usize>().map_err(drop);
        let flag = || value.parse::<bool>().map_err(drop);
        Ok(match name {
            "scalar" => Choice::Scalar,
            "condense" => Choice::Condense(number()?),
            "tensorize" => Choice::Tensorize(Intrinsic::from_name(value).ok_or(())?),
            "tile-n" => Choice::TileN(number()?),
            "tile-m" => Choice::TileM(number()?),
            "tile-k" => Choice::TileK(number()?),
            "turn" => Choice::Turn(flag()?),
            "fuse" => Choice::Fuse(flag()?),
            "cluster" => {
                let (split, share) = value.split_once('x').ok_or(())?;
                Choice::Cluster(split.parse().map_err(drop)?, share.parse().map_err(drop)?)
            }
            "resident" => Choice::Resident(flag()?),
            "pipeline" => Choice::Pipeline(number()?),
            _ => return Err(()),
        })
    }
}

/// A schedule some of whose choices are closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Partial {
    /// The last choice closed; `None` for the open schedule.
    pub(super) last: Option<Choice>,
    pub(super) request: KernelRequest,
    pub(super) turned: bool,
    pub(super) fused: bool,
}

impl Partial {
    /// With one more choice closed; `None` out of turn.
    pub(super) fn close(mut self, choice: Choice) -> Option<Partial> {
        let due = matches!(
            (choice, self.last),
            (Choice::Scalar | Choice::Condense(_), None)
                | (Choice::Tensorize(_), Some(Choice::Condense(_)))
                | (Choice::TileN(_), Some(Choice::Tensorize(_)))
                | (Choice::TileM(_), Some(Choice::TileN(_)))
                | (Choice::TileK(_), Some(Choice::TileM(_)))
                | (Choice::Turn(_), Some(Choice::TileK(_)))
                | (Choice::Fuse(_), Some(Choice::Turn(_)))
                | (Choice::Cluster(..), Some(Choice::Fuse(_)))
                | (Choice::Resident(_), Some(Choice::Cluster(..)))
                | (Choice::Pipeline(_), Some(Choice::Resident(_)))
        );
        self.last = Some(choice);
        let request = &mut self.request;
        match choice {
            Choice::Scalar => {}
            Choice::Condense(run) => request.run = Some(run),
            Choice::Tensorize(intrinsic) => request.intrinsic = Some(intrinsic),
            Choice::TileN(rows) => request.rows = Some(rows),
            Choice::TileM(tokens) => request.tokens = Some(tokens),
            Choice::TileK(step) => request.step = Some(step),
            Choice::Turn(turned) => self.turned = turned,
            Choice::Fuse(fused) => self.fused = fused,
            Choice::Cluster(split, share) => (request.split, request.share) = (Some(split), Some(share)),
            Choice::Resident(resident) => request.resident = Some(resident),
            Choice::Pipeline(stages) => request.stages = Some(stages),
        }
        due.then_some(self)
    }

    /// The choices that were closed, in their order.
    pub(super) fn choices(&self) -> Vec<Choice> {
        let request = &self.request;
        if self.last == Some(Choice::Scalar) {
            return vec![Choice::Scalar];
        }
        let all = [
            request.run.map(Choice::Condense),
            request.intrinsic.map(Choice::Tensorize),
            request.rows.map(Choice::TileN),
            request.tokens.map(Choice::TileM),
            request.step.map(Choice::TileK),
            Some(Choice::Turn(self.turned)),
            Some(Choice::Fuse(self.fused)),
            request.split.zip(request.share).map(|(split, share)| Choice::Cluster(split, share)),
            request.resident.map(Choice::Resident),
            request.stages.map(Choice::Pipeline),
        ];
        all.into_iter().flatten().collect()
    }

    /// Whether nothing is left to choose.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.last, Some(Choice::Scalar | Choice::Pipeline(_)))
    }
}

/// The program around a nest: what schedules must keep to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Context {
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) dtype: DType,
    pub(super) epilogue: Vec<EpilogueStep>,
    pub(super) layout: Layout,
    pub(super) target: Target,
    /// What the program's own schedule fixes.
    pub(super) request: KernelRequest,
}

impl Context {
    /// The tiles that an instruction works on.
    pub(super) fn tiles<'f>(&self, intrinsic: Intrinsic, facts: &'f Facts) -> Option<&'f Tiles> {
        if intrinsic.is_sparse() { facts.sparse.as_ref() } else { facts.dense.as_ref() }
    }

    /// Whether tiles of so many rows store zeros that the pattern drops.
    pub(super) fn stores_zeros(&self, intrinsic: Intrinsic, rows: usize, tiles: &Tiles) -> bool {
        !intrinsic.is_sparse() && tiles.tiles > 1 && tiles.rows < rows
    }

    /// The kernel that a closed schedule denotes on a pattern with these facts; `m` is the number of tokens, if it is known.
    ///
    /// # Errors
    /// A sentence that says what was expected and found, as [`KernelConfig::check`].
    pub(super) fn config(&self, schedule: &Partial, facts: &Facts, m: Option<usize>) -> Result<KernelConfig, String> {
        let missing = || "schedule: expected every choice to be closed".to_string();
        let request = &schedule.request;
        let intrinsic = request.intrinsic.ok_or_else(missing)?;
        let tiles = self.tiles(intrinsic, facts).ok_or("tiles: expected a pattern that the instruction can run")?;
        let rows = request.rows.ok_or_else(missing)?;
        let tokens = request.tokens.ok_or_else(missing)?;
        let run = request.run.unwrap_or(1);
        let stored_zeros = self.stores_zeros(intrinsic, rows, tiles);
        let hopper = matches!(intrinsic, Intrinsic::Wgmma | Intrinsic::WgmmaSp);
        let consecutive = tiles.row_run.is_multiple_of(64) || tiles.row_run >= self.n;
        let steps = tiles.columns.div_ceil(64);
        let resident = match request.resident {
            Some(true) => KernelConfig::resident_steps(rows, steps).ok_or_else(|| {
                format!(
                    "resident: expected tiles of 64 rows and at most 16 steps or 128 and 8, found {rows} and {steps}"
                )
            })?,
            _ => 0,
        };
        let base = KernelConfig {
            intrinsic,
            dtype: self.dtype,
            rows,
            tokens,
            step: request.step.ok_or_else(missing)?,
            stages: request.stages.ok_or_else(missing)?,
            split: request.split.unwrap_or(1),
            share: request.share.unwrap_or(1),
            resident,
            vector: 16 / self.dtype.bytes(),
            decode: None,
            division: None,
            output: if schedule.turned { Layout::FeatureMajor } else { self.layout },
            runs: hopper && consecutive && !stored_zeros,
            column_run: if run > 1 { run } else { 0 },
            stored_zeros,
            residue: false,
            epilogue: if schedule.fused { self.epilogue.clone() } else { Vec::new() },
        };
        let fits = |config: &KernelConfig| {
            config.check()?;
            let (found, most) = (config.shared_bytes(), self.target.shared_bytes);
            if found <= most {
                Ok(())
            } else {
                Err(format!("shared memory: expected at most {most} bytes, found {found}"))
            }
        };
        let few = tokens <= 32 && m.is_none_or(|m| m <= tokens) && intrinsic == Intrinsic::MmaSync;
        let mut configs = Vec::new();
        if intrinsic == Intrinsic::Ffma {
            let blocks = FFMA_BLOCKS.iter();
            let blocks = blocks.filter(|b| b.tokens == tokens && b.stages == base.stages);
            configs.extend(blocks.map(|b| KernelConfig { division: Some(b.division), ..base.clone() }));
        } else if few {
            // Fewest rows a slab: each block gathers X for itself.
            let decode = |slab, warps| KernelConfig { decode: Some(Decode { slab, warps }), ..base.clone() };
            configs.extend([64, 32, 16].into_iter().flat_map(|slab| [8, 16].map(|warps| decode(slab, warps))));
        }
        if intrinsic != Intrinsic::Ffma {
            configs.push(base);
        }
        let mut reason = format!("{intrinsic}: expected a block for {tokens} tokens, found none");
        for config in configs {
            match fits(&config) {
                Ok(()) => return Ok(config),
                Err(why) => reason = why,
            }
        }
        Err(reason)
    }
}
