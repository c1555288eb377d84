fractal::sparse_gemm! {
    pub gemm Up<M, N = 4096, K = 1024> {
        weight w: bf16[N, K];
        input  x: bf16[K, M];
        output y: bf16[N, M];
        y[n, m] += w[n, k] * x[k, m];
        schedule {
            let (ko, ki) = split(k, 8);
            skip(ki, per = (n, ko), keep = 2 of 8);
            tensorize(n, m, k, mma_sp);
        }
    }
}

fn main() {
    let _ = Up::program();
}
