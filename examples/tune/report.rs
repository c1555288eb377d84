//! What a search has found -> one HTML file that needs no other, and a table for the terminal.
//!
//! | part | file |
//! |---|---|
//! | rows of the tables, what is compared with what | `rows` |
//! | the plot of time and importance | `plot`, `labels` |
//! | the mask of the chosen pattern | `picture` |
//! | the rules from the tiling to it | `chain` |
//! | text of values | `markup` |

// The paths hold for the example and for the test that takes this file in.
#[path = "chain.rs"]
mod chain;
#[path = "labels.rs"]
mod labels;
#[path = "markup.rs"]
mod markup;
#[path = "picture.rs"]
mod picture;
#[path = "plot.rs"]
mod plot;
#[path = "rows.rs"]
pub mod rows;

use fractal::dsl::{AxisNames, EpilogueOp};
use fractal::runtime::tune::{Goal, Measured, Outcome, Stop, Tuned};
use fractal::{KernelRequest, Layout};
use markup::{escape, microseconds, percent, short_percent};
use rows::{Row, speedup};
use std::fmt::Write;

/// Reasons of failures that are told.
const REASONS: usize = 12;

/// The page of a search. `scores` are those of the weight, [n, k] row-major; `dense_us` is the time of the dense product.
pub fn html(tuned: &Tuned, scores: &[f32], dense_us: Option<f64>) -> String {
    let context = &tuned.context;
    let title = format!("Tuned: {} x {} in {}, {} tokens", context.n, context.k, context.dtype, context.m);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n\
         <style>\n{}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
        include_str!("report.css"),
        title = escape(&title),
    );
    write_head(&mut page, tuned, dense_us);
    page.push_str("<h2>Importance and time</h2>\n");
    let name = |m: &Measured| rows::name(tuned, m);
    let fixed: Vec<(&Measured, String)> = rows::fixed(tuned).into_iter().map(|m| (m, name(m))).collect();
    let marks = plot::Marks { dense: dense_us, fixed: &fixed, name: &name };
    page.push_str(&plot::pareto(tuned, &marks).unwrap_or_else(|| "<p>Nothing was measured.</p>\n".into()));
    match &tuned.chosen {
        None => page.push_str("<h2>The chosen pair</h2>\n<p>Nothing that was measured meets the goal.</p>\n"),
        Some(chosen) => {
            write_chosen(&mut page, tuned, chosen, dense_us);
            let origin = chain::origin(tuned, chosen);
            page.push_str("<h2>What it keeps</h2>\n");
            // Equal patterns admit the same masks, but their own projections may choose others: it was pruned by the tiling's.
            match picture::mask(origin.as_ref().unwrap_or(&chosen.pattern), scores) {
                Ok(figure) => page.push_str(&figure),
                Err(reason) => {
                    let _ = writeln!(page, "<p>No picture: {}.</p>", escape(&reason));
                }
            }
            page.push_str(&chain::html(tuned, chosen, origin.as_ref()));
        }
    }
    write_table(&mut page, tuned, dense_us);
    page.push_str("</body>\n</html>\n");
    page
}

/// The front and the fixed patterns as aligned lines.
pub fn table(tuned: &Tuned) -> String {
    let heads = ["", "pattern", "retained", "us", "vs fixed", "expected us", "kernel"].map(String::from);
    let mut lines = vec![heads];
    for row in rows::rows(tuned) {
        lines.push([
            row.role(),
            rows::name(tuned, row.measured),
            format!("{}%", percent(row.retained)),
            microseconds(row.microseconds),
            times(row.against_fixed),
            expected(row.measured),
            kernel(row.measured).to_string(),
        ]);
    }
    if lines.len() == 1 {
        return "nothing was measured\n".into();
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let mut whole = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let _ = if (2..6).contains(&column) {
                write!(whole, "{cell:>width$}  ")
            } else {
                write!(whole, "{cell:<width$}  ")
            };
        }
        let _ = writeln!(text, "{}", whole.trim_end());
    }
    text.push_str("vs fixed: time of the fastest fixed pattern that retains as much over its own\n");
    text
}

/// Pattern and schedule as statements for `Program::for_pattern_text`.
fn statements(chosen: &Measured) -> String {
    let schedule = chosen.record.request.directives(&AxisNames::default(), "w", "x");
    chosen.record.pattern.iter().chain(&schedule).map(|statement| format!("{statement};\n")).collect()
}

fn kernel(measured: &Measured) -> &str {
    match &measured.record.outcome {
        Outcome::Timed { kernel, .. } => kernel,
        Outcome::Failed { reason } => reason,
    }
}

/// As a CPU has no model, it expects nothing.
fn expected(measured: &Measured) -> String {
    let expected = measured.record.expected;
    if expected.is_finite() && expected > 0.0 { microseconds(expected) } else { "-".into() }
}

fn times(speedup: Option<f64>) -> String {
    speedup.map_or("-".into(), |speedup| format!("{speedup:.2}x"))
}

fn write_head(page: &mut String, tuned: &Tuned, dense_us: Option<f64>) {
    let context = &tuned.context;
    let of_layout = |layout| if layout == Layout::FeatureMajor { "features first" } else { "tokens first" };
    let operands = match context.layouts {
        (x, y) if x == y => format!("X and Y {}", of_layout(x)),
        (x, y) => format!("X {}, Y {}", of_layout(x), of_layout(y)),
    };
    let versions = match context.versions.as_str() {
        "" => format!("Fractal {}", context.fractal),
        versions => format!("Fractal {}, {versions}", context.fractal),
    };
    let epilogue: Vec<String> = context.epilogue.iter().map(epilogue_step).collect();
    let reused = tuned.measured.iter().filter(|m| m.reused).count();
    let failures = rows::failures(tuned);
    let failed: usize = failures.iter().map(|(_, count)| count).sum();
    let mut entries = vec![
        ("weight", format!("{} output x {} input features, {}", context.n, context.k, context.dtype)),
        ("tokens", format!("{}; {operands}", context.m)),
        ("then", if epilogue.is_empty() { "nothing".into() } else { epilogue.join(", ") }),
        ("device", context.device.clone()),
        ("versions", versions),
        ("goal", goal(tuned.goal)),
        ("ended", format!("after {:.1} s: {}", tuned.seconds, reason(tuned.stop))),
        ("tilings", format!("{}, of which {} promising", tuned.tilings, tuned.promising)),
        ("pairs", format!("{}, of which {reused} from the database, {failed} failed", tuned.measured.len())),
    ];
    if let Some(dense) = dense_us {
        entries.push(("dense", format!("{} us", microseconds(dense))));
    }
    page.push_str("<dl>\n");
    for (term, text) in entries {
        let _ = writeln!(page, "<dt>{term}</dt><dd>{}</dd>", escape(&text));
    }
    page.push_str("</dl>\n");
    if failures.is_empty() {
        return;
    }
    let _ = writeln!(page, "<details><summary>Why {failed} failed</summary>\n<ul>");
    for (reason, count) in failures.iter().take(REASONS) {
        let _ = writeln!(page, "<li>{count} x {}</li>", escape(reason));
    }
    if failures.len() > REASONS {
        let _ = writeln!(page, "<li>{} more reasons</li>", failures.len() - REASONS);
    }
    page.push_str("</ul>\n</details>\n");
}

fn epilogue_step(step: &EpilogueOp) -> String {
    match step {
        EpilogueOp::Bias(name) => format!("bias {name}"),
        EpilogueOp::Residual(name) => format!("residual {name}"),
        EpilogueOp::Relu => "relu".into(),
        EpilogueOp::Gelu => "gelu".into(),
        EpilogueOp::Silu => "silu".into(),
        EpilogueOp::Scale(factor) => format!("times {}", factor.0),
    }
}

fn goal(goal: Goal) -> String {
    match goal {
        Goal::Sparsity(dropped) => {
            format!("{}% of the weights dropped; the fastest that retains 95% of the most", short_percent(dropped))
        }
        Goal::Retained(least) => {
            format!("at least {}% of the importance retained, as fast as can be", short_percent(least))
        }
        Goal::Microseconds(most) => {
            format!("at most {} us a call, with as much importance as can be", microseconds(most))
        }
    }
}

fn reason(stop: Stop) -> &'static str {
    match stop {
        Stop::Done => "all that was worth it is measured",
        Stop::Patience => "the last patterns were no better",
        Stop::Time => "its time was over",
        Stop::Asked => "it was asked to end",
    }
}

fn write_chosen(page: &mut String, tuned: &Tuned, chosen: &Measured, dense_us: Option<f64>) {
    let record = &chosen.record;
    let time = record.microseconds();
    let _ = writeln!(page, "<h2>The chosen pair</h2>\n<dl>\n<dt>tiling</dt><dd>{}</dd>", escape(&chosen.tiling));
    let _ = writeln!(page, "<dt>kernel</dt><dd>{}</dd>", escape(kernel(chosen)));
    let _ = writeln!(page, "<dt>time</dt><dd>{} us</dd>", time.map_or("-".into(), microseconds));
    let _ = writeln!(page, "<dt>retained</dt><dd>{}% of the importance</dd>", percent(record.retained));
    let _ = writeln!(page, "<dt>kept</dt><dd>{}% of the weights</dd>", percent(record.density));
    if let (Some(dense), Some(time)) = (dense_us, time) {
        let _ = writeln!(page, "<dt>against dense</dt><dd>{}</dd>", times(speedup(dense, time)));
    }
    let fixed = rows::fastest_fixed(&rows::fixed(tuned), record.retained);
    let against = match fixed {
        Some(fixed) => {
            let name = rows::name(tuned, fixed);
            let (ratio, retained) = (times(rows::ratio(fixed, chosen)), percent(fixed.record.retained));
            format!("{ratio}, to {name}, the fastest that retains as much ({retained}%)")
        }
        None => "no fixed pattern retains as much".into(),
    };
    let _ = writeln!(page, "<dt>against fixed ones</dt><dd>{}</dd>\n</dl>", escape(&against));
    let of_schedule = if record.request == KernelRequest::default() {
        "The pattern; the schedule is left open, so that the kernel is chosen when it is compiled."
    } else {
        "Pattern and schedule."
    };
    let _ = writeln!(page, "<p>{of_schedule}</p>\n<pre>{}</pre>", escape(&statements(chosen)));
}

fn write_table(page: &mut String, tuned: &Tuned, dense_us: Option<f64>) {
    let rows = rows::rows(tuned);
    page.push_str("<h2>The front and the fixed patterns</h2>\n");
    if rows.is_empty() {
        page.push_str("<p>Nothing was measured.</p>\n");
        return;
    }
    page.push_str(
        "<div class=\"scroll\"><table>\n<tr><th>pattern</th><th></th><th class=\"number\">retained %</th>\
         <th class=\"number\">us</th><th class=\"number\">expected us</th><th class=\"number\">against dense</th>\
         <th class=\"number\">against fixed</th><th>kernel</th></tr>\n",
    );
    for row in &rows {
        write_row(page, tuned, row, dense_us);
    }
    page.push_str(
        "</table></div>\n<p>Expected is what the cost model said before. Against fixed: the time of the fastest fixed \
         pattern that retains as much, over its own.</p>\n",
    );
}

fn write_row(page: &mut String, tuned: &Tuned, row: &Row<'_>, dense_us: Option<f64>) {
    let class = if row.chosen { " class=\"chosen\"" } else { "" };
    let _ = write!(page, "<tr{class}><td>{}</td>", escape(&rows::name(tuned, row.measured)));
    let _ = write!(page, "<td>{}</td>", row.role());
    let numbers = [
        percent(row.retained),
        microseconds(row.microseconds),
        expected(row.measured),
        times(dense_us.and_then(|dense| speedup(dense, row.microseconds))),
        times(row.against_fixed),
    ];
    for number in numbers {
        let _ = write!(page, "<td class=\"number\">{number}</td>");
    }
    let _ = writeln!(page, "<td>{}</td></tr>", escape(kernel(row.measured)));
}
