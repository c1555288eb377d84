fractal::sparse_gemm! {
    gemm Up<M, N, K> {
        weight w: f32[N, K];
        input  x: f32[M, K];
        output y: f32[N, M];
        y[n, m] += w[n, k] * x[k, m];
    }
}

fn main() {}
