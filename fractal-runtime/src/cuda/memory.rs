//! GPU memory, freed when no work uses it any more.
//!
//! A buffer belongs to the stream it was allocated on. Another stream that uses it is noted at its first use, and waits
//! there for the buffer to exist; when the buffer is dropped, its own stream waits for all of them and then frees it.
//! None of this makes the host wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUdeviceptr};
use cudarc::driver::{DriverError, result};

use super::device::DriverResult;
use super::error::CudaError;
use super::stream::Stream;

/// Memory of one GPU. A clone is the same memory.
#[derive(Debug, Clone)]
pub struct Buffer {
    allocation: Arc<Allocation>,
}

impl Buffer {
    pub(crate) fn new(allocation: Allocation) -> Buffer {
        Buffer { allocation: Arc::new(allocation) }
    }

    /// Its size, bytes.
    pub fn bytes(&self) -> usize {
        self.allocation.bytes
    }

    /// The index of its GPU.
    pub fn device_index(&self) -> usize {
        self.allocation.home.device().info().index
    }

    pub(crate) fn pointer(&self) -> CUdeviceptr {
        self.allocation.pointer
    }

    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }
}

#[derive(Debug)]
pub(crate) struct Allocation {
    pointer: CUdeviceptr,
    bytes: usize,
    home: Stream,
    /// The host has waited for the allocation and the first content: no stream needs to.
    ready: AtomicBool,
    /// Streams other than `home` that have used it.
    others: Mutex<Vec<Stream>>,
}

impl Allocation {
    pub(crate) fn new(home: &Stream, bytes: usize) -> Result<Allocation, CudaError> {
        home.bind()?;
        let context = home.device().context();
        // The driver refuses to allocate nothing.
        let size = bytes.max(1);
        let pointer = if context.has_async_alloc() {
            // SAFETY: the stream is live; the memory is not read before it is written, or holds undefined bytes.
            unsafe { result::malloc_async(home.raw().cu_stream(), size) }
        } else {
            // SAFETY: the context is bound to this thread.
            unsafe { result::malloc_sync(size) }
        };
        let pointer = pointer.or_else(|error| match error {
            DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                let (free, total) = home.device().memory()?;
                Err(CudaError::OutOfMemory { requested: bytes, free, total })
            }
            error => Err(error).driver("allocate memory"),
        })?;
        let (ready, others) = (AtomicBool::new(false), Mutex::default());
        Ok(Allocation { pointer, bytes, home: home.clone(), ready, others })
    }

    pub(crate) fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Notes that work of `stream` will use the memory; the first such work waits until the memory exists.
    pub(crate) fn used_on(&self, stream: &Stream) -> Result<(), CudaError> {
        if *stream == self.home {
            return Ok(());
        }
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if others.contains(stream) {
            return Ok(());
        }
        if !self.ready.load(Ordering::Acquire) {
            if stream.is_capturing() {
                // A captured stream cannot wait for work outside its capture, so the host does; once, not in a replay.
                self.home.synchronize()?;
                self.set_ready();
            } else {
                self.home.not_capturing("a buffer of a captured stream was used on another one")?;
                stream.raw().join(self.home.raw()).driver("let a stream wait for another")?;
            }
        }
        others.push(stream.clone());
        Ok(())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let others = std::mem::take(self.others.get_mut().unwrap_or_else(PoisonError::into_inner));
        Freed { pointer: self.pointer, home: self.home.clone(), others }.release();
    }
}

/// Memory without an owner, to be freed after the work that uses it.
pub(crate) struct Freed {
    pointer: CUdeviceptr,
    home: Stream,
    others: Vec<Stream>,
}

impl Freed {
    /// Frees after the work so far. During a capture of one of the streams it is put off to the end of the capture, or
    /// it would become a part of the graph.
    pub(crate) fn release(self) {
        let captured = std::iter::once(&self.home).chain(&self.others).find(|stream| stream.is_capturing()).cloned();
        if let Some(stream) = captured {
            let mut capture = stream.capture_state();
            if let Some(capture) = capture.as_mut() {
                capture.freed.push(self);
                return;
            }
        }
        let context = self.home.device().context();
        context.record_err(context.bind_to_thread());
        for stream in &self.others {
            context.record_err(self.home.raw().join(stream.raw()));
        }
        if context.has_async_alloc() {
            // SAFETY: the pointer came from malloc_async and is freed once; the streams that used it were joined.
            context.record_err(unsafe { result::free_async(self.pointer, self.home.raw().cu_stream()) });
        } else {
            context.record_err(self.home.raw().synchronize());
            // SAFETY: the pointer came from malloc_sync and is freed once, and all work on it is done.
            context.record_err(unsafe { result::free_sync(self.pointer) });
        }
    }
}
