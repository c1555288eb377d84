//! The only unsafe code of the CPU backend: micro-kernels in each instruction set, conversions, and the shared output.
//! Each is behind a safe function whose types or assertions carry what the pointers need.

use super::math;
use half::{bf16, f16};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Columns that one vector step covers in every instruction set.
pub(super) const LANES: usize = 16;

/// The most columns of X that [`sum_rows`] takes.
pub(super) const MAX_FEW: usize = 8;

/// An instruction set that this machine was found to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Isa(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Isa {
    /// Every set that this machine has, the fastest first.
    pub fn available() -> Vec<Isa> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            if avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
                all.push(Isa(Set::Avx512));
            }
            if avx2 {
                all.push(Isa(Set::Avx2));
            }
        }
        all.push(Isa(Set::Portable));
        all
    }

    /// The fastest set that this machine has.
    pub fn best() -> Isa {
        static BEST: std::sync::OnceLock<Isa> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| Isa::available()[0])
    }

    /// Columns of a panel in units of [`LANES`]: what the registers hold beside enough rows to hide the latency of an
    /// FMA. A row-wise plan has one row, so it takes more columns.
    pub fn panel_vectors(self, row_wise: bool) -> usize {
        match (self.0, row_wise) {
            #[cfg(target_arch = "x86_64")]
            (Set::Avx512, false) => 3,
            #[cfg(target_arch = "x86_64")]
            (Set::Avx512, true) => 4,
            #[cfg(target_arch = "x86_64")]
            (Set::Avx2, false) => 1,
            #[cfg(target_arch = "x86_64")]
            (Set::Avx2, true) => 2,
            (Set::Portable, _) => 1,
        }
    }

    /// The most rows that [`accumulate`] takes beside panels of `vectors`.
    pub fn max_rows(self, vectors: usize) -> usize {
        match (self.0, vectors) {
            #[cfg(target_arch = "x86_64")]
            (Set::Avx512, 4) => 4,
            #[cfg(target_arch = "x86_64")]
            (Set::Avx512, _) => 8,
            #[cfg(target_arch = "x86_64")]
            (Set::Avx2, 2) => 2,
            #[cfg(target_arch = "x86_64")]
            (Set::Avx2, _) => 6,
            (Set::Portable, _) => 2,
        }
    }
}

/// Indices all below a bound, so that kernels may skip the check.
#[derive(Clone, Debug)]
pub(super) struct BoundedIndices {
    indices: Vec<u32>,
    bound: usize,
}

/// A part of [`BoundedIndices`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounded<'a> {
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

/// 16 f32 lanes of one instruction set.
///
/// # Safety
/// Callers run the functions only where the instruction set exists; `load` and `store` reach 16 elements from `p`.
trait Lanes: Copy {
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn add(self, b: Self) -> Self;
    /// `a * b + self`.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use std::arch::x86_64::*;

    // SAFETY (all below): `Lanes` passes the demands on to the callers.
    impl Lanes for __m512 {
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: see the impl.
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: see the impl.
            unsafe { _mm512_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: see the impl.
            unsafe { _mm512_storeu_ps(p, self) }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: see the impl.
            unsafe { _mm512_add_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn fma(self, a: Self, b: Self) -> Self {
            // SAFETY: see the impl.
            unsafe { _mm512_fmadd_ps(a, b, self) }
        }
    }

    #[derive(Clone, Copy)]
    pub struct Pair(__m256, __m256);

    impl Lanes for Pair {
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: see the impl of `__m512`.
            unsafe { Pair(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: see the impl of `__m512`.
            unsafe { Pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: see the impl of `__m512`.
            unsafe {
                _mm256_storeu_ps(p, self.0);
                _mm256_storeu_ps(p.add(8), self.1);
            }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: see the impl of `__m512`.
            unsafe { Pair(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
        }
        #[inline(always)]
        unsafe fn fma(self, a: Self, b: Self) -> Self {
            // SAFETY: see the impl of `__m512`.
            unsafe { Pair(_mm256_fmadd_ps(a.0, b.0, self.0), _mm256_fmadd_ps(a.1, b.1, self.1)) }
        }
    }
}

impl Lanes for [f32; LANES] {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's `p` reaches 16 elements.
        unsafe { p.cast::<Self>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's `p` reaches 16 elements.
        unsafe { p.cast::<Self>().write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        std::array::from_fn(|i| self[i] + b[i])
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        std::array::from_fn(|i| a[i] * b[i] + self[i])
    }
}

/// A weight block: element (row i, kept position t) at `data[t * stride + i]`.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
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

/// For few columns of X: 16 rows of W fill a vector, the `COLS` elements of a row of X are broadcast.
///
/// # Safety
/// As [`sum_rows`] asserts for these `COLS`; the instruction set of `V` exists.
#[inline(always)]
unsafe fn columns<V: Lanes, const COLS: usize, const SETS: usize>(r: Raw) {
    // SAFETY: the caller's bounds cover every position below.
    unsafe {
        let mut acc = [[V::splat(0.0); COLS]; SETS];
        let step = |acc: &mut [V; COLS], t: usize| {
            let w = V::load(r.weights.add(t * LANES));
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

/// Compiles a generic body once for each instruction set and calls the one of `$isa`.
macro_rules! in_isa {
    ($isa:expr, |$($arg:ident : $ty:ty),*| $wide:expr, $pair:expr, $portable:expr) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn avx512($($arg: $ty),*) {
            // SAFETY: passed on to the caller of the macro.
            #[allow(unused_unsafe)]
            unsafe { $wide }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2($($arg: $ty),*) {
            // SAFETY: passed on to the caller of the macro.
            #[allow(unused_unsafe)]
            unsafe { $pair }
        }
        unsafe fn portable($($arg: $ty),*) {
            // SAFETY: passed on to the caller of the macro.
            #[allow(unused_unsafe)]
            unsafe { $portable }
        }
        // SAFETY: an `Isa` exists only where detection found its instructions.
        unsafe {
            match $isa.0 {
                #[cfg(target_arch = "x86_64")]
                Set::Avx512 => avx512($($arg),*),
                #[cfg(target_arch = "x86_64")]
                Set::Avx2 => avx2($($arg),*),
                Set::Portable => portable($($arg),*),
            }
        }
    }};
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
pub(super) fn accumulate(
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
pub(super) struct Row<'a> {
    pub weights: &'a [f32],
    pub ks: Bounded<'a>,
    pub at: usize,
}

/// [`accumulate`] for rows that share no positions: one call for many, since a row in a k block has so few weights that
/// the way into the kernel would cost as much as they do. A row without positions gets zeros if `fresh`.
///
/// # Panics
/// As [`accumulate`].
pub(super) fn accumulate_rows(
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

/// `sums[j * 16 + i] += sum over t of weights[t * 16 + i] * x[ks[t] * cols + j]` for i in 0..16 and j in `0..cols`.
///
/// # Panics
/// When a slice is too short or `cols` is not in `1..=MAX_FEW`.
pub(super) fn sum_rows(isa: Isa, weights: &[f32], ks: Bounded<'_>, x: &[f32], cols: usize, sums: &mut [f32]) {
    let kept = ks.indices.len();
    assert!(weights.len() >= kept * LANES);
    assert!(x.len() >= ks.bound * cols);
    assert!(sums.len() >= cols * LANES);
    let raw = Raw {
        weights: weights.as_ptr(),
        weight_stride: LANES,
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

/// Safe slice loops, vectorised for each instruction set.
macro_rules! vectorised {
    ($($name:ident($($arg:ident: $ty:ty),*) $body:block)*) => {$(
        pub(super) fn $name(isa: Isa, $($arg: $ty),*) {
            #[inline(always)]
            fn body($($arg: $ty),*) $body
            in_isa!(isa, |$($arg: $ty),*| body($($arg),*), body($($arg),*), body($($arg),*));
        }
    )*};
}

vectorised! {
    add_scalar(y: &mut [f32], b: f32) {
        y.iter_mut().for_each(|y| *y += b);
    }
    add(y: &mut [f32], b: &[f32]) {
        y.iter_mut().zip(b).for_each(|(y, b)| *y += b);
    }
    scale(y: &mut [f32], s: f32) {
        y.iter_mut().for_each(|y| *y *= s);
    }
    relu(y: &mut [f32]) {
        y.iter_mut().for_each(|y| *y = if *y < 0.0 { 0.0 } else { *y });
    }
    gelu(y: &mut [f32]) {
        y.iter_mut().for_each(|y| *y = math::gelu(*y));
    }
    silu(y: &mut [f32]) {
        y.iter_mut().for_each(|y| *y = math::silu(*y));
    }
    widen_bf16(from: &[bf16], out: &mut [f32]) {
        out.iter_mut().zip(from).for_each(|(o, f)| *o = f32::from_bits(u32::from(f.to_bits()) << 16));
    }
    narrow_bf16(from: &[f32], out: &mut [bf16]) {
        out.iter_mut().zip(from).for_each(|(o, f)| {
            let bits = f.to_bits();
            let even = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            // Rounding could carry a NaN's payload into an infinity; the quiet bit keeps it a NaN.
            let nan = (bits >> 16) | 0x40;
            *o = bf16::from_bits(if f.is_nan() { nan } else { even } as u16);
        });
    }
}

/// Where columns of X lie and which of its rows are wanted.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a, T> {
    /// From the first wanted column of row 0 on.
    pub from: &'a [T],
    pub stride: usize,
    pub rows: &'a [u32],
    pub cols: usize,
}

/// Copies `x` to `out`, each row widened and padded with zeros to `width`.
#[inline(always)]
fn pack<T: Copy>(x: Columns<'_, T>, width: usize, out: &mut [f32], widen: impl Fn(&[T], &mut [f32])) {
    /// A width known to the compiler becomes a few vector moves.
    #[inline(always)]
    fn whole<T: Copy, const WIDTH: usize>(x: Columns<'_, T>, out: &mut [f32], widen: impl Fn(&[T], &mut [f32])) {
        for (&r, out) in x.rows.iter().zip(out.chunks_exact_mut(WIDTH)) {
            widen(&x.from[r as usize * x.stride..][..WIDTH], out);
        }
    }
    match x.cols {
        48 if width == 48 => whole::<T, 48>(x, out, widen),
        64 if width == 64 => whole::<T, 64>(x, out, widen),
        16 if width == 16 => whole::<T, 16>(x, out, widen),
        _ => {
            for (&r, out) in x.rows.iter().zip(out.chunks_exact_mut(width)) {
                let (valid, pad) = out.split_at_mut(x.cols);
                widen(&x.from[r as usize * x.stride..][..x.cols], valid);
                pad.fill(0.0);
            }
        }
    }
}

#[inline(always)]
fn widen_loop<T: Copy>(from: &[T], out: &mut [f32], widen: impl Fn(T) -> f32) {
    out.iter_mut().zip(from).for_each(|(o, f)| *o = widen(*f));
}

/// [`pack`] for f32.
pub(super) fn pack_f32(isa: Isa, x: Columns<'_, f32>, width: usize, out: &mut [f32]) {
    in_isa!(
        isa,
        |x: Columns<'_, f32>, width: usize, out: &mut [f32]| pack(x, width, out, |f, o| o.copy_from_slice(f)),
        pack(x, width, out, |f, o| o.copy_from_slice(f)),
        pack(x, width, out, |f, o| o.copy_from_slice(f))
    );
}

/// [`pack`] for bf16.
pub(super) fn pack_bf16(isa: Isa, x: Columns<'_, bf16>, width: usize, out: &mut [f32]) {
    #[inline(always)]
    fn body(x: Columns<'_, bf16>, width: usize, out: &mut [f32]) {
        pack(x, width, out, |f, o| widen_loop(f, o, |f| f32::from_bits(u32::from(f.to_bits()) << 16)));
    }
    in_isa!(
        isa,
        |x: Columns<'_, bf16>, width: usize, out: &mut [f32]| body(x, width, out),
        body(x, width, out),
        body(x, width, out)
    );
}

/// [`pack`] for f16.
pub(super) fn pack_f16(isa: Isa, x: Columns<'_, f16>, width: usize, out: &mut [f32]) {
    in_isa!(
        isa,
        |x: Columns<'_, f16>, width: usize, out: &mut [f32]| pack(x, width, out, |f, o| widen_f16_x8(f, o)),
        pack(x, width, out, |f, o| widen_f16_x8(f, o)),
        pack(x, width, out, |f, o| widen_loop(f, o, |f| f.to_f32_const()))
    );
}

/// `out[i] = from[i]`.
pub(super) fn widen_f16(isa: Isa, from: &[f16], out: &mut [f32]) {
    in_isa!(isa, |from: &[f16], out: &mut [f32]| widen_f16_x8(from, out), widen_f16_x8(from, out), {
        out.iter_mut().zip(from).for_each(|(o, f)| *o = f.to_f32_const())
    });
}

/// `out[i] = from[i]`, rounded to nearest even.
pub(super) fn narrow_f16(isa: Isa, from: &[f32], out: &mut [f16]) {
    in_isa!(isa, |from: &[f32], out: &mut [f16]| narrow_f16_x8(from, out), narrow_f16_x8(from, out), {
        out.iter_mut().zip(from).for_each(|(o, f)| *o = f16::from_f32_const(*f))
    });
}

/// # Safety
/// The machine has AVX and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn widen_f16_x8(from: &[f16], out: &mut [f32]) {
    use std::arch::x86_64::*;
    let (mut from, mut out) = (from.chunks_exact(8), out.chunks_exact_mut(8));
    for (f, o) in (&mut from).zip(&mut out) {
        // SAFETY: both chunks hold 8 elements, and the loads and stores need no alignment.
        unsafe { _mm256_storeu_ps(o.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(f.as_ptr().cast()))) }
    }
    for (o, f) in out.into_remainder().iter_mut().zip(from.remainder()) {
        *o = f.to_f32_const();
    }
}

/// # Safety
/// The machine has AVX and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn narrow_f16_x8(from: &[f32], out: &mut [f16]) {
    use std::arch::x86_64::*;
    let (mut from, mut out) = (from.chunks_exact(8), out.chunks_exact_mut(8));
    for (f, o) in (&mut from).zip(&mut out) {
        // SAFETY: both chunks hold 8 elements, and the loads and stores need no alignment.
        unsafe {
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(f.as_ptr()));
            _mm_storeu_si128(o.as_mut_ptr().cast(), half);
        }
    }
    for (o, f) in out.into_remainder().iter_mut().zip(from.remainder()) {
        *o = f16::from_f32_const(*f);
    }
}

/// Rows without repetition.
#[derive(Clone, Debug)]
pub(super) struct DistinctRows {
    rows: Vec<u32>,
    bound: usize,
}

impl DistinctRows {
    /// `None` when a row repeats or is not below `bound`.
    pub fn new(rows: Vec<u32>, bound: usize) -> Option<Self> {
        let mut seen = vec![false; bound];
        for &r in &rows {
            if std::mem::replace(seen.get_mut(r as usize)?, true) {
                return None;
            }
        }
        Some(DistinctRows { rows, bound })
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }
}

/// A row-major output that threads write at once, cut into tasks: every pair of a column slice and a group of rows.
/// Each task is handed out once, so what two threads may write never overlaps.
pub(super) struct OutputTasks<'a, T> {
    start: *mut T,
    stride: usize,
    rows: &'a DistinctRows,
    groups: Vec<Range<usize>>,
    slices: Vec<Range<usize>>,
    next_slice: AtomicUsize,
    next_group: Vec<AtomicUsize>,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: threads share only the atomic counters; through them each gets elements that no other thread gets.
unsafe impl<T: Send> Sync for OutputTasks<'_, T> {}

/// One task: the only access to its elements.
pub(super) struct OutputTask<'t, T> {
    all: &'t OutputTasks<'t, T>,
    pub slice: usize,
    pub group: usize,
}

impl<'a, T> OutputTasks<'a, T> {
    /// `groups` are ranges of positions in `rows`; `slices` are column ranges. Both ascend without overlap.
    ///
    /// # Panics
    /// When they do not, or leave `rows` or `data`.
    pub fn new(
        data: &'a mut [T],
        stride: usize,
        rows: &'a DistinctRows,
        groups: Vec<Range<usize>>,
        slices: Vec<Range<usize>>,
    ) -> Self {
        let ascends = |parts: &[Range<usize>]| {
            parts.iter().all(|p| p.start <= p.end) && parts.windows(2).all(|p| p[0].end <= p[1].start)
        };
        assert!(ascends(&groups) && ascends(&slices));
        assert!(groups.last().is_none_or(|g| g.end <= rows.len()));
        let cols = slices.last().map_or(0, |s| s.end);
        assert!(cols <= stride || rows.bound <= 1);
        assert!(rows.bound == 0 || (rows.bound - 1) * stride + cols <= data.len());
        let next_group = slices.iter().map(|_| AtomicUsize::new(0)).collect();
        let start = data.as_mut_ptr();
        let next_slice = AtomicUsize::new(0);
        OutputTasks { start, stride, rows, groups, slices, next_slice, next_group, borrow: PhantomData }
    }

    /// The next task: of slice `current` while it has any, then of a slice that no thread has begun, then of any.
    pub fn next(&self, current: Option<usize>) -> Option<OutputTask<'_, T>> {
        if let Some(task) = current.and_then(|s| self.claim(s)) {
            return Some(task);
        }
        while self.next_slice.load(Ordering::Relaxed) < self.slices.len() {
            let s = self.next_slice.fetch_add(1, Ordering::Relaxed);
            if s < self.slices.len()
                && let Some(task) = self.claim(s)
            {
                return Some(task);
            }
        }
        (0..self.slices.len()).find_map(|s| self.claim(s))
    }

    fn claim(&self, slice: usize) -> Option<OutputTask<'_, T>> {
        let counter = &self.next_group[slice];
        if counter.load(Ordering::Relaxed) >= self.groups.len() {
            return None;
        }
        // Only a counter's first passage of a number gives that task out.
        let group = counter.fetch_add(1, Ordering::Relaxed);
        (group < self.groups.len()).then_some(OutputTask { all: self, slice, group })
    }
}

impl<T> OutputTask<'_, T> {
    pub fn columns(&self) -> Range<usize> {
        self.all.slices[self.slice].clone()
    }

    pub fn positions(&self) -> Range<usize> {
        self.all.groups[self.group].clone()
    }

    /// The row at `position` and its elements in this task's columns.
    ///
    /// # Panics
    /// When the position is not this task's.
    pub fn segment(&mut self, position: usize) -> (usize, &mut [T]) {
        assert!(self.positions().contains(&position));
        let row = self.all.rows.rows[position] as usize;
        let columns = self.columns();
        // SAFETY: `OutputTasks::new` checked that the last row's columns end within the data and that rows do not
        // overlap. No other task has both this position and these columns, positions stand for distinct rows, and the
        // borrow of `self` ends before this task gives out another segment.
        let segment = unsafe {
            let start = self.all.start.add(row * self.all.stride + columns.start);
            std::slice::from_raw_parts_mut(start, columns.len())
        };
        (row, segment)
    }
}

/// Y[n, m] = W[n, k] X[k, m], all row-major f32 of the given row strides, by the `gemm` crate.
///
/// # Panics
/// When a slice is too short for its extents, or y's rows overlap.
pub(super) fn dense_f32(
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
