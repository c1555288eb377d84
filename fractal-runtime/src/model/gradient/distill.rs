//! Distillation: what masks keep of a model is trained until its embeddings are near those of the dense model.
//!
//! Stage: ([`BertModel`], masks, sentences, target embeddings) -> the model with other values, zero where a mask drops.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use fractal_dsl::pattern::Mask;

use super::loss::{TEMPERATURE, cosine, relation};
use super::random::Random;
use super::{Adam, AdamSettings, Schedule};
use crate::model::{BertModel, ModelError};

/// How [`distill`] trains.
#[derive(Clone, Debug, PartialEq)]
pub struct DistillSettings {
    /// Times that every sentence is seen.
    pub epochs: usize,
    /// Sentences of a step.
    pub batch: usize,
    /// The greatest learning rate.
    pub learning_rate: f32,
    /// The part of all steps in which the learning rate rises, 0..=1.
    pub warm_up: f32,
    /// Weight of [`relation`] beside [`cosine`]; 0 leaves it out.
    pub relation: f32,
    /// Temperature of [`relation`].
    pub temperature: f32,
    /// Sentences, as they come, that share a batch: with 2, a text and the one after it, whose similarity [`relation`] then
    /// learns.
    pub together: usize,
    /// Orders the sentences anew in every epoch.
    pub seed: u64,
    /// The optimizer.
    pub adam: AdamSettings,
}

impl Default for DistillSettings {
    /// Three epochs in batches of 64 sentences.
    fn default() -> Self {
        Self {
            epochs: 3,
            batch: 64,
            learning_rate: 1e-4,
            warm_up: 0.1,
            relation: 0.1,
            temperature: TEMPERATURE,
            together: 1,
            seed: 0,
            adam: AdamSettings::default(),
        }
    }
}

/// What an epoch of [`distill`] has come to. The losses are means over its sentences so far, each taken before the step
/// that the sentence was part of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epoch {
    /// Which one, from 1 on.
    pub epoch: usize,
    /// How many there will be.
    pub epochs: usize,
    /// Sentences of it so far.
    pub seen: usize,
    /// Sentences of it in all.
    pub sentences: usize,
    /// The loss that is made less: `cosine` plus the weighted `relation`.
    pub loss: f64,
    /// [`cosine`] alone.
    pub cosine: f64,
    /// [`relation`] alone, without its weight; 0 where it is left out.
    pub relation: f64,
}

/// Trains a model's kept weights, biases and LayerNorms until the sentences' embeddings are near `targets`, unit vectors
/// such as the [embeddings](BertModel::embed) of the dense model.
///
/// Layers named in `masks` keep what their mask keeps: other weights are 0 from the start, exactly, so that the result
/// [packs](crate::pack_masked). Layers without a mask are trained whole. `progress` is told every step and may stop the
/// run there. The result depends on the seed and on the number of threads of the rayon pool only.
///
/// # Errors
/// [`ModelError`] where masks, sentences, targets or settings do not fit, a layer runs a replaced operator
/// ([`ModelError::NotDense`]), or the loss grows beyond all bounds. The model is as it was then.
pub fn distill(
    model: &mut BertModel,
    masks: &BTreeMap<String, Mask>,
    sentences: &[Vec<u32>],
    targets: &[Vec<f32>],
    settings: &DistillSettings,
    progress: &mut dyn FnMut(&Epoch) -> ControlFlow<()>,
) -> Result<(), ModelError> {
    settings.check()?;
    model.check_dense()?;
    check_targets(targets, sentences.len(), model.config().hidden_size)?;
    let sentences = model.check_sentences(sentences)?;
    let mut student = Student::new(model.clone(), masks, settings.adam)?;

    let batches = sentences.len().div_ceil(settings.batch);
    let steps = settings.epochs.saturating_mul(batches);
    let warm_up = (f64::from(settings.warm_up) * steps as f64).round() as usize;
    let schedule = Schedule { peak: settings.learning_rate, warm_up, steps };
    let mut groups: Vec<usize> = (0..sentences.len()).step_by(settings.together).collect();
    let mut random = Random::new(settings.seed);
    let mut step = 0;
    'epochs: for epoch in 1..=settings.epochs {
        random.shuffle(&mut groups);
        let group = |&begin: &usize| begin..(begin + settings.together).min(sentences.len());
        let order: Vec<usize> = groups.iter().flat_map(group).collect();
        let (epochs, all) = (settings.epochs, sentences.len());
        let mut sums = Epoch { epoch, epochs, seen: 0, sentences: all, loss: 0.0, cosine: 0.0, relation: 0.0 };
        for batch in order.chunks(settings.batch) {
            let sentence_batch: Vec<Vec<u32>> = batch.iter().map(|&i| sentences[i].clone()).collect();
            let target_batch: Vec<Vec<f32>> = batch.iter().map(|&i| targets[i].clone()).collect();
            student.step(schedule.rate(step), &sentence_batch, &target_batch, settings, &mut sums)?;
            step += 1;
            if progress(&sums.means()).is_break() {
                break 'epochs;
            }
        }
    }
    // Losses were taken before each step: the last one is looked at here.
    let some = &sentences[..sentences.len().min(settings.batch)];
    let embeddings = student.model.embed(some)?;
    if !embeddings.iter().flatten().all(|value| value.is_finite()) {
        return Err(ModelError::Diverged { epoch: step.div_ceil(batches.max(1)) });
    }
    *model = student.model;
    Ok(())
}

impl Epoch {
    /// Whether all its sentences were seen.
    pub fn ended(&self) -> bool {
        self.seen == self.sentences
    }

    /// Of sums over what was seen.
    fn means(self) -> Self {
        let seen = self.seen as f64;
        Self { loss: self.loss / seen, cosine: self.cosine / seen, relation: self.relation / seen, ..self }
    }
}

impl DistillSettings {
    fn check(&self) -> Result<(), ModelError> {
        let positive = |value: f32| value.is_finite() && value > 0.0;
        let settings = [
            ("batch", self.batch > 0, "at least 1", self.batch.to_string()),
            ("together", self.together > 0, "at least 1", self.together.to_string()),
            ("learning_rate", positive(self.learning_rate), "a positive number", self.learning_rate.to_string()),
            ("warm_up", (0.0..=1.0).contains(&self.warm_up), "0 to 1", self.warm_up.to_string()),
            (
                "relation",
                self.relation.is_finite() && self.relation >= 0.0,
                "a number of at least 0",
                self.relation.to_string(),
            ),
            ("temperature", positive(self.temperature), "a positive number", self.temperature.to_string()),
        ];
        match settings.into_iter().find(|(_, fits, _, _)| !fits) {
            Some((name, _, expected, got)) => Err(ModelError::Setting { name, expected, got }),
            None => Ok(()),
        }
    }
}

/// That there is a vector of `hidden` finite values for each sentence.
fn check_targets(targets: &[Vec<f32>], sentences: usize, hidden: usize) -> Result<(), ModelError> {
    if targets.len() != sentences {
        let what = "targets, one for each sentence";
        return Err(ModelError::LossLength { what, expected: sentences, got: targets.len() });
    }
    for (sentence, target) in targets.iter().enumerate() {
        if target.len() != hidden {
            let what = "values of a target";
            return Err(ModelError::LossLength { what, expected: hidden, got: target.len() });
        }
        if target.iter().any(|value| !value.is_finite()) {
            return Err(ModelError::TargetNotFinite { sentence });
        }
    }
    Ok(())
}

/// The model as it is trained.
struct Student {
    model: BertModel,
    adam: Adam,
    /// Layer -> what its mask keeps.
    kept: BTreeMap<String, Vec<bool>>,
}

impl Student {
    /// The model with zeros where a mask drops.
    fn new(mut model: BertModel, masks: &BTreeMap<String, Mask>, adam: AdamSettings) -> Result<Self, ModelError> {
        let mut kept = BTreeMap::new();
        for (name, mask) in masks {
            let linear = model.linear_mut(name)?;
            let (expected, got) = (linear.dense.shape(), [mask.n(), mask.k()]);
            if got != expected {
                return Err(ModelError::MaskShape { name: name.clone(), expected, got });
            }
            let [n, k] = expected;
            let bits: Vec<bool> = (0..n).flat_map(|n| (0..k).map(move |k| mask.contains(n, k))).collect();
            for (value, kept) in linear.dense.weight_mut().iter_mut().zip(&bits) {
                *value = if *kept { *value } else { 0.0 };
            }
            kept.insert(name.clone(), bits);
        }
        Ok(Self { model, adam: Adam::new(adam)?, kept })
    }

    /// Trains on one batch, and adds its losses times its length to the epoch's.
    fn step(
        &mut self,
        rate: f32,
        sentences: &[Vec<u32>],
        targets: &[Vec<f32>],
        settings: &DistillSettings,
        epoch: &mut Epoch,
    ) -> Result<(), ModelError> {
        let share = sentences.len() as f64;
        epoch.seen += sentences.len();
        let gradients = self.model.gradients(sentences, |embeddings| {
            let mut loss = cosine(embeddings, targets)?;
            epoch.cosine += share * loss.value;
            if settings.relation > 0.0 {
                let relation = relation(embeddings, targets, settings.temperature)?;
                epoch.relation += share * relation.value;
                loss = loss.plus(settings.relation, &relation)?;
            }
            if !loss.value.is_finite() {
                return Err(ModelError::Diverged { epoch: epoch.epoch });
            }
            epoch.loss += share * loss.value;
            Ok(loss.gradient)
        })?;
        let mut step = self.adam.step(rate);
        for (name, gradient) in &gradients.linears {
            let kept = self.kept.get(name).map(Vec::as_slice);
            let linear = self.model.linear_mut(name)?;
            step.update(&format!("{name}.weight"), linear.dense.weight_mut(), &gradient.weight, kept)?;
            step.update(&format!("{name}.bias"), Arc::make_mut(&mut linear.bias), &gradient.bias, None)?;
        }
        for (name, gradient) in &gradients.norms {
            let norm = self.model.norm_mut(name)?;
            step.update(&format!("{name}.weight"), &mut norm.gamma, &gradient.gamma, None)?;
            step.update(&format!("{name}.bias"), &mut norm.beta, &gradient.beta, None)?;
        }
        Ok(())
    }
}
