fractal::sparse_gemm! {
    pub gemm Up<M, N = 4096, K = 1024> {
        weight w: bf16[N, K];
        input  x: bf16[K, M];
        output y: bf16[N, M];
        y[n, m] += w[n, k] * x[k, m];
        schedule {
            let (no, ni) = split(n, 0);
            skip(k, per = mo, keep = 0);
            let (ko, ki) = split(n, 4);
            tensorize(ni, m, ki, wgmma_ps);
        }
    }
}

fn main() {
    let _ = Up::program();
}
