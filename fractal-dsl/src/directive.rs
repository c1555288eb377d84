//! One statement of a schedule, by the names of the loops.

use crate::Intrinsic;
use crate::pattern::Keep;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The primitives' names, in the order in which messages list them.
pub(crate) const PRIMITIVES: [&str; 13] = [
    "split",
    "join",
    "reorder",
    "skip",
    "permute",
    "tile",
    "condense",
    "bind",
    "stage",
    "resident",
    "cluster",
    "pipeline",
    "tensorize",
];

/// Where a loop's iterations run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Thread blocks of a grid.
    Block,
    /// Warps of a block.
    Warp,
    /// Threads of a warp or block.
    Thread,
    /// Cores of a CPU.
    Core,
}

impl Level {
    /// Every level.
    pub const ALL: [Level; 4] = [Level::Block, Level::Warp, Level::Thread, Level::Core];

    /// The name in DSL text.
    pub fn name(self) -> &'static str {
        match self {
            Level::Block => "block",
            Level::Warp => "warp",
            Level::Thread => "thread",
            Level::Core => "core",
        }
    }
}

/// Where a tile of an operand waits for its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// Shared memory of a block.
    Shared,
    /// Registers of a thread.
    Register,
}

impl Memory {
    /// Every memory.
    pub const ALL: [Memory; 2] = [Memory::Shared, Memory::Register];

    /// The name in DSL text.
    pub fn name(self) -> &'static str {
        match self {
            Memory::Shared => "shared",
            Memory::Register => "register",
        }
    }
}

/// One primitive of a schedule. The first five make the pattern, the others choose how it runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Directive {
    /// `let (outer, inner) = split(axis, factor);` — `axis = outer * factor + inner`.
    Split {
        /// The loop that is split.
        axis: String,
        /// Length of the inner loop.
        factor: usize,
        /// Name of the outer loop.
        outer: String,
        /// Name of the inner loop.
        inner: String,
    },
    /// `let out = join(a, b);` — `out = a * len(b) + b`.
    Join {
        /// The slower loop.
        a: String,
        /// The faster loop.
        b: String,
        /// Name of the joined loop.
        out: String,
    },
    /// `reorder(a, b, …);` — these loops in this order, in the places which they have.
    Reorder {
        /// The loops, outermost first.
        loops: Vec<String>,
    },
    /// `skip(axis, per = (…), keep = …);` — after it `axis` is the loop over the kept iterations.
    Skip {
        /// The loop of which iterations are dropped.
        axis: String,
        /// The loops whose assignments are the regions; `None`: all loops outside `axis`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        per: Option<Vec<String>>,
        /// How many are kept.
        keep: Keep,
    },
    /// `permute(axis);` — an order of `axis` that pruning finds.
    Permute {
        /// The loop.
        axis: String,
    },
    /// `tile(axis, size);` — the kernel's tile along n, k or m.
    Tile {
        /// The axis.
        axis: String,
        /// Elements.
        size: usize,
    },
    /// `condense(x);` — gather the kept rows of an input into a dense tile; `condense(x, 16);` — in boxes of 16 rows that
    /// follow one another.
    Condense {
        /// The input.
        operand: String,
        /// Rows a box; 1: row by row; `None`: the longest boxes that there are.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<usize>,
    },
    /// `bind(axis, level);`
    Bind {
        /// The loop, or m.
        axis: String,
        /// Where its iterations run.
        level: Level,
    },
    /// `stage(operand, memory);`
    Stage {
        /// The weight or the input.
        operand: String,
        /// Where its tiles wait.
        memory: Memory,
    },
    /// `resident(w);` — a tile of the weight stays in shared memory while all its tokens pass.
    Resident {
        /// The weight.
        operand: String,
    },
    /// `cluster(axis, size);` — so many blocks work together: along k they share a tile's steps, along m its weights.
    Cluster {
        /// The axis.
        axis: String,
        /// Blocks.
        size: usize,
    },
    /// `pipeline(depth);` — stages of asynchronous copies.
    Pipeline {
        /// Stages.
        depth: usize,
    },
    /// `tensorize(n_loop, m, k_loop, intrinsic);`
    Tensorize {
        /// A loop of n, m, and a loop of k; the name of a split axis stands for all its loops.
        loops: Vec<String>,
        /// The instruction.
        intrinsic: Intrinsic,
    },
}

impl Directive {
    /// Whether it is one of the primitives that decide which weights may be kept.
    pub fn is_pattern(&self) -> bool {
        matches!(
            self,
            Directive::Split { .. }
                | Directive::Join { .. }
                | Directive::Reorder { .. }
                | Directive::Skip { .. }
                | Directive::Permute { .. }
        )
    }
}

impl fmt::Display for Directive {
    /// As in DSL text, without the `;`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Directive::Split { axis, factor, outer, inner } => {
                write!(f, "let ({outer}, {inner}) = split({axis}, {factor})")
            }
            Directive::Join { a, b, out } => write!(f, "let {out} = join({a}, {b})"),
            Directive::Reorder { loops } => write!(f, "reorder({})", loops.join(", ")),
            Directive::Skip { axis, per, keep } => {
                write!(f, "skip({axis}, ")?;
                match per.as_deref() {
                    None => {}
                    Some([one]) => write!(f, "per = {one}, ")?,
                    Some(many) => write!(f, "per = ({}), ", many.join(", "))?,
                }
                write!(f, "keep = {keep})")
            }
            Directive::Permute { axis } => write!(f, "permute({axis})"),
            Directive::Tile { axis, size } => write!(f, "tile({axis}, {size})"),
            Directive::Condense { operand, run: None } => write!(f, "condense({operand})"),
            Directive::Condense { operand, run: Some(run) } => write!(f, "condense({operand}, {run})"),
            Directive::Bind { axis, level } => write!(f, "bind({axis}, {})", level.name()),
            Directive::Stage { operand, memory } => write!(f, "stage({operand}, {})", memory.name()),
            Directive::Resident { operand } => write!(f, "resident({operand})"),
            Directive::Cluster { axis, size } => write!(f, "cluster({axis}, {size})"),
            Directive::Pipeline { depth } => write!(f, "pipeline({depth})"),
            Directive::Tensorize { loops, intrinsic } => write!(f, "tensorize({}, {intrinsic})", loops.join(", ")),
        }
    }
}
