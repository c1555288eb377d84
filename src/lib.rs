//! Fractal: a schedule language for sparse matrix multiplication.
