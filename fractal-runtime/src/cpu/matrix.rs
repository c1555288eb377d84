//! Operand views: borrowed feature-major matrices (`cols` contiguous) of one storage type.

use super::raw::{self, Columns, Isa};
use fractal_dsl::DType;
use half::{bf16, f16};
use std::ops::Range;

/// A view whose buffer cannot hold the matrix it claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// Rows would overlap.
    #[error("row stride {stride} is less than the {cols} columns of a row")]
    Stride {
        /// Elements from one row to the next.
        stride: usize,
        /// Elements of a row.
        cols: usize,
    },
    /// The buffer ends before the last row does.
    #[error("a {rows} x {cols} matrix of row stride {stride} needs {expected} elements, got {got}")]
    Length {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
        /// Elements from one row to the next.
        stride: usize,
        /// Elements needed.
        expected: usize,
        /// Elements in the buffer.
        got: usize,
    },
}

/// Borrowed elements of one storage type.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// binary32.
    F32(&'a [f32]),
    /// binary16.
    F16(&'a [f16]),
    /// bfloat16.
    BF16(&'a [bf16]),
}

/// Mutably borrowed elements of one storage type.
#[derive(Debug)]
pub enum ElementsMut<'a> {
    /// binary32.
    F32(&'a mut [f32]),
    /// binary16.
    F16(&'a mut [f16]),
    /// bfloat16.
    BF16(&'a mut [bf16]),
}

impl Elements<'_> {
    fn len(&self) -> usize {
        match self {
            Elements::F32(v) => v.len(),
            Elements::F16(v) => v.len(),
            Elements::BF16(v) => v.len(),
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Elements::F32(_) => DType::F32,
            Elements::F16(_) => DType::F16,
            Elements::BF16(_) => DType::BF16,
        }
    }
}

impl ElementsMut<'_> {
    fn shared(&self) -> Elements<'_> {
        match self {
            ElementsMut::F32(v) => Elements::F32(v),
            ElementsMut::F16(v) => Elements::F16(v),
            ElementsMut::BF16(v) => Elements::BF16(v),
        }
    }
}

/// A matrix to read: `rows` x `cols`, element (r, c) at `r * stride + c`.
#[derive(Clone, Copy, Debug)]
pub struct MatRef<'a> {
    data: Elements<'a>,
    rows: usize,
    cols: usize,
    stride: usize,
}

/// A matrix to write: `rows` x `cols`, element (r, c) at `r * stride + c`.
#[derive(Debug)]
pub struct MatMut<'a> {
    data: ElementsMut<'a>,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> MatRef<'a> {
    /// A view of `data` with `stride` elements from one row to the next.
    ///
    /// # Errors
    /// [`ViewError`] when rows overlap or the buffer is too short.
    pub fn new(data: impl Into<Elements<'a>>, rows: usize, cols: usize, stride: usize) -> Result<Self, ViewError> {
        let data = data.into();
        check(data.len(), rows, cols, stride)?;
        Ok(MatRef { data, rows, cols, stride })
    }

    /// A view of `data` whose rows follow each other without a gap.
    ///
    /// # Errors
    /// [`ViewError::Length`] when the buffer is too short.
    pub fn packed(data: impl Into<Elements<'a>>, rows: usize, cols: usize) -> Result<Self, ViewError> {
        Self::new(data, rows, cols, cols)
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Storage type.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// The borrowed elements.
    pub fn elements(&self) -> Elements<'a> {
        self.data
    }

    pub(super) fn typed<T: Element>(&self) -> Option<Typed<'a, T>> {
        Some(Typed { data: T::of(self.data)?, cols: self.cols, stride: self.stride })
    }
}

impl<'a> MatMut<'a> {
    /// A view of `data` with `stride` elements from one row to the next.
    ///
    /// # Errors
    /// [`ViewError`] when rows overlap or the buffer is too short.
    pub fn new(data: impl Into<ElementsMut<'a>>, rows: usize, cols: usize, stride: usize) -> Result<Self, ViewError> {
        let data = data.into();
        check(data.shared().len(), rows, cols, stride)?;
        Ok(MatMut { data, rows, cols, stride })
    }

    /// A view of `data` whose rows follow each other without a gap.
    ///
    /// # Errors
    /// [`ViewError::Length`] when the buffer is too short.
    pub fn packed(data: impl Into<ElementsMut<'a>>, rows: usize, cols: usize) -> Result<Self, ViewError> {
        Self::new(data, rows, cols, cols)
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Storage type.
    pub fn dtype(&self) -> DType {
        self.data.shared().dtype()
    }

    pub(super) fn into_elements(self) -> ElementsMut<'a> {
        self.data
    }
}

fn check(got: usize, rows: usize, cols: usize, stride: usize) -> Result<(), ViewError> {
    if rows > 1 && stride < cols {
        return Err(ViewError::Stride { stride, cols });
    }
    let expected = match rows {
        0 => 0,
        _ => (rows - 1).saturating_mul(stride).saturating_add(cols),
    };
    if got < expected {
        return Err(ViewError::Length { rows, cols, stride, expected, got });
    }
    Ok(())
}

/// A [`MatRef`] whose storage type is known to the type system.
#[derive(Clone, Copy)]
pub(super) struct Typed<'a, T> {
    data: &'a [T],
    cols: usize,
    stride: usize,
}

impl<'a, T> Typed<'a, T> {
    pub fn row(&self, r: usize) -> &'a [T] {
        &self.data[r * self.stride..][..self.cols]
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn stride(&self) -> usize {
        self.stride
    }

    /// From the first of `rows` to the end of the last, what lies between them included.
    pub fn rows(&self, rows: Range<usize>) -> &'a [T] {
        if rows.is_empty() {
            return &[];
        }
        &self.data[rows.start * self.stride..(rows.end - 1) * self.stride + self.cols]
    }

    /// Columns `columns` of the rows `rows`.
    pub fn columns<'b>(&self, rows: &'b [u32], columns: Range<usize>) -> Columns<'b, T>
    where
        'a: 'b,
    {
        Columns { from: &self.data[columns.start..], stride: self.stride, rows, cols: columns.len() }
    }
}

/// A storage type: arithmetic is f32, so it need only widen and narrow.
pub(super) trait Element: Copy + Send + Sync + 'static {
    fn of(data: Elements<'_>) -> Option<&[Self]>;
    /// `out[i] = from[i]`; the slices are equally long.
    fn widen(isa: Isa, from: &[Self], out: &mut [f32]);
    /// `out[i] = from[i]` rounded to nearest even; the slices are equally long.
    fn narrow(isa: Isa, from: &[f32], out: &mut [Self]);
    /// Copies `x` to `out`, each row widened and padded with zeros to `width`.
    fn pack(isa: Isa, x: Columns<'_, Self>, width: usize, out: &mut [f32]);
    /// `Some` when the storage is f32 already and need not be widened.
    fn as_f32(data: &[Self]) -> Option<&[f32]>;
    /// As [`Element::as_f32`].
    fn as_f32_mut(data: &mut [Self]) -> Option<&mut [f32]>;
}

impl Element for f32 {
    fn of(data: Elements<'_>) -> Option<&[f32]> {
        if let Elements::F32(v) = data { Some(v) } else { None }
    }
    fn widen(_: Isa, from: &[f32], out: &mut [f32]) {
        out.copy_from_slice(from);
    }
    fn narrow(_: Isa, from: &[f32], out: &mut [f32]) {
        out.copy_from_slice(from);
    }
    fn pack(isa: Isa, x: Columns<'_, f32>, width: usize, out: &mut [f32]) {
        raw::pack_f32(isa, x, width, out);
    }
    fn as_f32(data: &[f32]) -> Option<&[f32]> {
        Some(data)
    }
    fn as_f32_mut(data: &mut [f32]) -> Option<&mut [f32]> {
        Some(data)
    }
}

impl Element for f16 {
    fn of(data: Elements<'_>) -> Option<&[f16]> {
        if let Elements::F16(v) = data { Some(v) } else { None }
    }
    fn widen(isa: Isa, from: &[f16], out: &mut [f32]) {
        raw::widen_f16(isa, from, out);
    }
    fn narrow(isa: Isa, from: &[f32], out: &mut [f16]) {
        raw::narrow_f16(isa, from, out);
    }
    fn pack(isa: Isa, x: Columns<'_, f16>, width: usize, out: &mut [f32]) {
        raw::pack_f16(isa, x, width, out);
    }
    fn as_f32(_: &[f16]) -> Option<&[f32]> {
        None
    }
    fn as_f32_mut(_: &mut [f16]) -> Option<&mut [f32]> {
        None
    }
}

impl Element for bf16 {
    fn of(data: Elements<'_>) -> Option<&[bf16]> {
        if let Elements::BF16(v) = data { Some(v) } else { None }
    }
    fn widen(isa: Isa, from: &[bf16], out: &mut [f32]) {
        raw::widen_bf16(isa, from, out);
    }
    fn narrow(isa: Isa, from: &[f32], out: &mut [bf16]) {
        raw::narrow_bf16(isa, from, out);
    }
    fn pack(isa: Isa, x: Columns<'_, bf16>, width: usize, out: &mut [f32]) {
        raw::pack_bf16(isa, x, width, out);
    }
    fn as_f32(_: &[bf16]) -> Option<&[f32]> {
        None
    }
    fn as_f32_mut(_: &mut [bf16]) -> Option<&mut [f32]> {
        None
    }
}

macro_rules! from_slices {
    ($($t:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a [$t]> for Elements<'a> {
            fn from(v: &'a [$t]) -> Self {
                Elements::$variant(v)
            }
        }
        impl<'a> From<&'a Vec<$t>> for Elements<'a> {
            fn from(v: &'a Vec<$t>) -> Self {
                Elements::$variant(v)
            }
        }
        impl<'a> From<&'a mut [$t]> for ElementsMut<'a> {
            fn from(v: &'a mut [$t]) -> Self {
                ElementsMut::$variant(v)
            }
        }
        impl<'a> From<&'a mut Vec<$t>> for ElementsMut<'a> {
            fn from(v: &'a mut Vec<$t>) -> Self {
                ElementsMut::$variant(v)
            }
        }
    )*};
}
from_slices!(f32 => F32, f16 => F16, bf16 => BF16);
