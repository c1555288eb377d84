const HIDDEN: usize = 0;
const HUGE: u64 = 1 << 40;

fractal::sparse_gemm! {
    gemm Up<M, N = HIDDEN, K = { HUGE / 2 }> {
        weight w: f32[N, K];
        input  x: f32[K, M];
        output y: f32[N, M];
        y[n, m] += w[n, k] * x[k, m];
    }
}

fn main() {}
