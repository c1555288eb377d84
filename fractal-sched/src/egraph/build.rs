//! Nest -> pattern: the primitives that make the loops of a nest, in an order in which each finds its operands.
//!
//! Axes are read as *digits*: `(outer (inner a 128) 4)` is the digit of `a` between 4 and 128, and an axis is a row of
//! digits, slowest first. Each root (n, k, a skip, a permutation) is split once at all the places that some digit needs;
//! a loop or a region of several digits is those loops one after the other. So one nest is one pattern, however its
//! terms are bracketed.

use super::lang::KeepTerm;
use super::term::Axis;
use fractal_dsl::pattern::{AxisId, Pattern, PatternBuilder};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// An axis that no split made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Root {
    term: Arc<Axis>,
    /// It is `term` as a whole, where splits of it do not line up with its digits.
    whole: bool,
}

/// `value(root) / low % (high / low)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Digit {
    root: Root,
    low: usize,
    /// `None`: all that is above.
    high: Option<usize>,
}

/// The pattern whose loops are these terms; `None` where no order of primitives makes them.
pub(super) fn build(loops: &[Arc<Axis>], n: usize, k: usize) -> Option<Pattern> {
    let mut maker = Maker {
        size: (n, k),
        builder: PatternBuilder::new(n, k).ok()?,
        cuts: HashMap::new(),
        pending: Vec::new(),
        atoms: HashMap::new(),
        consumed: HashSet::new(),
    };
    for base in [Axis::N, Axis::K] {
        maker.cuts.insert(Root { term: Arc::new(base), whole: false }, BTreeSet::new());
    }
    loops.iter().for_each(|axis| maker.gather(axis));
    maker.make(Root { term: Arc::new(Axis::N), whole: false }, AxisId::N)?;
    maker.make(Root { term: Arc::new(Axis::K), whole: false }, AxisId::K)?;
    while !maker.pending.is_empty() {
        maker.next()?;
    }
    maker.finish(loops)
}

struct Maker {
    size: (usize, usize),
    builder: PatternBuilder,
    /// Of each root, where it must be split.
    cuts: HashMap<Root, BTreeSet<usize>>,
    /// Roots that are not made yet, in the order in which they were met.
    pending: Vec<Root>,
    /// Of each root that is made: its loops, slowest first, and the digit that each is.
    atoms: HashMap<Root, Vec<(usize, Option<usize>, AxisId)>>,
    consumed: HashSet<AxisId>,
}

impl Maker {
    fn len(&self, digit: &Digit) -> usize {
        match digit.high {
            Some(high) => high / digit.low,
            None => digit.root.term.len(self.size).div_ceil(digit.low),
        }
    }

    fn digits(&self, axis: &Arc<Axis>) -> Vec<Digit> {
        let whole = |whole| vec![Digit { root: Root { term: axis.clone(), whole }, low: 1, high: None }];
        match &**axis {
            Axis::N | Axis::K | Axis::Kept(..) | Axis::Permuted(..) => whole(false),
            Axis::Joined(a, b) => {
                let mut digits = self.digits(a);
                for digit in self.digits(b) {
                    match digits.last_mut() {
                        // What a split took apart, where no tail was padded.
                        Some(last)
                            if last.root == digit.root
                                && Some(last.low) == digit.high
                                && (last.high.is_some() || digit.root.term.len(self.size).is_multiple_of(last.low)) =>
                        {
                            last.low = digit.low;
                        }
                        _ => digits.push(digit),
                    }
                }
                digits
            }
            Axis::Outer(a, factor) => self.cut(a, *factor).0,
            Axis::Inner(a, factor) => self.cut(a, *factor).1,
        }
    }

    /// The digits of `axis / factor` and of `axis % factor`.
    fn cut(&self, axis: &Arc<Axis>, factor: usize) -> (Vec<Digit>, Vec<Digit>) {
        let digits = self.digits(axis);
        // Each part of a split knows what all of the axis drops. Where there are tails, that decides how much there is of
        // the others, so that no digit may be left out.
        let bound = digits.len() > 1 && axis.drops() && axis.has_tail(self.size);
        let cut = if bound { None } else { self.cut_digits(digits, factor) };
        cut.unwrap_or_else(|| {
            let root = Root { term: axis.clone(), whole: true };
            let whole = vec![Digit { root, low: 1, high: None }];
            self.cut_digits(whole, factor).expect("one unbounded digit splits anywhere")
        })
    }

    fn cut_digits(&self, mut slow: Vec<Digit>, factor: usize) -> Option<(Vec<Digit>, Vec<Digit>)> {
        let (mut fast, mut left) = (Vec::new(), factor);
        while left > 1 {
            let Some(mut digit) = slow.pop() else { break };
            let len = self.len(&digit);
            if left.is_multiple_of(len) || slow.is_empty() && left >= len {
                left = left.div_ceil(len);
                fast.push(digit);
            } else if len.is_multiple_of(left) || slow.is_empty() && digit.high.is_none() {
                let cut = digit.low * left;
                fast.push(Digit { high: Some(cut), ..digit.clone() });
                digit.low = cut;
                slow.push(digit);
                left = 1;
            } else {
                return None;
            }
        }
        fast.reverse();
        Some((slow, fast))
    }

    /// Notes the roots of an axis and where they are cut.
    fn gather(&mut self, axis: &Arc<Axis>) {
        for digit in self.digits(axis) {
            let new = !self.cuts.contains_key(&digit.root);
            let cuts = self.cuts.entry(digit.root.clone()).or_default();
            cuts.extend([digit.low].into_iter().chain(digit.high));
            if new {
                self.operands(&digit.root).iter().for_each(|operand| self.gather(operand));
                self.pending.push(digit.root);
            }
        }
    }

    /// The axes that a root is made of: the one that is consumed, then those of regions.
    fn operands(&self, root: &Root) -> Vec<Arc<Axis>> {
        match &*root.term {
            _ if root.whole => vec![root.term.clone()],
            Axis::Kept(axis, per, _) => [std::slice::from_ref(axis), per].concat(),
            Axis::Permuted(axis) => vec![axis.clone()],
            _ => Vec::new(),
        }
    }

    /// Splits a root that is made now at all its cuts.
    fn make(&mut self, root: Root, axis: AxisId) -> Option<()> {
        let len = self.builder.axis(axis)?.len;
        let cuts: Vec<usize> = self.cuts[&root].iter().copied().filter(|&c| c > 1 && c < len).collect();
        if cuts.windows(2).any(|pair| !pair[1].is_multiple_of(pair[0])) {
            return None;
        }
        let (mut rest, mut high, mut atoms) = (axis, None, Vec::new());
        for cut in cuts.into_iter().rev() {
            let (outer, inner) = self.builder.split(rest, cut).ok()?;
            atoms.push((cut, high, outer));
            (rest, high) = (inner, Some(cut));
        }
        atoms.push((1, high, rest));
        self.atoms.insert(root, atoms);
        Some(())
    }

    /// The loops of an axis, slowest first, where all are made and none is consumed.
    fn loops(&self, axis: &Arc<Axis>) -> Option<Vec<AxisId>> {
        let mut loops = Vec::new();
        for digit in self.digits(axis) {
            let atoms = self.atoms.get(&digit.root)?;
            let inside = atoms.iter().filter(|(low, high, _)| {
                *low >= digit.low && digit.high.is_none_or(|most| high.map_or(*low < most, |h| h <= most))
            });
            loops.extend(inside.map(|(.., axis)| *axis));
        }
        loops.iter().all(|axis| !self.consumed.contains(axis)).then_some(loops)
    }

    /// Makes the pending root with the longest operand whose operand nobody else waits for.
    fn next(&mut self) -> Option<()> {
        let ready = self.pending.iter().enumerate().filter_map(|(at, root)| {
            let operands = self.operands(root);
            let consumed = self.loops(&operands[0])?;
            operands[1..].iter().try_for_each(|per| self.loops(per).map(drop))?;
            let waited_for = self.pending.iter().enumerate().any(|(other, root)| {
                let reads = |axis| self.loops(axis).is_some_and(|l| l.iter().any(|a| consumed.contains(a)));
                other != at && self.operands(root).iter().any(reads)
            });
            (!waited_for).then(|| (operands[0].len(self.size), at))
        });
        // Of equals the first that was met.
        let (_, at) = ready.max_by_key(|&(len, at)| (len, std::cmp::Reverse(at)))?;
        let root = self.pending.remove(at);
        let operands = self.operands(&root);
        let consumed = self.loops(&operands[0])?;
        let (&first, rest) = consumed.split_first()?;
        let axis = rest.iter().try_fold(first, |a, &b| self.builder.join(a, b).ok())?;
        self.consumed.extend(&consumed);
        let made = match &*root.term {
            _ if root.whole => axis,
            Axis::Kept(_, per, keep) => {
                let mut regions = Vec::new();
                for p in per {
                    let loops = self.loops(p)?;
                    if loops.is_empty() && p.drops() && p.has_tail(self.size) {
                        return None;
                    }
                    regions.extend(loops);
                }
                let made = self.builder.axis(axis)?;
                let ragged = !matches!(keep, KeepTerm::Count(_));
                if ragged && regions.is_empty() && made.tail {
                    // The builder would count the places that the tail lacks.
                    return None;
                }
                let keep = keep.keep(made.len)?;
                self.builder.skip(axis, &regions, keep).ok()?
            }
            _ => self.builder.permute(axis).ok()?,
        };
        self.consumed.remove(&made);
        self.make(root, made)
    }

    /// Puts the loops in the nest's order; loops of one iteration that it leaves out stand first.
    fn finish(mut self, nest: &[Arc<Axis>]) -> Option<Pattern> {
        let mut order = Vec::new();
        for axis in nest {
            order.extend(self.loops(axis)?);
        }
        let live = self.builder.order().to_vec();
        let distinct: HashSet<AxisId> = order.iter().copied().collect();
        if distinct.len() != order.len() {
            return None;
        }
        let mut left: Vec<AxisId> = live.into_iter().filter(|axis| !distinct.contains(axis)).collect();
        if left.iter().any(|&axis| self.builder.axis(axis).is_none_or(|a| a.len != 1)) {
            return None;
        }
        left.append(&mut order);
        self.builder.reorder(&left).ok()?;
        Some(self.builder.build())
    }
}
