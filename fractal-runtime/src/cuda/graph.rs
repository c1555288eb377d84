//! CUDA graphs: a sequence of launches captured once and replayed with one call.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec};

use super::device::DriverResult;
use super::error::CudaError;
use super::memory::{Allocation, Freed};
use super::stream::Stream;

/// What a capture in progress holds on to.
#[derive(Default)]
pub(crate) struct Capture {
    kept: Vec<Arc<Allocation>>,
    /// Memory dropped during the capture, to be freed at its end.
    pub freed: Vec<Freed>,
    /// The stream for what must not be captured.
    pub side: Option<Stream>,
}

impl Capture {
    pub(crate) fn keep(&mut self, allocation: Arc<Allocation>) {
        if !self.kept.iter().any(|kept| Arc::ptr_eq(kept, &allocation)) {
            self.kept.push(allocation);
        }
    }
}

/// A captured sequence of work. It keeps the buffers that it uses; its kernels are kept by the device.
pub struct Graph {
    raw: Mutex<Raw>,
    stream: Stream,
    kept: Vec<Arc<Allocation>>,
}

/// One kernel launch in a graph: its shape, and what the kernel uses, whoever compiled it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphKernel {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Registers of a thread.
    pub registers: u32,
    /// Shared memory of a block that the code declares, bytes.
    pub static_shared_bytes: u32,
    /// Shared memory of a block that the launch adds, bytes.
    pub dynamic_shared_bytes: u32,
    /// Local memory of a thread, bytes: its stack, and what was spilled.
    pub local_bytes: u32,
    /// Blocks that run on one multiprocessor at a time.
    pub blocks_per_sm: u32,
}

struct Raw {
    graph: CUgraph,
    executable: CUgraphExec,
}

// SAFETY: the driver lets a graph be used from any thread, by one at a time; the mutex in `Graph` sees to that.
unsafe impl Send for Raw {}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("stream", &self.stream).field("buffers", &self.kept.len()).finish()
    }
}

impl Stream {
    /// Captures the work that `work` puts on this stream; it is not run. Launches, device copies and allocation may be
    /// captured. No other thread may use the stream meanwhile.
    ///
    /// # Errors
    /// [`CudaError::Capture`] if `work` did what cannot be captured, the error of `work`, or
    /// [`CudaError::Driver`].
    pub fn capture(&self, work: impl FnOnce(&Stream) -> Result<(), CudaError>) -> Result<Graph, CudaError> {
        self.not_capturing("the stream is being captured already")?;
        self.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        self.raw().begin_capture(mode).driver("begin a capture")?;
        *self.capture_state() = Some(Capture::default());
        self.set_capturing(true);
        let mut running = Running { stream: self, ended: false };
        let done = work(self);
        let (graph, capture) = running.end();
        done?;
        let graph = graph.map_err(|error| CudaError::Capture { reason: error.to_string() })?;
        if graph.0.is_null() {
            return Err(CudaError::Capture { reason: "the driver gave up the capture".into() });
        }
        // SAFETY: the graph is live.
        let executable = unsafe { result::graph::instantiate(graph.0, sys::CUgraphInstantiate_flags(0)) }
            .driver("instantiate a graph")?;
        let raw = Raw { graph: graph.take(), executable };
        Ok(Graph { raw: Mutex::new(raw), stream: self.clone(), kept: capture.kept })
    }
}

/// A capture that is ended even if the work panics.
struct Running<'a> {
    stream: &'a Stream,
    ended: bool,
}

impl Running<'_> {
    fn end(&mut self) -> (Result<OwnedGraph, CudaError>, Capture) {
        self.ended = true;
        // SAFETY: the stream is live and being captured.
        let graph = unsafe { result::stream::end_capture(self.stream.raw().cu_stream()) }.driver("end a capture");
        self.stream.set_capturing(false);
        let mut capture = self.stream.capture_state().take().unwrap_or_default();
        capture.freed.drain(..).for_each(Freed::release);
        (graph.map(OwnedGraph), capture)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.ended {
            drop(self.end());
        }
    }
}

struct OwnedGraph(CUgraph);

impl OwnedGraph {
    fn take(mut self) -> CUgraph {
        std::mem::replace(&mut self.0, std::ptr::null_mut())
    }
}

impl Drop for OwnedGraph {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the graph is live and destroyed once. A failure leaks it.
            let _ = unsafe { result::graph::destroy(self.0) };
        }
    }
}

impl Graph {
    /// Its kernel launches, without copies and fills, in the order of their capture where the driver keeps it.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn kernels(&self) -> Result<Vec<GraphKernel>, CudaError> {
        self.stream.bind()?;
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        let mut len = 0;
        // SAFETY: the graph is live; without a place for nodes, their number is written.
        unsafe { sys::cuGraphGetNodes(raw.graph, std::ptr::null_mut(), &mut len) }.result().driver("read a graph")?;
        let mut nodes = vec![std::ptr::null_mut(); len];
        // SAFETY: the graph is live, and there is room for `len` nodes.
        unsafe { sys::cuGraphGetNodes(raw.graph, nodes.as_mut_ptr(), &mut len) }.result().driver("read a graph")?;
        nodes.truncate(len);
        let kernels = nodes.into_iter().map(|node| {
            let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
            // SAFETY: the node is one of the live graph's, and the pointer is to a live place.
            unsafe { sys::cuGraphNodeGetType(node, &mut kind) }.result().driver("read a node")?;
            let kernel = kind == sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL;
            // SAFETY: the node is a kernel's, and its graph is live.
            kernel.then(|| unsafe { kernel_of(node) }).transpose()
        });
        kernels.filter_map(Result::transpose).collect()
    }

    /// Runs it on the stream it was captured from. The host does not wait.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn replay(&self) -> Result<(), CudaError> {
        self.replay_on(&self.stream)
    }

    /// Runs it on a stream of the same GPU. The host does not wait.
    ///
    /// # Errors
    /// [`CudaError::Driver`], [`CudaError::OtherDevice`], [`CudaError::Capture`].
    pub fn replay_on(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.same_device("graph", self.stream.device().info().index)?;
        stream.not_capturing("a graph cannot be replayed inside a capture")?;
        stream.bind()?;
        if *stream != self.stream {
            self.kept.iter().try_for_each(|allocation| allocation.used_on(stream))?;
        }
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the graph and the stream are live; its buffers and kernels are kept.
        unsafe { result::graph::launch(raw.executable, stream.raw().cu_stream()) }.driver("replay a graph")
    }
}

/// # Safety
/// `node` must be a live kernel node, and its context current.
unsafe fn kernel_of(node: sys::CUgraphNode) -> Result<GraphKernel, CudaError> {
    // SAFETY: all zero bytes are valid parameters: numbers and null pointers.
    let mut node_parameters: sys::CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
    // SAFETY: the node is live (the caller's promise), and the pointer is to a live place.
    unsafe { sys::cuGraphKernelNodeGetParams_v2(node, &mut node_parameters) }
        .result()
        .driver("read a launch of a graph")?;
    let mut function = node_parameters.func;
    if function.is_null() {
        // SAFETY: a launch without a function has a kernel of a library.
        unsafe { sys::cuKernelGetFunction(&mut function, node_parameters.kern) }
            .result()
            .driver("find a launch's kernel")?;
    }
    let read = |attribute| {
        let mut value = 0;
        // SAFETY: the function is live as long as its graph, and the pointer is to a live integer.
        unsafe { sys::cuFuncGetAttribute(&mut value, attribute, function) }
            .result()
            .driver("read what a kernel uses")?;
        Ok(value.unsigned_abs())
    };
    let block = [node_parameters.blockDimX, node_parameters.blockDimY, node_parameters.blockDimZ];
    let (threads, shared) = (block.iter().product::<u32>() as i32, node_parameters.sharedMemBytes as usize);
    let mut blocks = 0;
    // SAFETY: as above.
    unsafe { sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, threads, shared) }
        .result()
        .driver("compute a kernel's occupancy")?;
    use sys::CUfunction_attribute as Attribute;
    Ok(GraphKernel {
        grid: [node_parameters.gridDimX, node_parameters.gridDimY, node_parameters.gridDimZ],
        block,
        registers: read(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
        static_shared_bytes: read(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
        dynamic_shared_bytes: node_parameters.sharedMemBytes,
        local_bytes: read(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        blocks_per_sm: blocks.unsigned_abs(),
    })
}

impl Drop for Graph {
    fn drop(&mut self) {
        let raw = self.raw.get_mut().unwrap_or_else(PoisonError::into_inner);
        let context = self.stream.device().context();
        context.record_err(context.bind_to_thread());
        // SAFETY: both are live and destroyed once. The driver lets a run in flight finish.
        context.record_err(unsafe { result::graph::exec_destroy(raw.executable) });
        // SAFETY: as above.
        context.record_err(unsafe { result::graph::destroy(raw.graph) });
    }
}
