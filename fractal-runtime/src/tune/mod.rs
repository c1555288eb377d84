//! Finds pattern and schedule for a weight: what dominates in retained importance and time on a device.
//!
//! | stage | input | output | file |
//! |---|---|---|---|
//! | space | sizes, keep ratio | tilings, and what each level skips | `space` |
//! | estimate | a tiling, scores | retained importance, of a sample of rows | `estimate` |
//! | candidates | scores, a goal | tilings worth measuring, in their order | `candidates` |
//! | schedules | a pattern | equal patterns with kernels, cheapest first | `schedules` |
//! | model | kernel, tables, tokens | microseconds expected | `model`, `calibration` |
//! | calibrate | a GPU | timed kernels for the model | `calibrate` |
//! | prepare | a tiling | pruned, packed, compiled, loaded | `prepare` |
//! | measure | a loaded weight | a checked time | `stopwatch`, `measure` |
//! | tuner | a weight and a goal | the front | `tuner`, `search` |
//! | recipe | the choices of a model's layers | a file, and the model again | `recipe` |
//! | database | records | the same, for the next run | `record`, `line`, `database`, `front` |

pub mod calibrate;
mod calibration;
mod candidates;
mod database;
mod estimate;
mod front;
mod line;
mod measure;
pub mod model;
mod prepare;
mod recipe;
mod record;
mod schedules;
mod search;
pub mod space;
mod stopwatch;
mod tuner;

pub use calibration::{Calibration, CalibrationError};
pub use database::{Database, DatabaseError, Skipped};
pub use estimate::Estimator;
pub use front::front;
pub use recipe::{Recipe, RecipeError, RecipeLayer, floors};
pub use record::{Context, Outcome, Record};
pub use schedules::{Model, Planned};
pub use stopwatch::{Extras, Stopwatch};
pub use tuner::{Event, Goal, Measured, Problem, Settings, Stop, TuneError, Tuned, Tuner};
