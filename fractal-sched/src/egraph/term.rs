//! Pattern -> nest: the loops of a pattern as terms that say how each came to be, without names.

use super::lang::{KeepTerm, Lang};
use egg::{Id, RecExpr};
use fractal_dsl::pattern::{AxisId, Pattern, Step};
use std::collections::HashMap;
use std::sync::Arc;

/// One axis as a tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Axis {
    N,
    K,
    Outer(Arc<Axis>, usize),
    Inner(Arc<Axis>, usize),
    Joined(Arc<Axis>, Arc<Axis>),
    Kept(Arc<Axis>, Vec<Arc<Axis>>, KeepTerm),
    Permuted(Arc<Axis>),
}

impl Axis {
    /// Iterations at most, of a weight of n x k.
    pub(super) fn len(&self, size: (usize, usize)) -> usize {
        match self {
            Axis::N => size.0,
            Axis::K => size.1,
            Axis::Outer(axis, factor) => axis.len(size).div_ceil((*factor).max(1)),
            Axis::Inner(axis, factor) => axis.len(size).min(*factor),
            Axis::Joined(a, b) => a.len(size).saturating_mul(b.len(size)),
            Axis::Kept(axis, _, KeepTerm::Count(count)) => *count.min(&axis.len(size)),
            Axis::Kept(axis, ..) | Axis::Permuted(axis) => axis.len(size),
        }
    }
}

impl Axis {
    /// Whether some part of it is a skip.
    pub(super) fn drops(&self) -> bool {
        match self {
            Axis::N | Axis::K => false,
            Axis::Outer(axis, _) | Axis::Inner(axis, _) | Axis::Permuted(axis) => axis.drops(),
            Axis::Joined(a, b) => a.drops() || b.drops(),
            Axis::Kept(..) => true,
        }
    }

    /// Whether a split that it is made with leaves a tail.
    pub(super) fn has_tail(&self, size: (usize, usize)) -> bool {
        match self {
            Axis::N | Axis::K => false,
            Axis::Outer(axis, factor) | Axis::Inner(axis, factor) => {
                let len = axis.len(size);
                axis.has_tail(size) || *factor < len && !len.is_multiple_of((*factor).max(1))
            }
            Axis::Joined(a, b) => a.has_tail(size) || b.has_tail(size),
            Axis::Kept(axis, per, _) => axis.has_tail(size) || per.iter().any(|p| p.has_tail(size)),
            Axis::Permuted(axis) => axis.has_tail(size),
        }
    }
}

/// The loops of a pattern, outermost first, as terms.
pub(super) fn nest_of(pattern: &Pattern) -> Vec<Arc<Axis>> {
    let mut terms: Vec<Option<Arc<Axis>>> = vec![None; pattern.axes().len()];
    terms[0] = Some(Arc::new(Axis::N));
    terms[1] = Some(Arc::new(Axis::K));
    for (number, step) in pattern.steps().iter().enumerate() {
        let get = |axis: AxisId| terms[axis.index()].clone().expect("axes are made before they are used");
        let made = match step {
            Step::Split { axis, factor, outer, inner } => {
                vec![(*outer, Axis::Outer(get(*axis), *factor)), (*inner, Axis::Inner(get(*axis), *factor))]
            }
            Step::Join { a, b, out } => vec![(*out, Axis::Joined(get(*a), get(*b)))],
            Step::Skip { axis, per, keep, out } => {
                let keep = KeepTerm::of(*keep, pattern.kept_per_region(number));
                vec![(*out, Axis::Kept(get(*axis), per.iter().map(|&p| get(p)).collect(), keep))]
            }
            Step::Permute { axis, out } => vec![(*out, Axis::Permuted(get(*axis)))],
        };
        for (id, term) in made {
            terms[id.index()] = Some(Arc::new(term));
        }
    }
    pattern.order().iter().map(|a| terms[a.index()].clone().expect("every loop is an axis")).collect()
}

/// Terms as one expression, each subterm once.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) expr: RecExpr<Lang>,
    seen: HashMap<Lang, Id>,
}

impl Writer {
    pub(super) fn add(&mut self, node: Lang) -> Id {
        *self.seen.entry(node.clone()).or_insert_with(|| self.expr.add(node))
    }

    pub(super) fn axis(&mut self, axis: &Axis) -> Id {
        let node = match axis {
            Axis::N => Lang::N,
            Axis::K => Lang::K,
            Axis::Outer(a, factor) => Lang::Outer([self.axis(a), self.add(Lang::Num(*factor))]),
            Axis::Inner(a, factor) => Lang::Inner([self.axis(a), self.add(Lang::Num(*factor))]),
            Axis::Joined(a, b) => Lang::Joined([self.axis(a), self.axis(b)]),
            Axis::Kept(a, per, keep) => {
                let axis = self.axis(a);
                let per: Vec<Id> = per.iter().map(|p| self.axis(p)).collect();
                let per = self.add(Lang::Per(per.into()));
                Lang::Kept([axis, per, self.add(Lang::Keep(*keep))])
            }
            Axis::Permuted(a) => Lang::Permuted([self.axis(a)]),
        };
        self.add(node)
    }

    pub(super) fn nest(&mut self, loops: &[Arc<Axis>]) -> Id {
        let loops: Vec<Id> = loops.iter().map(|a| self.axis(a)).collect();
        self.add(Lang::Nest(loops.into()))
    }
}
