//! The dense GEMM to compare with and to fall back to: input W[n, k] and X[k, m], output Y[n, m].
//!
//! It is the `gemm` crate in f32 with conversion at the edges. Measured on two Zen 5 cores with AVX-512, 768..4096 a
//! side: `gemm` (feature `x86-v4`) 440-460 GFLOP/s, `faer` the same within 3 %, `matrixmultiply` 350-390; `gemm`'s own
//! f16 250-300, which is why 16-bit operands are widened first.

use super::epilogue::{Epilogue, Step};
use super::execute::{ExecuteError, check_operands};
use super::matrix::{Element, ElementsMut, MatMut, MatRef, Typed};
use super::raw::{self, Isa};
use half::{bf16, f16};
use rayon::prelude::*;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

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
    dense_and_check(w, x, y, epilogue, threads).map(drop)
}

/// [`dense()`], and whether the first row of W X is finite. Each of its elements is a sum over a whole column of X, so X
/// is finite where it is; where it is not, X may hold an infinity or NaN, or a sum is past the range of f32.
pub(super) fn dense_and_check(
    w: MatRef<'_>,
    x: MatRef<'_>,
    y: MatMut<'_>,
    epilogue: &Epilogue<'_>,
    threads: usize,
) -> Result<bool, ExecuteError> {
    check_operands((w.rows(), w.cols(), w.dtype()), x, &y, epilogue)?;
    // A single row may come with any stride.
    let stride = y.stride().max(y.cols());
    if y.cols() == 0 || w.rows() == 0 {
        return Ok(true);
    }
    Ok(match y.into_elements() {
        ElementsMut::F32(y) => Run::<f32>::new(w, x, epilogue, threads).run(y, stride),
        ElementsMut::F16(y) => Run::<f16>::new(w, x, epilogue, threads).run(y, stride),
        ElementsMut::BF16(y) => Run::<bf16>::new(w, x, epilogue, threads).run(y, stride),
    })
}

/// Up to these tokens threads take blocks of W's rows: a widened block and its sums stay in a core's cache, and the
/// library, which takes one thread for a product with a vector, has nothing to divide. With more tokens each block's own
/// copy of X would cost more than that saves.
pub(super) const FEW_TOKENS: usize = 64;
/// Elements of such a block: 512 KiB of f32, half of a second-level cache.
const BLOCK: usize = 128 << 10;

thread_local! {
    /// Widened w, widened x and the product, kept from call to call: fresh pages would cost as much as the product.
    static WIDE: RefCell<[Vec<f32>; 3]> = RefCell::default();
}

struct Run<'a, T> {
    w: Typed<'a, T>,
    x: Typed<'a, T>,
    n: usize,
    k: usize,
    m: usize,
    steps: Vec<Step<'a, T>>,
    threads: usize,
}

impl<'a, T: Element> Run<'a, T> {
    /// Panics when types differ; [`check_operands`] has seen to that.
    fn new(w: MatRef<'a>, x: MatRef<'a>, epilogue: &Epilogue<'a>, threads: usize) -> Self {
        let typed = |a: MatRef<'a>| a.typed().expect("types were checked");
        let steps = epilogue.ops.iter().map(|op| Step::new(op).expect("types were checked")).collect();
        Run { w: typed(w), x: typed(x), n: w.rows(), k: w.cols(), m: x.cols(), steps, threads: threads.max(1) }
    }

    fn run(&self, y: &mut [T], stride: usize) -> bool {
        // Taken, not borrowed: a caller's own rayon job may run on this thread while this one waits.
        let [w_wide, mut x_wide, product] = WIDE.take();
        let x = widen(&self.x, 0, self.k, self.threads, &mut x_wide);
        let rows = self.n.div_ceil(self.threads).min((BLOCK / self.k.max(1)).max(1).next_multiple_of(16));
        let finite = AtomicBool::new(true);
        let mut own = (w_wide, product);
        if self.m > FEW_TOKENS || self.threads == 1 && T::as_f32(&[]).is_some() {
            finite.store(self.rows(0, y, stride, x, self.threads, &mut own), Ordering::Relaxed);
        } else {
            let blocks = y.par_chunks_mut(rows * stride).take(self.n.div_ceil(rows));
            for_each(self.threads, blocks, |block, y| {
                let [w_wide, x_wide, product] = WIDE.take();
                let mut buffers = (w_wide, product);
                if !self.rows(block * rows, y, stride, x, 1, &mut buffers) && block == 0 {
                    finite.store(false, Ordering::Relaxed);
                }
                WIDE.set([buffers.0, x_wide, buffers.1]);
            });
        }
        WIDE.set([own.0, x_wide, own.1]);
        finite.into_inner()
    }

    /// Rows from `first` on, as many as `y` holds, and whether the first row of the product is finite.
    fn rows(
        &self,
        first: usize,
        y: &mut [T],
        stride: usize,
        x: (&[f32], usize),
        threads: usize,
        (w_wide, product): &mut (Vec<f32>, Vec<f32>),
    ) -> bool {
        let (isa, m) = (Isa::best(), self.m);
        let rows = y.len().div_ceil(stride).min(self.n - first);
        let w = widen(&self.w, first, rows, threads, w_wide);
        let finish = |row: usize, sums: &mut [f32]| {
            self.steps.iter().for_each(|step| step.apply(isa, first + row, 0, sums, &mut Vec::new()));
        };
        if let Some(y) = T::as_f32_mut(y) {
            raw::dense_f32((rows, self.k, m), w, x, (y, stride), threads);
            let finite = is_finite(&y[..m]);
            if !self.steps.is_empty() {
                for_each(threads, y.par_chunks_mut(stride).take(rows), |row, y| finish(row, &mut y[..m]));
            }
            return finite;
        }
        let product = at_least(product, rows * m);
        raw::dense_f32((rows, self.k, m), w, x, (product, m), threads);
        let finite = is_finite(&product[..m]);
        for_each(threads, y.par_chunks_mut(stride).zip(product.par_chunks_mut(m)), |row, (y, sums)| {
            finish(row, sums);
            T::narrow(isa, sums, &mut y[..m]);
        });
        finite
    }
}

/// Visits numbered items on at most `threads` threads.
fn for_each<I: IndexedParallelIterator>(threads: usize, items: I, visit: impl Fn(usize, I::Item) + Sync + Send) {
    let least = if threads < rayon::current_num_threads() { items.len().div_ceil(threads) } else { 1 };
    items.enumerate().with_min_len(least.max(1)).for_each(|(number, item)| visit(number, item));
}

fn is_finite(row: &[f32]) -> bool {
    row.iter().all(|v| v.is_finite())
}

fn at_least(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        *buffer = vec![0.0; len];
    }
    &mut buffer[..len]
}

/// `rows` rows of the matrix as f32, widened into `buffer` where they are not, with their stride.
fn widen<'b, T: Element>(
    a: &Typed<'b, T>,
    first: usize,
    rows: usize,
    threads: usize,
    buffer: &'b mut Vec<f32>,
) -> (&'b [f32], usize) {
    let cols = a.cols();
    if rows == 0 || cols == 0 {
        return (&[], cols);
    }
    if let Some(all) = T::as_f32(a.rows(first..first + rows)) {
        return (all, a.stride());
    }
    let buffer = at_least(buffer, rows * cols);
    for_each(threads, buffer.par_chunks_mut(cols), |r, out| T::widen(Isa::best(), a.row(first + r), out));
    (buffer, cols)
}
