//! A dense model, calibration sentences and a plan -> a pruned model, in one pass or in steps that can be taken up again.
//!
//! Each step prunes all layers a part of the way, with their weights fitted anew, and the next one starts from there.

use std::collections::BTreeMap;

use fractal_dsl::DType;
use fractal_dsl::pattern::{Mask, Pattern};

use super::alone::Reference;
use super::calibrate::AnyError;
use super::{BertModel, CalibrateError, ModelError, NewWeights};
use crate::Tensor;
use crate::prune::budget::Curve;
use crate::prune::{LayerStatistics, Method, PruneError, Reconstructed, SecondOrder};

/// What becomes of a layer.
#[derive(Clone, Debug)]
pub struct LayerPlan {
    /// Its pattern.
    pub pattern: Pattern,
    /// How it is pruned.
    pub method: Method,
}

/// A pruned model.
#[derive(Clone)]
pub struct PrunedModel {
    /// Runs the pruned weights densely.
    pub model: BertModel,
    /// The layers that the plan names.
    pub layers: BTreeMap<String, Reconstructed>,
}

/// Part of the way after step `step` of `steps`.
fn part(step: usize, steps: usize) -> f64 {
    step as f64 / steps as f64
}

impl BertModel {
    /// Prunes the layers that the plan names to weights of type `dtype`; `progress` hears of each.
    ///
    /// # Errors
    /// [`CalibrateError`]; a layer of the plan that the model lacks is one.
    pub fn prune(
        &self,
        sentences: &[Vec<u32>],
        plan: &BTreeMap<String, LayerPlan>,
        dtype: DType,
        progress: impl FnMut(&str, &Reconstructed),
    ) -> Result<PrunedModel, CalibrateError> {
        self.prune_step(sentences, plan, dtype, (1, 1), None, progress)
    }

    /// Takes step `step` of `steps`, counted from 1, on the way to the plan: `before` is the model after the step before, what it has
    /// dropped stays so as far as the pattern can do without. Dense weights are `self`'s, which is also what results are compared with.
    /// After the last step the patterns are the plan's.
    ///
    /// # Errors
    /// As [`BertModel::prune`]; steps that are none.
    pub fn prune_step(
        &self,
        sentences: &[Vec<u32>],
        plan: &BTreeMap<String, LayerPlan>,
        dtype: DType,
        (step, steps): (usize, usize),
        before: Option<&BertModel>,
        mut progress: impl FnMut(&str, &Reconstructed),
    ) -> Result<PrunedModel, CalibrateError> {
        if !(1..=steps).contains(&step) {
            let (expected, got) = ("1 to the number of steps", format!("{step} of {steps}"));
            return Err(ModelError::Setting { name: "step", expected, got }.into());
        }
        for name in plan.keys() {
            self.weight(name)?;
        }
        let mut layers = BTreeMap::new();
        let model = self.calibrate(sentences, |name, dense, statistics| {
            let Some(LayerPlan { pattern, method }) = plan.get(name) else { return Ok(None) };
            let pattern = if step < steps { on_the_way(pattern, part(step, steps)) } else { pattern.clone() };
            let old = before.map(|model| model.weight(name)).transpose()?;
            let within = old.map(|old| Mask::from_fn(old.n, old.k, |n, k| old.data[n * old.k + k] != 0.0));
            let weight = Tensor::from_f32(dtype, dense.n, dense.k, dense.data)?;
            let made = method.prune_within(&pattern, &weight, statistics, within.as_ref())?;
            progress(name, &made);
            let new = NewWeights { weights: made.pruned.dense().to_f32(), bias: made.bias.clone() };
            layers.insert(name.to_owned(), made);
            Ok(Some(new))
        })?;
        Ok(PrunedModel { model, layers })
    }

    /// Of each layer, how much the embeddings of `sentences` move, as 1 - their mean cosine to the dense ones, when it alone is pruned
    /// towards the pattern that `least` makes of its n and k: measured at the density nearest to `keep`, and between by the layer's own error.
    ///
    /// # Errors
    /// [`CalibrateError`].
    pub fn error_curves(
        &self,
        sentences: &[Vec<u32>],
        keep: f64,
        settings: &SecondOrder,
        mut least: impl FnMut(&str, usize, usize) -> Result<Pattern, PruneError>,
        mut progress: impl FnMut(&str),
    ) -> Result<BTreeMap<String, Curve>, CalibrateError> {
        let mut reference = Reference::new(self, sentences)?;
        let mut found = BTreeMap::new();
        self.calibrate(sentences, |name, weight, statistics: LayerStatistics| {
            let pattern = least(name, weight.n, weight.k)?;
            let tensor = Tensor::from_f32(DType::F32, weight.n, weight.k, weight.data)?;
            let mut points = Vec::new();
            let mut nearest: Option<(f64, f64, Vec<f32>)> = None;
            settings.curve(&pattern, &tensor, statistics, |density, error, weights| {
                points.push((density, error));
                let away = (density / keep).ln().abs();
                if nearest.as_ref().is_none_or(|(best, _, _)| away < *best) {
                    nearest = Some((away, error, weights.to_vec()));
                }
            })?;
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points.dedup_by(|a, b| a.0 == b.0);
            if let Some((_, error, weights)) = nearest {
                let loss = reference.loss(name, NewWeights { weights, bias: None })?;
                let scale = if error > 0.0 { loss / error } else { 0.0 };
                points.iter_mut().for_each(|point| point.1 *= scale);
            }
            found.insert(name.to_owned(), Curve { elements: weight.n * weight.k, points });
            progress(name);
            Ok(None)
        })?;
        Ok(found)
    }

    /// Of each layer named in `options`, how much the embeddings of `measured` move, as 1 - their mean cosine to the dense ones, when it
    /// alone is pruned by second order to each of its patterns, its weights fitted to the calibration `sentences`. `found` hears of each:
    /// layer, number of the pattern, error; what it returns as an error ends the work.
    ///
    /// # Errors
    /// [`CalibrateError`]; a layer that the model lacks is one.
    pub fn errors_alone(
        &self,
        sentences: &[Vec<u32>],
        measured: &[Vec<u32>],
        options: &BTreeMap<String, Vec<Pattern>>,
        settings: &SecondOrder,
        mut found: impl FnMut(&str, usize, f64) -> Result<(), AnyError>,
    ) -> Result<(), CalibrateError> {
        for name in options.keys() {
            self.weight(name)?;
        }
        let mut reference = Reference::new(self, measured)?;
        self.calibrate(sentences, |name, weight, statistics| {
            let Some(patterns) = options.get(name) else { return Ok(None) };
            let tensor = Tensor::from_f32(DType::F32, weight.n, weight.k, weight.data)?;
            for (number, pattern) in patterns.iter().enumerate() {
                let made = settings.prune(pattern, &tensor, statistics.clone())?;
                let new = NewWeights { weights: made.pruned.dense().to_f32(), bias: made.bias };
                found(name, number, reference.loss(name, new)?)?;
            }
            Ok(None)
        })?;
        Ok(())
    }
}

/// The pattern at a part of the way; without its last choice of N of M in rows, which comes with the last step.
fn on_the_way(pattern: &Pattern, part: f64) -> Pattern {
    let coarse = if SecondOrder::ends_in_rows(pattern) { pattern.coarser() } else { None };
    let coarse = coarse.as_ref().unwrap_or(pattern);
    coarse.at_stage(part).unwrap_or_else(|| coarse.clone())
}
