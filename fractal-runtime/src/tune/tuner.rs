//! A weight and a goal -> the pairs of pattern and schedule that dominate in retained importance and time.
//!
//! Every tiling is scored on a sample of rows and costed by the model; what another one beats in both is left out. Then, best
//! first, patterns are pruned, packed and compiled on other threads while this one measures. What was measured is in the
//! database at once, so that a search that is ended goes on where it was.

use super::measure::Inputs;
use super::prepare::Common;
use super::schedules::Model;
use super::search::Search;
use super::space::Tiling;
use super::{CalibrationError, Context, Database, DatabaseError, Record};
use crate::cuda::CudaDevice;
use crate::device::Device;
use crate::error::Error;
use crate::gemm::Gemm;
use crate::prune::{Importance, PruneError};
use crate::tensor::Tensor;
use fractal_dsl::pattern::{Pattern, PatternError};
use fractal_dsl::{EpilogueOp, Layout};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant};
use thiserror::Error;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// This part of the weights is dropped, 0 to below 1.
    Sparsity(f64),
    /// At least this part of the importance is retained, above 0 to 1; as fast as can be.
    Retained(f64),
    /// At most so many microseconds a call; as much importance as can be.
    Microseconds(f64),
}

/// A layer to be tuned.
pub struct Problem<'a> {
    /// W, [n, k].
    pub weight: &'a Tensor,
    /// How much each weight matters.
    pub importance: &'a dyn Importance,
    /// Tokens a call.
    pub m: usize,
    /// What follows the product.
    pub epilogue: Vec<EpilogueOp>,
    /// Layouts of X and Y.
    pub layouts: (Layout, Layout),
}

/// How much is tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Time of the whole search.
    pub time: Duration,
    /// Patterns that are measured, at most.
    pub patterns: usize,
    /// Schedules that are measured of each.
    pub schedules: usize,
    /// Patterns without a new member of the front, after which the search ends.
    pub patience: usize,
    /// Threads that prepare.
    pub jobs: usize,
    /// The tilings to choose from; `None`: all of [`tilings`](super::space::tilings).
    pub tilings: Option<Vec<Tiling>>,
}

impl Default for Settings {
    /// A minute, 40 patterns with 4 schedules each.
    fn default() -> Settings {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Settings {
            time: Duration::from_secs(60),
            patterns: 40,
            schedules: 4,
            patience: 16,
            jobs: cores.saturating_sub(1).clamp(1, 12),
            tilings: None,
        }
    }
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// All that was worth it is measured.
    Done,
    /// The last patterns were no better.
    Patience,
    /// Its time is over.
    Time,
    /// It was asked to.
    Asked,
}

/// One pattern with one schedule, measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The tiling's name.
    pub tiling: String,
    /// The pattern as it runs.
    pub pattern: Pattern,
    /// Whether the tiling is one of the literature's ([`fixed`](super::space::fixed)).
    pub fixed: bool,
    /// The rules of the e-graph that lead from the tiling's pattern to it.
    pub rules: Vec<&'static str>,
    /// It comes from the database.
    pub reused: bool,
    /// What came of it.
    pub record: Record,
}

impl Measured {
    /// (retained importance, microseconds) of a right result.
    pub fn point(&self) -> Option<(f64, f64)> {
        Some((self.record.retained, self.record.microseconds()?))
    }
}

/// What a search has found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuned {
    /// What it holds for.
    pub context: Context,
    /// What was wanted.
    pub goal: Goal,
    /// The best for the goal.
    pub chosen: Option<Measured>,
    /// What nothing beats in both, most importance first.
    pub front: Vec<Measured>,
    /// Everything.
    pub measured: Vec<Measured>,
    /// Tilings that there were.
    pub tilings: usize,
    /// Of which so many were worth measuring.
    pub promising: usize,
    /// Why it ended.
    pub stop: Stop,
    /// Seconds it took.
    pub seconds: f64,
}

/// News of a search; [`Tuner::tune`] goes on while its listener returns true.
#[derive(Debug)]
pub enum Event<'a> {
    /// Tilings have been scored, of so many.
    Scored(usize, usize),
    /// Patterns that will be measured at most.
    Promising(usize),
    /// One more is measured; patterns so far.
    Measured(&'a Measured, usize),
    /// A tiling that cannot be had.
    Failed(&'a str),
    /// Nothing new.
    Tick,
}

/// A search that cannot be.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TuneError {
    /// A goal out of range.
    #[error("goal: expected {expected}, found {found}")]
    Goal {
        /// What is in range.
        expected: &'static str,
        /// What was given.
        found: f64,
    },
    /// Scores that are not one finite number of at least 0 for each weight.
    #[error("scores: expected {expected}, found {found}")]
    Scores {
        /// What they must be.
        expected: String,
        /// What they are.
        found: String,
    },
    /// The weight cannot be pruned.
    #[error(transparent)]
    Prune(#[from] PruneError),
    /// The sizes make no pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The device is at fault.
    #[error(transparent)]
    Device(#[from] Error),
    /// The database is at fault.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The cost model is at fault.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
}

/// Searches on one device.
pub struct Tuner {
    pub(super) device: Device,
    pub(super) gpu: Option<(CudaDevice, Model)>,
    pub(super) database: Database,
    /// The device by its full name, and the versions that its times depend on.
    names: (String, String),
}

impl Tuner {
    /// On a CPU.
    pub fn cpu(threads: usize, database: Database) -> Tuner {
        let names = (format!("cpu, {threads} threads"), String::new());
        Tuner { device: Device::cpu_with_threads(threads), gpu: None, database, names }
    }

    /// On a GPU by its index.
    ///
    /// # Errors
    /// No such GPU, or its calibration cannot be read.
    pub fn cuda(index: usize, database: Database) -> Result<Tuner, TuneError> {
        let gpu = CudaDevice::open(index).map_err(Error::from)?;
        let info = gpu.info();
        let nvrtc = gpu.compiler().map_or_else(|_| "none".into(), |compiler| compiler.version().to_string());
        let names = (info.name.clone(), format!("CUDA {}, NVRTC {nvrtc}", info.driver));
        let calibration = super::Calibration::of_device(&info.name)?;
        let model = Model { calibration, gpu: info.into(), sm: info.arch.major * 10 + info.arch.minor };
        Ok(Tuner { device: Device::cuda(index)?, gpu: Some((gpu.clone(), model)), database, names })
    }

    /// What was measured.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// The device by its full name.
    pub fn device_name(&self) -> &str {
        &self.names.0
    }

    fn context(&self, problem: &Problem<'_>, weights: &[f32], scores: &[f32]) -> Context {
        let mut hash = Sha256::new();
        weights.iter().chain(scores).for_each(|value| hash.update(value.to_le_bytes()));
        Context {
            fractal: env!("CARGO_PKG_VERSION").into(),
            device: self.names.0.clone(),
            versions: self.names.1.clone(),
            dtype: problem.weight.dtype(),
            n: problem.weight.rows(),
            k: problem.weight.columns(),
            m: problem.m,
            epilogue: problem.epilogue.clone(),
            layouts: problem.layouts,
            weights: hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    /// Searches; `listen` hears what happens and ends the search by returning false.
    ///
    /// # Errors
    /// [`TuneError`]. A kernel that fails, hangs or is wrong is recorded, not an error; but after one that hangs the GPU is
    /// lost to the process, and the search ends with an error that says so.
    pub fn tune(
        &self,
        problem: &Problem<'_>,
        goal: Goal,
        settings: &Settings,
        listen: &mut dyn FnMut(Event<'_>) -> bool,
    ) -> Result<Tuned, TuneError> {
        let begin = Instant::now();
        goal.check()?;
        let (n, k) = (problem.weight.rows(), problem.weight.columns());
        let base = Pattern::dense(n, k)?;
        let weights = problem.weight.to_f32();
        if let Some(at) = weights.iter().position(|w| !w.is_finite()) {
            return Err(PruneError::NotFinite { n: at / k, k: at % k, value: weights[at] }.into());
        }
        let scores = problem.importance.scores(&weights, n, k)?;
        check_scores(&scores, n, k)?;
        let gemm = Gemm::new(base, problem.weight.dtype())
            .with_epilogue(&problem.epilogue)
            .with_layouts(problem.layouts.0, problem.layouts.1);
        let context = self.context(problem, &weights, &scores);
        let (candidates, all) = self.candidates((&gemm, &scores, problem.m), goal, settings, begin, listen)?;
        let promising = candidates.len();
        listen(Event::Promising(promising.min(settings.patterns)));
        let inputs = Inputs::random(&gemm, problem.m)?;
        let common = Common {
            device: &self.device,
            model: self.gpu.as_ref().map(|(_, model)| model),
            database: &self.database,
            context: &context,
            gemm: &gemm,
            weights: &weights,
            scores: &scores,
            inputs: &inputs,
            schedules: settings.schedules,
        };
        let mut search = Search::new(self, &common, listen);
        let stop = search.run(&candidates, settings, begin)?;
        // Who asks for the end wants it now.
        if stop != Stop::Asked {
            search.again()?;
        }
        let measured = search.measured();
        let front = front_of(&measured);
        let chosen = goal.choose(&front);
        let seconds = begin.elapsed().as_secs_f64();
        Ok(Tuned { context, goal, chosen, front, measured, tilings: all, promising, stop, seconds })
    }
}

fn check_scores(scores: &[f32], n: usize, k: usize) -> Result<(), TuneError> {
    let wrong = |expected: String, found: String| Err(TuneError::Scores { expected, found });
    if scores.len() != n * k {
        return wrong(format!("{} of a {n} x {k} weight", n * k), scores.len().to_string());
    }
    match scores.iter().position(|s| !s.is_finite() || *s < 0.0) {
        Some(at) => wrong("finite numbers of at least 0".into(), format!("{} at ({}, {})", scores[at], at / k, at % k)),
        None => Ok(()),
    }
}

impl Goal {
    fn check(self) -> Result<(), TuneError> {
        let (right, expected, found) = match self {
            Goal::Sparsity(s) => ((0.0..1.0).contains(&s), "a sparsity from 0 to below 1", s),
            Goal::Retained(r) => (r > 0.0 && r <= 1.0, "retained importance above 0 and up to 1", r),
            Goal::Microseconds(t) => (t > 0.0 && t.is_finite(), "a time above 0 microseconds", t),
        };
        if right { Ok(()) } else { Err(TuneError::Goal { expected, found }) }
    }

    /// Keep ratios to try.
    pub(super) fn keeps(self) -> Vec<f64> {
        match self {
            Goal::Sparsity(sparsity) => vec![1.0 - sparsity],
            // The least first; at last everything, which retains all.
            Goal::Retained(_) => (1..=16).map(|sixteenths| f64::from(sixteenths) / 16.0).collect(),
            Goal::Microseconds(_) => (1..=16).rev().map(|sixteenths| f64::from(sixteenths) / 16.0).collect(),
        }
    }

    /// The best for it. Of one sparsity: the fastest that retains 95 % of the most that any retains.
    fn choose(self, front: &[Measured]) -> Option<Measured> {
        let fastest = |floor: f64| {
            let there = front.iter().filter(|m| m.record.retained >= floor);
            there.min_by(|a, b| {
                a.record.microseconds().partial_cmp(&b.record.microseconds()).unwrap_or(std::cmp::Ordering::Equal)
            })
        };
        let chosen = match self {
            Goal::Sparsity(_) => {
                let most = front.iter().map(|m| m.record.retained).fold(0.0, f64::max);
                fastest(0.95 * most)
            }
            Goal::Retained(floor) => fastest(floor),
            // Its most important comes first.
            Goal::Microseconds(most) => front.iter().find(|m| m.record.microseconds().is_some_and(|t| t <= most)),
        };
        chosen.cloned()
    }
}

/// What nothing beats in both, most importance first.
fn front_of(measured: &[Measured]) -> Vec<Measured> {
    let records = super::front(measured.iter().map(|m| m.record.clone()));
    records.iter().filter_map(|record| measured.iter().find(|m| m.record == *record)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prune::Magnitude;
    use fractal_dsl::DType;

    fn weight(n: usize, k: usize) -> Tensor {
        let mut state = 7u32;
        let values: Vec<f32> = (0..n * k)
            .map(|at| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let random = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
                random * if (at % k).is_multiple_of(3) { 2.0 } else { 1.0 }
            })
            .collect();
        Tensor::from_f32(DType::F32, n, k, &values).unwrap()
    }

    fn problem(weight: &Tensor) -> Problem<'_> {
        let layouts = (Layout::FeatureMajor, Layout::FeatureMajor);
        Problem { weight, importance: &Magnitude, m: 24, epilogue: vec![EpilogueOp::Relu], layouts }
    }

    #[test]
    fn a_search_finds_a_front_and_goes_on_from_its_database() {
        let weight = weight(256, 256);
        let settings = Settings { patterns: 12, ..Settings::default() };
        let tuner = Tuner::cpu(2, Database::in_memory());
        let tuned = tuner.tune(&problem(&weight), Goal::Sparsity(0.75), &settings, &mut |_| true).unwrap();
        assert!(tuned.measured.len() == 12 && tuned.measured.iter().all(|m| !m.reused), "{}", tuned.measured.len());
        let points: Vec<_> = tuned.front.iter().map(|m| m.point().unwrap()).collect();
        assert!(points.windows(2).all(|w| w[0].0 > w[1].0 && w[0].1 > w[1].1), "{points:?}");
        assert!(tuned.chosen.is_some());
        assert!(tuned.measured.iter().all(|m| (m.record.density - 0.25).abs() < 0.02));
        let again = tuner.tune(&problem(&weight), Goal::Sparsity(0.75), &settings, &mut |_| true).unwrap();
        assert!(again.measured.iter().all(|m| m.reused));
        assert_eq!(again.front.len(), tuned.front.len());
    }

    #[test]
    fn goals_choose_from_the_front() {
        let weight = weight(64, 96);
        let settings = Settings { patterns: 40, patience: 40, ..Settings::default() };
        let tuner = Tuner::cpu(1, Database::in_memory());
        let found = tuner.tune(&problem(&weight), Goal::Retained(0.8), &settings, &mut |_| true).unwrap();
        let chosen = found.chosen.expect("half of the weights hold more");
        assert!(chosen.record.retained >= 0.8);
        let within = tuner.tune(&problem(&weight), Goal::Microseconds(1e9), &settings, &mut |_| true).unwrap();
        let most = within.measured.iter().map(|m| m.record.retained).fold(0.0, f64::max);
        assert!(within.chosen.expect("all are fast enough").record.retained >= most - 1e-9);
    }

    #[test]
    fn a_search_ends_when_asked_and_keeps_what_it_has() {
        let weight = weight(64, 64);
        let tuner = Tuner::cpu(1, Database::in_memory());
        let mut left = 3;
        let tuned = tuner.tune(&problem(&weight), Goal::Sparsity(0.5), &Settings::default(), &mut |event| {
            if matches!(event, Event::Measured(..)) {
                left -= 1;
            }
            left > 0
        });
        let tuned = tuned.unwrap();
        assert_eq!((tuned.stop, tuned.measured.len()), (Stop::Asked, 3));
        assert_eq!(tuner.database().records(&tuned.context).len(), 3);
    }

    #[test]
    fn goals_out_of_range_and_scores_that_are_none_are_told() {
        let weight = weight(16, 16);
        let tuner = Tuner::cpu(1, Database::in_memory());
        let tune = |goal, importance: &dyn Importance| {
            let problem = Problem { importance, ..problem(&weight) };
            tuner.tune(&problem, goal, &Settings::default(), &mut |_| true).unwrap_err().to_string()
        };
        assert_eq!(tune(Goal::Sparsity(1.0), &Magnitude), "goal: expected a sparsity from 0 to below 1, found 1");
        assert_eq!(
            tune(Goal::Retained(0.0), &Magnitude),
            "goal: expected retained importance above 0 and up to 1, found 0"
        );
        assert_eq!(
            tune(Goal::Microseconds(f64::NAN), &Magnitude),
            "goal: expected a time above 0 microseconds, found NaN"
        );
        let given = crate::prune::Given(vec![1.0; 3]);
        assert_eq!(tune(Goal::Sparsity(0.5), &given), "scores: expected 256 of a 16 x 16 weight, found 3");
        let mut bad = vec![1.0; 256];
        bad[17] = -1.0;
        assert_eq!(
            tune(Goal::Sparsity(0.5), &crate::prune::Given(bad)),
            "scores: expected finite numbers of at least 0, found -1 at (1, 1)"
        );
    }
}
