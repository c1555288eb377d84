//! Why two pairs are equal: the chain of rules from one to the other.

use super::Saturated;
use super::lang::Lang;
use super::rules::{Rule, rule_of};
use super::term::{Writer, nest_of};
use egg::{FlatTerm, RecExpr, Symbol};
use fractal_dsl::pattern::Pattern;
use serde::Serialize;
use std::fmt;

/// A pattern with a schedule, as a term of the e-graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    pub(super) expr: RecExpr<Lang>,
}

impl Pair {
    /// A pattern whose schedule is open.
    pub fn of(pattern: &Pattern) -> Pair {
        let mut writer = Writer::default();
        let nest = writer.nest(&nest_of(pattern));
        let open = writer.add(Lang::Open);
        writer.add(Lang::Run([nest, open]));
        Pair { expr: writer.expr }
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.expr)
    }
}

/// One step of an explanation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExplainStep {
    /// The rule.
    pub rule: &'static Rule,
    /// Whether it was applied from its left to its right side.
    pub forward: bool,
    /// The whole term before.
    pub before: String,
    /// The whole term after.
    pub after: String,
}

/// The rule at work in one term of a chain.
fn rule_in(term: &FlatTerm<Lang>) -> Option<(Symbol, bool)> {
    let here = term.forward_rule.map(|rule| (rule, true)).or(term.backward_rule.map(|rule| (rule, false)));
    here.or_else(|| term.children.iter().find_map(rule_in))
}

impl Saturated {
    /// The chain of rules by which two pairs are equal, empty for one and the same; `None` where the search has not proved
    /// it.
    pub fn explain(&mut self, a: &Pair, b: &Pair) -> Option<Vec<ExplainStep>> {
        let chain = self.chain(a, b)?;
        let text = |term: &FlatTerm<Lang>| term.remove_rewrites().to_string();
        let steps = chain.windows(2).filter_map(|pair| {
            let (name, forward) = rule_in(&pair[1])?;
            Some(ExplainStep { rule: rule_of(name)?, forward, before: text(&pair[0]), after: text(&pair[1]) })
        });
        Some(steps.collect())
    }

    /// The rules of a chain, each once, in the order in which they are first needed.
    pub(super) fn rules_between(&mut self, a: &Pair, b: &Pair) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = Vec::new();
        for (name, _) in self.chain(a, b).unwrap_or_default().iter().filter_map(rule_in) {
            let rule = rule_of(name).map_or("", |rule| rule.name);
            if !names.contains(&rule) {
                names.push(rule);
            }
        }
        names
    }

    fn chain(&mut self, a: &Pair, b: &Pair) -> Option<Vec<FlatTerm<Lang>>> {
        if a == b {
            return Some(Vec::new());
        }
        let (first, second) = (self.graph.lookup_expr(&a.expr)?, self.graph.lookup_expr(&b.expr)?);
        if self.graph.find(first) != self.graph.find(second) {
            return None;
        }
        let mut explanation = self.graph.explain_equivalence(&a.expr, &b.expr);
        Some(explanation.make_flat_explanation().clone())
    }
}
