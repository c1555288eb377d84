//! The dense GEMM to compare with and to fall back to: input W[n, k] and X[k, m], output Y[n, m].
//!
//! It is the `gemm` crate in f32 with conversion at the edges. Measured on two Zen 5 cores with AVX-512, 768..4096 a
//! side: `gemm` (feature `x86-v4`) 440-460 GFLOP/s, `faer` the same within 3 %, `matrixmultiply` 350-390; `gemm`'s own
//! f16 250-300, which is why 16-bit operands are widened first.

use super::epilogue::{Epilogue, Step};
use super::execute::{ExecuteError, check_operands};
use super::matrix::{Element, Elements, ElementsMut, MatMut, MatRef};
use super::raw::{self, Isa};
use half::{bf16, f16};
use rayon::prelude::*;
use std::cell::RefCell;

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
        ElementsMut::F32(y) => run_f32(w, x, y, stride, epilogue, threads),
        ElementsMut::F16(y) => run::<f16>(w, x, y, stride, epilogue, threads),
        ElementsMut::BF16(y) => run::<bf16>(w, x, y, stride, epilogue, threads),
    }
    Ok(())
}

thread_local! {
    /// Widened w, widened x and the product, kept from call to call: fresh pages would cost as much as the product.
    static WIDE: RefCell<[Vec<f32>; 3]> = RefCell::default();
}

fn run_f32(w: MatRef<'_>, x: MatRef<'_>, y: &mut [f32], stride: usize, epilogue: &Epilogue<'_>, threads: usize) {
    let (n, k, m) = (w.rows(), w.cols(), x.cols());
    let (w_data, x_data) = match (w.elements(), x.elements()) {
        (Elements::F32(w), Elements::F32(x)) => (w, x),
        _ => unreachable!("types were checked"),
    };
    raw::dense_f32((n, k, m), (w_data, w.stride()), (x_data, x.stride()), (y, stride), threads);
    if epilogue.ops.is_empty() {
        return;
    }
    let steps = steps::<f32>(epilogue);
    let finish = |(row, out): (usize, &mut [f32])| {
        for step in &steps {
            step.apply(Isa::best(), row, 0, &mut out[..m], &mut Vec::new());
        }
    };
    if threads > 1 {
        y.par_chunks_mut(stride).take(n).enumerate().for_each(finish);
    } else {
        y.chunks_mut(stride).take(n).enumerate().for_each(finish);
    }
}

fn steps<'a, T: Element>(epilogue: &Epilogue<'a>) -> Vec<Step<'a, T>> {
    epilogue.ops.iter().map(|op| Step::new(op).expect("types were checked")).collect()
}

fn run<T: Element>(w: MatRef<'_>, x: MatRef<'_>, y: &mut [T], stride: usize, epilogue: &Epilogue<'_>, threads: usize) {
    let isa = Isa::best();
    let (n, k, m) = (w.rows(), w.cols(), x.cols());
    let mut buffers = WIDE.take();
    let [w_wide, x_wide, product] = &mut buffers;
    let w = wide::<T>(isa, w, threads, w_wide);
    let x = wide::<T>(isa, x, threads, x_wide);
    product.resize(product.len().max(n * m), 0.0);
    let product = &mut product[..n * m];
    raw::dense_f32((n, k, m), w, x, (product, m), threads);
    let steps = steps::<T>(epilogue);
    let store = |(row, (out, sums)): (usize, (&mut [T], &mut [f32]))| {
        for step in &steps {
            step.apply(isa, row, 0, sums, &mut Vec::new());
        }
        T::narrow(isa, sums, &mut out[..m]);
    };
    if threads > 1 {
        y.par_chunks_mut(stride).zip(product.par_chunks_mut(m)).enumerate().for_each(store);
    } else {
        y.chunks_mut(stride).zip(product.chunks_mut(m)).enumerate().for_each(store);
    }
    WIDE.set(buffers);
}

/// The matrix widened into `buffer`, with its row stride.
fn wide<'b, T: Element>(isa: Isa, a: MatRef<'b>, threads: usize, buffer: &'b mut Vec<f32>) -> (&'b [f32], usize) {
    let (rows, cols) = (a.rows(), a.cols());
    let typed = a.typed::<T>().expect("types were checked");
    buffer.resize(buffer.len().max(rows * cols), 0.0);
    let buffer = &mut buffer[..rows * cols];
    if cols > 0 && threads > 1 {
        buffer.par_chunks_mut(cols).enumerate().for_each(|(r, out)| T::widen(isa, typed.row(r), out));
    } else if cols > 0 {
        buffer.chunks_mut(cols).enumerate().for_each(|(r, out)| T::widen(isa, typed.row(r), out));
    }
    (buffer, cols)
}
