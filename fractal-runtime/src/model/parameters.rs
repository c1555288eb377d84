//! The model's parameters by name, to read and to replace: weights, biases and operators of linear layers, LayerNorms.

use std::sync::Arc;

use super::block::{Block, Linear};
use super::norm::LayerNorm;
use super::{BertModel, EpilogueKind, LinearOp, ModelError};

/// The dense weight of a linear layer, row-major \[n, k\].
#[derive(Clone, Copy, Debug)]
pub struct DenseWeight<'a> {
    /// n * k values.
    pub data: &'a [f32],
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
}

impl BertModel {
    /// The names of the prunable layers in the order in which they run, as in the checkpoint and without `.weight`:
    /// `encoder.layer.0.attention.self.query` and so on, six per block.
    pub fn linear_names(&self) -> Vec<String> {
        self.linears().map(|linear| linear.name.clone()).collect()
    }

    /// The dense weight of a layer, as loaded or [set](Self::set_weight); a replaced operator does not change it.
    pub fn weight(&self, name: &str) -> Result<DenseWeight<'_>, ModelError> {
        let dense = &self.linear(name)?.dense;
        Ok(DenseWeight { data: dense.weight(), n: dense.n(), k: dense.k() })
    }

    /// The bias of a layer, one value per output feature.
    pub fn bias(&self, name: &str) -> Result<&[f32], ModelError> {
        Ok(&self.linear(name)?.bias)
    }

    /// The operator that a layer runs.
    pub fn operator(&self, name: &str) -> Result<&dyn LinearOp, ModelError> {
        Ok(self.linear(name)?.op())
    }

    /// The epilogue that a layer's operator is given, so that it can be compiled before the first call.
    pub fn epilogue(&self, name: &str) -> Result<EpilogueKind, ModelError> {
        let mut named = self.blocks.iter().flat_map(|block| block.linears().into_iter().zip(self.epilogues()));
        let found = named.find(|(linear, _)| linear.name == name).map(|(_, kind)| kind);
        found.ok_or_else(|| ModelError::UnknownLinear { name: name.into(), known: self.linear_names() })
    }

    /// Of [`Block::linears`], as [`Block::forward`] calls them.
    fn epilogues(&self) -> [EpilogueKind; 6] {
        let plain = EpilogueKind { bias: true, ..EpilogueKind::default() };
        let added = EpilogueKind { residual: true, ..plain };
        let bent = EpilogueKind { nonlinearity: Some(self.nonlinearity), ..plain };
        [plain, plain, plain, added, bent, added]
    }

    /// Puts an operator of the same shape in the place of a layer's product. The bias stays with the model and comes to
    /// the operator in its epilogue.
    pub fn replace(&mut self, name: &str, op: Box<dyn LinearOp>) -> Result<(), ModelError> {
        let linear = self.linear_mut(name)?;
        let expected = linear.dense.shape();
        let got = [op.n(), op.k()];
        if got != expected {
            return Err(ModelError::OperatorShape { name: name.into(), expected, got });
        }
        linear.replaced = Some(op.into());
        Ok(())
    }

    /// Sets a layer's dense weight \[n, k\], row-major, and its bias \[n\] where one is given, and makes the layer run
    /// the dense operator of that weight. Clones of the model keep what they have.
    ///
    /// # Errors
    /// [`ModelError`] for an unknown name, a wrong number of values or one that is not finite; the layer is as it was.
    pub fn set_weight(&mut self, name: &str, weight: Vec<f32>, bias: Option<Vec<f32>>) -> Result<(), ModelError> {
        let linear = self.linear_mut(name)?;
        check(format_args!("{name}.weight"), &weight, linear.dense.weight().len())?;
        if let Some(bias) = &bias {
            check(format_args!("{name}.bias"), bias, linear.bias.len())?;
        }
        linear.dense.set_weight(weight.into());
        linear.replaced = None;
        if let Some(bias) = bias {
            linear.bias = bias.into();
        }
        Ok(())
    }

    /// Sets a layer's bias \[n\], whatever operator the layer runs.
    ///
    /// # Errors
    /// [`ModelError`] as for [`set_weight`](Self::set_weight).
    pub fn set_bias(&mut self, name: &str, bias: Vec<f32>) -> Result<(), ModelError> {
        let linear = self.linear_mut(name)?;
        check(format_args!("{name}.bias"), &bias, linear.bias.len())?;
        linear.bias = bias.into();
        Ok(())
    }

    /// The names of the LayerNorms in the order in which they run: `embeddings.LayerNorm`, then two per block.
    pub fn norm_names(&self) -> Vec<String> {
        self.norms().map(|norm| norm.name.clone()).collect()
    }

    /// Scale gamma and shift beta of a LayerNorm, one value per feature each.
    pub fn norm(&self, name: &str) -> Result<(&[f32], &[f32]), ModelError> {
        let norm = self.norms().find(|norm| norm.name == name).ok_or_else(|| self.unknown_norm(name))?;
        Ok((&norm.gamma, &norm.beta))
    }

    /// Sets scale gamma and shift beta of a LayerNorm. Clones of the model keep what they have.
    ///
    /// # Errors
    /// [`ModelError`] for an unknown name, a wrong number of values or one that is not finite; the norm is as it was.
    pub fn set_norm(&mut self, name: &str, gamma: Vec<f32>, beta: Vec<f32>) -> Result<(), ModelError> {
        let hidden = self.config().hidden_size;
        check(format_args!("{name}.weight"), &gamma, hidden)?;
        check(format_args!("{name}.bias"), &beta, hidden)?;
        let norm = self.norm_mut(name)?;
        (norm.gamma, norm.beta) = (gamma, beta);
        Ok(())
    }

    pub(super) fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.blocks.iter().flat_map(Block::linears)
    }

    fn linear(&self, name: &str) -> Result<&Linear, ModelError> {
        self.linears().find(|linear| linear.name == name).ok_or_else(|| self.unknown_linear(name))
    }

    pub(super) fn linear_mut(&mut self, name: &str) -> Result<&mut Linear, ModelError> {
        let Some(at) = self.linears().position(|linear| linear.name == name) else {
            return Err(self.unknown_linear(name));
        };
        let mut linears = self.blocks.iter_mut().flat_map(Block::linears_mut);
        Ok(linears.nth(at).expect("the position of a layer"))
    }

    pub(super) fn norms(&self) -> impl Iterator<Item = &LayerNorm> {
        let blocks = self.blocks.iter().flat_map(|block| [&block.attention_norm, &block.output_norm]);
        std::iter::once(&self.embedding_norm).chain(blocks).map(|norm| &**norm)
    }

    pub(super) fn norm_mut(&mut self, name: &str) -> Result<&mut LayerNorm, ModelError> {
        let Some(at) = self.norms().position(|norm| norm.name == name) else {
            return Err(self.unknown_norm(name));
        };
        let blocks = self.blocks.iter_mut().flat_map(|block| [&mut block.attention_norm, &mut block.output_norm]);
        let mut norms = std::iter::once(&mut self.embedding_norm).chain(blocks);
        Ok(Arc::make_mut(norms.nth(at).expect("the position of a norm")))
    }

    fn unknown_linear(&self, name: &str) -> ModelError {
        ModelError::UnknownLinear { name: name.into(), known: self.linear_names() }
    }

    fn unknown_norm(&self, name: &str) -> ModelError {
        ModelError::UnknownNorm { name: name.into(), known: self.norm_names() }
    }
}

/// That there are `expected` values, all finite.
fn check(name: std::fmt::Arguments<'_>, values: &[f32], expected: usize) -> Result<(), ModelError> {
    let got = values.len();
    if got != expected {
        return Err(ModelError::ParameterLength { name: name.to_string(), expected, got });
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(ModelError::ParameterNotFinite { name: name.to_string(), at, value: values[at] }),
        None => Ok(()),
    }
}
