//! What was found, as text.

use std::collections::BTreeMap;

use fractal::runtime::tune::{Measured, Tuned};

use crate::output::line;
use crate::report::{rows, table};

/// Of each fixed pattern: its time over the least of the front that retains no less.
fn gains(tuned: &Tuned) -> Vec<(String, f64)> {
    let gain = |m: &Measured| {
        let (retained, time) = m.point()?;
        let points = tuned.front.iter().filter_map(Measured::point);
        let least = points.filter(|(r, _)| *r >= retained - 1e-9).map(|(_, t)| t).fold(f64::INFINITY, f64::min);
        Some((m.tiling.clone(), time / least))
    };
    rows::fixed(tuned).into_iter().filter_map(gain).collect()
}

/// One layer.
pub fn print(tuned: &Tuned, dense: Option<f64>) {
    let c = &tuned.context;
    let reused = tuned.measured.iter().filter(|m| m.reused).count();
    line(format_args!(
        "{}/{}/{} {} on {}: {} tilings, {} promising, {} measured ({reused} from the database) in {:.1} s; ended: {:?}",
        c.n,
        c.k,
        c.m,
        c.dtype,
        c.device,
        tuned.tilings,
        tuned.promising,
        tuned.measured.len(),
        tuned.seconds,
        tuned.stop
    ));
    line(format_args!("{}", table(tuned).trim_end()));
    for (reason, times) in rows::failures(tuned) {
        line(format_args!("failed, {times} times: {reason}"));
    }
    let Some(chosen) = &tuned.chosen else {
        return line(format_args!("nothing that was measured meets the goal"));
    };
    let against = match (dense, chosen.record.microseconds()) {
        (Some(dense), Some(time)) => format!(", {:.2} times as fast as dense ({dense:.1} us)", dense / time),
        _ => String::new(),
    };
    line(format_args!("chosen: {}{against}", chosen.tiling));
    chosen.record.pattern.iter().for_each(|directive| line(format_args!("    {directive};")));
    if !chosen.record.request.is_open() {
        line(format_args!("    {};", chosen.record.request));
    }
}

/// Over all layers: the front against each fixed pattern at no less importance; and the rules of what is on the fronts.
pub fn print_all(all: &[Tuned]) {
    let mut of_pattern: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, gain) in all.iter().flat_map(gains) {
        of_pattern.entry(name).or_default().push(gain);
    }
    if of_pattern.is_empty() {
        return;
    }
    line(format_args!("the front against fixed patterns, at no less retained importance:"));
    let mean = |list: &[f64]| (list.iter().map(|gain| gain.ln()).sum::<f64>() / list.len() as f64).exp();
    for (name, list) in &of_pattern {
        let least = list.iter().copied().fold(f64::INFINITY, f64::min);
        line(format_args!("  {name:12} {:.3}x in the geometric mean of {}, least {least:.3}x", mean(list), list.len()));
    }
    let gains: Vec<f64> = of_pattern.into_values().flatten().collect();
    line(format_args!("  all          {:.3}x", mean(&gains)));
}
