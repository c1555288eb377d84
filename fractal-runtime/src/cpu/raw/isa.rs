//! Which instruction sets the machine has, and how code is compiled for each of them.

/// Columns that one vector step covers in every instruction set.
pub const LANES: usize = 16;

/// An instruction set that this machine was found to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(pub(super) Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Set {
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
                $crate::cpu::raw::isa::Set::Avx512 => avx512($($arg),*),
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::raw::isa::Set::Avx2 => avx2($($arg),*),
                $crate::cpu::raw::isa::Set::Portable => portable($($arg),*),
            }
        }
    }};
}

pub(super) use in_isa;
