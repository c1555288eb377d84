//! The CPU backend: kept tiles of a pruned weight, multiplied on all cores.
//!
//! | stage | file | input | output |
//! |---|---|---|---|
//! | check | [`plan`] | [`TilePlan`] | [`ValidPlan`] |
//! | run | [`execute()`] | [`ValidPlan`], X[k, m], [`Epilogue`] | Y[n, m] |
//! | compare | [`dense()`] | W[n, k], X[k, m], [`Epilogue`] | Y[n, m] |

mod backend;
pub mod cost;
mod dense;
mod epilogue;
mod execute;
mod matrix;
pub mod plan;
mod raw;
mod record;
#[cfg(test)]
mod tests;

pub use backend::CpuBackend;
pub use dense::dense;
pub use epilogue::{Epilogue, EpilogueOp};
pub use execute::{ExecuteError, execute};
pub use matrix::{Elements, ElementsMut, MatMut, MatRef, ViewError};
pub use plan::{PlanError, ROW_BLOCK, Tile, TilePlan, ValidPlan, Values};
pub use record::record;
