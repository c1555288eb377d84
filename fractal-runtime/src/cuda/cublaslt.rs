//! The dense baseline: shape, type and operands -> Y = W X by the fastest kernel that cuBLASLt has for it.
//!
//! cuBLASLt thinks in columns. X[k, m], row by row, is its column-major X' [m, k] with leading dimension m; W[n, k] is
//! W' [k, n] with leading dimension k; so Y' [m, n] = X' W' is Y[n, m], row by row, and nothing is transposed.
//!
//! The few functions needed are called through their addresses: cudarc's own bindings look for the library under short
//! names only and panic when it is missing.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use fractal_dsl::DType;
use libloading::Library;

use super::device::CudaDevice;
use super::error::CudaError;
use super::library::{self, Places};
use super::memory::Buffer;
use super::stream::Stream;
use super::target::Version;

/// What a dense product does to each element before it is stored: what cuBLASLt fuses.
///
/// A bias is not among them: cuBLASLt adds one entry to each row of its column-major result, which are tokens here;
/// [`DenseGemm::with_bias_gelu`] is for operands that lie the other way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DenseEpilogue {
    /// Nothing.
    #[default]
    None,
    /// max(y, 0).
    Relu,
    /// The tanh form of GELU; Fractal's is the exact one.
    Gelu,
}

/// One set of operands: W[n, k], X[k, m] and Y[n, m], row by row; of a product with a bias, X[m, k] and Y[m, n].
#[derive(Clone, Copy, Debug)]
pub struct DenseOperands<'a> {
    /// W.
    pub w: &'a Buffer,
    /// X.
    pub x: &'a Buffer,
    /// Y.
    pub y: &'a Buffer,
}

/// A dense product Y[n, m] = W[n, k] X[k, m] with the kernels that cuBLASLt offers for it. Sums are in f32, and f32
/// operands are never rounded to TF32.
pub struct DenseGemm {
    library: &'static Loaded,
    handle: Handle,
    operation: Owned,
    layouts: [Owned; 3],
    /// Best guess first; after [`DenseGemm::fastest`], the fastest first.
    algorithms: Vec<Heuristic>,
    workspace: Buffer,
    dtype: DType,
    shape: [usize; 3],
    /// Of a token-major product: what the operation points to.
    bias: Option<Buffer>,
}

// SAFETY: cuBLASLt's handle and descriptors may be used from any thread; none is written after `new`.
unsafe impl Send for DenseGemm {}
// SAFETY: as above.
unsafe impl Sync for DenseGemm {}

impl std::fmt::Debug for DenseGemm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DenseGemm")
            .field("product", &self.product())
            .field("algorithms", &self.algorithms.len())
            .finish()
    }
}

/// Memory that a kernel may use for partial sums, bytes.
const WORKSPACE: usize = 64 << 20;
/// Kernels asked for.
const ASKED: usize = 32;
/// Kernels that the first timing leaves for the second.
const FINALISTS: usize = 4;

// cuBLASLt's numbers (cublasLt.h, library_types.h).
const COMPUTE_32F: c_int = 68;
const DESC_TRANSPOSE_A: c_int = 3;
const DESC_EPILOGUE: c_int = 7;
const DESC_BIAS: c_int = 8;
const TRANSPOSED: c_int = 1;
const EPILOGUE_NONE: c_int = 1;
const EPILOGUE_RELU: c_int = 2;
const EPILOGUE_GELU: c_int = 32;
const EPILOGUE_GELU_BIAS: c_int = 36;
const PREFERENCE_WORKSPACE: c_int = 1;

fn data_type(dtype: DType) -> c_int {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 2,
        DType::BF16 => 14,
    }
}

impl DenseGemm {
    /// Asks cuBLASLt for kernels of Y[n, m] = W[n, k] X[k, m], all feature-major; `shape` is [n, k, m].
    ///
    /// # Errors
    /// [`CudaError::NoCublasLt`] lists where the library was looked for; [`CudaError::CublasLtUnusable`];
    /// [`CudaError::CublasLt`] where there is no kernel.
    pub fn new(
        stream: &Stream,
        dtype: DType,
        shape: [usize; 3],
        epilogue: DenseEpilogue,
    ) -> Result<DenseGemm, CudaError> {
        let epilogue = match epilogue {
            DenseEpilogue::None => EPILOGUE_NONE,
            DenseEpilogue::Relu => EPILOGUE_RELU,
            DenseEpilogue::Gelu => EPILOGUE_GELU,
        };
        DenseGemm::make(stream, dtype, shape, epilogue, None)
    }

    /// Y[m, n] = gelu(X[m, k] W' + bias) with the tanh form of GELU, token-major, which is how cuBLASLt can add a bias.
    /// `shape` is [n, k, m]; `bias` has n values of `dtype`.
    ///
    /// # Errors
    /// As [`DenseGemm::new`], and [`CudaError::Size`].
    pub fn with_bias_gelu(
        stream: &Stream,
        dtype: DType,
        shape: [usize; 3],
        bias: &Buffer,
    ) -> Result<DenseGemm, CudaError> {
        let (expected, found) = (bias.bytes(), shape[0] * dtype.bytes());
        if expected < found {
            return Err(CudaError::Size { what: "dense bias", expected, found });
        }
        DenseGemm::make(stream, dtype, shape, EPILOGUE_GELU_BIAS, Some(bias.clone()))
    }

    fn make(
        stream: &Stream,
        dtype: DType,
        shape: [usize; 3],
        epilogue: c_int,
        bias: Option<Buffer>,
    ) -> Result<DenseGemm, CudaError> {
        let [n, k, m] = shape;
        let library = load(stream.device().info().driver)?;
        stream.bind()?;
        let product = product(dtype, [n, k, m]);
        let check = |call, status| library.check(call, &product, status);
        let functions = &library.functions;
        let handle = library.handle(stream.device(), &product)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a live place for the descriptor.
        check("describe a product", unsafe {
            (functions.operation_create)(&mut raw, COMPUTE_32F, data_type(DType::F32))
        })?;
        let operation = Owned(raw, functions.operation_destroy);
        // SAFETY: the descriptor is live and the attribute is an integer of 4 bytes, read during the call.
        check("set an epilogue", unsafe {
            (functions.operation_set)(operation.0, DESC_EPILOGUE, (&raw const epilogue).cast(), size_of::<c_int>())
        })?;
        if let Some(bias) = &bias {
            let transposed = TRANSPOSED;
            // SAFETY: as above.
            check("transpose an operand", unsafe {
                let value = (&raw const transposed).cast();
                (functions.operation_set)(operation.0, DESC_TRANSPOSE_A, value, size_of::<c_int>())
            })?;
            let pointer = bias.pointer();
            // SAFETY: the descriptor is live and the attribute is an address of 8 bytes, read during the call. What it
            // points to is kept by the product, and long enough (checked by the caller).
            check("set a bias", unsafe {
                (functions.operation_set)(operation.0, DESC_BIAS, (&raw const pointer).cast(), size_of::<u64>())
            })?;
        }
        // Token-major, W is the first factor, transposed: Y' [n, m] = W'' X' with W' [k, n] and X' [k, m].
        let shapes = if bias.is_some() { [(k, n), (k, m), (n, m)] } else { [(m, k), (k, n), (m, n)] };
        let mut layouts = Vec::new();
        for (rows, columns) in shapes {
            // SAFETY: the pointer is to a live place for the descriptor.
            check("describe a matrix", unsafe {
                (functions.layout_create)(&mut raw, data_type(dtype), rows as u64, columns as u64, rows as i64)
            })?;
            layouts.push(Owned(raw, functions.layout_destroy));
        }
        let layouts: [Owned; 3] = layouts.try_into().unwrap_or_else(|_| unreachable!("three layouts were made"));
        // SAFETY: the pointer is to a live place for the preference.
        check("make a preference", unsafe { (functions.preference_create)(&mut raw) })?;
        let preference = Owned(raw, functions.preference_destroy);
        let room = WORKSPACE as u64;
        // SAFETY: the preference is live and the attribute is a u64, read during the call.
        check("set a preference", unsafe {
            (functions.preference_set)(preference.0, PREFERENCE_WORKSPACE, (&raw const room).cast(), size_of::<u64>())
        })?;
        let mut algorithms = vec![Heuristic::default(); ASKED];
        let mut found = 0;
        let [a, b, y] = [&layouts[0], &layouts[1], &layouts[2]].map(|layout| layout.0);
        // SAFETY: handle and descriptors are live; `algorithms` has room for as many results as are asked for.
        let status = unsafe {
            let (handle, operation, asked) = (handle.0, operation.0, ASKED as c_int);
            let results = algorithms.as_mut_ptr();
            (functions.heuristic)(handle, operation, a, b, y, y, preference.0, asked, results, &mut found)
        };
        check("find a kernel", status)?;
        algorithms.truncate(found.unsigned_abs() as usize);
        algorithms.retain(|a| a.state == 0 && a.workspace <= WORKSPACE);
        if algorithms.is_empty() {
            let reason = "it offers none".into();
            return Err(CudaError::CublasLt { call: "find a kernel", product, reason });
        }
        let workspace = stream.alloc(WORKSPACE)?;
        Ok(DenseGemm { library, handle, operation, layouts, algorithms, workspace, dtype, shape, bias })
    }

    /// The version of the library that is used.
    pub fn version(&self) -> String {
        let v = self.library.number;
        format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
    }

    /// How many kernels cuBLASLt offers.
    pub fn algorithms(&self) -> usize {
        self.algorithms.len()
    }

    fn product(&self) -> String {
        product(self.dtype, self.shape)
    }

    /// Puts one product on a stream; the host does not wait. The workspace is shared by all launches of this value, so
    /// they belong on one stream.
    ///
    /// # Errors
    /// [`CudaError::Size`] where an operand is too short; [`CudaError::CublasLt`].
    pub fn launch(&self, stream: &Stream, operands: DenseOperands<'_>) -> Result<(), CudaError> {
        self.launch_with(stream, operands, &self.algorithms[0])
    }

    fn launch_with(
        &self,
        stream: &Stream,
        operands: DenseOperands<'_>,
        algorithm: &Heuristic,
    ) -> Result<(), CudaError> {
        let [n, k, m] = self.shape;
        let DenseOperands { w, x, y } = operands;
        for (what, buffer, elements) in [("dense W", w, n * k), ("dense X", x, k * m), ("dense Y", y, n * m)] {
            let expected = elements * self.dtype.bytes();
            if buffer.bytes() < expected {
                return Err(CudaError::Size { what, expected: buffer.bytes(), found: expected });
            }
            stream.touch(buffer)?;
        }
        stream.touch(&self.workspace)?;
        self.bias.iter().try_for_each(|bias| stream.touch(bias))?;
        let (a, b) = if self.bias.is_some() { (w, x) } else { (x, w) };
        let (one, zero) = (1.0f32, 0.0f32);
        let [a_layout, b_layout, y_layout] = [&self.layouts[0], &self.layouts[1], &self.layouts[2]].map(|l| l.0);
        let pointer = |buffer: &Buffer| buffer.pointer() as *mut c_void;
        // SAFETY: handle, descriptors and stream are live. The buffers are as long as the layouts say (checked above) and
        // live until the stream is done with them (`touch`). alpha and beta are f32 on the host, read during the call.
        let status = unsafe {
            (self.library.functions.matmul)(
                self.handle.0,
                self.operation.0,
                (&raw const one).cast(),
                pointer(a),
                a_layout,
                pointer(b),
                b_layout,
                (&raw const zero).cast(),
                pointer(y),
                y_layout,
                pointer(y),
                y_layout,
                &algorithm.algorithm,
                pointer(&self.workspace),
                WORKSPACE,
                stream.raw().cu_stream().cast(),
            )
        };
        self.library.check("launch a product", &self.product(), status)
    }

    /// Times every kernel on these operands, which take turns, and keeps the fastest; its microseconds. Waits.
    ///
    /// # Errors
    /// Those of [`DenseGemm::launch`], where no kernel runs.
    pub fn fastest(&mut self, stream: &Stream, operands: &[DenseOperands<'_>]) -> Result<f64, CudaError> {
        let mut timed = Vec::new();
        let mut refused = None;
        for algorithm in &self.algorithms {
            match self.time(stream, operands, algorithm, 3) {
                Ok(time) => timed.push((time, *algorithm)),
                // One that cannot run leaves the others.
                Err(error @ CudaError::CublasLt { .. }) => {
                    refused.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (time, algorithm) in timed.iter_mut().take(FINALISTS) {
            *time = self.time(stream, operands, algorithm, 9)?;
        }
        let finalists = timed.len().min(FINALISTS);
        timed[..finalists].sort_by(|a, b| a.0.total_cmp(&b.0));
        match timed.first() {
            Some(&(time, _)) => {
                self.algorithms = timed.into_iter().map(|(_, algorithm)| algorithm).collect();
                Ok(time)
            }
            None => Err(refused.unwrap_or(CudaError::CublasLt {
                call: "time its kernels",
                product: self.product(),
                reason: "no operands were given".into(),
            })),
        }
    }

    /// The median microseconds of a launch, over replays of a graph of several.
    fn time(
        &self,
        stream: &Stream,
        operands: &[DenseOperands<'_>],
        algorithm: &Heuristic,
        rounds: usize,
    ) -> Result<f64, CudaError> {
        let once = |stream: &Stream| operands.iter().try_for_each(|o| self.launch_with(stream, *o, algorithm));
        // Warms up, and tells how many launches fill a measurement.
        once(stream)?;
        let first = stream.time(1, || once(stream))?;
        let repeats = (0.2 / f64::from(first).max(1e-3)).ceil().clamp(1.0, 50.0) as usize;
        let graph = stream.capture(|stream| (0..repeats).try_for_each(|_| once(stream)))?;
        graph.replay()?;
        let mut times = Vec::new();
        for _ in 0..rounds {
            times.push(stream.time(1, || graph.replay())?);
        }
        times.sort_by(f32::total_cmp);
        Ok(f64::from(times[times.len() / 2]) * 1e3 / (repeats * operands.len()).max(1) as f64)
    }
}

fn product(dtype: DType, [n, k, m]: [usize; 3]) -> String {
    format!("{dtype} {n}x{k}x{m}")
}

/// A handle or descriptor of cuBLASLt, and the function that frees it.
struct Owned(*mut c_void, unsafe extern "C" fn(*mut c_void) -> Status);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it was created by the library the function is of, and is freed once. A failure leaks it.
        unsafe { (self.1)(self.0) };
    }
}

/// A handle of cuBLASLt, which lives as long as the process.
#[derive(Clone, Copy)]
struct Handle(*mut c_void);

// SAFETY: cuBLASLt's handles may be used from any thread.
unsafe impl Send for Handle {}

/// `cublasStatus_t`; 0 is success.
type Status = c_int;

/// `cublasLtMatmulAlgo_t`: opaque.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Algorithm([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Heuristic {
    algorithm: Algorithm,
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

type Create = unsafe extern "C" fn(*mut *mut c_void) -> Status;
type Destroy = unsafe extern "C" fn(*mut c_void) -> Status;
type Set = unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize) -> Status;
type FindKernels = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    c_int,
    *mut Heuristic,
    *mut c_int,
) -> Status;
type Matmul = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    *const c_void,
    *const c_void,
    *mut c_void,
    *const c_void,
    *mut c_void,
    *const c_void,
    *const c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *const Algorithm,
    *mut c_void,
    usize,
    *mut c_void,
) -> Status;

/// The addresses of the functions used; the library they are in is never unloaded.
struct Functions {
    version: unsafe extern "C" fn() -> usize,
    status_string: unsafe extern "C" fn(Status) -> *const c_char,
    create: Create,
    operation_create: unsafe extern "C" fn(*mut *mut c_void, c_int, c_int) -> Status,
    operation_destroy: Destroy,
    operation_set: Set,
    layout_create: unsafe extern "C" fn(*mut *mut c_void, c_int, u64, u64, i64) -> Status,
    layout_destroy: Destroy,
    preference_create: Create,
    preference_destroy: Destroy,
    preference_set: Set,
    heuristic: FindKernels,
    matmul: Matmul,
}

struct Loaded {
    functions: Functions,
    /// 130001 is 13.0.1.
    number: usize,
    /// By GPU: the handle, and the context it was made in, which must not end before it.
    handles: Mutex<HashMap<usize, (Handle, CudaDevice)>>,
}

impl Functions {
    fn of(library: &'static Library) -> Result<Functions, String> {
        fn get<T: Copy>(library: &'static Library, name: &str) -> Result<T, String> {
            // SAFETY: `T` is the function's type as cublasLt.h of CUDA 12 and 13 declares it.
            let symbol = unsafe { library.get::<T>(name.as_bytes()) };
            symbol.map(|symbol| *symbol).map_err(|_| format!("it lacks {name}"))
        }
        Ok(Functions {
            version: get(library, "cublasLtGetVersion")?,
            status_string: get(library, "cublasLtGetStatusString")?,
            create: get(library, "cublasLtCreate")?,
            operation_create: get(library, "cublasLtMatmulDescCreate")?,
            operation_destroy: get(library, "cublasLtMatmulDescDestroy")?,
            operation_set: get(library, "cublasLtMatmulDescSetAttribute")?,
            layout_create: get(library, "cublasLtMatrixLayoutCreate")?,
            layout_destroy: get(library, "cublasLtMatrixLayoutDestroy")?,
            preference_create: get(library, "cublasLtMatmulPreferenceCreate")?,
            preference_destroy: get(library, "cublasLtMatmulPreferenceDestroy")?,
            preference_set: get(library, "cublasLtMatmulPreferenceSetAttribute")?,
            heuristic: get(library, "cublasLtMatmulAlgoGetHeuristic")?,
            matmul: get(library, "cublasLtMatmul")?,
        })
    }
}

impl Loaded {
    /// The one handle for a GPU, whose context is current. It is never destroyed: while one thread destroys a handle, launches
    /// of another thread through another handle fail (seen with cuBLASLt 13.0).
    fn handle(&self, device: &CudaDevice, product: &str) -> Result<Handle, CudaError> {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((handle, _)) = handles.get(&device.info().index) {
            return Ok(*handle);
        }
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a live place for the handle; the GPU's context is current.
        self.check("start", product, unsafe { (self.functions.create)(&mut raw) })?;
        handles.insert(device.info().index, (Handle(raw), device.clone()));
        Ok(Handle(raw))
    }

    fn check(&self, call: &'static str, product: &str, status: Status) -> Result<(), CudaError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function takes any number and returns a static string.
        let text = unsafe { CStr::from_ptr((self.functions.status_string)(status)) };
        let reason = text.to_string_lossy().into_owned();
        Err(CudaError::CublasLt { call, product: product.to_owned(), reason })
    }
}

/// The first cuBLASLt found that a driver of this CUDA version can run, loaded once for the process.
fn load(driver: Version) -> Result<&'static Loaded, CudaError> {
    static LOADED: OnceLock<Result<Loaded, CudaError>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let (candidates, looked) = library::cublaslt_candidates(&Places::from_env());
        find(candidates, looked, driver)
    });
    loaded.as_ref().map_err(CudaError::clone)
}

fn find(candidates: Vec<PathBuf>, looked: Vec<String>, driver: Version) -> Result<Loaded, CudaError> {
    let mut broken = None;
    for candidate in candidates {
        match open(&candidate, driver) {
            Ok(loaded) => return Ok(loaded),
            // A short name that the loader does not know is no broken library.
            Err(reason) if candidate.is_absolute() && candidate.exists() => {
                broken.get_or_insert(CudaError::CublasLtUnusable { library: candidate, reason });
            }
            Err(_) => {}
        }
    }
    Err(broken.unwrap_or(CudaError::NoCublasLt { looked }))
}

fn open(path: &Path, driver: Version) -> Result<Loaded, String> {
    let functions = Functions::of(library::load_cublaslt(path)?)?;
    // SAFETY: the function takes nothing and returns a number.
    let number = unsafe { (functions.version)() };
    let major = (number / 10_000) as u32;
    if major > driver.major {
        return Err(format!("it is of CUDA {major}, but the driver supports CUDA {driver}"));
    }
    Ok(Loaded { functions, number, handles: Mutex::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_says_where_it_was_looked_for() {
        let driver = Version { major: 13, minor: 0 };
        let error = find(vec![], vec!["/opt/none".into()], driver).err().unwrap().to_string();
        assert!(error.starts_with("no cuBLASLt, the library of dense products (looked for /opt/none)\n"), "{error}");
        assert!(error.contains("pip install nvidia-cublas"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_library_is_unusable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libcublasLt.so.13");
        std::fs::write(&path, "no library").unwrap();
        let error = find(vec![path.clone()], vec![], Version { major: 13, minor: 0 }).err().unwrap();
        assert!(matches!(error, CudaError::CublasLtUnusable { library, .. } if library == path));
    }

    #[test]
    fn the_results_of_the_heuristics_have_the_size_of_the_header() {
        assert_eq!((size_of::<Algorithm>(), size_of::<Heuristic>()), (64, 96));
    }
}
