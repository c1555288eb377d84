fn main() {
    let _ = fractal::sparse_gemm! {
        <M = 0, N = 4294967296 * 4294967296, K = 2147483648>
        weight w: f32[N, K];
        input  x: f32[K, M];
        output y: f32[N, M];
        y[n, m] += w[n, k] * x[k, m];
    };
}
