fractal::sparse_gemm! {
    pub gemm Up<M, N = 4096, K = 1024> {
        weight w: bf16[N, K];
        input  x: bf16[K, M];
        output y: bf16[N, M];
        y[n, m] += w[n, k] * x[k, m];
        schedule {
            skip(k, per = n, keep = ragged 25%);
            permute(k);
            let (ko, ki) = split(k, 4);
            skip(ki, per = (n, ko), keep = ragged 25%);
        }
    }
}

fn main() {
    let _ = Up::program();
}
