#![doc = include_str!("../README.md")]

pub use fractal_dsl::{self as dsl, DType, Diagnostics, Layout, Program, ProgramBuilder, pattern};
pub use fractal_macros::sparse_gemm;
pub use fractal_runtime::{
    self as runtime, Device, Error, Gemm, Given, Importance, Kernel, Layer, Magnitude, Pruned, PrunedFile, PrunedMask,
    RawTensor, ReadLimits, Residue, SparseGemm, StoredWeight, Taylor, Tensor, cpu, cuda, model, pack_masked, prune,
    prune_with_residue,
};
pub use fractal_sched::{self as sched, KernelRequest};

/// What the expansion of [`sparse_gemm!`] names; not for direct use.
#[doc(hidden)]
pub mod __private {
    pub use fractal_dsl::{Program, expanded, lens};
    pub use fractal_runtime::SparseGemm;
}

/// The examples of the page on files are run.
#[cfg(doctest)]
#[doc = include_str!("../docs/files.md")]
pub struct FilesPage;
