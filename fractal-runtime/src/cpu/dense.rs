//! The dense GEMM to compare with and to fall back to: input W[n, k] and X[k, m], output Y[n, m].
//!
//! It is the `gemm` crate in f32 with conversion at the edges. Measured on two Zen 5 cores with AVX-512, 768..4096 a
//! side: `gemm` (feature `x86-v4`) 440-460 GFLOP/s, `faer` the same within 3 %, `matrixmultiply` 350-390; `gemm`'s own
//! f16 250-300, which is why 16-bit operands are widened first.

use super::epilogue::{Epilogue, Step};
use super::execute::{ExecuteError, check_operands};
use super::matrix::{Element, ElementsMut, MatMut, MatRef};
use super::raw::{self, Isa};
use half::{bf16, f16};
use rayon::prelude::*;

/// Y = epilogue(W X) with up to `threads` threads (0 counts as 1) of the current rayon pool.
///
/// `w` is [n, k], `x` [k, m] and `y` [n, m], all of one storage type. Every element of `y` is written.
///
/// # Errors
/// [`ExecuteError`] when an operand's shape or type does not fit; `y` is untouched then.
pub fn dense(
    w: MatRef<'_>,
    x: MatRef<'_>,
    y: MatMut<'_>,
    epilogue: &Epilogue<'_>,
    threads: usize,
) -> Result<(), ExecuteError> {
    check_operands((w.rows(), w.cols(), w.dtype()), x, &y, epilogue)?;
    let stride = y.stride();
    let m = y.cols();
    if m == 0 || w.rows() == 0 {
        return Ok(());
    }
    match y.into_elements() {
        ElementsMut::F32(y) => run::<f32>(w, x, y, stride, epilogue, threads),
        ElementsMut::F16(y) => run::<f16>(w, x, y, stride, epilogue, threads),
        ElementsMut::BF16(y) => run::<bf16>(w, x, y, stride, epilogue, threads),
    }
    Ok(())
}

fn run<T: Element>(w: MatRef<'_>, x: MatRef<'_>, y: &mut [T], stride: usize, epilogue: &Epilogue<'_>, threads: usize) {
    let isa = Isa::best();
    let (n, k, m) = (w.rows(), w.cols(), x.cols());
    let (mut w_wide, mut x_wide) = (Vec::new(), Vec::new());
    let w = wide::<T>(isa, w, threads, &mut w_wide);
    let x = wide::<T>(isa, x, threads, &mut x_wide);
    let mut product = vec![0.0; n * m];
    raw::dense_f32((n, k, m), w, x, (&mut product, m), threads);
    let steps: Vec<Step<'_, T>> = epilogue.ops.iter().map(|op| Step::new(op).expect("types were checked")).collect();
    let store = |(row, (out, sums)): (usize, (&mut [T], &mut [f32]))| {
        let mut scratch = Vec::new();
        for step in &steps {
            step.apply(isa, row, 0, sums, &mut scratch);
        }
        T::narrow(isa, sums, &mut out[..m]);
    };
    if threads > 1 {
        y.par_chunks_mut(stride).zip(product.par_chunks_mut(m)).enumerate().for_each(store);
    } else {
        y.chunks_mut(stride).zip(product.chunks_mut(m)).enumerate().for_each(store);
    }
}

/// The matrix as f32 with its row stride: itself when it is f32 already.
fn wide<'b, T: Element>(isa: Isa, a: MatRef<'b>, threads: usize, buffer: &'b mut Vec<f32>) -> (&'b [f32], usize) {
    let (rows, cols) = (a.rows(), a.cols());
    if let Some(data) = T::of(a.elements()).and_then(T::as_f32) {
        return (data, a.stride());
    }
    let typed = a.typed::<T>().expect("types were checked");
    buffer.resize(rows * cols, 0.0);
    if cols > 0 && threads > 1 {
        buffer.par_chunks_mut(cols).enumerate().for_each(|(r, out)| T::widen(isa, typed.row(r), out));
    } else if cols > 0 {
        buffer.chunks_mut(cols).enumerate().for_each(|(r, out)| T::widen(isa, typed.row(r), out));
    }
    (buffer, cols)
}
