//! Sixteen f32 lanes in each instruction set.

use super::isa::LANES;

/// 16 f32 lanes of one instruction set.
///
/// # Safety
/// Callers run the functions only where the instruction set exists; `load` and `store` reach 16 elements from `p`.
pub trait Lanes: Copy {
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn add(self, b: Self) -> Self;
    /// `a * b + self`.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
}

#[cfg(target_arch = "x86_64")]
pub mod x86 {
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
