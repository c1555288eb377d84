//! Tensor maps: the description by which Hopper's copy engine moves boxes of a matrix to shared memory.

use cudarc::driver::sys;

use super::device::DriverResult;
use super::error::CudaError;
use super::memory::Buffer;

/// The element type of a tensor map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// 8 bits, of any meaning.
    U8,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
    /// 32 bits, of any meaning.
    U32,
}

impl Element {
    fn bytes(self) -> u64 {
        match self {
            Element::U8 => 1,
            Element::F16 | Element::Bf16 => 2,
            Element::F32 | Element::U32 => 4,
        }
    }
}

/// How 16-byte chunks are permuted in shared memory, by the length of the permuted span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Not at all.
    None,
    /// 32 bytes.
    B32,
    /// 64 bytes.
    B64,
    /// 128 bytes.
    B128,
}

/// A matrix in GPU memory and the box that one copy moves. It keeps its buffer.
#[derive(Debug, Clone)]
pub struct TensorMap {
    words: Words,
    buffer: Buffer,
}

#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Words([u64; 16]);

impl TensorMap {
    /// A map of the matrix at the start of `buffer`: `rows` rows of `columns` contiguous elements, `stride` elements
    /// apart, moved in boxes of `box_rows` rows and `box_columns` columns. Elements of a box beyond the matrix read as
    /// zero and are not written.
    ///
    /// # Errors
    /// [`CudaError::Size`] if the buffer is too small; [`CudaError::Driver`] if the driver refuses the shape: the row's
    /// bytes must be a multiple of 16, and a box has at most 256 elements a side.
    pub fn matrix(
        buffer: &Buffer,
        element: Element,
        [rows, columns]: [u64; 2],
        stride: u64,
        [box_rows, box_columns]: [u32; 2],
        swizzle: Swizzle,
    ) -> Result<TensorMap, CudaError> {
        let elements = (rows.saturating_sub(1)).saturating_mul(stride).saturating_add(columns);
        let found = usize::try_from(elements.saturating_mul(element.bytes())).unwrap_or(usize::MAX);
        if found > buffer.bytes() {
            return Err(CudaError::Size { what: "map a matrix", expected: buffer.bytes(), found });
        }
        let data_type = match element {
            Element::U8 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            Element::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Element::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            Element::F32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            Element::U32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        };
        let swizzle = match swizzle {
            Swizzle::None => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            Swizzle::B32 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            Swizzle::B64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            Swizzle::B128 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        };
        let mut words = Words([0; 16]);
        // SAFETY: the map is 128 bytes, aligned to 64; the arrays have one entry a dimension (strides: all but the first)
        // and are read during the call; the address is only written down.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                (&raw mut words).cast(),
                data_type,
                2,
                buffer.pointer() as *mut _,
                [columns, rows].as_ptr(),
                [stride * element.bytes()].as_ptr(),
                [box_columns, box_rows].as_ptr(),
                [1u32, 1].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .driver("encode a tensor map")?;
        Ok(TensorMap { words, buffer: buffer.clone() })
    }

    pub(crate) fn words(&self) -> &[u64; 16] {
        &self.words.0
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}
