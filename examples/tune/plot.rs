//! A search -> its plot: microseconds (logarithmic) and retained importance of everything that was measured, as SVG.

use super::labels::{Area, Label, place};
use super::markup::{escape, microseconds, trimmed};
use fractal::runtime::tune::{Measured, Tuned};
use std::fmt::Write;

const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 470.0;
/// Where the points are.
const FIELD: Area = Area { left: 64.0, top: 44.0, right: WIDTH - 16.0, bottom: HEIGHT - 48.0 };

/// What is drawn beside the points.
pub struct Marks<'a> {
    /// Microseconds of the dense product.
    pub dense: Option<f64>,
    /// The literature's patterns, each with its name: they are labelled.
    pub fixed: &'a [(&'a Measured, String)],
    /// A measured one's name.
    pub name: &'a dyn Fn(&Measured) -> String,
}

/// The plot of what was measured right; `None` where that is nothing.
pub fn pareto(tuned: &Tuned, marks: &Marks<'_>) -> Option<String> {
    let points: Vec<(&Measured, f64, f64)> = tuned.measured.iter().filter_map(finite).collect();
    let dense = marks.dense.filter(|time| time.is_finite() && *time > 0.0);
    let x = Scale::logarithmic(points.iter().map(|point| point.1).chain(dense), (FIELD.left, FIELD.right));
    let y = Scale::linear(points.iter().map(|point| point.2), (FIELD.bottom, FIELD.top));
    let ((x, x_ticks), (y, y_ticks)) = (x?, y?);
    let mut svg = format!(
        "<svg class=\"plot\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"retained importance against time\">\n"
    );
    axes(&mut svg, (&x, &x_ticks), (&y, &y_ticks));
    let mut lines: Vec<Area> = Vec::new();
    let mut labels: Vec<Label> = Vec::new();
    if let Some(time) = dense {
        let at = x.at(time);
        let _ = writeln!(
            svg,
            "<path class=\"dense\" d=\"M{at:.1} {:.1}V{:.1}\"><title>dense, {} us</title></path>",
            FIELD.top,
            FIELD.bottom,
            microseconds(time)
        );
        lines.push(Area { left: at, right: at, ..FIELD });
        labels.push(Label::new(format!("dense {}", microseconds(time)), "dense-name", (at, FIELD.bottom - 12.0)));
    }
    let front: Vec<(f64, f64)> =
        tuned.front.iter().filter_map(finite).map(|(_, time, retained)| (x.at(time), y.at(retained))).collect();
    lines.extend(stairs(&mut svg, &front));
    let is_fixed = |m: &Measured| marks.fixed.iter().any(|(fixed, _)| *fixed == m);
    let mut dots = points.clone();
    // What matters more is drawn later, and so above.
    dots.sort_by_key(|(m, ..)| (tuned.front.contains(m), is_fixed(m)));
    for (measured, time, retained) in &dots {
        dot(&mut svg, tuned, measured, (x.at(*time), y.at(*retained)), (*time, *retained), marks);
    }
    if let Some((chosen, time, retained)) = tuned.chosen.as_ref().and_then(finite) {
        let at = (x.at(time), y.at(retained));
        let _ = writeln!(svg, "<circle class=\"ring\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"9\"/>", at.0, at.1);
        let label = Label::new(format!("chosen: {}", (marks.name)(chosen)), "chosen-name", at);
        labels.insert(0, Label { strong: true, ..label });
    }
    for (measured, name) in marks.fixed {
        if let Some((_, time, retained)) = finite(measured)
            && tuned.chosen.as_ref() != Some(*measured)
        {
            labels.push(Label::new(name.clone(), "fixed-name", (x.at(time), y.at(retained))));
        }
    }
    let places: Vec<(f64, f64)> = points.iter().map(|(_, time, retained)| (x.at(*time), y.at(*retained))).collect();
    let left_out = write_labels(&mut svg, &labels, &places, &lines);
    legend(&mut svg, dense.is_some(), !marks.fixed.is_empty());
    svg.push_str("</svg>\n");
    let names = if left_out > 0 {
        format!(" {left_out} names are left out, where there is no room for them.")
    } else {
        String::new()
    };
    Some(format!(
        "<figure>\n{svg}<figcaption>Higher and further left is better; what a point is, the pointer tells.{names}\
         </figcaption>\n</figure>\n"
    ))
}

/// (microseconds, retained) of what can be drawn.
fn finite(measured: &Measured) -> Option<(&Measured, f64, f64)> {
    let (retained, time) = measured.point()?;
    (time.is_finite() && time > 0.0 && retained.is_finite()).then_some((measured, time, retained))
}

fn dot(svg: &mut String, tuned: &Tuned, m: &Measured, (x, y): (f64, f64), values: (f64, f64), marks: &Marks<'_>) {
    let class = match (m.fixed, tuned.front.contains(m)) {
        (true, _) => "dot fixed",
        (false, true) => "dot front",
        (false, false) => "dot",
    };
    let _ = writeln!(
        svg,
        "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{}\"><title>{}, {} us, {:.2}% retained, {}</title></circle>",
        if class == "dot" { 3.0 } else { 4.5 },
        escape(&(marks.name)(m)),
        microseconds(values.0),
        values.1 * 100.0,
        escape(super::kernel(m)),
    );
}

/// What can be had at each time, from the members of the front; the lines drawn.
fn stairs(svg: &mut String, front: &[(f64, f64)]) -> Vec<Area> {
    // The fastest first.
    let mut steps = front.iter().rev();
    let Some(&(mut x, mut y)) = steps.next() else { return Vec::new() };
    let mut path = format!("M{x:.1} {y:.1}");
    let mut lines = Vec::new();
    for &(next, higher) in steps {
        let _ = write!(path, "H{next:.1}V{higher:.1}");
        lines.push(Area { left: x, right: next, top: y, bottom: y });
        lines.push(Area { left: next, right: next, top: higher, bottom: y });
        (x, y) = (next, higher);
    }
    let _ = write!(path, "H{:.1}", FIELD.right);
    lines.push(Area { left: x, right: FIELD.right, top: y, bottom: y });
    let _ = writeln!(svg, "<path class=\"stairs\" d=\"{path}\"/>");
    lines
}

/// Writes those that have a place; how many have none.
fn write_labels(svg: &mut String, labels: &[Label], dots: &[(f64, f64)], lines: &[Area]) -> usize {
    let places = place(labels, dots, lines, FIELD);
    for (label, place) in labels.iter().zip(&places) {
        let Some(place) = place else { continue };
        if let Some((to_x, to_y)) = place.leader {
            let (x, y) = label.at;
            let _ = writeln!(svg, "<path class=\"leader\" d=\"M{x:.1} {y:.1}L{to_x:.1} {to_y:.1}\"/>");
        }
        let (x, y) = place.baseline();
        let _ =
            writeln!(svg, "<text class=\"{}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", label.class, escape(&label.text));
    }
    places.iter().filter(|place| place.is_none()).count()
}

fn axes(svg: &mut String, (x, x_ticks): (&Scale, &[Tick]), (y, y_ticks): (&Scale, &[Tick])) {
    for (value, text) in x_ticks {
        let at = x.at(*value);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{at:.1} {:.1}V{:.1}\"/><text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{text}</text>",
            FIELD.top,
            FIELD.bottom,
            FIELD.bottom + 16.0
        );
    }
    for (value, text) in y_ticks {
        let at = y.at(*value);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{:.1} {at:.1}H{:.1}\"/><text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{text}</text>",
            FIELD.left,
            FIELD.right,
            FIELD.left - 6.0,
            at + 4.0
        );
    }
    let (middle, across) = ((FIELD.left + FIELD.right) / 2.0, (FIELD.top + FIELD.bottom) / 2.0);
    let _ = writeln!(
        svg,
        "<text class=\"axis\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">microseconds a call (logarithmic)</text>\n\
         <text class=\"axis\" transform=\"translate(16 {across:.1}) rotate(-90)\" text-anchor=\"middle\">retained \
         importance, %</text>",
        HEIGHT - 10.0
    );
}

/// Above the field, where no label is.
fn legend(svg: &mut String, dense: bool, fixed: bool) {
    let mark =
        |class: &str, x: f64| format!("<rect class=\"dot {class}\" x=\"{x:.1}\" y=\"14\" width=\"9\" height=\"9\"/>");
    let line = |class: &str, x: f64| format!("<path class=\"{class}\" d=\"M{x:.1} 18.5h18\"/>");
    let entries = [
        (true, mark("", 0.0), 9.0, "measured"),
        (fixed, mark("fixed", 0.0), 9.0, "of the literature"),
        (true, line("stairs", 0.0), 18.0, "front"),
        (dense, line("dense", 0.0), 18.0, "dense"),
    ];
    let mut x = FIELD.left;
    for (_, drawn, width, text) in entries.into_iter().filter(|entry| entry.0) {
        let _ = writeln!(
            svg,
            "<g transform=\"translate({:.1} 0)\">{drawn}<text class=\"tick\" x=\"{:.1}\" y=\"22.5\">{text}</text></g>",
            x,
            width + 6.0
        );
        x += width + 28.0 + 6.5 * text.len() as f64;
    }
}

/// A place on an axis, and its number.
type Tick = (f64, String);

/// Values -> places.
struct Scale {
    from: f64,
    to: f64,
    places: (f64, f64),
    logarithmic: bool,
}

impl Scale {
    fn logarithmic(values: impl Iterator<Item = f64>, places: (f64, f64)) -> Option<(Scale, Vec<Tick>)> {
        let (least, most) = range(values.map(f64::log10))?;
        let room = (0.05 * (most - least)).max(0.03);
        let scale = Scale { from: least - room, to: most + room, places, logarithmic: true };
        let ticks = logarithmic_ticks(10f64.powf(scale.from), 10f64.powf(scale.to));
        Some((scale, ticks))
    }

    /// Of parts, with ticks in percent.
    fn linear(values: impl Iterator<Item = f64>, places: (f64, f64)) -> Option<(Scale, Vec<Tick>)> {
        let (least, most) = range(values)?;
        let room = (0.07 * (most - least)).max(0.004);
        let scale = Scale { from: least - room, to: most + room, places, logarithmic: false };
        let ticks = linear_ticks(100.0 * scale.from.max(0.0), 100.0 * scale.to.min(1.0));
        Some((scale, ticks.into_iter().map(|(value, text)| (value / 100.0, text)).collect()))
    }

    fn at(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.log10() } else { value };
        let part = (value - self.from) / (self.to - self.from);
        self.places.0 + part * (self.places.1 - self.places.0)
    }
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((least, most)) => Some((value.min(least), value.max(most))),
    })
}

/// Round numbers, coarse ones where they are enough.
fn logarithmic_ticks(from: f64, to: f64) -> Vec<Tick> {
    for leading in [&[1.0][..], &[1.0, 3.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0]] {
        let mut ticks = Vec::new();
        for power in from.log10().floor() as i32..=to.log10().ceil() as i32 {
            for value in leading.iter().map(|leading| leading * 10f64.powi(power)) {
                if (from..=to).contains(&value) {
                    ticks.push((value, trimmed(format!("{value:.*}", (1 - power).max(0) as usize))));
                }
            }
        }
        if ticks.len() >= 4 {
            return ticks;
        }
    }
    linear_ticks(from, to)
}

/// Multiples of 1, 2 or 5 times a power of ten, four to eight.
fn linear_ticks(from: f64, to: f64) -> Vec<Tick> {
    let rough = (to - from) / 8.0;
    if !rough.is_finite() || rough <= 0.0 {
        return Vec::new();
    }
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * power);
    let decimals = (-(step * 1.000_001).log10().floor()).max(0.0) as usize;
    let (first, last) = ((from / step).ceil() as i64, (to / step).floor() as i64);
    (first..=last).map(|number| number as f64 * step).map(|value| (value, format!("{value:.decimals$}"))).collect()
}
