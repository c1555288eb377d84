//! A search -> the rows of its tables: the front, and the fastest of each pattern of the literature.

use super::markup::short_percent;
use fractal::runtime::tune::{Measured, Outcome, Tuned};
use std::cmp::Ordering;

/// Sums in another order, and numbers that were written and read, differ by less.
const ROUNDING: f64 = 1e-9;

/// One row.
pub struct Row<'a> {
    pub measured: &'a Measured,
    pub retained: f64,
    pub microseconds: f64,
    pub on_front: bool,
    pub chosen: bool,
    /// How many times as fast as the fastest fixed pattern that retains as much, where there is one.
    pub against_fixed: Option<f64>,
}

impl Row<'_> {
    /// Why it is in the table.
    pub fn role(&self) -> String {
        let roles = [(self.chosen, "chosen"), (self.on_front, "front"), (self.measured.fixed, "fixed")];
        roles.iter().filter(|role| role.0).map(|role| role.1).collect::<Vec<_>>().join(", ")
    }
}

/// The front, most importance first, with what was chosen; then the fixed patterns that are not on it.
pub fn rows(tuned: &Tuned) -> Vec<Row<'_>> {
    let fixed = fixed(tuned);
    let mut members: Vec<&Measured> = tuned.front.iter().collect();
    // For some goals it need not be on the front.
    members.extend(tuned.chosen.as_ref().filter(|chosen| !tuned.front.contains(chosen)));
    let most_first = |a: &&Measured, b: &&Measured| b.record.retained.total_cmp(&a.record.retained);
    members.sort_by(most_first);
    let mut others: Vec<&Measured> = fixed.iter().copied().filter(|fixed| !members.contains(fixed)).collect();
    others.sort_by(most_first);
    let all = members.into_iter().chain(others);
    all.filter_map(|measured| {
        let (retained, microseconds) = measured.point()?;
        let on_front = tuned.front.contains(measured);
        let chosen = tuned.chosen.as_ref() == Some(measured);
        let against_fixed = fastest_fixed(&fixed, retained).and_then(|fixed| ratio(fixed, measured));
        Some(Row { measured, retained, microseconds, on_front, chosen, against_fixed })
    })
    .collect()
}

/// The fastest schedule of each pattern of the literature, in the order in which they were measured.
pub fn fixed(tuned: &Tuned) -> Vec<&Measured> {
    let mut fastest: Vec<&Measured> = Vec::new();
    for measured in tuned.measured.iter().filter(|m| m.fixed && m.record.microseconds().is_some()) {
        match fastest.iter_mut().find(|known| same_pattern(known, measured)) {
            Some(known) if by_time(measured, known) == Ordering::Less => *known = measured,
            Some(_) => {}
            None => fastest.push(measured),
        }
    }
    fastest
}

/// Of fixed patterns that retain at least so much, the fastest.
pub fn fastest_fixed<'a>(fixed: &[&'a Measured], retained: f64) -> Option<&'a Measured> {
    fixed.iter().copied().filter(|m| m.record.retained >= retained - ROUNDING).min_by(|a, b| by_time(a, b))
}

/// How many times as fast as `slow` it is.
pub fn ratio(slow: &Measured, fast: &Measured) -> Option<f64> {
    speedup(slow.record.microseconds()?, fast.record.microseconds()?)
}

pub fn speedup(slow: f64, fast: f64) -> Option<f64> {
    Some(slow / fast).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
}

/// Whether both are schedules of one tiling at one keep ratio. Names of the literature do not tell the ratio.
pub fn same_pattern(a: &Measured, b: &Measured) -> bool {
    let same = |a: f64, b: f64| (a - b).abs() < ROUNDING;
    a.tiling == b.tiling && same(a.record.density, b.record.density) && same(a.record.retained, b.record.retained)
}

/// The tiling's name, with the part that is kept where the same name was measured with several.
pub fn name(tuned: &Tuned, measured: &Measured) -> String {
    let density = measured.record.density;
    let mut others = tuned.measured.iter().filter(|m| m.tiling == measured.tiling);
    if others.any(|other| (other.record.density - density).abs() > 0.005) {
        format!("{} at {}%", measured.tiling, short_percent(density))
    } else {
        measured.tiling.clone()
    }
}

/// Failures by their reasons, the most frequent first.
pub fn failures(tuned: &Tuned) -> Vec<(&str, usize)> {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for measured in &tuned.measured {
        let Outcome::Failed { reason } = &measured.record.outcome else { continue };
        match counts.iter_mut().find(|(known, _)| known == reason) {
            Some((_, count)) => *count += 1,
            None => counts.push((reason, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

fn by_time(a: &Measured, b: &Measured) -> Ordering {
    let time = |m: &Measured| m.record.microseconds().unwrap_or(f64::INFINITY);
    time(a).total_cmp(&time(b))
}
