//! How a sparse GEMM is computed: schedules, LoopIr and its lowering.
