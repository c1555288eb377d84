//! What was found, as text.

use fractal::runtime::tune::{Measured, Outcome, Tuned};

use crate::output::line;

/// The fixed patterns, each by its fastest schedule.
fn fixed(tuned: &Tuned) -> Vec<&Measured> {
    let mut best: Vec<&Measured> = Vec::new();
    for measured in tuned.measured.iter().filter(|m| m.fixed && m.point().is_some()) {
        let time = |m: &Measured| m.record.microseconds().unwrap_or(f64::INFINITY);
        match best.iter_mut().find(|b| b.tiling == measured.tiling) {
            Some(known) if time(measured) < time(known) => *known = measured,
            Some(_) => {}
            None => best.push(measured),
        }
    }
    best
}

/// Of each fixed pattern: its time over the least of the front that retains no less.
fn gains(tuned: &Tuned) -> Vec<(String, f64)> {
    let gain = |m: &Measured| {
        let (retained, time) = m.point()?;
        let points = tuned.front.iter().filter_map(Measured::point);
        let least = points.filter(|(r, _)| *r >= retained - 1e-9).map(|(_, t)| t).fold(f64::INFINITY, f64::min);
        Some((m.tiling.clone(), time / least))
    };
    fixed(tuned).into_iter().filter_map(gain).collect()
}

fn kernel(m: &Measured) -> &str {
    if let Outcome::Timed { kernel, .. } = &m.record.outcome { kernel } else { "" }
}

pub fn print(tuned: &Tuned, dense: Option<f64>) {
    let c = &tuned.context;
    line(format_args!(
        "{}/{}/{} {} on {}: {} tilings, {} promising, {} measured ({} from the database) in {:.1} s; ended: {:?}",
        c.n,
        c.k,
        c.m,
        c.dtype,
        c.device,
        tuned.tilings,
        tuned.promising,
        tuned.measured.len(),
        tuned.measured.iter().filter(|m| m.reused).count(),
        tuned.seconds,
        tuned.stop
    ));
    let row = |mark: &str, m: &Measured| {
        let Some((retained, time)) = m.point() else { return };
        let speedup = dense.map_or(String::new(), |dense| format!("{:6.2}x", dense / time));
        line(format_args!(
            "  {mark:6} {:34} {:6.2} % {time:9.1} us {speedup}  expected {:8.1}  {}",
            m.tiling,
            retained * 100.0,
            m.record.expected,
            kernel(m)
        ));
    };
    tuned.front.iter().for_each(|m| row("front", m));
    fixed(tuned).into_iter().for_each(|m| row("fixed", m));
    let failed: Vec<&Measured> = tuned.measured.iter().filter(|m| m.point().is_none()).collect();
    for m in failed.iter().take(5) {
        line(format_args!("  failed {}: {:?}", m.tiling, m.record.outcome));
    }
    if let Some(chosen) = &tuned.chosen {
        row("chosen", chosen);
        for directive in &chosen.record.pattern {
            line(format_args!("    {directive};"));
        }
        line(format_args!("    {};", chosen.record.request));
    }
}

/// Over all layers: the front against each fixed pattern at no less importance.
pub fn print_all(all: &[(Tuned, Option<f64>)]) {
    let mut gains_of: Vec<(String, Vec<f64>)> = Vec::new();
    let mut best = Vec::new();
    for (tuned, _) in all {
        let gains = gains(tuned);
        best.extend(gains.iter().map(|(_, gain)| *gain));
        for (name, gain) in gains {
            match gains_of.iter_mut().find(|(known, _)| *known == name) {
                Some((_, list)) => list.push(gain),
                None => gains_of.push((name, vec![gain])),
            }
        }
    }
    if gains_of.is_empty() {
        return;
    }
    line(format_args!("the front against fixed patterns, at no less retained importance:"));
    let mean = |list: &[f64]| (list.iter().map(|g| g.ln()).sum::<f64>() / list.len() as f64).exp();
    for (name, list) in &gains_of {
        let least = list.iter().copied().fold(f64::INFINITY, f64::min);
        line(format_args!("  {name:12} {:.3}x in the geometric mean of {}, least {least:.3}x", mean(list), list.len()));
    }
    line(format_args!("  all          {:.3}x", mean(&best)));
}
