//! Micro-kernels: sums of products in registers, the rows of X picked by index.

use super::isa::{Isa, LANES, in_isa};
use super::lanes::Lanes;
#[cfg(target_arch = "x86_64")]
use super::lanes::x86;
use std::ops::Range;

/// The most columns of X that [`sum_rows`] takes.
pub const MAX_FEW: usize = 8;

/// Indices all below a bound, so that kernels may skip the check.
#[derive(Clone, Debug)]
pub struct BoundedIndices {
    indices: Vec<u32>,
    bound: usize,
}

/// A part of [`BoundedIndices`].
#[derive(Clone, Copy, Debug)]
pub struct Bounded<'a> {
    indices: &'a [u32],
    bound: usize,
}

impl BoundedIndices {
    /// `None` when an index is not below `bound`.
    pub fn new(indices: Vec<u32>, bound: usize) -> Option<Self> {
        indices.iter().all(|&i| (i as usize) < bound).then_some(BoundedIndices { indices, bound })
    }

    pub fn part(&self, range: Range<usize>) -> Bounded<'_> {
        Bounded { indices: &self.indices[range], bound: self.bound }
    }
}

impl<'a> Bounded<'a> {
    pub fn as_slice(&self) -> &'a [u32] {
        self.indices
    }
}

/// A weight block: element (row i, kept position t) at `data[t * stride + i]`.
#[derive(Clone, Copy)]
pub struct Weights<'a> {
    pub data: &'a [f32],
    pub stride: usize,
    pub rows: usize,
}

/// What a micro-kernel gets once its bounds are checked.
#[derive(Clone, Copy)]
struct Raw {
    weights: *const f32,
    weight_stride: usize,
    panel: *const f32,
    ks: *const u32,
    kept: usize,
    sums: *mut f32,
    sum_stride: usize,
    fresh: bool,
}

/// `ROWS` x `VECTORS * 16` sums in registers. One row alone takes every second position into a second set of sums, as
/// its few chains of FMAs would leave the units idle.
///
/// # Safety
/// As [`accumulate`] asserts for these `ROWS` and `VECTORS`; the instruction set of `V` exists.
#[inline(always)]
unsafe fn tile<V: Lanes, const ROWS: usize, const VECTORS: usize>(r: Raw) {
    // SAFETY: the caller's bounds cover every position below.
    unsafe {
        let mut acc = [[V::splat(0.0); VECTORS]; ROWS];
        if !r.fresh {
            for (i, acc) in acc.iter_mut().enumerate() {
                for (v, acc) in acc.iter_mut().enumerate() {
                    *acc = V::load(r.sums.add(i * r.sum_stride + v * LANES));
                }
            }
        }
        let mut t = 0;
        if ROWS == 1 {
            let mut odd = [V::splat(0.0); VECTORS];
            while t + 1 < r.kept {
                let x0 = r.panel.add(*r.ks.add(t) as usize * (VECTORS * LANES));
                let x1 = r.panel.add(*r.ks.add(t + 1) as usize * (VECTORS * LANES));
                let w0 = V::splat(*r.weights.add(t * r.weight_stride));
                let w1 = V::splat(*r.weights.add((t + 1) * r.weight_stride));
                for v in 0..VECTORS {
                    acc[0][v] = acc[0][v].fma(w0, V::load(x0.add(v * LANES)));
                    odd[v] = odd[v].fma(w1, V::load(x1.add(v * LANES)));
                }
                t += 2;
            }
            for v in 0..VECTORS {
                acc[0][v] = acc[0][v].add(odd[v]);
            }
        }
        while t < r.kept {
            let x = r.panel.add(*r.ks.add(t) as usize * (VECTORS * LANES));
            let x: [V; VECTORS] = std::array::from_fn(|v| V::load(x.add(v * LANES)));
            let w = r.weights.add(t * r.weight_stride);
            for (i, acc) in acc.iter_mut().enumerate() {
                let w = V::splat(*w.add(i));
                for v in 0..VECTORS {
                    acc[v] = acc[v].fma(w, x[v]);
                }
            }
            t += 1;
        }
        for (i, acc) in acc.iter().enumerate() {
            for (v, acc) in acc.iter().enumerate() {
                acc.store(r.sums.add(i * r.sum_stride + v * LANES));
            }
        }
    }
}

/// For few columns of X: up to 16 rows of W fill a vector, the `COLS` elements of a row of X are broadcast.
///
/// # Safety
/// As [`sum_rows`] asserts for these `COLS`; the instruction set of `V` exists.
#[inline(always)]
unsafe fn columns<V: Lanes, const COLS: usize, const SETS: usize>(r: Raw) {
    // SAFETY: the caller's bounds cover every position below.
    unsafe {
        let mut acc = [[V::splat(0.0); COLS]; SETS];
        let step = |acc: &mut [V; COLS], t: usize| {
            let w = V::load(r.weights.add(t * r.weight_stride));
            let x = r.panel.add(*r.ks.add(t) as usize * COLS);
            for (j, acc) in acc.iter_mut().enumerate() {
                *acc = acc.fma(w, V::splat(*x.add(j)));
            }
        };
        let mut t = 0;
        while t + SETS <= r.kept {
            for (s, acc) in acc.iter_mut().enumerate() {
                step(acc, t + s);
            }
            t += SETS;
        }
        while t < r.kept {
            step(&mut acc[0], t);
            t += 1;
        }
        for j in 0..COLS {
            let mut sum = V::load(r.sums.add(j * LANES));
            for acc in &acc {
                sum = sum.add(acc[j]);
            }
            sum.store(r.sums.add(j * LANES));
        }
    }
}

/// Instantiates a kernel for the sizes that a set uses; other sizes do not get past the assertions.
macro_rules! sized {
    ($kernel:ident, $lanes:ty, $raw:ident, ($x:ident, $y:ident), $(($a:literal, $b:literal))*) => {
        match ($x, $y) {
            $(($a, $b) => $kernel::<$lanes, $a, $b>($raw),)*
            _ => unreachable!("sizes are checked against `max_rows` and `panel_vectors`"),
        }
    };
}

/// `sums[i * sum_stride + c] += sum over t of weights(i, t) * panel[ks[t] * 16 * vectors + c]` for all rows i of
/// `weights` and c in `0..16 * vectors`; `fresh` sums count as zeros before, whatever they hold. Nothing is written when
/// `ks` is empty.
///
/// # Panics
/// When a slice is too short or the sizes are past those of [`Isa::max_rows`] and [`Isa::panel_vectors`].
#[inline]
pub fn accumulate(
    isa: Isa,
    weights: Weights<'_>,
    ks: Bounded<'_>,
    panel: &[f32],
    vectors: usize,
    (sums, sum_stride): (&mut [f32], usize),
    fresh: bool,
) {
    let (rows, kept) = (weights.rows, ks.indices.len());
    if rows == 0 || kept == 0 {
        return;
    }
    assert!(weights.data.len() >= (kept - 1) * weights.stride + rows && weights.stride >= rows);
    assert!(panel.len() >= ks.bound * vectors * LANES);
    assert!(sums.len() >= (rows - 1) * sum_stride + vectors * LANES);
    let raw = Raw {
        weights: weights.data.as_ptr(),
        weight_stride: weights.stride,
        panel: panel.as_ptr(),
        ks: ks.indices.as_ptr(),
        kept,
        sums: sums.as_mut_ptr(),
        sum_stride,
        fresh,
    };
    in_isa!(
        isa,
        |raw: Raw, rows: usize, vectors: usize| sized!(
            tile,
            std::arch::x86_64::__m512,
            raw,
            (rows, vectors),
            (1, 1)(2, 1)(3, 1)(4, 1)(5, 1)(6, 1)(7, 1)(8, 1)(1, 2)(2, 2)(3, 2)(4, 2)(5, 2)(6, 2)(7, 2)(8, 2)(1, 3)(
                2, 3
            )(3, 3)(4, 3)(5, 3)(6, 3)(7, 3)(8, 3)(1, 4)(2, 4)(3, 4)(4, 4)
        ),
        sized!(tile, x86::Pair, raw, (rows, vectors), (1, 1)(2, 1)(3, 1)(4, 1)(5, 1)(6, 1)(1, 2)(2, 2)),
        sized!(tile, [f32; LANES], raw, (rows, vectors), (1, 1)(2, 1))
    );
}

/// One row of W on its own: its weights, their positions, and which row of the sums is its.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    pub weights: &'a [f32],
    pub ks: Bounded<'a>,
    pub at: usize,
}

/// [`accumulate`] for rows that share no positions: one call for many, since a row in a k block has so few weights that
/// the way into the kernel would cost as much as they do. A row without positions gets zeros if `fresh`.
///
/// # Panics
/// As [`accumulate`].
pub fn accumulate_rows(
    isa: Isa,
    rows: &[Row<'_>],
    panel: &[f32],
    vectors: usize,
    (sums, stride): (&mut [f32], usize),
    fresh: bool,
) {
    /// # Safety
    /// The instruction set of `V` exists.
    #[inline(always)]
    unsafe fn each<V: Lanes, const VECTORS: usize>(
        rows: &[Row<'_>],
        panel: &[f32],
        sums: &mut [f32],
        stride: usize,
        fresh: bool,
    ) {
        for row in rows {
            let kept = row.ks.indices.len();
            assert!(row.weights.len() >= kept && panel.len() >= row.ks.bound * VECTORS * LANES);
            let raw = Raw {
                weights: row.weights.as_ptr(),
                weight_stride: 1,
                panel: panel.as_ptr(),
                ks: row.ks.indices.as_ptr(),
                kept,
                sums: sums[row.at * stride..][..VECTORS * LANES].as_mut_ptr(),
                sum_stride: stride,
                fresh,
            };
            // SAFETY: the weights, the panel and the sums were just checked for one row and these vectors.
            unsafe { tile::<V, 1, VECTORS>(raw) }
        }
    }
    in_isa!(
        isa,
        |rows: &[Row<'_>], panel: &[f32], vectors: usize, sums: &mut [f32], stride: usize, fresh: bool| match vectors {
            1 => each::<std::arch::x86_64::__m512, 1>(rows, panel, sums, stride, fresh),
            2 => each::<std::arch::x86_64::__m512, 2>(rows, panel, sums, stride, fresh),
            3 => each::<std::arch::x86_64::__m512, 3>(rows, panel, sums, stride, fresh),
            4 => each::<std::arch::x86_64::__m512, 4>(rows, panel, sums, stride, fresh),
            _ => unreachable!("panels are no wider"),
        },
        match vectors {
            1 => each::<x86::Pair, 1>(rows, panel, sums, stride, fresh),
            2 => each::<x86::Pair, 2>(rows, panel, sums, stride, fresh),
            _ => unreachable!("panels are no wider"),
        },
        match vectors {
            1 => each::<[f32; LANES], 1>(rows, panel, sums, stride, fresh),
            _ => unreachable!("panels are no wider"),
        }
    );
}

/// `sums[j * 16 + i] += sum over t of weights[t * height + i] * x[ks[t] * cols + j]` for i in `0..height` and j in
/// `0..cols`; sums of i in `height..16` are left as anything.
///
/// # Panics
/// When a slice is too short, `height` is not in `1..=16` or `cols` not in `1..=MAX_FEW`.
pub fn sum_rows(isa: Isa, weights: &[f32], height: usize, ks: Bounded<'_>, x: &[f32], cols: usize, sums: &mut [f32]) {
    assert!((1..=LANES).contains(&height) && weights.len() >= ks.indices.len() * height);
    assert!(x.len() >= ks.bound * cols);
    assert!(sums.len() >= cols * LANES);
    // Positions whose vector ends within the weights; it reaches into those of the next positions.
    let kept = ks.indices.len().min((weights.len() + height).saturating_sub(LANES) / height);
    for (t, &k) in ks.indices.iter().enumerate().skip(kept) {
        for (j, x) in x[k as usize * cols..][..cols].iter().enumerate() {
            for (i, w) in weights[t * height..][..height].iter().enumerate() {
                sums[j * LANES + i] += w * x;
            }
        }
    }
    let raw = Raw {
        weights: weights.as_ptr(),
        weight_stride: height,
        panel: x.as_ptr(),
        ks: ks.indices.as_ptr(),
        kept,
        sums: sums.as_mut_ptr(),
        sum_stride: LANES,
        fresh: false,
    };
    // Several sets of sums where few columns alone would wait for each FMA's result.
    let sets = match cols {
        1 | 2 => 4,
        3 | 4 => 2,
        _ => 1,
    };
    in_isa!(
        isa,
        |raw: Raw, cols: usize, sets: usize| sized!(
            columns,
            std::arch::x86_64::__m512,
            raw,
            (cols, sets),
            (1, 4)(2, 4)(3, 2)(4, 2)(5, 1)(6, 1)(7, 1)(8, 1)
        ),
        sized!(columns, x86::Pair, raw, (cols, sets), (1, 4)(2, 4)(3, 2)(4, 2)(5, 1)(6, 1)(7, 1)(8, 1)),
        sized!(columns, [f32; LANES], raw, (cols, sets), (1, 4)(2, 4)(3, 2)(4, 2)(5, 1)(6, 1)(7, 1)(8, 1))
    );
}
