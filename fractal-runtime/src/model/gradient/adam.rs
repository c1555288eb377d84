//! The Adam optimizer (Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015, algorithm 1) of named tensors,
//! and the learning rate of each step.

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::model::ModelError;

/// How fast [`Adam`] forgets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamSettings {
    /// What the mean of gradients keeps in a step.
    pub beta1: f32,
    /// What the mean of their squares keeps.
    pub beta2: f32,
    /// Added to the root of the mean square.
    pub epsilon: f32,
}

impl Default for AdamSettings {
    /// Those of the paper.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}

/// The moments of every tensor that was updated, by name.
#[derive(Clone, Debug)]
pub struct Adam {
    settings: AdamSettings,
    steps: i32,
    moments: BTreeMap<String, Moments>,
}

#[derive(Clone, Debug)]
struct Moments {
    mean: Vec<f32>,
    square: Vec<f32>,
}

/// One step, in which each tensor is updated once.
pub struct AdamStep<'a> {
    adam: &'a mut Adam,
    update: Update,
}

impl Adam {
    /// An optimizer that has seen no gradient.
    ///
    /// # Errors
    /// [`ModelError::Setting`] for a beta outside 0..1 or an epsilon that is not positive.
    pub fn new(settings: AdamSettings) -> Result<Self, ModelError> {
        let AdamSettings { beta1, beta2, epsilon } = settings;
        for (name, beta) in [("beta1", beta1), ("beta2", beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(ModelError::Setting { name, expected: "at least 0 and below 1", got: beta.to_string() });
            }
        }
        if !(epsilon.is_finite() && epsilon > 0.0) {
            let got = epsilon.to_string();
            return Err(ModelError::Setting { name: "epsilon", expected: "a positive number", got });
        }
        Ok(Self { settings, steps: 0, moments: BTreeMap::new() })
    }

    /// Begins the next step, with this learning rate.
    pub fn step(&mut self, rate: f32) -> AdamStep<'_> {
        self.steps = self.steps.saturating_add(1);
        let AdamSettings { beta1, beta2, epsilon } = self.settings;
        let mean = 1.0 / (1.0 - f64::from(beta1).powi(self.steps));
        let square = 1.0 / (1.0 - f64::from(beta2).powi(self.steps));
        let update =
            Update { beta1, beta2, epsilon, rate: (f64::from(rate) * mean) as f32, unbias_square: square as f32 };
        AdamStep { adam: self, update }
    }
}

impl AdamStep<'_> {
    /// Moves the tensor's values against their gradient. Where `kept` says false the value becomes 0 whatever it was,
    /// and its gradient is not looked at.
    ///
    /// # Errors
    /// [`ModelError::ParameterLength`] where the lengths differ, also from those of the tensor's earlier steps.
    pub fn update(
        &mut self,
        name: &str,
        values: &mut [f32],
        gradient: &[f32],
        kept: Option<&[bool]>,
    ) -> Result<(), ModelError> {
        if !self.adam.moments.contains_key(name) {
            let moments = Moments { mean: vec![0.0; values.len()], square: vec![0.0; values.len()] };
            self.adam.moments.insert(name.into(), moments);
        }
        let moments = self.adam.moments.get_mut(name).expect("it was just inserted");
        let expected = values.len();
        for got in [moments.mean.len(), gradient.len(), kept.map_or(expected, <[bool]>::len)] {
            if got != expected {
                return Err(ModelError::ParameterLength { name: name.into(), expected, got });
            }
        }
        /// Values that one task updates.
        const BLOCK: usize = 1 << 14;
        let update = self.update;
        let moments = moments.mean.par_chunks_mut(BLOCK).zip(moments.square.par_chunks_mut(BLOCK));
        let values = values.par_chunks_mut(BLOCK).zip(gradient.par_chunks(BLOCK));
        values.zip(moments).enumerate().for_each(|(block, ((values, gradient), (mean, square)))| {
            let kept = kept.map(|kept| &kept[block * BLOCK..][..values.len()]);
            pulp::Arch::new().dispatch(|| update.apply(values, gradient, mean, square, kept));
        });
        Ok(())
    }
}

/// The numbers of a step.
#[derive(Clone, Copy)]
struct Update {
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    /// Over what the mean of the gradients lacks so early.
    rate: f32,
    unbias_square: f32,
}

impl Update {
    #[inline(always)]
    fn apply(self, values: &mut [f32], gradient: &[f32], mean: &mut [f32], square: &mut [f32], kept: Option<&[bool]>) {
        let moments = mean.iter_mut().zip(square);
        let all = values.iter_mut().zip(gradient).zip(moments);
        match kept {
            None => all.for_each(|((value, g), (mean, square))| *value = self.value(*value, *g, mean, square)),
            Some(kept) => all.zip(kept).for_each(|(((value, g), (mean, square)), kept)| {
                let g = if *kept { *g } else { 0.0 };
                let moved = self.value(*value, g, mean, square);
                *value = if *kept { moved } else { 0.0 };
            }),
        }
    }

    #[inline(always)]
    fn value(self, value: f32, g: f32, mean: &mut f32, square: &mut f32) -> f32 {
        *mean = self.beta1 * *mean + (1.0 - self.beta1) * g;
        *square = self.beta2 * *square + (1.0 - self.beta2) * g * g;
        value - self.rate * *mean / ((*square * self.unbias_square).sqrt() + self.epsilon)
    }
}

/// Learning rates: a linear rise over the first steps, then half a cosine down to 0 (Loshchilov and Hutter, SGDR, 2017,
/// eq. 5, one period).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The greatest rate.
    pub peak: f32,
    /// Steps until it is reached.
    pub warm_up: usize,
    /// All steps.
    pub steps: usize,
}

impl Schedule {
    /// The rate of a step, counted from 0; 0 behind the last one.
    pub fn rate(&self, step: usize) -> f32 {
        if step < self.warm_up {
            return self.peak * (step + 1) as f32 / self.warm_up as f32;
        }
        let length = self.steps.saturating_sub(self.warm_up).max(1);
        let progress = ((step - self.warm_up) as f32 / length as f32).min(1.0);
        self.peak * 0.5 * (1.0 + (std::f32::consts::PI * progress).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_that_of_the_paper() {
        let settings = AdamSettings { beta1: 0.8, beta2: 0.9, epsilon: 1e-3 };
        let mut adam = Adam::new(settings).unwrap();
        let (mut values, mut expected) = ([1.0f32, -2.0], [1.0f64, -2.0]);
        let (mut m, mut v) = ([0.0; 2], [0.0; 2]);
        for t in 1..=5 {
            let gradient = [0.3 * t as f32, -0.01];
            adam.step(0.1).update("w", &mut values, &gradient, None).unwrap();
            for i in 0..2 {
                let g = f64::from(gradient[i]);
                m[i] = 0.8 * m[i] + 0.2 * g;
                v[i] = 0.9 * v[i] + 0.1 * g * g;
                let (m, v): (f64, f64) = (m[i] / (1.0 - 0.8f64.powi(t)), v[i] / (1.0 - 0.9f64.powi(t)));
                expected[i] -= 0.1 * m / (v.sqrt() + 1e-3);
                assert!((f64::from(values[i]) - expected[i]).abs() < 1e-5, "step {t}: {values:?}, {expected:?}");
            }
        }
    }

    #[test]
    fn a_quadratic_comes_to_its_least_and_masked_values_are_zero() {
        let mut adam = Adam::new(AdamSettings::default()).unwrap();
        let goal: Vec<f32> = (0..40_000).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect();
        let kept: Vec<bool> = (0..goal.len()).map(|i| i % 3 != 0).collect();
        let mut values = vec![0.5; goal.len()];
        let schedule = Schedule { peak: 0.05, warm_up: 10, steps: 200 };
        for step in 0..schedule.steps {
            let gradient: Vec<f32> = values.iter().zip(&goal).map(|(w, goal)| w - goal).collect();
            adam.step(schedule.rate(step)).update("w", &mut values, &gradient, Some(&kept)).unwrap();
            let masked = values.iter().zip(&kept).filter(|(_, kept)| !**kept);
            assert!(masked.map(|(value, _)| value.to_bits()).all(|bits| bits == 0));
        }
        for ((value, goal), _) in values.iter().zip(&goal).zip(&kept).filter(|(_, kept)| **kept) {
            assert!((value - goal).abs() < 2e-2, "{value} instead of {goal}");
        }
    }

    #[test]
    fn rates_rise_and_fall() {
        let schedule = Schedule { peak: 2.0, warm_up: 4, steps: 12 };
        let rates: Vec<f32> = (0..14).map(|step| schedule.rate(step)).collect();
        assert_eq!(rates[..5], [0.5, 1.0, 1.5, 2.0, 2.0]);
        assert!((rates[8] - 1.0).abs() < 1e-6 && rates[11] > 0.0 && rates[12].abs() < 1e-6 && rates[13].abs() < 1e-6);
        assert!(rates[4..].is_sorted_by(|a, b| a >= b));
        assert!(Schedule { peak: 1.0, warm_up: 0, steps: 0 }.rate(0) == 1.0);
    }

    #[test]
    fn lengths_and_settings_that_do_not_fit_are_errors() {
        let mut adam = Adam::new(AdamSettings::default()).unwrap();
        let mut step = adam.step(0.1);
        let mut text = |len: usize, gradient: usize, kept: usize| {
            let kept = vec![true; kept];
            step.update("w", &mut vec![1.0; len], &vec![1.0; gradient], Some(&kept)).map_err(|error| error.to_string())
        };
        assert_eq!(text(3, 3, 3), Ok(()));
        assert_eq!(text(3, 2, 3).unwrap_err(), "parameter `w`: expected 3 values, found 2");
        assert_eq!(text(3, 3, 4).unwrap_err(), "parameter `w`: expected 3 values, found 4");
        assert_eq!(text(2, 2, 2).unwrap_err(), "parameter `w`: expected 2 values, found 3");
        let error = Adam::new(AdamSettings { beta2: 1.0, ..AdamSettings::default() }).unwrap_err();
        assert_eq!(error.to_string(), "setting `beta2`: expected at least 0 and below 1, found 1");
        assert!(Adam::new(AdamSettings { epsilon: 0.0, ..AdamSettings::default() }).is_err());
    }
}
