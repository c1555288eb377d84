//! The tuner: what was measured, and where it is kept.

mod database;
mod front;
mod line;
mod record;

pub use database::{Database, DatabaseError, Skipped};
pub use front::front;
pub use record::{Context, Outcome, Record};
