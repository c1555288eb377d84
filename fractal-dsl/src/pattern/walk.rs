//! The value of every axis for every element of one row: what projecting, covering and packing stand on.
//!
//! A row is walked at once: an axis that depends on n alone has one value, the others have one for each k.

use super::selection::choice_steps;
use super::{AxisId, Level, Pattern, Selection, Step};
use std::sync::Arc;

/// The value of an axis that does not reach an element: a skip dropped it.
pub(crate) const DROPPED: u32 = u32::MAX;

/// The values of one axis along a row.
#[derive(Clone, Debug)]
pub(crate) enum RowValues {
    /// The same for every k.
    One(u32),
    /// One for each k.
    Each(Vec<u32>),
}

impl RowValues {
    #[inline]
    pub(crate) fn at(&self, k: usize) -> u32 {
        match self {
            RowValues::One(value) => *value,
            RowValues::Each(values) => values[k],
        }
    }

    /// The vector of `self`, to be filled again, or a new one.
    fn into_buffer(self) -> Vec<u32> {
        match self {
            RowValues::One(_) => Vec::new(),
            RowValues::Each(mut values) => {
                values.clear();
                values
            }
        }
    }
}

/// Walks the rows of a weight through the steps of a pattern whose choices are known so far. A clone shares the choices and
/// walks rows of its own.
#[derive(Clone)]
pub(crate) struct Walk<'p> {
    pattern: &'p Pattern,
    /// Of each step: for a skip, `region * len + iteration` -> place among the kept; for a permutation, old -> new.
    inverse: Vec<Arc<Vec<u32>>>,
    values: Vec<RowValues>,
    /// Of each axis: whether its values do not depend on n and are there, for this row and all others.
    settled: Vec<bool>,
    alive: Vec<bool>,
    /// Flat numbers of regions and iterations, for one step at a time.
    places: Vec<usize>,
}

impl<'p> Walk<'p> {
    pub(crate) fn new(pattern: &'p Pattern) -> Walk<'p> {
        let mut values = vec![RowValues::One(DROPPED); pattern.axes().len()];
        values[AxisId::K.index()] = RowValues::Each((0..pattern.k() as u32).collect());
        let mut settled = vec![false; pattern.axes().len()];
        settled[AxisId::K.index()] = true;
        Walk {
            pattern,
            inverse: vec![Arc::default(); pattern.steps().len()],
            values,
            settled,
            alive: vec![true; pattern.k()],
            places: Vec::new(),
        }
    }

    /// A walk through all steps. The selection must have been checked against the pattern.
    pub(crate) fn through(pattern: &'p Pattern, selection: &Selection) -> Walk<'p> {
        let mut walk = Walk::new(pattern);
        for (step, level) in choice_steps(pattern).zip(&selection.levels) {
            walk.choose(step, level);
        }
        walk
    }

    /// This walk's choices before step `steps`, over a pattern that has the same steps until there.
    pub(crate) fn over<'q>(&self, pattern: &'q Pattern, steps: usize) -> Walk<'q> {
        let mut walk = Walk::new(pattern);
        walk.inverse[..steps].clone_from_slice(&self.inverse[..steps]);
        walk
    }

    /// Takes the choice of one step.
    pub(crate) fn choose(&mut self, step: usize, level: &Level) {
        // An order may be chosen again, after rows went through an earlier one.
        self.settled.fill(false);
        self.settled[AxisId::K.index()] = true;
        let inverse = match (&self.pattern.steps()[step], level) {
            (Step::Skip { axis, per, .. }, Level::Kept(kept)) => {
                let len = self.pattern.axis(*axis).len;
                let mut inverse = vec![DROPPED; self.pattern.regions(per) * len];
                for region in 0..kept.regions() {
                    for (place, &iteration) in kept.region(region).iter().enumerate() {
                        inverse[region * len + iteration as usize] = place as u32;
                    }
                }
                inverse
            }
            (Step::Permute { .. }, Level::Order(order)) => {
                let mut inverse = vec![DROPPED; order.len()];
                for (new, &old) in order.iter().enumerate() {
                    inverse[old as usize] = new as u32;
                }
                inverse
            }
            _ => unreachable!("a checked selection has a level of each step's kind"),
        };
        self.inverse[step] = Arc::new(inverse);
    }

    /// Computes row `n` through the first `steps` steps.
    pub(crate) fn row(&mut self, n: usize, steps: usize) {
        self.values[AxisId::N.index()] = RowValues::One(n as u32);
        self.alive.fill(true);
        for number in 0..steps {
            self.step(number);
        }
    }

    fn step(&mut self, number: usize) {
        let pattern = self.pattern;
        match &pattern.steps()[number] {
            Step::Split { axis, factor, outer, inner } => {
                if !self.settled[outer.index()] {
                    let factor = *factor as u32;
                    self.map(*axis, *outer, |_, v| v / factor);
                    self.map(*axis, *inner, |_, v| v % factor);
                }
            }
            Step::Join { a, b, out } => self.join(*a, *b, *out),
            Step::Permute { axis, out } => {
                if !self.settled[out.index()] {
                    self.map(*axis, *out, |inverse, v| inverse[number][v as usize]);
                }
            }
            Step::Skip { axis, per, out, .. } => self.skip(number, *axis, per, *out),
        }
    }

    /// `out = f(axis)`, dropped where `axis` is. What is the same for all rows is computed once.
    fn map(&mut self, axis: AxisId, out: AxisId, f: impl Fn(&[Arc<Vec<u32>>], u32) -> u32) {
        let mut buffer = self.take(out);
        let f = |v: u32| if v == DROPPED { DROPPED } else { f(&self.inverse, v) };
        self.values[out.index()] = match &self.values[axis.index()] {
            RowValues::One(value) => RowValues::One(f(*value)),
            RowValues::Each(values) => {
                buffer.extend(values.iter().map(|&v| f(v)));
                RowValues::Each(buffer)
            }
        };
        self.settled[out.index()] = self.settled[axis.index()];
    }

    /// `out = a * len(b) + b`, dropped where one is.
    fn join(&mut self, a: AxisId, b: AxisId, out: AxisId) {
        let len = self.pattern.axis(b).len as u32;
        let mut buffer = self.take(out);
        let combine = |a: u32, b: u32| if a == DROPPED || b == DROPPED { DROPPED } else { a * len + b };
        self.values[out.index()] = match (&self.values[a.index()], &self.values[b.index()]) {
            (RowValues::One(a), RowValues::One(b)) => RowValues::One(combine(*a, *b)),
            (a, b) => {
                buffer.extend((0..self.pattern.k()).map(|k| combine(a.at(k), b.at(k))));
                RowValues::Each(buffer)
            }
        };
    }

    /// `out` = the place among the kept; what is dropped is not alive any more.
    fn skip(&mut self, number: usize, axis: AxisId, per: &[AxisId], out: AxisId) {
        let mut buffer = self.take(out);
        let mut axes = per.iter().chain([&axis]);
        self.values[out.index()] = if axes.all(|a| matches!(self.values[a.index()], RowValues::One(_))) {
            let at = per.iter().chain([&axis]).try_fold(0, |flat, a| match self.values[a.index()].at(0) {
                DROPPED => None,
                value => Some(flat * self.pattern.axis(*a).len + value as usize),
            });
            let value = at.map_or(DROPPED, |at| self.inverse[number][at]);
            if value == DROPPED {
                self.alive.fill(false);
            }
            RowValues::One(value)
        } else {
            let mut places = std::mem::take(&mut self.places);
            self.places(per, axis, &mut places);
            let inverse = &self.inverse[number];
            buffer.extend(places.iter().zip(&mut self.alive).map(|(&place, alive)| {
                // The place of an element that was dropped before means nothing.
                let value = if *alive { inverse[place] } else { DROPPED };
                *alive = value != DROPPED;
                value
            }));
            self.places = places;
            RowValues::Each(buffer)
        };
    }

    /// The buffer of an axis that is to be computed anew.
    fn take(&mut self, axis: AxisId) -> Vec<u32> {
        std::mem::replace(&mut self.values[axis.index()], RowValues::One(DROPPED)).into_buffer()
    }

    /// Whether the steps so far keep column `k` of the current row.
    #[inline]
    pub(crate) fn alive(&self, k: usize) -> bool {
        self.alive[k]
    }

    /// The first column that the steps so far keep of the current row.
    pub(crate) fn first_alive(&self) -> Option<usize> {
        self.alive.iter().position(|&alive| alive)
    }

    /// An axis' values along the current row.
    pub(crate) fn axis(&self, axis: AxisId) -> &RowValues {
        &self.values[axis.index()]
    }

    /// Along the current row, the places `region * len + iteration` of a skip over `per` and `axis`; those of elements
    /// that are not alive mean nothing.
    pub(crate) fn places(&self, per: &[AxisId], axis: AxisId, places: &mut Vec<usize>) {
        self.flat(per.iter().chain([&axis]), places);
    }

    /// Along the current row, the flat number of what `axes` are at, slowest first.
    pub(crate) fn flat<'a>(&self, axes: impl IntoIterator<Item = &'a AxisId>, places: &mut Vec<usize>) {
        places.clear();
        places.resize(self.pattern.k(), 0);
        for &a in axes {
            let len = self.pattern.axis(a).len;
            match self.axis(a) {
                RowValues::One(v) => places.iter_mut().for_each(|p| *p = p.wrapping_mul(len).wrapping_add(*v as usize)),
                RowValues::Each(vs) => {
                    places.iter_mut().zip(vs).for_each(|(p, v)| *p = p.wrapping_mul(len).wrapping_add(*v as usize));
                }
            }
        }
    }
}
