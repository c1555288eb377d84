//! What a machine has, as far as schedules depend on it.

use crate::codegen::Division;
use fractal_dsl::Intrinsic;

/// One block of an `ffma` kernel: tokens, stages, and how it divides a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FfmaBlock {
    /// Tokens a block.
    pub tokens: usize,
    /// Stages of shared memory.
    pub stages: usize,
    /// Rows, warps and groups.
    pub division: Division,
}

/// A description of the machine for which schedules are searched.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Compute capability as a number: 80, 90, …
    pub sm: u32,
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of shared memory that a block may have.
    pub shared_bytes: usize,
    /// Instructions that there are kernels for.
    pub intrinsics: Vec<Intrinsic>,
    /// Blocks of `ffma` kernels, the one to prefer first.
    pub ffma_blocks: Vec<FfmaBlock>,
    /// Whether patterns may also run element by element ([`crate::Form::Scalar`]).
    pub scalar: bool,
    /// Whether what follows the multiplication may be left to a kernel of its own.
    pub apart: bool,
}

impl Target {
    /// An NVIDIA H200: every kernel there is.
    pub fn h200() -> Target {
        let ffma = |rows, tokens, warp, groups, columns, stages| FfmaBlock {
            tokens,
            stages,
            division: Division { rows, warp, groups, columns },
        };
        Target {
            sm: 90,
            multiprocessors: 132,
            shared_bytes: 227 * 1024,
            intrinsics: Intrinsic::ALL.to_vec(),
            ffma_blocks: vec![
                ffma(128, 128, (64, 32), 1, 32, 3),
                ffma(64, 64, (64, 32), 2, 32, 3),
                ffma(64, 32, (64, 32), 4, 64, 3),
                ffma(32, 128, (32, 64), 2, 32, 3),
                ffma(32, 32, (32, 32), 4, 32, 4),
                ffma(16, 64, (16, 64), 8, 64, 3),
            ],
            scalar: false,
            apart: false,
        }
    }

    /// Whether kernels of this instruction run here.
    pub fn has(&self, intrinsic: Intrinsic) -> bool {
        let right_sm =
            if intrinsic.is_arch_specific() { self.sm == intrinsic.min_sm() } else { self.sm >= intrinsic.min_sm() };
        right_sm && self.intrinsics.contains(&intrinsic)
    }
}
