fractal::sparse_gemm! {
    pub gemm Up<M, N = 4096, K = 1024> {
        weight w: bf16[N, K];
        input  x: bf16[K, M];
        output y: bf16[N, M];
        y[n, m] += w[n, k] * x[k, m];
        schedule {
            let (no, ni) = split(n, 128);
            skip(k, per = no, keep = 0);
            skip(ni, per = no, keep = 129);
            skip(no, keep = 100.5%);
            skip(k, per = no, keep = 0.25);
        }
    }
}

fn main() {
    let _ = Up::program();
}
