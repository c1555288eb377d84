//! NVIDIA GPUs: CUDA C++ text -> machine code ([`Compiler`], [`CubinCache`]) -> a loaded [`Kernel`] -> launches on a
//! [`Stream`].
//!
//! Nothing here is linked at build time: the driver and NVRTC are looked for at run time, and where one is missing,
//! [`CudaError`] says what was looked for and what to install. Compiling needs no GPU.
//!
//! ```no_run
//! use fractal_runtime::cuda::{Arg, CudaDevice, LaunchShape, Options, Source};
//!
//! let text = r#"
//! extern "C" __global__ void axpy(float a, const float* x, float* y, int n) {
//!     int i = blockIdx.x * blockDim.x + threadIdx.x;
//!     if (i < n) y[i] += a * x[i];
//! }"#;
//! let device = CudaDevice::open(0)?;
//! let kernel = device.kernel(&Source::new("axpy", text), "axpy", &Options::default())?;
//! let stream = device.stream()?;
//! let x = stream.upload(&[1.0f32; 1000])?;
//! let y = stream.upload(&[2.0f32; 1000])?;
//! let shape = LaunchShape::linear(1000, 256);
//! let arguments = [Arg::F32(3.0), Arg::Buffer(&x), Arg::Buffer(&y), Arg::I32(1000)];
//! // SAFETY: the kernel stays within the 1000 floats of both buffers.
//! unsafe { kernel.launch(&stream, &shape, &arguments)? };
//! assert_eq!(stream.download::<f32>(&y)?, [5.0; 1000]);
//! # Ok::<(), fractal_runtime::cuda::CudaError>(())
//! ```
//!
//! # Order and lifetime
//! Work on one stream runs in order. Between streams, order is made with [`Stream::record`] and [`Stream::wait`], as in
//! CUDA. Lifetime needs no care: a buffer that is dropped is freed after the work on every stream that used it, and a
//! [`Graph`] keeps what it uses.
//!
//! # What waits
//! The host waits in [`Stream::synchronize`], [`Stream::upload`], [`Stream::write`], [`Stream::download`],
//! [`Event::synchronize`], [`Event::milliseconds_until`] and [`Stream::time`]; in nothing else. A launch, a replay, an
//! allocation and a drop do not wait.

mod backend;
mod cache;
mod call;
pub(crate) mod choose;
mod cubin;
mod cublaslt;
mod device;
pub(crate) mod divide;
mod error;
mod explain;
mod failed;
mod graph;
mod launch;
mod library;
mod memory;
mod nvrtc;
mod plan;
mod residue;
mod stream;
mod target;
mod tensor_map;
#[doc(hidden)]
pub mod testing;
mod tiles;

pub use backend::{CudaBackend, CudaWeight, DeviceInputs, download_tensor, source_of, upload_tensor};
pub use cache::{CubinCache, Key, Lookup, Origin};
pub use choose::Load;
pub use cubin::{Cubin, KernelInfo, Multiplications};
pub use cublaslt::{DenseEpilogue, DenseGemm, DenseOperands};
pub use device::{CudaDevice, DeviceInfo};
pub use divide::Gpu;
pub use error::CudaError;
pub use graph::{Graph, GraphKernel};
pub use launch::{Arg, Kernel, LaunchShape};
pub use memory::Buffer;
pub use nvrtc::{Compiler, Options, Source};
pub use plan::{KernelPlan, TableShape, Traits};
pub use residue::DeviceResidue;
pub use stream::{Event, Stream};
pub use target::{Arch, Version};
pub use tensor_map::{Element, Swizzle, TensorMap};
pub use tiles::{DeviceTiles, choose_rows, lay_out};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_may_cross_threads() {
        fn crosses<T: Send + Sync>() {}
        crosses::<CudaDevice>();
        crosses::<Stream>();
        crosses::<Event>();
        crosses::<Buffer>();
        crosses::<Kernel>();
        crosses::<DenseGemm>();
        crosses::<Graph>();
        crosses::<TensorMap>();
        crosses::<Compiler>();
        crosses::<CubinCache>();
        crosses::<CudaError>();
    }
}
