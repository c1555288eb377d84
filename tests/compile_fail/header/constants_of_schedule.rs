const HIDDEN: usize = 1024;
const WIDTH: u32 = 64;

fn main() {
    let _ = fractal::sparse_gemm! {
        <M, N = HIDDEN, K = WIDTH>
        weight w: f16[N, K];
        input  x: f16[K, M];
        output y: f16[N, M];
        y[n, m] += w[n, k] * x[k, m];
        schedule {
            let (no, ni) = split(n, 100);
            skip(no, per = (), keep = 12);
            skip(k, per = no, keep = 50%);
            skip(k, per = no, keep = 33);
        }
    };
}
