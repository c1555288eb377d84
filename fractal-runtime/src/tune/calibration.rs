//! What the roofline leaves out, learned: for each kind of kernel a linear correction of the logarithm of its time, fitted by
//! ridge regression to kernels that were timed on the device.

use super::calibrate::Sample;
use super::model::{Kind, Work};
use crate::cuda::Gpu;
use crate::whole_file;
use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Cycles a microsecond where a kind has never been timed.
const CYCLES: f64 = 1700.0;
/// How much the corrections are held back, for each sample: the value with the best ranks in a leave-one-shape-out test on
/// an H200's calibration samples (docs/perf-log.md).
const RIDGE: f64 = 0.2;
/// Samples of a kind, below which nothing is learned from it.
const FEWEST: usize = 60;

/// Features at their mean and scale, and the weight of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Correction {
    mean: Vec<f64>,
    scale: Vec<f64>,
    weights: Vec<f64>,
    samples: usize,
}

/// A cost model for one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The device by its full name.
    pub device: String,
    /// The version of Fractal whose kernels were timed.
    pub fractal: String,
    corrections: BTreeMap<Kind, Correction>,
}

/// A calibration that cannot be read or stored.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// The file cannot be read or written.
    #[error("calibration {}: {reason}; remove the file, or name another with FRACTAL_CALIBRATION", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl Calibration {
    /// Fits a model to samples of a device.
    pub fn fit(device: &str, gpu: Gpu, samples: &[Sample]) -> Calibration {
        let mut kinds: BTreeMap<Kind, Vec<&Sample>> = BTreeMap::new();
        let right = |s: &&Sample| s.microseconds.is_finite() && s.microseconds > 0.0;
        samples.iter().filter(right).for_each(|s| kinds.entry(s.work.kind()).or_default().push(s));
        let corrections = kinds.into_iter().filter(|(_, samples)| samples.len() >= FEWEST);
        let corrections = corrections.filter_map(|(kind, samples)| Some((kind, Correction::fit(gpu, &samples)?)));
        Calibration {
            device: device.into(),
            fractal: env!("CARGO_PKG_VERSION").into(),
            corrections: corrections.collect(),
        }
    }

    /// Nothing learned: the roofline at a usual clock.
    pub fn none(device: &str) -> Calibration {
        Calibration { device: device.into(), fractal: env!("CARGO_PKG_VERSION").into(), corrections: BTreeMap::new() }
    }

    /// Microseconds expected.
    pub fn microseconds(&self, work: &Work, gpu: Gpu) -> f64 {
        let cycles = work.cycles(gpu);
        match self.corrections.get(&work.kind()) {
            None => cycles / CYCLES,
            Some(correction) => cycles * correction.of(&work.features(gpu)).exp(),
        }
    }

    /// Of each kind that was learned: samples.
    pub fn samples(&self) -> impl Iterator<Item = (Kind, usize)> + '_ {
        self.corrections.iter().map(|(kind, correction)| (*kind, correction.samples))
    }

    /// That of a device: the user's own, from a calibration run, else the one that comes with the crate, else nothing learned.
    ///
    /// # Errors
    /// A file that is there and cannot be read.
    pub fn of_device(device: &str) -> Result<Calibration, CalibrationError> {
        let asked = std::env::var_os("FRACTAL_CALIBRATION").is_some();
        if let Some(path) = Calibration::path(device)
            && (asked || path.exists())
        {
            let own = Calibration::read(&path)?;
            if asked && own.device != device {
                let reason = format!("expected a calibration of {device}, found one of {}", own.device);
                return Err(CalibrationError::File { path, reason });
            }
            // Another version's kernels take other times.
            if own.device == device && own.fractal == env!("CARGO_PKG_VERSION") {
                return Ok(own);
            }
        }
        let shipped = serde_json::from_str::<Calibration>(include_str!("h200.json")).ok();
        Ok(shipped.filter(|own| own.device == device).unwrap_or_else(|| Calibration::none(device)))
    }

    /// Where a device's calibration is stored: FRACTAL_CALIBRATION, or a file in the user's data folder.
    pub fn path(device: &str) -> Option<PathBuf> {
        use etcetera::{BaseStrategy, choose_base_strategy};
        if let Some(path) = std::env::var_os("FRACTAL_CALIBRATION") {
            return Some(path.into());
        }
        let name: String = device.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let folder = choose_base_strategy().ok()?.data_dir().join("fractal");
        Some(folder.join(format!("calibration-{name}.json")))
    }

    /// From a file.
    ///
    /// # Errors
    /// [`CalibrationError::File`].
    pub fn read(path: &Path) -> Result<Calibration, CalibrationError> {
        let wrong = |reason: String| CalibrationError::File { path: path.into(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let read: Calibration =
            serde_json::from_str(&text).map_err(|error| wrong(format!("no calibration: {error}")))?;
        let features = Work::FEATURES;
        let right = |c: &Correction| {
            let all = [&c.mean, &c.scale, &c.weights];
            all.iter().all(|v| v.len() == features && v.iter().all(|x| x.is_finite()))
                && c.scale.iter().all(|&s| s > 0.0)
        };
        if read.corrections.values().all(right) {
            Ok(read)
        } else {
            Err(wrong(format!("expected {features} finite weights a kind")))
        }
    }

    /// To a file, all of it or nothing.
    ///
    /// # Errors
    /// [`CalibrationError::File`].
    pub fn write(&self, path: &Path) -> Result<(), CalibrationError> {
        let wrong = |reason: String| CalibrationError::File { path: path.into(), reason };
        let written = std::fs::create_dir_all(whole_file::folder(path)).and_then(|()| {
            whole_file::replace(path, |out| serde_json::to_writer(out, self).map_err(std::io::Error::from))
        });
        written.map_err(|error| wrong(error.to_string()))
    }
}

impl Correction {
    fn fit(gpu: Gpu, samples: &[&Sample]) -> Option<Correction> {
        let rows: Vec<Vec<f64>> = samples.iter().map(|s| s.work.features(gpu)).collect();
        let (count, width) = (rows.len(), Work::FEATURES);
        let average = |column: usize| rows.iter().map(|row| row[column]).sum::<f64>() / count as f64;
        let mut mean: Vec<f64> = (0..width).map(average).collect();
        let spread = |column: usize, mean: f64| {
            let squares = rows.iter().map(|row| (row[column] - mean).powi(2)).sum::<f64>();
            (squares / count as f64).sqrt().max(1e-6)
        };
        let mut scale: Vec<f64> = (0..width).map(|column| spread(column, mean[column])).collect();
        // The first is the constant.
        (mean[0], scale[0]) = (0.0, 1.0);
        let x = DMatrix::from_fn(count, width, |row, column| (rows[row][column] - mean[column]) / scale[column]);
        let y = DVector::from_fn(count, |row, _| samples[row].microseconds.ln() - samples[row].work.cycles(gpu).ln());
        let mut square = x.transpose() * &x;
        for column in 0..width {
            square[(column, column)] += if column == 0 { 1e-9 } else { RIDGE * count as f64 };
        }
        let weights = square.cholesky()?.solve(&(x.transpose() * y));
        Some(Correction { mean, scale, weights: weights.iter().copied().collect(), samples: count })
    }

    /// The logarithm of microseconds a cycle.
    fn of(&self, features: &[f64]) -> f64 {
        let parts = features.iter().zip(&self.mean).zip(&self.scale).zip(&self.weights);
        parts.map(|(((feature, mean), scale), weight)| (feature - mean) / scale * weight).sum()
    }
}
