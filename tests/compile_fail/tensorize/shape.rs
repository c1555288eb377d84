fractal::sparse_gemm! {
    pub gemm Up<M, N = 4096, K = 1024> {
        weight w: bf16[N, K];
        input  x: bf16[K, M];
        output y: bf16[N, M];
        y[n, m] += w[n, k] * x[k, m];
        schedule {
            tile(m, 100);
            let (no, ni) = split(n, 100);
            let (ko, ki) = split(k, 8);
            tensorize(ni, m, ki, wgmma);
        }
    }
}

fn main() {
    let _ = Up::program();
}
