//! What the macro's expansion calls.

use crate::Program;

/// The program of an expansion: `text` was checked when it was compiled, `bindings` are its constant dimensions.
///
/// # Panics
/// Where the values of the constants make the schedule wrong, as in keeping 100 of 64: with the diagnostics.
pub fn expanded(text: &str, bindings: &[(&str, usize)]) -> Program {
    Program::parse_with(text, bindings).unwrap_or_else(|errors| panic!("sparse_gemm! with {bindings:?}:\n{errors}"))
}
