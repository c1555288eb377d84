//! Everything that can be wrong with a pattern, its scores or its masks.

use thiserror::Error;

/// A pattern, a mask or scores that cannot be used, with what was expected and what was found.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PatternError {
    /// A weight without rows or columns.
    #[error("weight is {n}x{k} (n x k): both dimensions must be at least 1")]
    Empty {
        /// Output features.
        n: usize,
        /// Input features.
        k: usize,
    },
    /// A weight whose element positions do not fit the index types.
    #[error("weight is {n}x{k} (n x k): expected each dimension below 2^31 and at most 2^40 elements; shard the layer")]
    TooLarge {
        /// Output features.
        n: usize,
        /// Input features.
        k: usize,
    },
    /// An axis that a split, join, skip or permutation has already replaced, or one of another pattern.
    #[error("{op}: axis #{axis} is not a loop of the nest any more; use the loops that replaced it")]
    NotLive {
        /// The primitive.
        op: &'static str,
        /// The axis' id.
        axis: u32,
    },
    /// An axis named twice.
    #[error("{op}: axis #{axis} is named twice; name each loop once")]
    Twice {
        /// The primitive.
        op: &'static str,
        /// The axis' id.
        axis: u32,
    },
    /// A split by zero.
    #[error("split: factor is 0; expected at least 1")]
    FactorZero,
    /// A skip that keeps nothing.
    #[error("skip: keeps 0 of {len} iterations; expected at least 1 (to drop a whole layer, remove it)")]
    KeepZero {
        /// The loop's length.
        len: usize,
    },
    /// A skip that keeps more than there is.
    #[error("skip: keeps {found} of {len} iterations; expected at most {len}")]
    KeepTooMany {
        /// What was asked for.
        found: usize,
        /// The loop's length, or the number of all iterations for a ragged skip.
        len: usize,
    },
    /// A ratio outside (0, 1].
    #[error(
        "keep ratio is {found}; expected at least 0.000001, the unit in which ratios are held, and at most 1 (100 %)"
    )]
    KeepRatio {
        /// The ratio found, as a fraction.
        found: f64,
    },
    /// `N of M` on a loop of another length.
    #[error("skip: keeps {kept} of {of}, but the loop has {len} iterations; split it by {of} first")]
    KeepOf {
        /// N.
        kept: usize,
        /// M.
        of: usize,
        /// The loop's length.
        len: usize,
    },
    /// A joined loop whose length overflows the index type.
    #[error("join: {a} x {b} iterations; expected fewer than 2^32 - 1; split first and join the outer loops")]
    JoinTooLong {
        /// Length of the first loop.
        a: usize,
        /// Length of the second loop.
        b: usize,
    },
    /// A second ragged skip.
    #[error("skip: a second ragged skip; expected at most one a pattern: give the other a count or a ratio")]
    RaggedTwice,
    /// A primitive that needs one length for all regions, used on a ragged loop.
    #[error(
        "{op}: axis #{axis} is ragged (each region keeps its own count); only split may follow, and a skip of the inner part"
    )]
    RaggedAxis {
        /// The primitive.
        op: &'static str,
        /// The axis' id.
        axis: u32,
    },
    /// A join or skip of a loop that counts the regions of a ragged skip.
    #[error("{op}: axis #{axis} counts the regions of a ragged skip; {op} it before that skip")]
    RaggedRegion {
        /// The primitive.
        op: &'static str,
        /// The axis' id.
        axis: u32,
    },
    /// A reorder that is no permutation of the loops it names.
    #[error("reorder: no loop is named; expected at least one")]
    ReorderEmpty,
    /// A slice whose length is not n times k.
    #[error("{what} has {found} elements; expected n*k = {n}*{k} = {expected}")]
    Shape {
        /// What the slice holds.
        what: &'static str,
        /// Elements found.
        found: usize,
        /// Elements expected.
        expected: usize,
        /// Output features.
        n: usize,
        /// Input features.
        k: usize,
    },
    /// A score that is not a finite number.
    #[error("score of element ({n}, {k}) is {value}; expected a finite number")]
    Score {
        /// Row.
        n: usize,
        /// Column.
        k: usize,
        /// The score.
        value: f32,
    },
    /// A mask that uses more iterations than a region may keep.
    #[error("skip #{step}: region {region} uses {used} iterations; the pattern keeps at most {keep}")]
    Exceeds {
        /// Index of the step among the pattern's steps.
        step: usize,
        /// The region's flat number.
        region: usize,
        /// Iterations the mask uses.
        used: usize,
        /// Iterations the pattern keeps.
        keep: usize,
    },
    /// A mask with a hole: an element is dropped although every loop above it is kept.
    #[error("element ({n}, {k}) is dropped inside a unit that the pattern can only keep whole; take the cover instead")]
    Hole {
        /// Row.
        n: usize,
        /// Column.
        k: usize,
    },
    /// A selection that does not belong to the pattern.
    #[error("selection does not fit the pattern: step #{step}: {expected}, found {found}")]
    Selection {
        /// Index of the step among the pattern's steps.
        step: usize,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A name that is no pattern.
    #[error("`{found}` is no pattern: expected {expected}")]
    Name {
        /// The text.
        found: String,
        /// What was expected.
        expected: String,
    },
}
