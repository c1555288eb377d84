//! Loops over slices: elementwise steps, storage types to f32 and back, and the copy of X into panels.

use super::isa::{Isa, in_isa};
use crate::math;
use half::{bf16, f16};

/// Safe slice loops, vectorised for each instruction set. A long body stands in a `for`: `for_each` with one is a
/// function of its own, compiled without the instruction set.
macro_rules! vectorised {
    ($($name:ident($($arg:ident: $ty:ty),*) $body:block)*) => {$(
        pub fn $name(isa: Isa, $($arg: $ty),*) {
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
        for y in y {
            *y = math::gelu(*y);
        }
    }
    silu(y: &mut [f32]) {
        for y in y {
            *y = math::silu(*y);
        }
    }
    check_finite(x: &[f32], finite: &mut bool) {
        // Without an early exit the loop runs on whole vectors.
        *finite &= x.iter().fold(true, |all, v| all & (v.to_bits() << 1 < 0xff00_0000));
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
pub struct Columns<'a, T> {
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
pub fn pack_f32(isa: Isa, x: Columns<'_, f32>, width: usize, out: &mut [f32]) {
    in_isa!(
        isa,
        |x: Columns<'_, f32>, width: usize, out: &mut [f32]| pack(x, width, out, |f, o| o.copy_from_slice(f)),
        pack(x, width, out, |f, o| o.copy_from_slice(f)),
        pack(x, width, out, |f, o| o.copy_from_slice(f))
    );
}

/// [`pack`] for bf16.
pub fn pack_bf16(isa: Isa, x: Columns<'_, bf16>, width: usize, out: &mut [f32]) {
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
pub fn pack_f16(isa: Isa, x: Columns<'_, f16>, width: usize, out: &mut [f32]) {
    in_isa!(
        isa,
        |x: Columns<'_, f16>, width: usize, out: &mut [f32]| pack(x, width, out, |f, o| widen_f16_x8(f, o)),
        pack(x, width, out, |f, o| widen_f16_x8(f, o)),
        pack(x, width, out, |f, o| widen_loop(f, o, |f| f.to_f32_const()))
    );
}

/// `out[i] = from[i]`.
pub fn widen_f16(isa: Isa, from: &[f16], out: &mut [f32]) {
    in_isa!(isa, |from: &[f16], out: &mut [f32]| widen_f16_x8(from, out), widen_f16_x8(from, out), {
        out.iter_mut().zip(from).for_each(|(o, f)| *o = f.to_f32_const())
    });
}

/// `out[i] = from[i]`, rounded to nearest even.
pub fn narrow_f16(isa: Isa, from: &[f32], out: &mut [f16]) {
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
