//! Where a sparse GEMM runs: devices, packed tensors, pruning.

pub mod model;
