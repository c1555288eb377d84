//! The only unsafe code of the CPU backend. Each file is behind safe functions whose types or assertions carry what its
//! pointers need.
//!
//! | file | what |
//! |---|---|
//! | `isa` | instruction sets of the machine, compilation for each |
//! | `lanes` | sixteen f32 lanes in each set |
//! | `kernels` | products of weights and rows of X by index |
//! | `convert` | elementwise loops, widening, narrowing, panels |
//! | `output` | the shared output |
//! | `library` | the `gemm` crate |

mod convert;
mod isa;
mod kernels;
mod lanes;
mod library;
mod output;

pub use convert::*;
pub use isa::{Isa, LANES};
pub use kernels::{Bounded, BoundedIndices, MAX_FEW, Row, Weights, accumulate, accumulate_rows, sum_rows};
pub use library::dense_f32;
pub use output::{DistinctRows, OutputTask, OutputTasks};
