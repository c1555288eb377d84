fn main() {
    let _ = fractal::sparse_gemm! {
        <M, N, K>
        weight w: f32[N, K];
        input  x: f32[K, M];
        output y: f32[N, M];
        y[n, m] = w[n, k] * x[k, m];
    };
}
