//! Misuse of `sparse_gemm!` is a compile error at its token, all at once. `TRYBUILD=overwrite` writes what the compiler
//! says now; read the difference before it is committed.

#[test]
fn compile_fail() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*/*.rs");
}
