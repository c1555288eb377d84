//! The chosen pattern -> why it is its tiling's: the chain of rules between the two, from the e-graph.

use super::markup::escape;
use super::rows::same_pattern;
use fractal::Gemm;
use fractal::pattern::{Named, Pattern};
use fractal::runtime::tune::{Measured, Tuned};
use fractal::sched::egraph::{ExplainStep, Family, Pair, Rule, Search, Target, rules};
use std::fmt::Write;

/// The pattern of the tiling as it was pruned: what was measured with an open schedule, or what its name means.
pub fn origin(tuned: &Tuned, chosen: &Measured) -> Option<Pattern> {
    let open = |m: &&Measured| same_pattern(m, chosen) && m.record.request.is_open() && m.rules.is_empty();
    let sized = |pattern: &Pattern| (pattern.n(), pattern.k()) == (chosen.pattern.n(), chosen.pattern.k());
    if let Some(measured) = tuned.measured.iter().find(open) {
        return Some(measured.pattern.clone()).filter(sized);
    }
    let named: Named = chosen.tiling.parse().ok()?;
    let keep = named.fixed_keep().unwrap_or(chosen.record.density);
    named.pattern(chosen.pattern.n(), chosen.pattern.k(), keep).ok()
}

/// Rules of patterns alone; the others close schedules, which both ends of the chain leave open.
fn is_of_patterns(rule: &Rule) -> bool {
    use Family::{BlockWise, NOfM, Permute, Regions, Reorder, Skip, SkipSplit, SplitJoin};
    matches!(rule.family, SplitJoin | Reorder | Regions | SkipSplit | Skip | BlockWise | NOfM | Permute)
}

/// What leads from `origin` to the chosen pattern, as HTML.
pub fn html(tuned: &Tuned, chosen: &Measured, origin: Option<&Pattern>) -> String {
    let mut page = String::from("<h2>Why this pattern is the tiling's</h2>\n");
    match origin {
        None => page.push_str("<p>The tiling's own pattern was not measured with an open schedule.</p>\n"),
        Some(origin) if *origin == chosen.pattern => {
            page.push_str("<p>It is the tiling's pattern, unchanged; no rule was needed.</p>\n");
        }
        Some(origin) => write_chain(&mut page, tuned, chosen, origin),
    }
    if !chosen.rules.is_empty() {
        page.push_str("<p>Rules that the search has needed for pattern and schedule:</p>\n<ul>\n");
        for name in &chosen.rules {
            let reason = rules().iter().find(|rule| rule.name == *name).map_or("", |rule| rule.reason);
            let _ = writeln!(page, "<li><code>{}</code>: {}</li>", escape(name), escape(reason));
        }
        page.push_str("</ul>\n");
    }
    page
}

fn write_chain(page: &mut String, tuned: &Tuned, chosen: &Measured, origin: &Pattern) {
    let context = &tuned.context;
    let steps = Gemm::new(origin.clone(), context.dtype).with_epilogue(&context.epilogue).steps().to_vec();
    let names: Vec<&'static str> = rules().iter().filter(|rule| is_of_patterns(rule)).map(|rule| rule.name).collect();
    let search = Search::new(origin, context.dtype, &steps, Target::h200()).layout(context.layouts.1);
    let mut saturated = search.also(&chosen.pattern).only(&names).run();
    match saturated.explain(&Pair::of(origin), &Pair::of(&chosen.pattern)) {
        None => {
            let _ = writeln!(
                page,
                "<p>This run of the search has not proved the two equal: {} nodes, {} rounds, {}.</p>",
                saturated.nodes,
                saturated.iterations,
                escape(&format!("{:?}", saturated.stop).to_lowercase()),
            );
        }
        Some(steps) if steps.is_empty() => {
            page.push_str(
                "<p>It is the tiling's pattern, written otherwise; as a nest of loops both are the same.</p>\n",
            );
        }
        Some(steps) => {
            let _ = writeln!(
                page,
                "<p>Each step is a rule that does not change which masks there are; what it changes is marked.</p>\n\
                 <details open=\"open\"><summary>{} step{}</summary>\n<ol class=\"chain\">",
                steps.len(),
                if steps.len() == 1 { "" } else { "s" }
            );
            steps.iter().for_each(|step| write_step(page, step));
            page.push_str("</ol>\n</details>\n");
        }
    }
}

fn write_step(page: &mut String, step: &ExplainStep) {
    let (before, after) = (nest(&step.before), nest(&step.after));
    let (start, end) = same_ends(before, after);
    let backward = if step.forward { "" } else { ", from right to left" };
    let _ = writeln!(
        page,
        "<li><code>{}</code>{backward}: {} <code>{}</code> to <code>{}</code>{}\n\
         <code class=\"term\">{}</code>\n<code class=\"term\">{}</code></li>",
        escape(step.rule.name),
        escape(step.rule.reason),
        escape(step.rule.before),
        escape(step.rule.after),
        escape(&match step.rule.condition {
            "always" | "" => ".".into(),
            condition => format!(", where {condition}."),
        }),
        marked(before, start, end),
        marked(after, start, end),
    );
}

/// The nest of a pair whose schedule is open.
fn nest(term: &str) -> &str {
    term.strip_prefix("(run ").and_then(|rest| rest.strip_suffix(" open)")).unwrap_or(term)
}

/// Bytes at the beginning and at the end that two terms have in common, up to whole words.
fn same_ends(a: &str, b: &str) -> (usize, usize) {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let start = a.as_bytes()[..same].iter().rposition(|c| matches!(c, b' ' | b'(')).map_or(0, |at| at + 1);
    let (a, b) = (&a.as_bytes()[start..], &b.as_bytes()[start..]);
    let same = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    let end = a[a.len() - same..].iter().position(|c| matches!(c, b' ' | b')')).map_or(0, |at| same - at);
    (start, end)
}

fn marked(term: &str, start: usize, end: usize) -> String {
    let (from, to) = (start, term.len() - end);
    // Terms are ASCII; where one is not, it is shown without a mark.
    match (term.get(..from), term.get(from..to), term.get(to..)) {
        (Some(before), Some(changed), Some(after)) if !changed.is_empty() => {
            format!("{}<mark>{}</mark>{}", escape(before), escape(changed), escape(after))
        }
        _ => escape(term),
    }
}
