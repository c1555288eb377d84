//! What is known of each e-class: lengths and granularities of axes, facts of nests, what a schedule has closed.

use super::build::build;
use super::facts::Facts;
use super::lang::{KeepTerm, Lang};
use super::schedule::{Choice, Context, Partial};
use super::term::Axis;
use egg::{Analysis, DidMerge, EGraph, Id, Language};
use fractal_dsl::pattern::{AxisKind, Pattern};
use std::collections::HashMap;
use std::sync::Arc;

/// The e-graph of pairs.
pub(super) type Graph = EGraph<Lang, Axes>;

/// The analysis: the program around the nest, and facts of patterns that were built before.
#[derive(Clone, Debug)]
pub(super) struct Axes {
    pub(super) context: Context,
    built: HashMap<Vec<Arc<Axis>>, Option<(Pattern, Facts)>>,
}

/// What is known of an axis. All terms of a class have the same length.
#[derive(Clone, Debug)]
pub(super) struct AxisData {
    /// Iterations at most.
    pub(super) len: usize,
    pub(super) kind: AxisKind,
    /// No choice is needed to know it: it has a value at every element.
    pub(super) total: bool,
    /// No split left a tail: every iteration has elements, whatever the other axes are.
    pub(super) whole: bool,
    /// Elements of n or k from one iteration to the next, before skips: outer loops have a greater one.
    pub(super) scale: usize,
    size: usize,
    best: Lang,
}

/// What is known of an e-class.
#[derive(Clone, Debug)]
pub(super) enum Data {
    Num(usize),
    Keep(KeepTerm),
    Axis(AxisData),
    /// The shortest list of regions, and its size.
    Per(Lang, usize),
    /// The facts of its patterns; `None` while none could be built.
    Nest(Option<Facts>),
    /// A schedule; `None` where its choices are out of turn.
    Schedule(Option<Partial>),
    Pair,
    /// A term that means nothing.
    None,
}

impl Axes {
    pub(super) fn new(context: Context) -> Axes {
        Axes { context, built: HashMap::new() }
    }

    /// The pattern of these loops and its facts.
    pub(super) fn pattern(&mut self, loops: &[Arc<Axis>]) -> Option<&(Pattern, Facts)> {
        let (n, k) = (self.context.n, self.context.k);
        let known = self.built.entry(loops.to_vec()).or_insert_with(|| {
            let pattern = build(loops, n, k)?;
            let facts = Facts::of(&pattern);
            Some((pattern, facts))
        });
        known.as_ref()
    }

    /// Takes a pattern as the one of these loops.
    pub(super) fn know(&mut self, loops: Vec<Arc<Axis>>, pattern: Pattern) {
        let facts = Facts::of(&pattern);
        self.built.insert(loops, Some((pattern, facts)));
    }
}

/// The axis of a class, or why there is none.
pub(super) fn axis(graph: &Graph, id: Id) -> Option<&AxisData> {
    match &graph[id].data {
        Data::Axis(axis) => Some(axis),
        _ => None,
    }
}

/// The number that a class is.
pub(super) fn number(graph: &Graph, id: Id) -> Option<usize> {
    match graph[id].data {
        Data::Num(number) => Some(number),
        _ => None,
    }
}

/// How much a class keeps.
pub(super) fn keep(graph: &Graph, id: Id) -> Option<KeepTerm> {
    match graph[id].data {
        Data::Keep(keep) => Some(keep),
        _ => None,
    }
}

/// The shortest node of an axis or a list of regions. Following them ends: each is shorter than its parent.
fn best(graph: &Graph, id: Id) -> Option<&Lang> {
    match &graph[id].data {
        Data::Axis(axis) => Some(&axis.best),
        Data::Per(best, _) => Some(best),
        _ => None,
    }
}

/// The shortest term of an axis.
pub(super) fn term(graph: &Graph, id: Id) -> Option<Arc<Axis>> {
    let sub = |id: &Id| term(graph, *id);
    Some(Arc::new(match best(graph, id)? {
        Lang::N => Axis::N,
        Lang::K => Axis::K,
        Lang::Outer([a, f]) => Axis::Outer(sub(a)?, number(graph, *f)?),
        Lang::Inner([a, f]) => Axis::Inner(sub(a)?, number(graph, *f)?),
        Lang::Joined([a, b]) => Axis::Joined(sub(a)?, sub(b)?),
        Lang::Kept([a, per, c]) => {
            let Lang::Per(per) = best(graph, *per)? else { return None };
            Axis::Kept(sub(a)?, per.iter().map(sub).collect::<Option<_>>()?, keep(graph, *c)?)
        }
        Lang::Permuted([a]) => Axis::Permuted(sub(a)?),
        _ => return None,
    }))
}

/// Whether the shortest term of `id` is made with `part`, or is it. Where it is not, no choice of `part` decides `id`: all
/// terms of a class have the same value.
pub(super) fn mentions(graph: &Graph, id: Id, part: Id) -> bool {
    graph.find(id) == graph.find(part)
        || best(graph, id).is_some_and(|node| node.children().iter().any(|&child| mentions(graph, child, part)))
}

/// Whether a ragged skip is part of the shortest term of `id`.
pub(super) fn is_ragged(graph: &Graph, id: Id) -> bool {
    best(graph, id).is_some_and(|node| match node {
        Lang::Kept([_, _, c]) if !matches!(keep(graph, *c), Some(KeepTerm::Count(_))) => true,
        node => node.children().iter().any(|&child| is_ragged(graph, child)),
    })
}

fn axis_data(graph: &Graph, node: &Lang) -> Option<AxisData> {
    let get = |id: &Id| axis(graph, *id);
    let made = |from: &AxisData, len: usize, scale: usize, size: usize| AxisData {
        len,
        scale,
        size: from.size + size,
        best: node.clone(),
        ..from.clone()
    };
    let base = |len, kind| AxisData { len, kind, total: true, whole: true, scale: 1, size: 1, best: node.clone() };
    Some(match node {
        Lang::N => base(graph.analysis.context.n, AxisKind::Spatial),
        Lang::K => base(graph.analysis.context.k, AxisKind::Reduction),
        Lang::Outer([a, f]) => {
            let (a, f) = (get(a)?, number(graph, *f)?.max(1));
            let whole = a.whole && a.len.is_multiple_of(f);
            AxisData { whole, ..made(a, a.len.div_ceil(f), a.scale.saturating_mul(f), 2) }
        }
        Lang::Inner([a, f]) => {
            let (a, f) = (get(a)?, number(graph, *f)?);
            let whole = a.whole && (f > 0 && a.len.is_multiple_of(f) || f >= a.len);
            AxisData { whole, ..made(a, a.len.min(f), a.scale, 2) }
        }
        Lang::Joined([a, b]) => {
            let (a, b) = (get(a)?, get(b)?);
            let kind = if a.kind == b.kind { a.kind } else { AxisKind::Mixed };
            let (total, whole) = (a.total && b.total, a.whole && b.whole);
            AxisData { kind, total, whole, ..made(a, a.len.saturating_mul(b.len), b.scale, b.size + 1) }
        }
        Lang::Kept([a, per, c]) => {
            let (a, keep) = (get(a)?, keep(graph, *c)?);
            let Data::Per(_, size) = graph[*per].data else { return None };
            let len = if let KeepTerm::Count(count) = keep { count.min(a.len) } else { a.len };
            AxisData { total: false, ..made(a, len, a.scale, size + 2) }
        }
        Lang::Permuted([a]) => AxisData { total: false, ..made(get(a)?, get(a)?.len, get(a)?.scale, 1) },
        _ => return None,
    })
}

impl Analysis<Lang> for Axes {
    type Data = Data;

    fn make(graph: &mut Graph, node: &Lang, _: Id) -> Data {
        match node {
            Lang::Num(number) => Data::Num(*number),
            Lang::Keep(keep) => Data::Keep(*keep),
            Lang::Per(axes) => {
                let sizes = axes.iter().map(|&a| axis(graph, a).map(|a| a.size)).sum::<Option<usize>>();
                sizes.map_or(Data::None, |size| Data::Per(node.clone(), size + 1))
            }
            Lang::Nest(loops) => {
                let terms: Option<Vec<_>> = loops.iter().map(|&id| term(graph, id)).collect();
                let facts = terms.and_then(|terms| graph.analysis.pattern(&terms).map(|(_, facts)| *facts));
                Data::Nest(facts)
            }
            Lang::Open => Data::Schedule(Some(Partial::default())),
            Lang::Close(choice, [before]) => Data::Schedule(close(graph, *choice, *before)),
            Lang::Run(_) => Data::Pair,
            _ => axis_data(graph, node).map_or(Data::None, Data::Axis),
        }
    }

    fn merge(&mut self, into: &mut Data, from: Data) -> DidMerge {
        match (into, from) {
            (Data::Axis(a), Data::Axis(b)) => {
                let (total, whole, scale) = (a.total || b.total, a.whole || b.whole, a.scale.min(b.scale));
                // An axis joined with one of a single iteration is only of the other's kind.
                let kind = if a.kind == AxisKind::Mixed { b.kind } else { a.kind };
                let changed = |of: &AxisData, size| {
                    (of.total, of.whole, of.scale, of.size, of.kind) != (total, whole, scale, size, kind)
                };
                let size = a.size.min(b.size);
                let merged = DidMerge(changed(a, size), changed(&b, size) || a.size == b.size);
                debug_assert_eq!(a.len, b.len, "{:?} = {:?}", a.best, b.best);
                if b.size < a.size {
                    a.best = b.best;
                }
                (a.total, a.whole, a.scale, a.size, a.kind) = (total, whole, scale, size, kind);
                merged
            }
            (Data::Per(best, size), Data::Per(other, less)) => {
                let shorter = less < *size;
                if shorter {
                    (*best, *size) = (other, less);
                }
                DidMerge(shorter, !shorter)
            }
            (Data::Nest(into), Data::Nest(from)) => match (into.as_mut(), from) {
                (Some(into), Some(from)) => into.join(&from),
                (None, Some(from)) => {
                    *into = Some(from);
                    DidMerge(true, false)
                }
                (into, None) => DidMerge(false, into.is_some()),
            },
            (into @ Data::None, from) => {
                let changed = !matches!(from, Data::None);
                *into = from;
                DidMerge(changed, false)
            }
            (_, from) => DidMerge(false, matches!(from, Data::None)),
        }
    }
}

fn close(graph: &Graph, choice: Choice, before: Id) -> Option<Partial> {
    match graph[before].data {
        Data::Schedule(Some(partial)) => partial.close(choice),
        _ => None,
    }
}
