fn main() {
    let _ = fractal::sparse_gemm! {};
}
