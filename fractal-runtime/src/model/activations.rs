//! The matrix that flows between layers: feature-major, one contiguous row of tokens per feature.

use fractal_dsl::DType;

use super::LinearError;
use crate::Tensor;
use crate::cpu::Values;

/// A dense f32 matrix \[features, tokens\]; element (f, t) is at `f * tokens + t`.
#[derive(Clone, Debug, PartialEq)]
pub struct Activations {
    /// Of f32, so that layers read and write it where it is.
    tensor: Tensor,
}

impl Default for Activations {
    fn default() -> Self {
        Self::zeros(0, 0)
    }
}

impl Activations {
    /// A matrix of zeros.
    pub fn zeros(features: usize, tokens: usize) -> Self {
        Self { tensor: Tensor::zeros(DType::F32, features, tokens) }
    }

    /// Takes feature-major data of exactly `features * tokens` values.
    pub fn from_vec(features: usize, tokens: usize, data: Vec<f32>) -> Result<Self, LinearError> {
        let got = data.len();
        let tensor = Tensor::new(features, tokens, Values::F32(data));
        tensor.map(|tensor| Self { tensor }).map_err(|_| LinearError::Length { expected: [features, tokens], got })
    }

    /// The number of features (rows).
    pub fn features(&self) -> usize {
        self.tensor.rows()
    }

    /// The number of tokens (columns).
    pub fn tokens(&self) -> usize {
        self.tensor.columns()
    }

    /// `[features, tokens]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.features(), self.tokens()]
    }

    /// All values, feature-major.
    pub fn as_slice(&self) -> &[f32] {
        self.tensor.as_f32().expect("activations are f32")
    }

    /// All values, feature-major.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        self.tensor.as_f32_mut().expect("activations are f32")
    }

    /// One feature of all tokens. Panics when `feature` is out of range, as slice indexing does.
    pub fn row(&self, feature: usize) -> &[f32] {
        let tokens = self.tokens();
        &self.as_slice()[feature * tokens..(feature + 1) * tokens]
    }

    /// The matrix as an operand of a layer.
    pub(super) fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The matrix as a layer's result; it stays f32.
    pub(super) fn tensor_mut(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
}
