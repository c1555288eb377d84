//! What a machine has, as far as schedules depend on it.

use fractal_dsl::Intrinsic;

/// A description of the machine for which schedules are searched.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Compute capability as a number: 80, 90, …
    pub sm: u32,
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of shared memory that a block may have.
    pub shared_bytes: usize,
    /// Instructions that there are kernels for.
    pub intrinsics: Vec<Intrinsic>,
    /// Whether patterns may also run element by element ([`crate::Form::Scalar`]).
    pub scalar: bool,
    /// Whether what follows the multiplication may be left to a kernel of its own.
    pub apart: bool,
}

impl Target {
    /// An NVIDIA H200: every kernel there is.
    pub fn h200() -> Target {
        Target {
            sm: 90,
            multiprocessors: 132,
            shared_bytes: 227 * 1024,
            intrinsics: Intrinsic::ALL.to_vec(),
            scalar: false,
            apart: false,
        }
    }

    /// Whether kernels of this instruction run here.
    pub fn has(&self, intrinsic: Intrinsic) -> bool {
        let right_sm =
            if intrinsic.is_arch_specific() { self.sm == intrinsic.min_sm() } else { self.sm >= intrinsic.min_sm() };
        right_sm && self.intrinsics.contains(&intrinsic)
    }
}
