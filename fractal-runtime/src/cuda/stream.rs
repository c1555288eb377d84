//! Streams and events: the order of work on a GPU, and its timing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream, result};

use super::device::{CudaDevice, DriverResult};
use super::error::CudaError;
use super::graph::Capture;
use super::memory::{Allocation, Buffer};

/// A queue of work on one GPU, run in order. A clone is the same queue.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    raw: Arc<CudaStream>,
    device: CudaDevice,
    /// Whether `capture` is filled, readable without the lock.
    capturing: AtomicBool,
    capture: Mutex<Option<Capture>>,
}

impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Stream {}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Stream").field(&self.raw().cu_stream()).finish()
    }
}

impl Stream {
    pub(crate) fn new(device: &CudaDevice) -> Result<Stream, CudaError> {
        let raw = device.context().new_stream().driver("make a stream")?;
        let capturing = AtomicBool::new(false);
        Ok(Stream { inner: Arc::new(Inner { raw, device: device.clone(), capturing, capture: Mutex::new(None) }) })
    }

    pub(crate) fn raw(&self) -> &Arc<CudaStream> {
        &self.inner.raw
    }

    /// The GPU it belongs to.
    pub fn device(&self) -> &CudaDevice {
        &self.inner.device
    }

    pub(crate) fn same_device(&self, what: &'static str, index: usize) -> Result<(), CudaError> {
        let expected = self.device().info().index;
        if index == expected { Ok(()) } else { Err(CudaError::OtherDevice { what, expected, found: index }) }
    }

    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        self.device().context().bind_to_thread().driver("use the GPU on this thread")
    }

    /// Waits for all work put on this stream so far.
    ///
    /// # Errors
    /// [`CudaError::Driver`] reports the fault of an earlier launch; [`CudaError::Capture`] during a capture.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.not_capturing("a stream cannot be waited for while it is captured")?;
        self.raw().synchronize().driver("wait for a stream")
    }

    /// Marks this point of the stream.
    ///
    /// # Errors
    /// [`CudaError::Driver`], [`CudaError::Capture`].
    pub fn record(&self) -> Result<Event, CudaError> {
        self.not_capturing("events cannot be recorded in a capture")?;
        let raw = self.raw().record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).driver("record an event")?;
        Ok(Event { raw, index: self.device().info().index })
    }

    /// Lets later work of this stream start only after an event. The host does not wait.
    ///
    /// # Errors
    /// [`CudaError::Driver`], [`CudaError::Capture`].
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        self.not_capturing("events cannot be waited for in a capture")?;
        self.raw().wait(&event.raw).driver("let a stream wait for an event")
    }

    /// Memory with undefined content. Allocation is ordered like other work of the stream, and the host does not wait.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, CudaError> {
        if !self.is_capturing() {
            return Allocation::new(self, bytes).map(Buffer::new);
        }
        // Memory that is allocated inside a capture would belong to the graph's run, not to the buffer.
        let side = self.side_stream()?;
        let buffer = Allocation::new(&side, bytes).map(Buffer::new)?;
        side.synchronize()?;
        buffer.allocation().set_ready();
        Ok(buffer)
    }

    /// Memory of zero bytes.
    ///
    /// # Errors
    /// As [`Stream::alloc`].
    pub fn zeros(&self, bytes: usize) -> Result<Buffer, CudaError> {
        let buffer = self.alloc(bytes)?;
        self.zero(&buffer)?;
        Ok(buffer)
    }

    /// New memory with a copy of `data`. Waits until the copy is done, so that every stream may use it at once.
    ///
    /// # Errors
    /// As [`Stream::alloc`], and [`CudaError::Capture`].
    pub fn upload<T: Pod>(&self, data: &[T]) -> Result<Buffer, CudaError> {
        self.not_capturing("data cannot be uploaded in a capture")?;
        let buffer = self.alloc(size_of_val(data))?;
        self.write(&buffer, data)?;
        buffer.allocation().set_ready();
        Ok(buffer)
    }

    /// Copies `data` to the start of a buffer. Waits until the copy is done.
    ///
    /// # Errors
    /// [`CudaError::Size`] if it does not fit, [`CudaError::Driver`], [`CudaError::Capture`].
    pub fn write<T: Pod>(&self, buffer: &Buffer, data: &[T]) -> Result<(), CudaError> {
        self.not_capturing("data cannot be uploaded in a capture")?;
        let bytes: &[u8] = bytemuck::cast_slice(data);
        fits("write to a buffer", buffer.bytes(), bytes.len())?;
        self.touch(buffer)?;
        if !bytes.is_empty() {
            // SAFETY: the buffer has room for `bytes`, and both live until the copy is done, which is waited for below.
            unsafe { result::memcpy_htod_async(buffer.pointer(), bytes, self.raw().cu_stream()) }.driver("upload")?;
        }
        self.synchronize()
    }

    /// Copies a buffer to the host, after the work on this stream so far, and waits for it. Bytes beyond the last whole
    /// `T` are left out.
    ///
    /// # Errors
    /// [`CudaError::Driver`], [`CudaError::Capture`].
    pub fn download<T: Pod>(&self, buffer: &Buffer) -> Result<Vec<T>, CudaError> {
        let mut data = vec![T::zeroed(); buffer.bytes() / size_of::<T>().max(1)];
        self.read(buffer, &mut data)?;
        Ok(data)
    }

    /// Fills `data` from the start of a buffer, as [`Stream::download`] does.
    ///
    /// # Errors
    /// [`CudaError::Size`] if the buffer is smaller, [`CudaError::Driver`], [`CudaError::Capture`].
    pub fn read<T: Pod>(&self, buffer: &Buffer, data: &mut [T]) -> Result<(), CudaError> {
        self.not_capturing("data cannot be downloaded in a capture")?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
        fits("read from a buffer", buffer.bytes(), bytes.len())?;
        self.touch(buffer)?;
        if !bytes.is_empty() {
            // SAFETY: the buffer holds as many bytes, and both live until the copy is done, which is waited for below.
            unsafe { result::memcpy_dtoh_async(bytes, buffer.pointer(), self.raw().cu_stream()) }.driver("download")?;
        }
        self.synchronize()
    }

    /// Sets all bytes of a buffer to zero. The host does not wait.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn zero(&self, buffer: &Buffer) -> Result<(), CudaError> {
        self.fill(buffer, 0)
    }

    /// Sets all bytes of a buffer to `byte`. The host does not wait.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn fill(&self, buffer: &Buffer, byte: u8) -> Result<(), CudaError> {
        self.touch(buffer)?;
        if buffer.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: the range is the buffer's own, which lives until this stream is done with it (`touch`).
        unsafe { result::memset_d8_async(buffer.pointer(), byte, buffer.bytes(), self.raw().cu_stream()) }
            .driver("fill a buffer")
    }

    /// Copies `bytes` bytes from the start of one buffer to the start of another. The host does not wait.
    ///
    /// # Errors
    /// [`CudaError::Size`], [`CudaError::OtherDevice`], [`CudaError::Driver`].
    pub fn copy(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<(), CudaError> {
        fits("copy between buffers", from.bytes().min(to.bytes()), bytes)?;
        self.touch(from)?;
        self.touch(to)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges lie inside their buffers, which live until this stream is done with them (`touch`).
        unsafe { result::memcpy_dtod_async(to.pointer(), from.pointer(), bytes, self.raw().cu_stream()) }
            .driver("copy between buffers")
    }

    /// Milliseconds of GPU time that one run of `work` takes, as the mean of `runs` runs one after another. Waits.
    ///
    /// # Errors
    /// Those of `work`, and [`CudaError::Driver`].
    pub fn time(&self, runs: u32, mut work: impl FnMut() -> Result<(), CudaError>) -> Result<f32, CudaError> {
        let start = self.record()?;
        for _ in 0..runs {
            work()?;
        }
        let end = self.record()?;
        Ok(start.milliseconds_until(&end)? / runs.max(1) as f32)
    }

    /// Registers a use of a buffer by work of this stream that is put on it next.
    pub(crate) fn touch(&self, buffer: &Buffer) -> Result<(), CudaError> {
        self.same_device("buffer", buffer.device_index())?;
        self.bind()?;
        buffer.allocation().used_on(self)?;
        if self.is_capturing() {
            self.keep(buffer.allocation().clone());
        }
        Ok(())
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.inner.capturing.load(Ordering::Acquire)
    }

    pub(crate) fn set_capturing(&self, on: bool) {
        self.inner.capturing.store(on, Ordering::Release);
    }

    pub(crate) fn capture_state(&self) -> MutexGuard<'_, Option<Capture>> {
        self.inner.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, allocation: Arc<Allocation>) {
        if let Some(capture) = self.capture_state().as_mut() {
            capture.keep(allocation);
        }
    }

    /// A stream beside this captured one, for what must not be captured.
    fn side_stream(&self) -> Result<Stream, CudaError> {
        let known = self.capture_state().as_ref().and_then(|capture| capture.side.clone());
        if let Some(side) = known {
            return Ok(side);
        }
        let side = Stream::new(self.device())?;
        if let Some(capture) = self.capture_state().as_mut() {
            capture.side = Some(side.clone());
        }
        Ok(side)
    }

    pub(crate) fn not_capturing(&self, reason: &str) -> Result<(), CudaError> {
        if self.is_capturing() { Err(CudaError::Capture { reason: reason.to_owned() }) } else { Ok(()) }
    }
}

fn fits(what: &'static str, expected: usize, found: usize) -> Result<(), CudaError> {
    if found <= expected { Ok(()) } else { Err(CudaError::Size { what, expected, found }) }
}

/// A point of a stream, with its time.
#[derive(Debug)]
pub struct Event {
    raw: CudaEvent,
    index: usize,
}

impl Event {
    /// Whether the stream has passed it.
    ///
    /// # Errors
    /// [`CudaError::Driver`] reports the fault of an earlier launch.
    pub fn is_complete(&self) -> Result<bool, CudaError> {
        self.raw.try_is_complete().driver("ask for an event")
    }

    /// Waits until the stream has passed it.
    ///
    /// # Errors
    /// [`CudaError::Driver`] reports the fault of an earlier launch.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.raw.synchronize().driver("wait for an event")
    }

    /// Milliseconds of GPU time from this event to a later one. Waits for both.
    ///
    /// # Errors
    /// [`CudaError::Driver`], [`CudaError::OtherDevice`].
    pub fn milliseconds_until(&self, later: &Event) -> Result<f32, CudaError> {
        if self.index != later.index {
            return Err(CudaError::OtherDevice { what: "event", expected: self.index, found: later.index });
        }
        self.raw.elapsed_ms(&later.raw).driver("read the time between events")
    }
}
