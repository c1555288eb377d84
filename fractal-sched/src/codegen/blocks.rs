//! The blocks that `ffma` kernels have.

use super::Division;

/// One way for blocks of an `ffma` kernel to divide a tile: tokens a block, stages, and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FfmaBlock {
    /// Tokens a block.
    pub tokens: usize,
    /// Stages of shared memory.
    pub stages: usize,
    /// Rows, warps and groups.
    pub division: Division,
}

/// Rows x tokens of a block and of a warp, groups, columns a stage, stages.
const fn choice(
    block: (usize, usize),
    warp: (usize, usize),
    groups: usize,
    columns: usize,
    stages: usize,
) -> FfmaBlock {
    FfmaBlock { tokens: block.1, stages, division: Division { rows: block.0, warp, groups, columns } }
}

/// What is chosen from: the first is for large results; slabs of tiles and groups of warps fill the GPU where there are few
/// results or few columns. Tables of fewer rows have the later ones.
pub const FFMA_BLOCKS: &[FfmaBlock] = &[
    choice((128, 128), (64, 32), 1, 32, 3),
    choice((64, 64), (64, 32), 4, 64, 3),
    choice((64, 64), (64, 32), 2, 32, 3),
    choice((64, 48), (64, 48), 8, 64, 3),
    choice((64, 32), (64, 32), 4, 64, 3),
    choice((32, 128), (32, 64), 2, 32, 3),
    choice((32, 48), (32, 48), 4, 32, 4),
    choice((32, 32), (32, 32), 8, 64, 3),
    choice((32, 32), (32, 32), 4, 32, 4),
    choice((16, 64), (16, 64), 8, 64, 3),
];
