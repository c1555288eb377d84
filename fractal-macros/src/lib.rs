//! The `sparse_gemm!` macro: a thin shim over the parser and checker of `fractal-dsl`.
