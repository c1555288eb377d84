//! The library GEMM behind slices.

/// Y[n, m] = W[n, k] X[k, m], all row-major f32 of the given row strides, by the `gemm` crate.
///
/// # Panics
/// When a slice is too short for its extents, or y's rows overlap.
pub fn dense_f32(
    (n, k, m): (usize, usize, usize),
    (w, w_stride): (&[f32], usize),
    (x, x_stride): (&[f32], usize),
    (y, y_stride): (&mut [f32], usize),
    threads: usize,
) {
    let needed = |rows: usize, cols: usize, stride: usize| if rows == 0 { 0 } else { (rows - 1) * stride + cols };
    assert!(w.len() >= needed(n, k, w_stride) && x.len() >= needed(k, m, x_stride));
    assert!(y.len() >= needed(n, m, y_stride) && (y_stride >= m || n <= 1));
    let threads = if threads <= 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
    // SAFETY: each matrix lies within its slice by the assertions, and `y` is borrowed mutably, so nothing aliases it.
    unsafe {
        gemm::gemm(
            n,
            m,
            k,
            y.as_mut_ptr(),
            1,
            y_stride as isize,
            false,
            w.as_ptr(),
            1,
            w_stride as isize,
            x.as_ptr(),
            1,
            x_stride as isize,
            0.0,
            1.0,
            false,
            false,
            false,
            threads,
        );
    }
}
