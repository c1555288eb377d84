//! A GPU by its index -> its facts, its streams, and kernels loaded on it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{CudaContext, DriverError, result};

use super::cache::{CubinCache, Origin, digest};
use super::cubin::Cubin;
use super::error::CudaError;
use super::launch::{Kernel, Module};
use super::library;
use super::nvrtc::{Compiler, Options, Source};
use super::stream::Stream;
use super::target::{Arch, Version};

/// What a GPU is and has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The index it was opened by.
    pub index: usize,
    /// `NVIDIA H200`.
    pub name: String,
    /// Its fullest architecture, `sm_90a`.
    pub arch: Arch,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Memory, bytes.
    pub memory_bytes: usize,
    /// Second-level cache, bytes.
    pub l2_bytes: u32,
    /// Shared memory that one block may have, bytes.
    pub shared_per_block: u32,
    /// Shared memory of a multiprocessor, bytes.
    pub shared_per_sm: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_sm: u32,
    /// Newest CUDA version the driver supports.
    pub driver: Version,
}

/// An open GPU. Cheap to clone; usable from many threads.
#[derive(Clone)]
pub struct CudaDevice {
    inner: Arc<Inner>,
}

struct Inner {
    context: Arc<CudaContext>,
    info: DeviceInfo,
    cache: CubinCache,
    compiler: OnceLock<Result<Compiler, CudaError>>,
    /// Loaded images by their hash. They stay loaded as long as the device is open, so a kernel in flight never loses
    /// its code.
    modules: Mutex<HashMap<[u8; 32], Arc<Module>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The modules are unloaded next. An error of earlier work cannot be reported from here.
        let _ = self.context.synchronize();
    }
}

impl std::fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CudaDevice").field(&self.inner.info).finish()
    }
}

impl CudaDevice {
    /// How many GPUs the driver shows.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::DriverLacks`], [`CudaError::DriverFails`].
    pub fn count() -> Result<usize, CudaError> {
        library::driver()?;
        match CudaContext::device_count() {
            Ok(count) => Ok(usize::try_from(count).unwrap_or(0)),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
            Err(error) => Err(CudaError::DriverFails { reason: describe(&error) }),
        }
    }

    /// Opens a GPU, or finds it open: there is one `CudaDevice` an index in a process, with the user's kernel cache.
    ///
    /// # Errors
    /// Those of [`CudaDevice::count`], and [`CudaError::NoDevice`].
    pub fn open(index: usize) -> Result<CudaDevice, CudaError> {
        static OPEN: Mutex<Vec<(usize, Weak<Inner>)>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = open.iter().filter(|(at, _)| *at == index).find_map(|(_, weak)| weak.upgrade()) {
            return Ok(CudaDevice { inner });
        }
        let device = CudaDevice::open_with_cache(index, CubinCache::open())?;
        open.retain(|(_, weak)| weak.strong_count() > 0);
        open.push((index, Arc::downgrade(&device.inner)));
        Ok(device)
    }

    /// Opens a GPU with a kernel cache of its own.
    ///
    /// # Errors
    /// As [`CudaDevice::open`].
    pub fn open_with_cache(index: usize, cache: CubinCache) -> Result<CudaDevice, CudaError> {
        let count = CudaDevice::count()?;
        if index >= count {
            return Err(CudaError::NoDevice { index, count });
        }
        let context = CudaContext::new(index).driver("open the GPU")?;
        // SAFETY: cudarc's events would order its own slices between streams; none are made here. Buffers keep their own
        // record of streams (memory.rs).
        unsafe { context.disable_event_tracking() };
        keep_freed_memory(&context);
        let info = read_info(index, &context)?;
        let inner = Inner { context, info, cache, compiler: OnceLock::new(), modules: Mutex::default() };
        Ok(CudaDevice { inner: Arc::new(inner) })
    }

    /// What it is and has.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// Free and total memory, bytes. Memory that was freed by this process and is kept for reuse counts as used.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.context().mem_get_info().driver("ask for free memory")
    }

    /// Refuses what this GPU lacks the instructions for.
    ///
    /// # Errors
    /// [`CudaError::ArchTooLow`], which offers the intrinsic that runs everywhere.
    pub fn require(&self, needed: Arch, what: &str) -> Result<(), CudaError> {
        let info = self.info();
        if info.arch.has(needed) {
            return Ok(());
        }
        Err(CudaError::ArchTooLow {
            device: info.name.clone(),
            found: info.arch,
            needed,
            what: what.to_owned(),
            offer: "ffma",
        })
    }

    /// The compiler whose code this driver can load; looked for at the first call.
    ///
    /// # Errors
    /// [`CudaError::NoNvrtc`], [`CudaError::NvrtcUnusable`], [`CudaError::DriverTooOld`].
    pub fn compiler(&self) -> Result<&Compiler, CudaError> {
        let compiler = self.inner.compiler.get_or_init(|| Compiler::for_driver(self.info().driver));
        compiler.as_ref().map_err(CudaError::clone)
    }

    /// The cache of compiled kernels.
    pub fn cache(&self) -> &CubinCache {
        &self.inner.cache
    }

    /// A new stream. Work on it runs in order, and beside the work of other streams.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn stream(&self) -> Result<Stream, CudaError> {
        Stream::new(self)
    }

    /// Machine code of a source for this GPU, from the cache or compiled.
    ///
    /// # Errors
    /// Those of [`CudaDevice::compiler`] and of [`Compiler::compile`].
    pub fn compile(&self, source: &Source, options: &Options) -> Result<(Cubin, Origin), CudaError> {
        self.inner.cache.get_or_compile(self.compiler()?, source, self.info().arch, options)
    }

    /// A kernel of a source, compiled if needed and loaded.
    ///
    /// # Errors
    /// Those of [`CudaDevice::compile`] and of [`CudaDevice::load`].
    pub fn kernel(&self, source: &Source, name: &str, options: &Options) -> Result<Kernel, CudaError> {
        self.load(&self.compile(source, options)?.0, name)
    }

    /// A kernel of an image. An image is loaded once, however many of its kernels are asked for.
    ///
    /// # Errors
    /// [`CudaError::NoKernel`]; [`CudaError::Driver`] if the image is for another architecture.
    pub fn load(&self, cubin: &Cubin, name: &str) -> Result<Kernel, CudaError> {
        let info = cubin.kernel(name)?.clone();
        let key = digest(&[cubin.bytes()]);
        let mut modules = self.inner.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let module = match modules.get(&key) {
            Some(module) => module.clone(),
            None => {
                let module = Arc::new(Module::load(self.context(), cubin)?);
                modules.insert(key, module.clone());
                module
            }
        };
        drop(modules);
        Kernel::new(self, module, info)
    }

    /// Waits for all work on this GPU.
    ///
    /// # Errors
    /// [`CudaError::Driver`] reports the fault of an earlier launch.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.context().synchronize().driver("wait for the GPU")
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.inner.context
    }
}

/// Lets the driver keep freed memory for the next allocation; by default it goes back to the system at every
/// synchronisation. Without this, allocation is slower and otherwise the same.
fn keep_freed_memory(context: &CudaContext) {
    if !context.has_async_alloc() {
        return;
    }
    let mut threshold = u64::MAX;
    // SAFETY: the device is open, the pool is its own, and the attribute is a u64 that is read during the call.
    let _ = unsafe {
        result::device::get_default_mem_pool(context.cu_device()).and_then(|pool| {
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            result::mem_pool::set_attribute(pool, attribute, (&raw mut threshold).cast())
        })
    };
}

fn read_info(index: usize, context: &CudaContext) -> Result<DeviceInfo, CudaError> {
    let read = |attribute| -> Result<u32, CudaError> {
        let value = context.attribute(attribute).driver("read an attribute of the GPU")?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    let major = read(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = read(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let mut driver = 0;
    // SAFETY: the pointer is to a live integer.
    unsafe { sys::cuDriverGetVersion(&mut driver) }.result().driver("read the driver's version")?;
    Ok(DeviceInfo {
        index,
        name: context.name().driver("read the GPU's name")?,
        arch: Arch::of_capability(major, minor),
        sm_count: read(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes: context.total_mem().driver("read the GPU's memory size")?,
        l2_bytes: read(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        shared_per_block: read(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_per_sm: read(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        registers_per_sm: read(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        driver: Version::of_packed(driver),
    })
}

/// The driver's sentence for an error, after its name.
pub(crate) fn describe(error: &DriverError) -> String {
    let sentence = error.error_string().map(|text| text.to_string_lossy().into_owned());
    format!("{:?}: {}", error.0, sentence.unwrap_or_else(|_| "unknown error".into()))
}

/// Says what was being done when the driver failed.
pub(crate) trait DriverResult<T> {
    fn driver(self, call: &'static str) -> Result<T, CudaError>;
}

impl<T> DriverResult<T> for Result<T, DriverError> {
    fn driver(self, call: &'static str) -> Result<T, CudaError> {
        self.map_err(|error| {
            let text = describe(&error);
            let (code, reason) = text.split_once(": ").unwrap_or((&text, ""));
            CudaError::Driver { call, code: code.to_owned(), reason: reason.to_owned() }
        })
    }
}
