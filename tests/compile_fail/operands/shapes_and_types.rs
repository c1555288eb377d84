fractal::sparse_gemm! {
    gemm Up<M, N, K> {
        weight w: bf61[N, K];
        input  x: f16[N, M];
        output y: f64[N, K];
        y[n, m] += w[n, k] * x[k, m];
    }
}

fn main() {}
