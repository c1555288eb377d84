//! What a sparse GEMM computes and which weights it keeps: the language, its checker and PatternIR.

mod dtype;
pub mod pattern;

pub use dtype::DType;
