//! The report of the example tune: pages of a real search, of none, and of what must be escaped.

use fractal::dsl::{AxisNames, EpilogueOp};
use fractal::pattern::Named;
use fractal::runtime::tune::{Database, Goal, Outcome, Problem, Settings, Tuned, Tuner};
use fractal::{DType, KernelRequest, Layout, Magnitude, Program, Tensor};

#[path = "../examples/tune/report.rs"]
mod report;

fn values(n: usize, k: usize) -> Vec<f32> {
    let mut state = 11u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n * k).map(|at| next() * if at % k % 5 < 2 { 2.5 } else { 1.0 }).collect()
}

fn scores() -> Vec<f32> {
    values(64, 64).iter().map(|value| value.abs()).collect()
}

fn tuned(goal: Goal) -> Tuned {
    let weight = Tensor::from_f32(DType::F32, 64, 64, &values(64, 64)).expect("the size fits");
    let problem = Problem {
        weight: &weight,
        importance: &Magnitude,
        m: 24,
        epilogue: vec![EpilogueOp::Relu],
        layouts: (Layout::FeatureMajor, Layout::FeatureMajor),
    };
    let settings = Settings { patterns: 24, patience: 24, ..Settings::default() };
    let tuner = Tuner::cpu(1, Database::in_memory());
    tuner.tune(&problem, goal, &settings, &mut |_| true).expect("a small search succeeds")
}

/// Every element that is opened is closed, inside the one that it was opened in; nothing else has a `<` or a bare `&`.
fn check_markup(page: &str) {
    let body = page.strip_prefix("<!DOCTYPE html>\n").expect("the page begins with its type");
    let mut open: Vec<&str> = Vec::new();
    let mut rest = body;
    while let Some(at) = rest.find(['<', '&']) {
        if let Some(entity) = rest[at..].strip_prefix('&') {
            let known = ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|known| entity.starts_with(known));
            assert!(known, "a bare & before {:?}", &entity[..entity.len().min(20)]);
            rest = entity;
            continue;
        }
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        assert!(!tag.contains('<') && tag.matches('"').count().is_multiple_of(2), "<{tag}>");
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap_or("");
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()), "<{tag}>");
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name)),
            (_, true) => {}
            _ => open.push(name),
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "left open: {open:?}");
    // Nothing is fetched from elsewhere: the only address is the name of SVG.
    let own = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    assert!(!own.contains("://") && !own.contains("url("), "{page}");
    assert!(!page.contains("NaN") && !page.contains("<script"), "{page}");
}

/// The statements in the page's `<pre>`.
fn pasted(page: &str) -> String {
    let (_, rest) = page.split_once("<pre>").expect("statements");
    let (text, _) = rest.split_once("</pre>").expect("an end");
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&#39;", "'").replace("&amp;", "&")
}

fn points(page: &str) -> usize {
    page.matches("<circle class=\"dot").count()
}

#[test]
fn the_page_of_a_search_has_every_point_once_and_statements_that_make_the_chosen_pattern() {
    let tuned = tuned(Goal::Sparsity(0.5));
    let timed = tuned.measured.iter().filter(|m| m.point().is_some()).count();
    let page = report::html(&tuned, &scores(), Some(50.0));
    check_markup(&page);
    assert!(timed > 5 && points(&page) == timed, "{} of {timed} points", points(&page));
    for measured in &tuned.measured {
        let title = format!("<title>{}, ", measured.tiling);
        assert_eq!(page.matches(&title).count(), 1, "{title}");
    }
    let chosen = tuned.chosen.as_ref().expect("half of the weights are kept somehow");
    let program = Program::for_pattern_text(&pasted(&page), 64, 64, DType::F32).expect("statements of the language");
    assert_eq!(program.pattern(64, 64).expect("the sizes fit"), chosen.pattern);
    assert!(page.contains("class=\"kept\"") && page.contains("unchanged; no rule was needed"));
    let rows = report::table(&tuned);
    for fixed in tuned.measured.iter().filter(|m| m.fixed).chain(&tuned.front) {
        assert!(rows.contains(&fixed.tiling) && page.contains(&format!("<td>{}</td>", fixed.tiling)), "{rows}");
    }
    let kernel_column = rows.lines().next().and_then(|heads| heads.find("kernel")).expect("a column of kernels");
    for line in rows.lines().skip(1).take_while(|line| !line.starts_with("vs fixed:")) {
        assert!(line.is_char_boundary(kernel_column) && line[..kernel_column].ends_with("  "), "{line}");
    }
}

/// (left, baseline, text) of the labels in the plot.
fn labels(page: &str) -> Vec<(f64, f64, &str)> {
    let texts =
        page.split("<text class=\"").skip(1).filter(|text| text.split('"').next().unwrap_or("").ends_with("-name"));
    let label = |text: &'_ str| -> Option<(f64, f64, usize, usize)> {
        let number = |name: &str| text.split_once(name)?.1.split('"').next()?.parse::<f64>().ok();
        Some((number("x=\"")?, number("y=\"")?, text.find('>')? + 1, text.find("</text>")?))
    };
    texts.map(|text| label(text).map(|(x, y, from, to)| (x, y, &text[from..to])).expect("a label")).collect()
}

#[test]
fn labels_of_the_plot_do_not_overlap() {
    let page = report::html(&tuned(Goal::Sparsity(0.5)), &scores(), Some(20.0));
    let labels = labels(&page);
    // Those that find no room are left out: which do depends on the times.
    assert!(labels.len() > 2, "{labels:?}");
    for (number, a) in labels.iter().enumerate() {
        for b in &labels[..number] {
            let width = |label: &(f64, f64, &str)| 6.0 * label.2.len() as f64;
            let apart = a.0 + width(a) <= b.0 || b.0 + width(b) <= a.0 || (a.1 - b.1).abs() >= 11.0;
            assert!(apart, "{a:?} and {b:?}");
        }
    }
}

#[test]
fn names_with_several_keep_ratios_tell_them() {
    let tuned = tuned(Goal::Retained(0.7));
    let page = report::html(&tuned, &scores(), None);
    check_markup(&page);
    let several = tuned.measured.iter().filter(|m| m.tiling == "bw:16x16").count() > 1;
    assert!(!several || page.contains("bw:16x16 at 75%"), "{}", report::table(&tuned));
}

#[test]
fn a_pattern_that_rules_have_changed_is_explained() {
    let mut tuned = tuned(Goal::Sparsity(0.5));
    let named: Named = "bw:16x16".parse().expect("a name");
    let own = named.pattern(64, 64, 0.5).expect("the sizes fit");
    // The blocks' columns outside of their rows.
    let text = "let (no, ni) = split(n, 16); let (ko, ki) = split(k, 16); skip(ko, per = no, keep = 50%); \
                reorder(no, ko, ni, ki)";
    let other = Program::for_pattern_text(text, 64, 64, DType::F32).expect("statements").pattern(64, 64).expect("fits");
    assert_ne!(own, other);
    let at = tuned.measured.iter().position(|m| m.tiling == "bw:16x16").expect("the fixed patterns are measured");
    let mut chosen = tuned.measured[at].clone();
    assert_eq!(chosen.pattern, own);
    chosen.pattern = other;
    chosen.rules = vec!["reorder"];
    chosen.record.request = KernelRequest { rows: Some(64), stages: Some(4), ..KernelRequest::default() };
    tuned.measured.push(chosen.clone());
    tuned.chosen = Some(chosen);
    let page = report::html(&tuned, &scores(), None);
    check_markup(&page);
    assert!(page.contains("<li><code>reorder</code>") && page.contains("<mark>"), "{page}");
    assert!(!page.contains("not proved") && page.contains("Pattern and schedule."));
    let program = Program::for_pattern_text(&pasted(&page), 64, 64, DType::F32).expect("statements of the language");
    let statements = program.directives().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(statements.contains(&format!("tile({}, 64)", AxisNames::default().n)), "{statements:?}");
}

#[test]
fn a_search_that_has_found_nothing_has_a_page() {
    let mut tuned = tuned(Goal::Sparsity(0.5));
    (tuned.chosen, tuned.front) = (None, Vec::new());
    for (number, measured) in tuned.measured.iter_mut().enumerate() {
        let reason = format!("kernel <{}> & others \u{1b}[0m", number % 2);
        measured.record.outcome = Outcome::Failed { reason };
    }
    let page = report::html(&tuned, &[], Some(0.0));
    check_markup(&page);
    assert!(points(&page) == 0 && page.contains("Nothing that was measured meets the goal"));
    assert!(page.contains("x kernel &lt;0&gt; &amp; others") && !page.contains('\u{1b}'), "{page}");
    assert_eq!(report::table(&tuned), "nothing was measured\n");
    tuned.measured.clear();
    check_markup(&report::html(&tuned, &[], None));
}

#[test]
fn scores_of_another_size_and_times_that_cannot_be_drawn_leave_the_rest_of_the_page() {
    let mut tuned = tuned(Goal::Sparsity(0.5));
    let timed = tuned.measured.iter().filter(|m| m.point().is_some()).count();
    if let Outcome::Timed { microseconds, kernel, .. } = &mut tuned.measured[0].record.outcome {
        (*microseconds, *kernel) = (0.0, "a<b>&\"c\"".into());
    }
    tuned.context.device = "<b>GPU</b>".into();
    let page = report::html(&tuned, &scores()[1..], Some(f64::INFINITY));
    check_markup(&page);
    assert!(points(&page) == timed - 1 && page.contains("No picture: ") && page.contains("&lt;b&gt;GPU"));
}
