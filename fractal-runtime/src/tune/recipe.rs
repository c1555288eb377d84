//! A tuned model as a file: of each linear layer its pattern and its kernel, so that it starts without tuning.

use crate::device::Device;
use crate::model::{BertModel, ModelError, SparseLinear};
use crate::prune::{Importance, prune};
use crate::tensor::Tensor;
use fractal_dsl::pattern::Pattern;
use fractal_dsl::{DType, Directive, Program};
use fractal_sched::KernelRequest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The format that is written.
const FORMAT: u32 = 1;

/// What was found for each layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    format: u32,
    /// By the layer's name.
    pub layers: BTreeMap<String, RecipeLayer>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeLayer {
    /// The tiling's name, for tables.
    pub tiling: String,
    /// The statements that make the pattern.
    pub pattern: Vec<Directive>,
    /// What is asked of the kernel.
    pub request: KernelRequest,
    /// Importance that it retained when it was tuned.
    pub retained: f64,
    /// Elements kept over all.
    pub density: f64,
    /// Microseconds a call when it was tuned.
    pub microseconds: f64,
}

/// A recipe that cannot be read, or does not fit a model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The file.
    #[error("recipe {}: {reason}", .path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Another format.
    #[error("recipe: expected format {FORMAT}, found {0}; tune again with this version")]
    Format(u32),
    /// A statement that is none.
    #[error("recipe, layer `{layer}`: {reason}")]
    Layer {
        /// The layer.
        layer: String,
        /// What is wrong.
        reason: AnyError,
    },
    /// The model lacks a layer.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Whatever keeps one layer from running.
type AnyError = Box<dyn std::error::Error + Send + Sync>;

impl Recipe {
    /// Of these layers.
    pub fn new(layers: BTreeMap<String, RecipeLayer>) -> Recipe {
        Recipe { format: FORMAT, layers }
    }

    /// From JSON.
    ///
    /// # Errors
    /// [`RecipeError::File`], [`RecipeError::Format`].
    pub fn read(path: &Path) -> Result<Recipe, RecipeError> {
        let wrong = |reason: String| RecipeError::File { path: path.into(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let recipe: Recipe = serde_json::from_str(&text).map_err(|error| wrong(format!("no recipe: {error}")))?;
        if recipe.format == FORMAT { Ok(recipe) } else { Err(RecipeError::Format(recipe.format)) }
    }

    /// Prunes the model's layers by `importance` and lets them run on `device` for `tokens` tokens; what each retains.
    ///
    /// # Errors
    /// A layer that the model lacks, or whose pattern does not fit it.
    pub fn apply(
        &self,
        model: &mut BertModel,
        device: &Device,
        importance: &dyn Importance,
        tokens: usize,
    ) -> Result<BTreeMap<String, f64>, RecipeError> {
        let mut retained = BTreeMap::new();
        for (name, layer) in &self.layers {
            let told = |reason: AnyError| RecipeError::Layer { layer: name.clone(), reason };
            let weight = model.weight(name)?;
            let pattern = layer.pattern(weight.n, weight.k).map_err(told)?;
            let kind = model.epilogue(name)?;
            let prepared = || -> Result<(SparseLinear, f64), AnyError> {
                let tensor = Tensor::from_f32(DType::F32, weight.n, weight.k, weight.data)?;
                let pruned = prune(&pattern, &tensor, importance)?;
                let retained = pruned.retained();
                let op = SparseLinear::new(device.clone(), pruned).with_request(layer.request);
                if let Some(weight) = op.prepare(kind)?.cuda() {
                    weight.prepare(tokens)?;
                }
                Ok((op, retained))
            };
            let (op, kept) = prepared().map_err(told)?;
            model.replace(name, Box::new(op))?;
            retained.insert(name.clone(), kept);
        }
        Ok(retained)
    }
}

impl RecipeLayer {
    /// The pattern for a weight of n x k.
    ///
    /// # Errors
    /// Statements that do not check, or do not fit.
    pub fn pattern(&self, n: usize, k: usize) -> Result<Pattern, AnyError> {
        let text: Vec<String> = self.pattern.iter().map(|directive| format!("{directive};")).collect();
        Ok(Program::for_pattern_text(&text.join(" "), n, k, DType::F32)?.pattern(n, k)?)
    }
}

/// What each operator should retain: the part of its importance that is left when the least important `1 - keep` of all
/// weights of the model are dropped one by one.
pub fn floors(scores: &[Vec<f32>], keep: f64) -> Vec<f64> {
    let mut all: Vec<f32> = scores.iter().flatten().copied().filter(|s| s.is_finite()).collect();
    let dropped = ((1.0 - keep.clamp(0.0, 1.0)) * all.len() as f64).round() as usize;
    if dropped == 0 || all.is_empty() {
        return vec![1.0; scores.len()];
    }
    let (_, threshold, _) = all.select_nth_unstable_by(dropped - 1, f32::total_cmp);
    let threshold = *threshold;
    let share = |scores: &Vec<f32>| {
        let sum = |least: f32| scores.iter().filter(|&&s| s > least).map(|&s| f64::from(s)).sum::<f64>();
        let total = sum(f32::NEG_INFINITY);
        if total == 0.0 { 1.0 } else { sum(threshold) / total }
    };
    scores.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_are_of_one_threshold_over_all() {
        let scores = vec![vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0, 7.0, 8.0]];
        assert_eq!(floors(&scores, 0.5), [0.0, 1.0]);
        assert_eq!(floors(&scores, 0.75), [0.7, 1.0]);
        assert_eq!(floors(&scores, 1.0), [1.0, 1.0]);
        assert_eq!(floors(&[], 0.5), [0.0f64; 0]);
    }

    #[test]
    fn what_is_no_recipe_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recipe.json");
        assert!(Recipe::read(&path).unwrap_err().to_string().starts_with("recipe "));
        std::fs::write(&path, "{\"format\": 7, \"layers\": {}}").unwrap();
        assert_eq!(
            Recipe::read(&path).unwrap_err().to_string(),
            "recipe: expected format 1, found 7; tune again with this version"
        );
        std::fs::write(&path, "{\"format\": 1").unwrap();
        assert!(Recipe::read(&path).unwrap_err().to_string().contains("no recipe"));
        let recipe = Recipe::new(BTreeMap::from([(
            "layer".to_string(),
            RecipeLayer {
                tiling: "tw:16".into(),
                pattern: vec![Directive::Tile { axis: "q".into(), size: 3 }],
                request: KernelRequest::default(),
                retained: 0.5,
                density: 0.5,
                microseconds: 1.0,
            },
        )]));
        std::fs::write(&path, serde_json::to_string(&recipe).unwrap()).unwrap();
        let read = Recipe::read(&path).unwrap();
        assert_eq!(read, recipe);
        assert!(read.layers["layer"].pattern(16, 16).is_err());
    }
}
