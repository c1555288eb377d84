fractal::sparse_gemm! {
    pub gemm Up<M, N = 4096, K = 1024> {
        weight w: bf16[N, K];
        input  x: bf16[K, M];
        output y: bf16[N, M];
        y[n, m] += w[n, k] * x[k, m];
        schedule {
            skip(k);
            skip(k, kep = 4);
            skip(n, 50%);
            let kk = skip(k, keep = 4);
        }
    }
}

fn main() {
    let _ = Up::program();
}
