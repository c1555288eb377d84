//! The matrix that flows between layers: feature-major, one contiguous row of tokens per feature.

use super::LinearError;

/// A dense f32 matrix \[features, tokens\]; element (f, t) is at `f * tokens + t`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activations {
    data: Vec<f32>,
    features: usize,
    tokens: usize,
}

impl Activations {
    /// A matrix of zeros.
    pub fn zeros(features: usize, tokens: usize) -> Self {
        Self { data: vec![0.0; features * tokens], features, tokens }
    }

    /// Takes feature-major data of exactly `features * tokens` values.
    pub fn from_vec(features: usize, tokens: usize, data: Vec<f32>) -> Result<Self, LinearError> {
        if features.checked_mul(tokens) != Some(data.len()) {
            return Err(LinearError::Length { expected: [features, tokens], got: data.len() });
        }
        Ok(Self { data, features, tokens })
    }

    /// The number of features (rows).
    pub fn features(&self) -> usize {
        self.features
    }

    /// The number of tokens (columns).
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// `[features, tokens]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.features, self.tokens]
    }

    /// All values, feature-major.
    pub fn as_slice(&self) -> &[f32] {
        &self.data
    }

    /// All values, feature-major.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// One feature of all tokens. Panics when `feature` is out of range, as slice indexing does.
    pub fn row(&self, feature: usize) -> &[f32] {
        &self.data[feature * self.tokens..(feature + 1) * self.tokens]
    }
}
