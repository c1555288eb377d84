//! A pruned model <-> a file of its layers: written packed or dense, with the biases, and read back into a model.

use super::bert::WORDS;
use super::{BertModel, ModelError, PrunedModel, SparseLinear};
use crate::device::Device;
use crate::prune::{Pruned, PrunedFile, RawTensor, RawType, StoredWeight};

/// The tensor of a layer's bias.
fn bias_name(layer: &str) -> String {
    format!("{layer}.bias")
}

impl PrunedModel {
    /// The pruned layers, made by `store`: [`StoredWeight::Packed`] or [`StoredWeight::Dense`]; and their biases as f32.
    ///
    /// # Errors
    /// A layer that the model lacks, as [`ModelError`] inside.
    pub fn file(&self, store: impl Fn(Pruned) -> StoredWeight) -> Result<PrunedFile, ModelError> {
        let mut file = PrunedFile::default();
        for (name, layer) in &self.layers {
            file.layers.insert(name.clone(), store(layer.pruned.clone()));
            let bias = self.model.bias(name)?;
            let bytes = bias.iter().flat_map(|v| v.to_le_bytes()).collect();
            let bias = RawTensor::new(RawType::F32, vec![bias.len()], bytes).expect("4 bytes a value");
            file.others.insert(bias_name(name), bias);
        }
        Ok(file)
    }

    /// The same with every other tensor of the checkpoint that the model was loaded from, as it is there: a whole model, which loads where
    /// the checkpoint does. Names are those of a bare encoder, without a prefix such as `bert.`.
    ///
    /// # Errors
    /// As [`PrunedModel::file`]; [`ModelError::MissingTensor`] where the checkpoint is another model's.
    pub fn checkpoint(&self, original: &super::Weights) -> Result<PrunedFile, ModelError> {
        let mut file = self.file(StoredWeight::Dense)?;
        let prefix = original.prefix_before(WORDS).unwrap_or_default();
        for layer in file.layers.keys() {
            let name = format!("{prefix}{layer}.weight");
            if !original.names().any(|known| known == name) {
                return Err(original.missing(name));
            }
        }
        for (name, tensor) in original.raw_without(&prefix) {
            let replaced = file.others.contains_key(name)
                || name.strip_suffix(".weight").is_some_and(|layer| file.layers.contains_key(layer));
            if !replaced {
                file.others.insert(name.to_owned(), tensor);
            }
        }
        Ok(file)
    }
}

impl BertModel {
    /// Sets the weights and biases of the layers that a file holds.
    ///
    /// # Errors
    /// A layer that the model lacks, or of another shape; the model is as it was then.
    pub fn set_pruned(&mut self, file: &PrunedFile) -> Result<(), ModelError> {
        let mut model = self.clone();
        for (name, pruned) in pruned_layers(file) {
            let bias = bias_of(file, name)?;
            let (weight, pattern) = (self.weight(name)?, pruned.pattern());
            let (expected, got) = ([weight.n, weight.k], [pattern.n(), pattern.k()]);
            if got != expected {
                return Err(ModelError::OperatorShape { name: name.clone(), expected, got });
            }
            model.set_weight(name, pruned.dense().to_f32(), bias)?;
        }
        *self = model;
        Ok(())
    }

    /// The same; the layers run their packed weights on `device`.
    ///
    /// # Errors
    /// As [`BertModel::set_pruned`].
    pub fn run_pruned(&mut self, file: &PrunedFile, device: &Device) -> Result<(), ModelError> {
        let mut model = self.clone();
        model.set_pruned(file)?;
        for (name, pruned) in pruned_layers(file) {
            // Activations are f32.
            let pruned = pruned.clone().stored_as(fractal_dsl::DType::F32).expect("f32 holds the values of every type");
            model.replace(name, Box::new(SparseLinear::new(device.clone(), pruned)))?;
        }
        *self = model;
        Ok(())
    }
}

fn pruned_layers(file: &PrunedFile) -> impl Iterator<Item = (&String, &Pruned)> {
    file.layers.iter().filter_map(|(name, stored)| Some((name, stored.pruned()?)))
}

fn bias_of(file: &PrunedFile, layer: &str) -> Result<Option<Vec<f32>>, ModelError> {
    let name = bias_name(layer);
    let Some(tensor) = file.others.get(&name) else { return Ok(None) };
    if tensor.dtype() != RawType::F32 {
        return Err(ModelError::TensorDtype { name, got: format!("{:?}", tensor.dtype()) });
    }
    Ok(Some(tensor.bytes().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
}
