fractal::sparse_gemm! {
    gemm Up<M, N, K> {
        weight w: f32[N, K];
    }
}

fn main() {}
