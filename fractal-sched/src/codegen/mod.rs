//! CUDA text: [`KernelConfig`] and [`Provenance`] -> [`CudaSource`].
//!
//! The kernels compute LoopIr's condensed form: one block a tile of rows and tokens. The index vectors are not looked up
//! on the device: when a weight is loaded, the loops are run once and each tile's kept columns become one flat list,
//! whatever the nest (`tables` says how lists and values lie). So one kernel serves every pattern with the same tile.
//!
//! | piece | file |
//! |---|---|
//! | configuration, sizes, name | `config` |
//! | how `ffma` divides a tile over blocks | `blocks` |
//! | the order of the pieces | `emit` |
//! | condensing X and loading W | `load`; `ffma` and `hopper` their own |
//! | multiplying | `ffma`, `mma_sync`, `mma_sp`, `hopper` |
//! | the whole main loop for few tokens | `decode` |
//! | epilogue and store | `store`; `ffma` and `hopper` in part their own |
//! | single elements on top of the tiles | `residue` |
//! | where the host puts values | `tables` |
//! | device helpers | `cuh/*.cuh` |

mod blocks;
mod config;
mod decode;
mod emit;
mod ffma;
mod hopper;
mod load;
mod mma_sp;
mod mma_sync;
mod provenance;
mod residue;
mod store;
pub mod tables;
mod transpose;

pub use blocks::{FFMA_BLOCKS, FfmaBlock};
pub use config::{Division, KernelConfig};
pub use decode::Decode;
pub use emit::{CudaSource, HEADERS, Parameter, emit, parameters};
pub use provenance::Provenance;
pub use transpose::{TRANSPOSE_SIDE, emit_transpose};
