//! Finds pattern and schedule for a weight: what dominates in retained importance and time on a device.

pub mod calibrate;
mod calibration;
pub mod model;
mod record;
pub mod space;
mod stopwatch;

pub use calibration::{Calibration, CalibrationError};
pub use record::{Context, Outcome, Record};
pub use stopwatch::{Extras, Stopwatch};
