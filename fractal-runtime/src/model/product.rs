//! Dense products of strided f32 matrices: the one place of this folder that calls the `gemm` crate.

/// A matrix to read: element (r, c) is at `r * row_stride + c * column_stride`.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> View<'a> {
    /// Rows of contiguous values, `stride` apart. Panics where `data` does not hold them.
    pub(super) fn new(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        check_bounds(data.len(), rows, columns, stride);
        Self { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// The transpose of the same values.
    pub(super) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// A matrix to write: rows of contiguous values, `stride` apart.
pub(super) struct ViewMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    columns: usize,
    stride: usize,
}

impl<'a> ViewMut<'a> {
    /// Panics where `data` does not hold the rows.
    pub(super) fn new(data: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> Self {
        check_bounds(data.len(), rows, columns, stride);
        Self { data, rows, columns, stride }
    }
}

fn check_bounds(len: usize, rows: usize, columns: usize, stride: usize) {
    let fits = rows == 0 || columns == 0 || (columns <= stride && (rows - 1) * stride + columns <= len);
    assert!(fits, "{len} values are no matrix [{rows}, {columns}] of rows {stride} apart");
}

/// Whether a product adds to what its place held before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    /// What was there is not read.
    Overwritten,
    /// The product is added.
    Added,
}

/// Which threads take part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Threads {
    /// The calling one.
    One,
    /// All of the rayon pool.
    All,
}

/// Y\[n, m\] = A\[n, k\] B\[k, m\], or Y + A B. The order of the sums depends on the shapes and the number of threads
/// only. Panics where the shapes do not fit.
pub(super) fn multiply(y: ViewMut<'_>, a: View<'_>, b: View<'_>, destination: Destination, threads: Threads) {
    assert_eq!((a.rows, a.columns, b.columns), (y.rows, b.rows, y.columns), "shapes of a product");
    let parallelism = match threads {
        Threads::One => gemm::Parallelism::None,
        Threads::All => gemm::Parallelism::Rayon(0),
    };
    // SAFETY: the views were checked against their buffers' lengths when they were made, the shapes fit each other, and
    // `y` is borrowed mutably, so it overlaps neither operand.
    unsafe {
        gemm::gemm(
            y.rows,
            y.columns,
            a.columns,
            y.data.as_mut_ptr(),
            1,
            y.stride as isize,
            destination == Destination::Added,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_parts_and_transposes() {
        // [2, 3] in rows of 4, and [3, 2] as the transpose of [2, 3] in rows of 5.
        let a = [1.0, 2.0, 3.0, 9.0, 4.0, 5.0, 6.0, 9.0];
        let b = [1.0, 0.0, 2.0, 9.0, 9.0, 0.0, 1.0, 1.0, 9.0, 9.0];
        let expected = [7.0, 5.0, 16.0, 11.0];
        let mut y = [0.5; 6];
        for (destination, threads, before) in
            [(Destination::Overwritten, Threads::One, 0.0), (Destination::Added, Threads::All, 0.5)]
        {
            y.fill(0.5);
            let (a, b) = (View::new(&a, 2, 3, 4), View::new(&b, 2, 3, 5).transposed());
            multiply(ViewMut::new(&mut y, 2, 2, 3), a, b, destination, threads);
            assert_eq!([y[0], y[1], y[3], y[4]], expected.map(|v| v + before));
            assert_eq!([y[2], y[5]], [0.5; 2]);
        }
    }

    #[test]
    #[should_panic(expected = "7 values are no matrix [2, 3] of rows 5 apart")]
    fn a_view_past_its_buffer() {
        View::new(&[0.0; 7], 2, 3, 5);
    }
}
