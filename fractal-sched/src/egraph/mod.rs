//! The e-graph: which patterns and schedules compute the same product with the same masks.
//!
//! It holds pairs (pattern, schedule). Two pairs are equal only where the *sets* of masks that they admit are equal and so
//! is the function that they compute, up to the order of sums. Rules cannot change a mask: a cover is no rewrite; a kernel
//! that stores zeros for a coarser tile is a choice of the schedule.
//!
//! ```
//! use fractal_dsl::{DType, pattern::Named};
//! use fractal_sched::egraph::{Roofline, Search, Target};
//!
//! let pattern = "tw:128".parse::<Named>()?.pattern(4096, 1024, 0.25)?;
//! let mut saturated = Search::new(&pattern, DType::F16, &[], Target::h200()).run();
//! let best = saturated.candidates(&Roofline::h200(DType::F16), 4096, 3);
//! assert!(best[0].cost <= best[2].cost && best[0].request != best[2].request);
//! # Ok::<(), fractal_dsl::pattern::PatternError>(())
//! ```
//!
//! | piece | file |
//! |---|---|
//! | terms | `lang`, `term` (from patterns), `build` (to patterns) |
//! | what is known of a class | `analysis`, `facts` |
//! | schedules and the kernels they denote | `schedule`, `target` |
//! | rewrites, a file a family | `rules` |
//! | the cheapest | `extract`, `cost` |
//! | why two are equal | `explain` |

mod analysis;
mod build;
mod cost;
mod explain;
mod extract;
mod facts;
mod lang;
mod rules;
mod schedule;
mod target;
mod term;
#[cfg(test)]
mod tests;

pub use cost::{CostModel, Roofline};
pub use explain::{ExplainStep, Pair};
pub use extract::Candidate;
pub use facts::{Facts, Tiles};
pub use rules::{Family, Rule, rules};
pub use target::Target;

use crate::request::KernelRequest;
use crate::schedule::EpilogueStep;
use analysis::{Axes, Graph};
use egg::{Id, Runner, SimpleScheduler, StopReason};
use fractal_dsl::pattern::{Pattern, Step};
use fractal_dsl::{DType, Layout};
use rules::Most;
use schedule::Context;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Where a search ends at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Nodes of the e-graph.
    pub nodes: usize,
    /// Rounds in which every rule is applied once.
    pub iterations: usize,
    /// Time of all rounds.
    pub time: Duration,
}

impl Default for Limits {
    /// 20 000 nodes, 30 iterations, 1.5 seconds.
    fn default() -> Limits {
        Limits { nodes: 20_000, iterations: 30, time: Duration::from_millis(1500) }
    }
}

/// Why a search stopped.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// No rule finds anything new.
    Saturated,
    /// The limit of iterations was met.
    Iterations(usize),
    /// The limit of nodes was met.
    Nodes(usize),
    /// The limit of time was met, seconds.
    Time(f64),
}

/// A program to be searched.
#[derive(Clone, Debug)]
pub struct Search {
    pattern: Pattern,
    also: Vec<Pattern>,
    context: Context,
    limits: Limits,
    only: Option<Vec<&'static str>>,
}

impl Search {
    /// Equals of `pattern` with every schedule that `target` has kernels for; operands of `dtype` lie features first.
    pub fn new(pattern: &Pattern, dtype: DType, epilogue: &[EpilogueStep], target: Target) -> Search {
        let context = Context {
            n: pattern.n(),
            k: pattern.k(),
            dtype,
            epilogue: epilogue.to_vec(),
            layout: Layout::FeatureMajor,
            target,
            request: KernelRequest::default(),
        };
        Search { pattern: pattern.clone(), also: Vec::new(), context, limits: Limits::default(), only: None }
    }

    /// How the operands lie.
    pub fn layout(mut self, layout: Layout) -> Search {
        self.context.layout = layout;
        self
    }

    /// What the program's own schedule fixes; the search closes only what it leaves open.
    pub fn request(mut self, request: KernelRequest) -> Search {
        self.context.request = request;
        self
    }

    /// Puts another pattern of the same size into the graph, to be proved equal or not.
    ///
    /// # Panics
    /// Where the sizes differ.
    pub fn also(mut self, pattern: &Pattern) -> Search {
        let (found, expected) = ((pattern.n(), pattern.k()), (self.context.n, self.context.k));
        assert_eq!(found, expected, "a pattern of another size is never equal");
        self.also.push(pattern.clone());
        self
    }

    /// Where to end.
    pub fn limits(mut self, limits: Limits) -> Search {
        self.limits = limits;
        self
    }

    /// Applies only the rules of these names ([`rules`]).
    pub fn only(mut self, names: &[&'static str]) -> Search {
        self.only = Some(names.to_vec());
        self
    }

    /// Applies the rules until nothing new is found or a limit is met.
    pub fn run(self) -> Saturated {
        let begin = Instant::now();
        let mut analysis = Axes::new(self.context);
        let pairs: Vec<Pair> = std::iter::once(&self.pattern).chain(&self.also).map(Pair::of).collect();
        for pattern in std::iter::once(&self.pattern).chain(&self.also) {
            analysis.know(term::nest_of(pattern), pattern.clone());
        }
        let most = most([&self.pattern].into_iter().chain(&self.also));
        let wanted = |rule: &Rule| self.only.as_ref().is_none_or(|only| only.contains(&rule.name));
        let rewrites = rules::rewrites(most, wanted);
        let mut runner: Runner<lang::Lang, Axes> = Runner::new(analysis)
            .with_explanations_enabled()
            .without_explanation_length_optimization()
            .with_scheduler(SimpleScheduler)
            .with_iter_limit(self.limits.iterations)
            .with_node_limit(self.limits.nodes)
            .with_time_limit(self.limits.time);
        for pair in &pairs {
            runner = runner.with_expr(&pair.expr);
        }
        let runner = runner.run(&rewrites);
        let mut applied = BTreeMap::new();
        for (rewrite, count) in runner.iterations.iter().flat_map(|i| &i.applied) {
            if let Some(rule) = rules::rule_of(*rewrite) {
                *applied.entry(rule.name).or_default() += count;
            }
        }
        let stop = match runner.stop_reason {
            Some(StopReason::IterationLimit(_)) => Stop::Iterations(self.limits.iterations),
            Some(StopReason::NodeLimit(_)) => Stop::Nodes(self.limits.nodes),
            Some(StopReason::TimeLimit(_)) => Stop::Time(self.limits.time.as_secs_f64()),
            _ => Stop::Saturated,
        };
        Saturated {
            stop,
            nodes: runner.egraph.total_number_of_nodes(),
            classes: runner.egraph.number_of_classes(),
            iterations: runner.iterations.len(),
            elapsed: begin.elapsed(),
            applied,
            root: runner.roots[0],
            graph: runner.egraph,
            pattern: self.pattern,
            original: pairs.into_iter().next().expect("the first pair is the program's"),
        }
    }
}

/// How long the lists are that rules should look at: a little longer than the program's.
fn most<'p>(patterns: impl Iterator<Item = &'p Pattern>) -> Most {
    let mut most = Most { nest: 2, per: 1 };
    for pattern in patterns {
        let per = pattern.steps().iter().map(|s| if let Step::Skip { per, .. } = s { per.len() } else { 0 });
        most.nest = most.nest.max(pattern.order().len() + 1);
        most.per = most.per.max(per.max().unwrap_or(0) + 1);
    }
    Most { nest: most.nest.min(9), per: most.per.min(7) }
}

/// A graph in which a search has ended.
#[derive(Debug)]
pub struct Saturated {
    /// Why it ended.
    pub stop: Stop,
    /// Nodes.
    pub nodes: usize,
    /// Classes of equal terms.
    pub classes: usize,
    /// Rounds.
    pub iterations: usize,
    /// Time of the search.
    pub elapsed: Duration,
    /// Of each rule that was applied: how often it found something new.
    pub applied: BTreeMap<&'static str, usize>,
    graph: Graph,
    root: Id,
    pattern: Pattern,
    original: Pair,
}

impl Saturated {
    /// The program's pattern with an open schedule.
    pub fn original(&self) -> &Pair {
        &self.original
    }
}
