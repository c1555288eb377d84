//! Matrices in host memory: weights, activations, results.

use crate::cpu::{Elements, MatMut, MatRef, Values};
use fractal_dsl::DType;
use half::{bf16, f16};
use thiserror::Error;

/// A row-major matrix of one storage type. A vector is a matrix of one column.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    rows: usize,
    columns: usize,
    values: Values,
}

/// A buffer that is no matrix of the shape asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("tensor of {rows}x{columns}: expected {expected} elements, found {found}")]
pub struct TensorError {
    /// Rows asked for.
    pub rows: usize,
    /// Columns asked for.
    pub columns: usize,
    /// Their product, or the greatest number where it overflows.
    pub expected: usize,
    /// Elements given.
    pub found: usize,
}

impl Tensor {
    /// A matrix of these elements, row by row.
    ///
    /// # Errors
    /// [`TensorError`] unless there are rows times columns elements.
    pub fn new(rows: usize, columns: usize, values: Values) -> Result<Tensor, TensorError> {
        let expected = rows.saturating_mul(columns);
        if values.len() != expected {
            return Err(TensorError { rows, columns, expected, found: values.len() });
        }
        Ok(Tensor { rows, columns, values })
    }

    /// A matrix of `dtype`, each element rounded to the nearest.
    ///
    /// # Errors
    /// [`TensorError`] unless there are rows times columns elements.
    pub fn from_f32(dtype: DType, rows: usize, columns: usize, elements: &[f32]) -> Result<Tensor, TensorError> {
        let values = match dtype {
            DType::F32 => Values::F32(elements.to_vec()),
            DType::F16 => Values::F16(elements.iter().map(|&v| f16::from_f32(v)).collect()),
            DType::BF16 => Values::BF16(elements.iter().map(|&v| bf16::from_f32(v)).collect()),
        };
        Tensor::new(rows, columns, values)
    }

    /// A matrix of zeros.
    ///
    /// # Panics
    /// Where it does not fit the address space.
    pub fn zeros(dtype: DType, rows: usize, columns: usize) -> Tensor {
        let elements = rows.checked_mul(columns);
        let elements = elements.unwrap_or_else(|| panic!("tensor of {rows}x{columns}: too many elements"));
        Tensor { rows, columns, values: Values::zeros(dtype, elements) }
    }

    /// A column of f32 values, such as a bias.
    pub fn vector(elements: &[f32]) -> Tensor {
        Tensor { rows: elements.len(), columns: 1, values: Values::F32(elements.to_vec()) }
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Storage type.
    pub fn dtype(&self) -> DType {
        self.values.dtype()
    }

    /// The elements, row by row.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// The elements as f32, row by row.
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.values {
            Values::F32(v) => v.clone(),
            Values::F16(v) => v.iter().map(|v| v.to_f32()).collect(),
            Values::BF16(v) => v.iter().map(|v| v.to_f32()).collect(),
        }
    }

    /// The matrix with rows and columns exchanged.
    pub fn transposed(&self) -> Tensor {
        fn turn<T: Copy>(values: &[T], rows: usize, columns: usize) -> Vec<T> {
            // Squares of this side keep both the read and the written lines in the first-level cache.
            const SIDE: usize = 32;
            let mut turned = Vec::with_capacity(values.len());
            if let Some(&first) = values.first() {
                turned.resize(values.len(), first);
            }
            for r0 in (0..rows).step_by(SIDE) {
                for c0 in (0..columns).step_by(SIDE) {
                    for r in r0..(r0 + SIDE).min(rows) {
                        for c in c0..(c0 + SIDE).min(columns) {
                            turned[c * rows + r] = values[r * columns + c];
                        }
                    }
                }
            }
            turned
        }
        let (rows, columns) = (self.rows, self.columns);
        let values = match &self.values {
            Values::F32(v) => Values::F32(turn(v, rows, columns)),
            Values::F16(v) => Values::F16(turn(v, rows, columns)),
            Values::BF16(v) => Values::BF16(turn(v, rows, columns)),
        };
        Tensor { rows: columns, columns: rows, values }
    }

    /// Whether every element is a number other than an infinity.
    pub fn is_finite(&self) -> bool {
        // Without an early exit the loops run on whole vectors.
        match &self.values {
            Values::F32(v) => v.iter().fold(true, |all, v| all & (v.to_bits() << 1 < 0xff00_0000)),
            Values::F16(v) => v.iter().fold(true, |all, v| all & (v.to_bits() & 0x7c00 != 0x7c00)),
            Values::BF16(v) => v.iter().fold(true, |all, v| all & (v.to_bits() & 0x7f80 != 0x7f80)),
        }
    }

    /// The elements where they are f32.
    pub(crate) fn as_f32(&self) -> Option<&[f32]> {
        if let Values::F32(v) = &self.values { Some(v) } else { None }
    }

    /// The elements where they are f32.
    pub(crate) fn as_f32_mut(&mut self) -> Option<&mut [f32]> {
        if let Values::F32(v) = &mut self.values { Some(v) } else { None }
    }

    pub(crate) fn view(&self) -> MatRef<'_> {
        let elements = match &self.values {
            Values::F32(v) => Elements::F32(v),
            Values::F16(v) => Elements::F16(v),
            Values::BF16(v) => Elements::BF16(v),
        };
        MatRef::packed(elements, self.rows, self.columns).expect("a tensor has as many elements as its shape says")
    }

    pub(crate) fn view_mut(&mut self) -> MatMut<'_> {
        let (rows, columns) = (self.rows, self.columns);
        let view = match &mut self.values {
            Values::F32(v) => MatMut::packed(v.as_mut_slice(), rows, columns),
            Values::F16(v) => MatMut::packed(v.as_mut_slice(), rows, columns),
            Values::BF16(v) => MatMut::packed(v.as_mut_slice(), rows, columns),
        };
        view.expect("a tensor has as many elements as its shape says")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_checked_and_never_overflow() {
        assert!(Tensor::from_f32(DType::F32, 2, 3, &[0.0; 6]).is_ok());
        let error = Tensor::from_f32(DType::F16, 2, 3, &[0.0; 5]).unwrap_err();
        assert_eq!(error.to_string(), "tensor of 2x3: expected 6 elements, found 5");
        assert!(Tensor::from_f32(DType::F32, usize::MAX, 2, &[]).is_err());
    }

    #[test]
    #[should_panic(expected = "too many elements")]
    fn zeros_never_wrap_to_a_shorter_buffer() {
        Tensor::zeros(DType::F32, 1 << (usize::BITS - 1), 2);
    }

    #[test]
    fn a_transpose_turns_every_element() {
        let elements: Vec<f32> = (0..35 * 70).map(|v| v as f32).collect();
        for dtype in DType::ALL {
            let tensor = Tensor::from_f32(dtype, 35, 70, &elements).unwrap();
            let (turned, plain) = (tensor.transposed().to_f32(), tensor.to_f32());
            assert!((0..35 * 70).all(|at| turned[at % 70 * 35 + at / 70] == plain[at]));
            assert_eq!(tensor.transposed().transposed(), tensor);
        }
        assert_eq!(Tensor::zeros(DType::F32, 0, 4).transposed().rows(), 4);
    }

    #[test]
    fn infinities_and_nan_are_found_in_every_type() {
        for dtype in DType::ALL {
            assert!(Tensor::from_f32(dtype, 1, 3, &[1.0, -0.0, 6e4]).unwrap().is_finite());
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                assert!(!Tensor::from_f32(dtype, 1, 3, &[1.0, bad, 2.0]).unwrap().is_finite(), "{dtype} {bad}");
            }
        }
    }
}
