//! How a sparse GEMM is computed: schedules, LoopIr and its lowering.
//!
//! | stage | input | output | file |
//! |---|---|---|---|
//! | search | [`fractal_dsl::pattern::Pattern`] | [`egraph::Candidate`]s: equal patterns and their kernels | `egraph` |
//! | lower | [`fractal_dsl::pattern::Pattern`], [`Schedule`] | [`LoopIr`] | `lower` |
//! | verify | [`LoopIr`] | the same, known to stay in bounds | `verify` |
//! | print | [`LoopIr`] | text | `print` |
//! | request | [`fractal_dsl::Program`] | [`KernelRequest`]: what its schedule asks of the kernel | `request` |
//! | emit | [`codegen::KernelConfig`] | CUDA text | `codegen` |
//! | execute | [`LoopIr`], index vectors, a [`Machine`] | the machine's effects | `execute` |
//! | interpret | [`LoopIr`], packed weight, activations | result, slow and exact | `interpret` |

pub mod codegen;
pub mod egraph;
pub mod execute;
pub mod interpret;
pub mod loop_ir;
mod lower;
mod print;
mod request;
mod schedule;
mod verify;

pub use execute::{ExecuteError, Machine, Tables, execute};
pub use interpret::{Operands, apply_epilogue, interpret};
pub use loop_ir::LoopIr;
pub use lower::{LowerError, lower};
pub use request::KernelRequest;
pub use schedule::{EpilogueStep, Form, Schedule};
pub use verify::{VerifyError, verify};
