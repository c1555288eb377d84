//! The instructions that a schedule may tensorize with: names, element types and shapes.

use crate::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A multiply-accumulate instruction. Shapes are rows x tokens x reduction (n x m x k).
///
/// The shapes are those of the PTX ISA, where the weight is operand A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intrinsic {
    /// Fused multiply-add on CUDA cores.
    Ffma,
    /// `mma.sync.aligned.m16n8k16`.
    MmaSync,
    /// `mma.sp.sync.aligned.m16n8k32`: 2 of 4 of the weight's reduction.
    MmaSp,
    /// `wgmma.mma_async.sync.aligned.m64nNk16`.
    Wgmma,
    /// `wgmma.mma_async.sp.sync.aligned.m64nNk32`: 2 of 4 of the weight's reduction.
    WgmmaSp,
}

impl Intrinsic {
    /// Every intrinsic, from the most general to the fastest.
    pub const ALL: [Intrinsic; 5] =
        [Intrinsic::Ffma, Intrinsic::MmaSync, Intrinsic::MmaSp, Intrinsic::Wgmma, Intrinsic::WgmmaSp];

    /// The name in DSL text.
    pub fn name(self) -> &'static str {
        match self {
            Intrinsic::Ffma => "ffma",
            Intrinsic::MmaSync => "mma_sync",
            Intrinsic::MmaSp => "mma_sp",
            Intrinsic::Wgmma => "wgmma",
            Intrinsic::WgmmaSp => "wgmma_sp",
        }
    }

    /// The intrinsic with this DSL name.
    pub fn from_name(name: &str) -> Option<Intrinsic> {
        Intrinsic::ALL.into_iter().find(|intrinsic| intrinsic.name() == name)
    }

    /// Element types of weight and input.
    pub fn dtypes(self) -> &'static [DType] {
        match self {
            Intrinsic::Ffma => &[DType::F32, DType::F16, DType::BF16],
            _ => &[DType::F16, DType::BF16],
        }
    }

    /// Rows (n) of one instruction.
    pub fn rows(self) -> usize {
        match self {
            Intrinsic::Ffma => 1,
            Intrinsic::MmaSync | Intrinsic::MmaSp => 16,
            Intrinsic::Wgmma | Intrinsic::WgmmaSp => 64,
        }
    }

    /// Tokens (m) of one instruction come in multiples of this.
    pub fn token_step(self) -> usize {
        if self == Intrinsic::Ffma { 1 } else { 8 }
    }

    /// The most tokens (m) of one instruction; a larger tile takes several. `None`: any number.
    pub fn max_tokens(self) -> Option<usize> {
        match self {
            Intrinsic::Ffma => None,
            Intrinsic::MmaSync | Intrinsic::MmaSp => Some(8),
            Intrinsic::Wgmma | Intrinsic::WgmmaSp => Some(256),
        }
    }

    /// Reduction (k) of one instruction, counted before 2:4 compression.
    pub fn depth(self) -> usize {
        match self {
            Intrinsic::Ffma => 1,
            Intrinsic::MmaSync | Intrinsic::Wgmma => 16,
            Intrinsic::MmaSp | Intrinsic::WgmmaSp => 32,
        }
    }

    /// Whether the weight is 2 of 4 along the reduction.
    pub fn is_sparse(self) -> bool {
        matches!(self, Intrinsic::MmaSp | Intrinsic::WgmmaSp)
    }

    /// Whether it runs on tensor cores.
    pub fn is_tensor_core(self) -> bool {
        self != Intrinsic::Ffma
    }

    /// The oldest compute capability that has it, as the number after `sm_`; 0 for any.
    pub fn min_sm(self) -> u32 {
        match self {
            Intrinsic::Ffma => 0,
            Intrinsic::MmaSync | Intrinsic::MmaSp => 80,
            Intrinsic::Wgmma | Intrinsic::WgmmaSp => 90,
        }
    }

    /// Whether only that very architecture has it (`sm_90a`), and not the later ones.
    pub fn is_arch_specific(self) -> bool {
        matches!(self, Intrinsic::Wgmma | Intrinsic::WgmmaSp)
    }

    /// The instruction with the same shape family that the weight's 2 of 4 decides about: dense for sparse and back.
    pub fn other_density(self) -> Intrinsic {
        match self {
            Intrinsic::Ffma => Intrinsic::Ffma,
            Intrinsic::MmaSync => Intrinsic::MmaSp,
            Intrinsic::MmaSp => Intrinsic::MmaSync,
            Intrinsic::Wgmma => Intrinsic::WgmmaSp,
            Intrinsic::WgmmaSp => Intrinsic::Wgmma,
        }
    }
}

impl fmt::Display for Intrinsic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
