//! Where a sparse GEMM runs: devices, packed tensors, pruning.
//!
//! | stage | input | output | file |
//! |---|---|---|---|
//! | prune | [`fractal_dsl::pattern::Pattern`], weight, [`Importance`] | [`Pruned`] | `prune` |
//! | compile | [`Gemm`], [`Device`] | [`Kernel`] | `device`, `backend` |
//! | load | [`Kernel`], [`Pruned`] | [`Layer`] | `device`, `backend` |
//! | run | [`Layer`], activations | result | `device`, `cpu` |

pub mod backend;
pub mod cpu;
pub mod cuda;
mod device;
mod error;
mod gemm;
mod math;
pub mod model;
pub mod prune;
mod record;
mod sparse_gemm;
mod tensor;
pub mod tune;
pub mod whole_file;

pub use device::{Device, Kernel, Layer};
pub use error::Error;
pub use gemm::{Gemm, GemmError};
pub use prune::{
    ActivationAware, Curvature, Given, Importance, LayerFault, LayerStatistics, Magnitude, Method, PruneError, Pruned,
    PrunedFile, PrunedFileError, PrunedMask, RawTensor, RawType, ReadLimits, Reconstructed, Residue, SecondOrder,
    StoredWeight, Taylor, pack_masked, prune, prune_with_residue,
};
pub use record::{RecordedTile, record_tiles};
pub use sparse_gemm::SparseGemm;
pub use tensor::{Tensor, TensorError};
