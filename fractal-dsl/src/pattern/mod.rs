//! PatternIR: which elements of a weight W[n, k] may be kept, as a nest of loops some of which are skipped.
//!
//! A [`Pattern`] is a list of [`Step`]s over axes. Each step replaces axes by new ones, so that an axis id always
//! means one thing. An element (n, k) has a value on every axis, computed from n and k by the steps in order; a
//! [`Step::Skip`] keeps `keep` of its axis' iterations in each *region* (one assignment of its `per` axes) and its new
//! axis counts the kept ones: later steps work on the positions that are left.
//!
//! | file | what it does |
//! |---|---|
//! | `builder` | steps and the rules that make them legal |
//! | `walk` | the value of every axis for every element of a row |
//! | `project` | scores -> [`Selection`], greedy |
//! | `search` | the same, each skip chosen for what the next ones leave of it |
//! | `admits` | mask -> [`Selection`] that is exactly it, or its cover |
//! | `adopt` | a selection of an equal pattern -> [`Selection`] |
//! | `grouped` | what a mask uses -> lists whose groups keep it |
//! | `format` | pattern -> packed [`Format`], and the pattern in the form in which it is executed |
//! | `pack` | weights <-> packed values and index vectors |
//! | `places` | where each element stands in a skip |
//! | `coarsen` | a pattern without its finest skip |
//! | `named` | the patterns of the literature by name |
//! | `spec` | a name with a sparse residue |

mod admits;
mod adopt;
mod builder;
mod coarsen;
mod diversity;
mod error;
mod format;
mod grouped;
mod keep;
mod named;
mod pack;
mod permute;
mod places;
mod project;
mod search;
mod selection;
mod spec;
mod walk;

pub use builder::{Axis, AxisId, AxisKind, Pattern, PatternBuilder, Step};
pub use error::PatternError;
pub use format::{Format, FormatLoop, IndexLevel, RaggedLevel};
pub use keep::{Keep, Ratio};
pub use named::{NAMED_PATTERNS, Named};
pub use pack::{IndexArray, Packed, PackedLevel};
pub use search::Effort;
pub use selection::{Kept, Level, Mask, Selection};
pub use spec::PatternSpec;
