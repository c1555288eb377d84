fractal::sparse_gemm! {
    gemm Up<M, N, K> {
        weight w: bf16[K, N];
        input  x: bf16[K, M];
        output y: bf16[N, M];
        y[n, m] += w[n, k] * x[k, m];
    }
}

fn main() {}
