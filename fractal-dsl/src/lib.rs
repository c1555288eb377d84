//! What a sparse GEMM computes and which weights it keeps: the language, its checker and PatternIR.
//!
//! ```text
//! DSL text --parse--> Ast --check--> Program --replay--> Pattern
//! ```
//!
//! The macro `sparse_gemm!` and [`Program::parse`] share one parser and one checker. [`Program`] is immutable data that
//! prints as canonical text and goes to and from JSON.

pub mod ast;
mod builder;
pub mod check;
mod const_expr;
mod cursor;
mod describe;
mod diagnostic;
mod directive;
mod dtype;
mod expanded;
mod frontend;
mod intrinsic;
#[doc(hidden)]
pub mod lens;
mod lineage;
mod nest;
pub mod parse;
pub mod pattern;
mod program;
mod replay;
mod text;

pub use builder::ProgramBuilder;
pub use diagnostic::{At, Diagnostic, Diagnostics, Errors, Place, Report};
pub use directive::{Directive, Level, Memory};
pub use dtype::DType;
#[doc(hidden)]
pub use expanded::expanded;
pub use frontend::{MacroInput, from_tokens};
pub use intrinsic::Intrinsic;
pub use program::{AxisNames, Dim, Dimension, EpilogueOp, Factor, Layout, Operand, Program};
pub use replay::{Replay, ShapeError, Sizes};
