//! The value of every axis for every element of one row: what projecting, covering and packing stand on.
//!
//! A row is walked at once: an axis that depends on n alone has one value, the others have one for each k.

use super::selection::choice_steps;
use super::{AxisId, Level, Pattern, Selection, Step};

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

    fn map(&self, f: impl Fn(u32) -> u32) -> RowValues {
        let f = |v: u32| if v == DROPPED { DROPPED } else { f(v) };
        match self {
            RowValues::One(value) => RowValues::One(f(*value)),
            RowValues::Each(values) => RowValues::Each(values.iter().map(|&v| f(v)).collect()),
        }
    }
}

/// Walks the rows of a weight through the steps of a pattern whose choices are known so far.
pub(crate) struct Walk<'p> {
    pattern: &'p Pattern,
    /// Of each step: for a skip, `region * len + iteration` -> place among the kept; for a permutation, old -> new.
    inverse: Vec<Vec<u32>>,
    values: Vec<RowValues>,
    alive: Vec<bool>,
}

impl<'p> Walk<'p> {
    pub(crate) fn new(pattern: &'p Pattern) -> Walk<'p> {
        Walk {
            pattern,
            inverse: vec![Vec::new(); pattern.steps().len()],
            values: vec![RowValues::One(DROPPED); pattern.axes().len()],
            alive: vec![true; pattern.k()],
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

    /// Takes the choice of one step.
    pub(crate) fn choose(&mut self, step: usize, level: &Level) {
        self.inverse[step] = match (&self.pattern.steps()[step], level) {
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
    }

    /// Computes row `n` through the first `steps` steps.
    pub(crate) fn row(&mut self, n: usize, steps: usize) {
        self.values[AxisId::N.index()] = RowValues::One(n as u32);
        self.values[AxisId::K.index()] = RowValues::Each((0..self.pattern.k() as u32).collect());
        self.alive.fill(true);
        for number in 0..steps {
            self.step(number);
        }
    }

    fn step(&mut self, number: usize) {
        let pattern = self.pattern;
        match &pattern.steps()[number] {
            Step::Split { axis, factor, outer, inner } => {
                let factor = *factor as u32;
                self.values[outer.index()] = self.values[axis.index()].map(|v| v / factor);
                self.values[inner.index()] = self.values[axis.index()].map(|v| v % factor);
            }
            Step::Join { a, b, out } => {
                let len = pattern.axis(*b).len as u32;
                self.values[out.index()] = self.zip(&[*a, *b], |v| v[0] * len + v[1]);
            }
            Step::Permute { axis, out } => {
                self.values[out.index()] = self.values[axis.index()].map(|v| self.inverse[number][v as usize]);
            }
            Step::Skip { axis, per, out, .. } => {
                let mut axes = per.clone();
                axes.push(*axis);
                let lens: Vec<usize> = axes.iter().map(|&a| pattern.axis(a).len).collect();
                let inverse = &self.inverse[number];
                let values = self
                    .zip(&axes, |v| inverse[v.iter().zip(&lens).fold(0, |flat, (&v, &len)| flat * len + v as usize)]);
                match &values {
                    RowValues::One(DROPPED) => self.alive.fill(false),
                    RowValues::One(_) => {}
                    RowValues::Each(values) => {
                        self.alive.iter_mut().zip(values).for_each(|(alive, &v)| *alive &= v != DROPPED);
                    }
                }
                self.values[out.index()] = values;
            }
        }
    }

    /// Combines axes; dropped where one is.
    fn zip(&self, axes: &[AxisId], f: impl Fn(&[u32]) -> u32) -> RowValues {
        let mut current = vec![0; axes.len()];
        let mut combine = |k: usize| {
            for (value, axis) in current.iter_mut().zip(axes) {
                *value = self.values[axis.index()].at(k);
            }
            if current.contains(&DROPPED) { DROPPED } else { f(&current) }
        };
        if axes.iter().all(|a| matches!(self.values[a.index()], RowValues::One(_))) {
            RowValues::One(combine(0))
        } else {
            RowValues::Each((0..self.pattern.k()).map(combine).collect())
        }
    }

    /// Whether the steps so far keep column `k` of the current row.
    #[inline]
    pub(crate) fn alive(&self, k: usize) -> bool {
        self.alive[k]
    }

    /// An axis' values along the current row.
    pub(crate) fn axis(&self, axis: AxisId) -> &RowValues {
        &self.values[axis.index()]
    }

    /// Along the current row, the places `region * len + iteration` of a skip over `per` and `axis`; those of elements
    /// that are not alive mean nothing.
    pub(crate) fn places(&self, per: &[AxisId], axis: AxisId, places: &mut Vec<usize>) {
        places.clear();
        places.resize(self.pattern.k(), 0);
        for &a in per.iter().chain([&axis]) {
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
