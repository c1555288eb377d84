//! The rewrites: one file a family, one [`Rule`] a rewrite.
//!
//! A rule may only change how a set of masks is written, or how a product is computed. What would change the set (a
//! cover, another count) has no rule here.
//!
//! | family | file |
//! |---|---|
//! | split and join | `split_join` |
//! | reorder | `reorder` |
//! | regions of a skip | `regions` |
//! | skip and split | `skip_split` |
//! | skips | `skip` |
//! | block-wise | `block_wise` |
//! | N of M | `n_of_m` |
//! | permutations | `permute` |
//! | condense | `condense` |
//! | tensorize | `tensorize` |
//! | tiles, steps | `tile` |
//! | operands | `operands` |
//! | epilogue | `epilogue` |
//! | clusters | `cluster` |
//! | resident weights | `stage` |
//! | stages of copies | `pipeline` |

mod block_wise;
mod cluster;
mod condense;
mod epilogue;
mod n_of_m;
mod operands;
mod permute;
mod pipeline;
mod regions;
mod reorder;
mod skip;
mod skip_split;
mod split_join;
mod stage;
mod tensorize;
mod tile;

use super::analysis::{AxisData, Data, Graph, axis, keep, number};
use super::facts::Facts;
use super::lang::{KeepTerm, Lang};
use super::schedule::{Choice, Partial};
use egg::{Applier, Id, Pattern, PatternAst, Rewrite, Subst, Symbol, Var};
use serde::Serialize;
use std::sync::LazyLock;

/// A family of rules: the file that they stand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Splits of splits, joins of splits, loops of one iteration.
    SplitJoin,
    /// The order of loops.
    Reorder,
    /// How the regions of a skip are written.
    Regions,
    /// Splits that pass a skip of coarser or finer units.
    SkipSplit,
    /// Two skips as one, skips of nothing, thresholds.
    Skip,
    /// Blocks as coarse columns.
    BlockWise,
    /// Groups of a split.
    NOfM,
    /// Orders that nothing depends on.
    Permute,
    /// Gathering rows of X into tiles.
    Condense,
    /// The instruction.
    Tensorize,
    /// Rows, tokens and columns of a tile.
    Tile,
    /// Y = W X as Y' = X' W'.
    Operands,
    /// What follows the multiplication.
    Epilogue,
    /// Blocks that share.
    Cluster,
    /// Weights that stay.
    Stage,
    /// Copies in flight.
    Pipeline,
}

/// A rewrite: what it is called, and why it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Rule {
    /// Its name in explanations and counts.
    pub name: &'static str,
    /// Its family.
    pub family: Family,
    /// The left side.
    pub before: &'static str,
    /// The right side.
    pub after: &'static str,
    /// Where it may be applied; `always` where it needs no condition.
    pub condition: &'static str,
    /// Why both sides are equal.
    pub reason: &'static str,
}

type Rewrites = Vec<Rewrite<Lang, super::analysis::Axes>>;

/// A rule and the rewrites that do it: those on nests and regions once for each number of loops and each place.
struct Definition {
    rule: Rule,
    rewrites: fn(&'static str, Most) -> Rewrites,
}

/// The most loops of a nest and of a skip's regions that rules look at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    pub(super) nest: usize,
    pub(super) per: usize,
}

fn definitions() -> impl Iterator<Item = &'static Definition> {
    [
        split_join::RULES,
        reorder::RULES,
        regions::RULES,
        skip_split::RULES,
        skip::RULES,
        block_wise::RULES,
        n_of_m::RULES,
        permute::RULES,
        condense::RULES,
        tensorize::RULES,
        tile::RULES,
        operands::RULES,
        epilogue::RULES,
        cluster::RULES,
        stage::RULES,
        pipeline::RULES,
    ]
    .into_iter()
    .flatten()
}

/// Every rule, family by family.
pub fn rules() -> &'static [Rule] {
    static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| definitions().map(|d| d.rule).collect());
    &RULES
}

/// The rewrites of the rules for which `wanted` holds.
pub(super) fn rewrites(most: Most, wanted: impl Fn(&Rule) -> bool) -> Rewrites {
    definitions().filter(|d| wanted(&d.rule)).flat_map(|d| (d.rewrites)(d.rule.name, most)).collect()
}

/// The rule of a rewrite; the places that tell a rule's rewrites apart follow an `@`.
pub(super) fn rule_of(rewrite: Symbol) -> Option<&'static Rule> {
    let name = rewrite.as_str().split('@').next()?;
    rules().iter().find(|rule| rule.name == name)
}

/// A match: the variables of a left side.
struct Match<'a> {
    graph: &'a Graph,
    subst: &'a Subst,
}

impl Match<'_> {
    fn id(&self, name: &str) -> Id {
        self.subst[var(name)]
    }

    fn number(&self, name: &str) -> Option<usize> {
        number(self.graph, self.id(name))
    }

    fn keep(&self, name: &str) -> Option<KeepTerm> {
        keep(self.graph, self.id(name))
    }

    fn axis(&self, name: &str) -> Option<&AxisData> {
        axis(self.graph, self.id(name))
    }

    fn len(&self, name: &str) -> Option<usize> {
        Some(self.axis(name)?.len)
    }

    fn facts(&self, name: &str) -> Option<&Facts> {
        match &self.graph[self.id(name)].data {
            Data::Nest(facts) => facts.as_ref(),
            _ => None,
        }
    }

    fn schedule(&self, name: &str) -> Option<&Partial> {
        match &self.graph[self.id(name)].data {
            Data::Schedule(partial) => partial.as_ref(),
            _ => None,
        }
    }
}

fn var(name: &str) -> Var {
    name.parse().expect("a variable's name begins with ?")
}

/// New variables of the right side, each a node whose children are there.
type Bound = Vec<(&'static str, Lang)>;

/// Applies a right side whose numbers follow from the match, where its condition holds.
struct Computed<F> {
    bind: F,
    right: Pattern<Lang>,
}

impl<F: Fn(&Match<'_>) -> Option<Bound> + Send + Sync> Applier<Lang, super::analysis::Axes> for Computed<F> {
    fn apply_one(
        &self,
        graph: &mut Graph,
        class: Id,
        subst: &Subst,
        left: Option<&PatternAst<Lang>>,
        rule: Symbol,
    ) -> Vec<Id> {
        let Some(bound) = (self.bind)(&Match { graph, subst }) else { return Vec::new() };
        let mut subst = subst.clone();
        for (name, node) in bound {
            subst.insert(var(name), graph.add(node));
        }
        self.right.apply_one(graph, class, &subst, left, rule)
    }
}

fn rewrite<F>(name: &str, left: &str, right: &str, bind: F) -> Rewrite<Lang, super::analysis::Axes>
where
    F: Fn(&Match<'_>) -> Option<Bound> + Send + Sync + 'static,
{
    let parse = |side: &str| side.parse::<Pattern<Lang>>().unwrap_or_else(|e| panic!("{name}: {side}: {e}"));
    Rewrite::new(name, parse(left), Computed { bind, right: parse(right) }).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// A condition alone.
fn when(holds: bool) -> Option<Bound> {
    holds.then(Vec::new)
}

/// A list of `op` with variables `?0 ?1 …`, some places filled otherwise; an empty filling leaves the place out.
fn list(op: &str, len: usize, fill: &[(usize, &str)]) -> String {
    let items = (0..len).map(|at| match fill.iter().find(|(place, _)| *place == at) {
        Some((_, term)) => (*term).to_string(),
        None => format!("?{at}"),
    });
    let items: Vec<String> = items.filter(|item| !item.is_empty()).collect();
    format!("({op} {})", items.join(" ")).replace(" )", ")")
}

/// The other variables of a list.
fn others(len: usize, filled: &[usize]) -> Vec<String> {
    (0..len).filter(|at| !filled.contains(at)).map(|at| format!("?{at}")).collect()
}

/// One rewrite for each length and place of a list.
fn at_each<F>(name: &str, op: &str, most: usize, left: &str, right: &str, bind: F) -> Rewrites
where
    F: Fn(&Match<'_>, &[String]) -> Option<Bound> + Send + Sync + Clone + 'static,
{
    let mut rewrites = Vec::new();
    for len in 1..=most {
        for at in 0..len {
            let (rest, bind) = (others(len, &[at]), bind.clone());
            let (left, right) = (list(op, len, &[(at, left)]), list(op, len, &[(at, right)]));
            rewrites.push(rewrite(&format!("{name}@{len}.{at}"), &left, &right, move |m| bind(m, &rest)));
        }
    }
    rewrites
}

/// One rewrite for each length and two places of a list: `left` fills both, `right` takes the first's place.
fn at_pairs<F>(name: &str, op: &str, most: usize, left: (&str, &str), right: &str, bind: F) -> Rewrites
where
    F: Fn(&Match<'_>, &[String]) -> Option<Bound> + Send + Sync + Clone + 'static,
{
    let mut rewrites = Vec::new();
    for len in 2..=most {
        for (a, b) in (0..len).flat_map(|a| (0..len).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            let (rest, bind) = (others(len, &[a, b]), bind.clone());
            let left = list(op, len, &[(a, left.0), (b, left.1)]);
            let right = list(op, len, &[(a, right), (b, "")]);
            rewrites.push(rewrite(&format!("{name}@{len}.{a}.{b}"), &left, &right, move |m| bind(m, &rest)));
        }
    }
    rewrites
}

/// The rewrite that closes one choice of a schedule, where it is allowed for the facts of the nest.
fn closing<F>(name: &str, choice: Choice, allowed: F) -> Rewrite<Lang, super::analysis::Axes>
where
    F: Fn(&super::schedule::Context, &Facts, &Partial) -> bool + Send + Sync + 'static,
{
    rewrite(&format!("{name}@{choice}"), "(run ?p ?s)", "(run ?p ?t)", move |m| {
        let (facts, before) = (m.facts("?p")?, m.schedule("?s")?);
        let after = before.close(choice)?;
        let context = &m.graph.analysis.context;
        let asked = agrees(&context.request, &after.request) && allowed(context, facts, &after);
        asked.then(|| vec![("?t", Lang::Close(choice, [m.id("?s")]))])
    })
}

/// Whether what is closed is what the program asks for.
fn agrees(asked: &crate::KernelRequest, closed: &crate::KernelRequest) -> bool {
    fn same<T: PartialEq>(asked: Option<T>, closed: Option<T>) -> bool {
        asked.is_none() || closed.is_none() || asked == closed
    }
    same(asked.intrinsic, closed.intrinsic)
        && same(asked.rows, closed.rows)
        && same(asked.tokens, closed.tokens)
        && same(asked.step, closed.step)
        && same(asked.stages, closed.stages)
        && same(asked.split, closed.split)
        && same(asked.share, closed.share)
        && same(asked.resident, closed.resident)
        && same(asked.run, closed.run)
}
