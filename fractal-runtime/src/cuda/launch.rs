//! Loaded kernels and their launches: (kernel, shape, arguments) -> work on a stream.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction, CUmodule};
use cudarc::driver::{CudaContext, result};

use super::cubin::{Cubin, KernelInfo};
use super::device::{CudaDevice, DriverResult, describe};
use super::error::CudaError;
use super::memory::Buffer;
use super::stream::Stream;
use super::tensor_map::TensorMap;

/// The most parameters of a kernel.
const MOST_ARGUMENTS: usize = 48;

/// One argument of a launch.
#[derive(Debug, Clone, Copy)]
pub enum Arg<'a> {
    /// A pointer to the start of a buffer.
    Buffer(&'a Buffer),
    /// A pointer this many bytes into a buffer.
    BufferAt(&'a Buffer, usize),
    /// `const __grid_constant__ CUtensorMap`
    TensorMap(&'a TensorMap),
    /// `int`
    I32(i32),
    /// `unsigned`
    U32(u32),
    /// `long long`
    I64(i64),
    /// `unsigned long long`
    U64(u64),
    /// `float`
    F32(f32),
    /// A structure passed by value, laid out as C++ does.
    Bytes(&'a [u8]),
}

impl Arg<'_> {
    fn bytes(&self) -> u32 {
        match self {
            Arg::I32(_) | Arg::U32(_) | Arg::F32(_) => 4,
            Arg::Buffer(_) | Arg::BufferAt(..) | Arg::I64(_) | Arg::U64(_) => 8,
            Arg::TensorMap(_) => 128,
            Arg::Bytes(bytes) => bytes.len() as u32,
        }
    }

    /// Its value, for those that fit 8 bytes; low bytes first, as the GPU reads them.
    fn value(&self) -> u64 {
        match *self {
            Arg::Buffer(buffer) => buffer.pointer(),
            Arg::BufferAt(buffer, at) => buffer.pointer() + at as u64,
            Arg::I32(value) => u64::from(value as u32),
            Arg::U32(value) => u64::from(value),
            Arg::I64(value) => value as u64,
            Arg::U64(value) => value,
            Arg::F32(value) => u64::from(value.to_bits()),
            Arg::TensorMap(_) | Arg::Bytes(_) => 0,
        }
    }

    fn buffer(&self) -> Option<&Buffer> {
        match self {
            Arg::Buffer(buffer) | Arg::BufferAt(buffer, _) => Some(buffer),
            Arg::TensorMap(map) => Some(map.buffer()),
            _ => None,
        }
    }
}

/// How many threads a launch has, and what they share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaunchShape {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, bytes.
    pub shared: u32,
    /// Programmatic dependent launch: the kernel may start while the one before it on the stream drains, and waits by
    /// itself (`griddepcontrol.wait`) before it reads what that one wrote. Needs sm_90.
    pub overlap: bool,
}

impl LaunchShape {
    /// One thread an element, in blocks of `block` threads.
    pub fn linear(elements: u32, block: u32) -> LaunchShape {
        LaunchShape { grid: [elements.div_ceil(block.max(1)), 1, 1], block: [block, 1, 1], shared: 0, overlap: false }
    }
}

/// A loaded image.
pub(crate) struct Module {
    raw: CUmodule,
    context: Arc<CudaContext>,
}

// SAFETY: the driver lets a module be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    pub(crate) fn load(context: &Arc<CudaContext>, cubin: &Cubin) -> Result<Module, CudaError> {
        context.bind_to_thread().driver("use the GPU on this thread")?;
        // SAFETY: `Cubin` holds a whole ELF file (checked when it was made), which the driver copies.
        let raw = unsafe { result::module::load_data(cubin.bytes().as_ptr().cast()) }.driver("load a kernel image")?;
        Ok(Module { raw, context: context.clone() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: the module is live and unloaded once; its device has waited for all work before (device.rs).
        self.context.record_err(unsafe { result::module::unload(self.raw) });
    }
}

/// A kernel loaded on one GPU. Cheap to clone; launched any number of times, from any thread, on any stream of the GPU.
#[derive(Clone)]
pub struct Kernel {
    function: CUfunction,
    info: Arc<KernelInfo>,
    // In this order: the module goes before the device that waits for its work.
    _module: Arc<Module>,
    device: CudaDevice,
}

// SAFETY: the driver lets a function be used from any thread, and the module it is in is kept.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernel").field(&self.info).finish()
    }
}

impl Kernel {
    pub(crate) fn new(device: &CudaDevice, module: Arc<Module>, info: KernelInfo) -> Result<Kernel, CudaError> {
        let no_kernel = || CudaError::NoKernel { name: info.name.clone(), present: vec![] };
        let name = CString::new(info.name.clone()).map_err(|_| no_kernel())?;
        device.context().bind_to_thread().driver("use the GPU on this thread")?;
        // SAFETY: the module is live.
        let function =
            unsafe { result::module::get_function(module.raw, name) }.driver("find a kernel in its image")?;
        let most = device.info().shared_per_block.saturating_sub(info.shared_bytes);
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // A block gets more than 48 KiB of shared memory only after this.
        // SAFETY: the function is live.
        unsafe { result::function::set_function_attribute(function, attribute, most as i32) }
            .driver("allow a kernel all of the shared memory")?;
        Ok(Kernel { function, info: Arc::new(info), _module: module, device: device.clone() })
    }

    /// What it uses.
    pub fn info(&self) -> &KernelInfo {
        &self.info
    }

    /// The GPU it is loaded on.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// How many blocks of this shape run on one multiprocessor at a time.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn blocks_per_sm(&self, shape: &LaunchShape) -> Result<u32, CudaError> {
        self.device.context().bind_to_thread().driver("use the GPU on this thread")?;
        let threads = shape.block.iter().product::<u32>() as i32;
        let mut blocks = 0;
        // SAFETY: the function is live, and the pointer is to a live integer.
        unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, self.function, threads, shape.shared as usize)
        }
        .result()
        .driver("compute a kernel's occupancy")?;
        Ok(blocks.unsigned_abs())
    }

    /// Puts a launch on a stream. The host does not wait. A shape without blocks does nothing.
    ///
    /// The number of arguments and the bytes of each are checked against the kernel's parameters.
    ///
    /// # Errors
    /// [`CudaError::Arguments`], [`CudaError::OtherDevice`], [`CudaError::Launch`]. A fault of the running kernel is
    /// reported by whatever waits for it.
    ///
    /// # Safety
    /// Given these arguments, the kernel must access no memory but that of its buffers, and must not race with work on
    /// other streams.
    pub unsafe fn launch(&self, stream: &Stream, shape: &LaunchShape, arguments: &[Arg]) -> Result<(), CudaError> {
        stream.same_device("kernel", self.device.info().index)?;
        let sizes = arguments.iter().map(Arg::bytes);
        if arguments.len() > MOST_ARGUMENTS || !sizes.clone().eq(self.info.parameters.iter().copied()) {
            return Err(CudaError::Arguments {
                kernel: self.info.name.clone(),
                expected: self.info.parameters.clone(),
                found: sizes.collect(),
            });
        }
        if shape.grid.contains(&0) {
            return Ok(());
        }
        stream.bind()?;
        let mut values = [0u64; MOST_ARGUMENTS];
        let mut pointers = [std::ptr::null_mut::<c_void>(); MOST_ARGUMENTS];
        for ((argument, value), pointer) in arguments.iter().zip(&mut values).zip(&mut pointers) {
            if let Some(buffer) = argument.buffer() {
                stream.touch(buffer)?;
            }
            *value = argument.value();
            *pointer = match argument {
                Arg::Bytes(bytes) => bytes.as_ptr().cast_mut().cast(),
                Arg::TensorMap(map) => map.words().as_ptr().cast_mut().cast(),
                _ => (&raw mut *value).cast(),
            };
        }
        // SAFETY: all zero bytes are a valid launch attribute: a number, padding, and a union of plain data.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: shape.grid[0],
            gridDimY: shape.grid[1],
            gridDimZ: shape.grid[2],
            blockDimX: shape.block[0],
            blockDimY: shape.block[1],
            blockDimZ: shape.block[2],
            sharedMemBytes: shape.shared,
            hStream: stream.raw().cu_stream(),
            attrs: &mut attribute,
            numAttrs: u32::from(shape.overlap),
        };
        // SAFETY: function and stream are live. `pointers` has a pointer for each parameter, to as many bytes as the
        // parameter has (checked above), and the driver copies them before it returns. What the kernel does with them is
        // the caller's promise; the buffers live until the stream is done with them (`touch`).
        unsafe { sys::cuLaunchKernelEx(&config, self.function, pointers.as_mut_ptr(), std::ptr::null_mut()) }
            .result()
            .map_err(|error| CudaError::Launch {
                kernel: self.info.name.clone(),
                grid: shape.grid,
                block: shape.block,
                shared: shape.shared,
                reason: describe(&error),
            })
    }
}
