//! Everything that can go wrong on the device side, as data: what was expected, what was found, and how to mend it.

use std::fmt;
use std::path::PathBuf;

use super::target::{Arch, Version};

/// An error of the CUDA backend. `Display` says what happened; its last line says how to mend it ([`CudaError::mend`]).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaError {
    /// The CUDA driver's library cannot be loaded.
    NoDriver {
        /// Library names and paths that were tried, in order.
        looked: Vec<String>,
        /// What the loader said of the first.
        reason: String,
    },
    /// The driver's library is there, but does not start.
    DriverFails {
        /// The driver's name for the error, and its sentence.
        reason: String,
    },
    /// The driver's library lacks functions that are needed.
    DriverLacks {
        /// Where the driver was loaded from.
        library: String,
        /// Missing functions.
        symbols: Vec<String>,
    },
    /// There is no GPU with this index.
    NoDevice {
        /// The index asked for.
        index: usize,
        /// How many GPUs the driver shows.
        count: usize,
    },
    /// The run-time compiler's library was not found.
    NoNvrtc {
        /// Library names and paths that were tried, in order.
        looked: Vec<String>,
    },
    /// A library was found that is not a usable NVRTC.
    NvrtcUnusable {
        /// The library.
        library: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The library of dense products was not found.
    NoCublasLt {
        /// Library names and paths that were tried, in order.
        looked: Vec<String>,
    },
    /// A library was found that is not a usable cuBLASLt.
    CublasLtUnusable {
        /// The library.
        library: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// cuBLASLt refused a dense product.
    CublasLt {
        /// What was being done.
        call: &'static str,
        /// The product, `f16 4096x1024x512`.
        product: String,
        /// cuBLASLt's sentence.
        reason: String,
    },
    /// NVRTC makes code that this driver cannot load.
    DriverTooOld {
        /// Newest CUDA version the driver supports.
        driver: Version,
        /// The version of NVRTC.
        nvrtc: Version,
        /// Where NVRTC was loaded from.
        nvrtc_library: PathBuf,
    },
    /// NVRTC does not know this GPU's architecture.
    NvrtcLacksArch {
        /// What was to be compiled for.
        arch: Arch,
        /// The version of NVRTC.
        nvrtc: Version,
        /// Architecture numbers NVRTC knows: 80 is sm_80.
        known: Vec<u32>,
    },
    /// The GPU lacks the instructions that a schedule asks for.
    ArchTooLow {
        /// The GPU's name.
        device: String,
        /// Its architecture.
        found: Arch,
        /// The architecture needed.
        needed: Arch,
        /// What needs it: an intrinsic or a schedule.
        what: String,
        /// The intrinsic that runs on every GPU.
        offer: &'static str,
    },
    /// The GPU's memory does not suffice.
    OutOfMemory {
        /// Bytes asked for.
        requested: usize,
        /// Bytes free on the GPU.
        free: usize,
        /// Bytes the GPU has.
        total: usize,
    },
    /// NVRTC refused a source text.
    Compile {
        /// The source's name.
        name: String,
        /// What it was compiled for.
        arch: Arch,
        /// NVRTC's messages.
        log: String,
        /// The source and the log were kept in this file and beside it, if a folder could be written.
        source_path: Option<PathBuf>,
    },
    /// A compiled image is not what NVRTC should make.
    BadCubin {
        /// What is wrong with it.
        reason: String,
    },
    /// A module has no kernel of this name.
    NoKernel {
        /// The name asked for.
        name: String,
        /// The kernels there are.
        present: Vec<String>,
    },
    /// A launch's arguments do not fit the kernel's parameters.
    Arguments {
        /// The kernel.
        kernel: String,
        /// Bytes of each of the kernel's parameters.
        expected: Vec<u32>,
        /// Bytes of each argument.
        found: Vec<u32>,
    },
    /// The driver refused to launch a kernel.
    Launch {
        /// The kernel.
        kernel: String,
        /// Blocks along x, y, z.
        grid: [u32; 3],
        /// Threads of a block along x, y, z.
        block: [u32; 3],
        /// Dynamic shared memory of a block, bytes.
        shared: u32,
        /// What the driver said.
        reason: String,
    },
    /// Something of one GPU was used with another.
    OtherDevice {
        /// What was used.
        what: &'static str,
        /// Index of the GPU it is used with.
        expected: usize,
        /// Index of the GPU it lives on.
        found: usize,
    },
    /// A copy or a view does not fit a buffer.
    Size {
        /// What was done.
        what: &'static str,
        /// Bytes that fit.
        expected: usize,
        /// Bytes asked for.
        found: usize,
    },
    /// A graph could not be captured.
    Capture {
        /// Why.
        reason: String,
    },
    /// Another call of the driver failed. A kernel's own fault (a bad address) is reported by a later call, so `call`
    /// is where it was noticed.
    Driver {
        /// What was being done.
        call: &'static str,
        /// The driver's name for the error, `CUDA_ERROR_ILLEGAL_ADDRESS`.
        code: String,
        /// The driver's sentence.
        reason: String,
    },
}

impl CudaError {
    /// How to mend it, in a sentence.
    pub fn mend(&self) -> String {
        match self {
            CudaError::NoDriver { .. } => {
                "install NVIDIA's driver (Debian and Ubuntu: the package nvidia-driver; a container: run it with \
                 --gpus all), or run on the CPU"
                    .into()
            }
            CudaError::DriverFails { .. } => {
                "see whether nvidia-smi works: the library and the kernel module must be of one version, and a container \
                 needs --gpus all; or run on the CPU"
                    .into()
            }
            CudaError::DriverLacks { .. } => "install a driver of CUDA 12.0 or later (R525)".into(),
            CudaError::NoDevice { count: 0, .. } => {
                "see whether nvidia-smi lists a GPU and what CUDA_VISIBLE_DEVICES hides, or run on the CPU".into()
            }
            CudaError::NoDevice { count, .. } => format!("use an index below {count}"),
            CudaError::NoNvrtc { .. } => {
                "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`, and name the library or its folder in \
                 FRACTAL_NVRTC if it lies elsewhere"
                    .into()
            }
            CudaError::NvrtcUnusable { .. } => {
                "install NVRTC anew (`pip install nvidia-cuda-nvrtc`), or name another one in FRACTAL_NVRTC".into()
            }
            CudaError::NoCublasLt { .. } => {
                "install the CUDA toolkit, or `pip install nvidia-cublas`, and name the library or its folder in \
                 FRACTAL_CUBLASLT if it lies elsewhere; only dense baselines need it"
                    .into()
            }
            CudaError::CublasLtUnusable { .. } => {
                "install a cuBLAS that fits the driver (`pip install nvidia-cublas` or nvidia-cublas-cu12), or name \
                 another one in FRACTAL_CUBLASLT"
                    .into()
            }
            CudaError::CublasLt { .. } => {
                "take a shape, type and epilogue that cuBLASLt has a kernel for on this GPU".into()
            }
            CudaError::DriverTooOld { driver, .. } => format!(
                "update the driver, or install an NVRTC of CUDA {major} (`pip install nvidia-cuda-nvrtc-cu{major}`) \
                 and name it in FRACTAL_NVRTC",
                major = driver.major
            ),
            CudaError::NvrtcLacksArch { .. } => {
                "install a newer NVRTC (`pip install -U nvidia-cuda-nvrtc`) and name it in FRACTAL_NVRTC".into()
            }
            CudaError::ArchTooLow { offer, .. } => {
                format!("let the schedule tensorize with `{offer}`, which runs on every GPU")
            }
            CudaError::OutOfMemory { .. } => "free buffers, use a smaller batch, or another GPU by its index".into(),
            CudaError::Compile { source_path: Some(path), .. } => {
                format!("the source and the log are kept at {}", path.display())
            }
            CudaError::Compile { source_path: None, .. } => {
                "set FRACTAL_CACHE_DIR to a folder that can be written to keep the source and the log".into()
            }
            CudaError::BadCubin { .. } => "clear the kernel cache (FRACTAL_CACHE_DIR) and compile again".into(),
            CudaError::NoKernel { .. } => "name one of the kernels that the source declares extern \"C\"".into(),
            CudaError::Arguments { .. } => "pass one argument for each parameter, in order".into(),
            CudaError::Launch { .. } => {
                "stay within the GPU's limits for threads, registers and shared memory of a block".into()
            }
            CudaError::OtherDevice { found, .. } => format!("use it on the GPU with index {found}"),
            CudaError::Size { .. } => "give a slice that fits the buffer".into(),
            CudaError::Capture { .. } => {
                "capture launches and device copies only; upload, download and synchronize outside".into()
            }
            CudaError::Driver { .. } => {
                "run under compute-sanitizer to find the kernel at fault; after such an error the process must be \
                 started again"
                    .into()
            }
        }
    }

    fn headline(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CudaError::NoDriver { looked, reason } => {
                write!(f, "no CUDA driver: {reason} (looked for {})", looked.join(", "))
            }
            CudaError::DriverFails { reason } => write!(f, "the CUDA driver does not start: {reason}"),
            CudaError::DriverLacks { library, symbols } => {
                write!(f, "the CUDA driver {library} lacks {}", symbols.join(", "))
            }
            CudaError::NoDevice { index, count } => write!(f, "no GPU with index {index}: the driver shows {count}"),
            CudaError::NoNvrtc { looked } => {
                write!(f, "no NVRTC, the compiler that makes kernels (looked for {})", looked.join(", "))
            }
            CudaError::NvrtcUnusable { library, reason } => {
                write!(f, "{} is no usable NVRTC: {reason}", library.display())
            }
            CudaError::NoCublasLt { looked } => {
                write!(f, "no cuBLASLt, the library of dense products (looked for {})", looked.join(", "))
            }
            CudaError::CublasLtUnusable { library, reason } => {
                write!(f, "{} is no usable cuBLASLt: {reason}", library.display())
            }
            CudaError::CublasLt { call, product, reason } => {
                write!(f, "cuBLASLt failed to {call} for {product}: {reason}")
            }
            CudaError::DriverTooOld { driver, nvrtc, nvrtc_library } => write!(
                f,
                "NVRTC {nvrtc} ({}) makes code that needs a driver of CUDA {}, but this driver supports CUDA {driver}",
                nvrtc_library.display(),
                nvrtc.major
            ),
            CudaError::NvrtcLacksArch { arch, nvrtc, known } => {
                let known: Vec<_> = known.iter().map(|number| format!("sm_{number}")).collect();
                write!(f, "NVRTC {nvrtc} cannot compile for {arch}; it knows {}", known.join(", "))
            }
            CudaError::ArchTooLow { device, found, needed, what, .. } => {
                write!(f, "`{what}` needs a GPU of {needed}, but {device} is {found}")
            }
            CudaError::OutOfMemory { requested, free, total } => {
                write!(f, "out of GPU memory: {requested} bytes requested, {free} of {total} free")
            }
            CudaError::Compile { name, arch, log, .. } => {
                write!(f, "NVRTC could not compile {name} for {arch}:\n{}", log.trim_end())
            }
            CudaError::BadCubin { reason } => write!(f, "not a machine code image of NVRTC: {reason}"),
            CudaError::NoKernel { name, present } => {
                write!(f, "no kernel `{name}`; there are: {}", present.join(", "))
            }
            CudaError::Arguments { kernel, expected, found } => write!(
                f,
                "`{kernel}` has {} parameters of {expected:?} bytes, but was given {} arguments of {found:?} bytes",
                expected.len(),
                found.len()
            ),
            CudaError::Launch { kernel, grid, block, shared, reason } => write!(
                f,
                "`{kernel}` could not be launched with grid {grid:?}, block {block:?} and {shared} bytes of dynamic \
                 shared memory: {reason}"
            ),
            CudaError::OtherDevice { what, expected, found } => {
                write!(f, "a {what} of GPU {found} was used on GPU {expected}")
            }
            CudaError::Size { what, expected, found } => {
                write!(f, "{what}: expected at most {expected} bytes, found {found}")
            }
            CudaError::Capture { reason } => write!(f, "no graph was captured: {reason}"),
            CudaError::Driver { call, code, reason } => write!(f, "the CUDA driver failed to {call}: {code}: {reason}"),
        }
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.headline(f)?;
        write!(f, "\n  help: {}", self.mend())
    }
}

impl std::error::Error for CudaError {}
