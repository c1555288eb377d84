fractal::sparse_gemm! {
    pub gemm Up<M, N = 4096, K = 1024> {
        weight w: bf16[N, K];
        input  x: bf16[K, M];
        output y: bf16[N, M];
        y[n, m] += w[n, k] * x[k, m];
        schedule {
            let (no, ni) = split(n, 64);
            let (ko, ki) = split(k, 64);
            let blocks = join(no, ko);
            skip(ni, per = blocks, keep = 50%);
            tensorize(ni, m, ki, wgmma);
        }
    }
}

fn main() {
    let _ = Up::program();
}
