//! Steps of a pattern and the rules that make them legal. Input: n, k and primitives; output: [`Pattern`].

use super::{Keep, PatternError};
use serde::{Deserialize, Serialize};

/// The identity of an axis within one pattern. Ids are given in the order of creation; 0 is n and 1 is k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AxisId(pub(crate) u32);

impl AxisId {
    /// The row axis: output features.
    pub const N: AxisId = AxisId(0);
    /// The column axis: input features, the reduction.
    pub const K: AxisId = AxisId(1);

    /// The position in [`Pattern::axes`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What an axis runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AxisKind {
    /// Output features only.
    Spatial,
    /// Input features only.
    Reduction,
    /// Both, after a join of the two.
    Mixed,
}

/// One axis: a loop of the nest, or one that a later step replaced.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Axis {
    /// What it runs over.
    pub kind: AxisKind,
    /// Iterations: the most any region has.
    pub len: usize,
    /// Index of the ragged skip whose kept iterations this axis counts: its length differs from region to region.
    pub ragged: Option<usize>,
    /// Some of the `len` iterations may hold no element: a split left a tail somewhere above.
    pub tail: bool,
}

/// One primitive of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// `axis = outer * factor + inner`.
    Split {
        /// The axis split.
        axis: AxisId,
        /// Length of the inner axis, at most the length of `axis`.
        factor: usize,
        /// `axis / factor`.
        outer: AxisId,
        /// `axis % factor`.
        inner: AxisId,
    },
    /// `out = a * len(b) + b`.
    Join {
        /// The slower axis.
        a: AxisId,
        /// The faster axis.
        b: AxisId,
        /// The joined axis.
        out: AxisId,
    },
    /// Keeps some of `axis`' iterations in each region.
    Skip {
        /// The axis skipped.
        axis: AxisId,
        /// The axes whose assignments are the regions, slowest first.
        per: Vec<AxisId>,
        /// How many are kept.
        keep: Keep,
        /// The position among the kept iterations.
        out: AxisId,
    },
    /// Puts `axis`' iterations in an order that pruning finds.
    Permute {
        /// The axis permuted.
        axis: AxisId,
        /// The position in the new order.
        out: AxisId,
    },
}

/// A sparse pattern of one weight of n rows and k columns.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Pattern {
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) axes: Vec<Axis>,
    pub(crate) steps: Vec<Step>,
    pub(crate) order: Vec<AxisId>,
}

impl Pattern {
    /// The pattern that keeps everything.
    ///
    /// # Errors
    /// As [`PatternBuilder::new`].
    pub fn dense(n: usize, k: usize) -> Result<Pattern, PatternError> {
        Ok(PatternBuilder::new(n, k)?.build())
    }

    /// Output features: rows of the weight.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input features: columns of the weight.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Every axis ever made; [`AxisId::index`] points into it.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// One axis.
    pub fn axis(&self, id: AxisId) -> &Axis {
        &self.axes[id.index()]
    }

    /// The primitives in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The loops of the nest, outermost first.
    pub fn order(&self) -> &[AxisId] {
        &self.order
    }

    /// Number of regions of a skip over `per`: the product of the axes' lengths, or the greatest number where it overflows
    /// (each split with a tail pads, so that a product can exceed n*k by far).
    pub fn regions(&self, per: &[AxisId]) -> usize {
        per.iter().fold(1, |all, &a| all.saturating_mul(self.axis(a).len))
    }

    /// Iterations kept in every full region of the skip at `step`; `None` where it is ragged or no skip.
    pub fn kept_per_region(&self, step: usize) -> Option<usize> {
        match &self.steps[step] {
            Step::Skip { axis, keep, .. } => {
                let len = self.axis(*axis).len;
                match *keep {
                    Keep::Count(count) => Some(count),
                    Keep::Ratio(ratio) => Some(ratio.of(len)),
                    Keep::Of { kept, .. } => Some(kept),
                    Keep::Ragged(_) | Keep::RaggedCount(_) => None,
                }
            }
            _ => None,
        }
    }

    /// Whether the finest skip keeps at most two of four columns, as sparse tensor cores take them.
    pub fn keeps_two_of_four(&self) -> bool {
        let skip = self.steps.iter().enumerate().rfind(|(_, step)| matches!(step, Step::Skip { .. }));
        skip.is_some_and(|(number, step)| match step {
            Step::Skip { axis, .. } => {
                let axis = self.axis(*axis);
                let kept = self.kept_per_region(number);
                axis.len == 4 && axis.kind == AxisKind::Reduction && kept.is_some_and(|kept| kept <= 2)
            }
            _ => false,
        })
    }

    /// The rules of GPU kernels that this pattern breaks, as sentences; empty where it is legal.
    ///
    /// A spatial loop inside a reduction loop may not be skipped, and a spatial and a reduction loop may not be joined
    /// (Fractal, ASPLOS 2024) unless the join is a threshold over all (row, column) units, which is a ragged skip.
    pub fn gpu_violations(&self) -> Vec<String> {
        let executed = self.executed();
        let mut broken = Vec::new();
        for (number, step) in executed.steps.iter().enumerate() {
            match step {
                Step::Join { out, .. } if executed.axis(*out).kind == AxisKind::Mixed => {
                    broken.push(format!("step #{number} joins a spatial and a reduction loop"));
                }
                Step::Skip { axis, per, .. }
                    if executed.axis(*axis).kind == AxisKind::Spatial
                        && per.iter().any(|&p| executed.axis(p).kind != AxisKind::Spatial) =>
                {
                    broken.push(format!("step #{number} skips a spatial loop inside a reduction loop"));
                }
                _ => {}
            }
        }
        broken
    }
}

/// Makes a [`Pattern`] primitive by primitive, checking each.
#[derive(Clone, Debug)]
pub struct PatternBuilder {
    pattern: Pattern,
}

impl PatternBuilder {
    /// A nest of the two loops n and k.
    ///
    /// # Errors
    /// [`PatternError::Empty`] for a zero dimension, [`PatternError::TooLarge`] for one of 2^31 and more, or for more
    /// than 2^40 elements.
    pub fn new(n: usize, k: usize) -> Result<PatternBuilder, PatternError> {
        if n == 0 || k == 0 {
            return Err(PatternError::Empty { n, k });
        }
        if n >= 1 << 31 || k >= 1 << 31 || n.checked_mul(k).is_none_or(|elements| elements > 1 << 40) {
            return Err(PatternError::TooLarge { n, k });
        }
        let axis = |kind, len| Axis { kind, len, ragged: None, tail: false };
        Ok(PatternBuilder {
            pattern: Pattern {
                n,
                k,
                axes: vec![axis(AxisKind::Spatial, n), axis(AxisKind::Reduction, k)],
                steps: Vec::new(),
                order: vec![AxisId::N, AxisId::K],
            },
        })
    }

    /// The axis with this id, if this pattern has it.
    pub fn axis(&self, id: AxisId) -> Option<&Axis> {
        self.pattern.axes.get(id.index())
    }

    /// The loops of the nest, outermost first.
    pub fn order(&self) -> &[AxisId] {
        &self.pattern.order
    }

    /// Splits `axis` into `axis = outer * factor + inner` and returns (outer, inner).
    ///
    /// A factor beyond the length is cut to it (one outer iteration); a length that the factor does not divide leaves a
    /// tail, whose missing iterations are padded and masked.
    ///
    /// # Errors
    /// [`PatternError::FactorZero`], [`PatternError::NotLive`].
    pub fn split(&mut self, axis: AxisId, factor: usize) -> Result<(AxisId, AxisId), PatternError> {
        let at = self.live("split", axis)?;
        if factor == 0 {
            return Err(PatternError::FactorZero);
        }
        let parent = self.pattern.axis(axis).clone();
        let factor = factor.min(parent.len);
        let tail = parent.tail || !parent.len.is_multiple_of(factor) || parent.ragged.is_some();
        let outer = self.add(Axis { len: parent.len.div_ceil(factor), ..parent.clone() });
        let inner = self.add(Axis { len: factor, ragged: None, tail, ..parent });
        self.pattern.order.splice(at..=at, [outer, inner]);
        self.pattern.steps.push(Step::Split { axis, factor, outer, inner });
        Ok((outer, inner))
    }

    /// Puts the named loops in the given order, in the places which they take now.
    ///
    /// # Errors
    /// [`PatternError::NotLive`], [`PatternError::Twice`], [`PatternError::ReorderEmpty`].
    pub fn reorder(&mut self, loops: &[AxisId]) -> Result<(), PatternError> {
        if loops.is_empty() {
            return Err(PatternError::ReorderEmpty);
        }
        self.distinct("reorder", loops)?;
        let mut places = loops.iter().map(|&a| self.live("reorder", a)).collect::<Result<Vec<_>, _>>()?;
        places.sort_unstable();
        for (place, &axis) in places.into_iter().zip(loops) {
            self.pattern.order[place] = axis;
        }
        Ok(())
    }

    /// Merges two loops and their regions into `a * len(b) + b` at the place of `a`.
    ///
    /// # Errors
    /// [`PatternError::NotLive`], [`PatternError::Twice`], [`PatternError::JoinTooLong`], [`PatternError::RaggedAxis`],
    /// [`PatternError::RaggedRegion`].
    pub fn join(&mut self, a: AxisId, b: AxisId) -> Result<AxisId, PatternError> {
        self.distinct("join", &[a, b])?;
        let (at_a, at_b) = (self.live("join", a)?, self.live("join", b)?);
        for axis in [a, b] {
            self.not_ragged("join", axis)?;
            self.not_ragged_region("join", axis)?;
        }
        let (first, second) = (self.pattern.axis(a).clone(), self.pattern.axis(b).clone());
        let len = first.len * second.len;
        if len >= u32::MAX as usize {
            return Err(PatternError::JoinTooLong { a: first.len, b: second.len });
        }
        let kind = if first.kind == second.kind { first.kind } else { AxisKind::Mixed };
        let out = self.add(Axis { kind, len, ragged: None, tail: first.tail || second.tail });
        self.pattern.order[at_a] = out;
        self.pattern.order.remove(at_b);
        self.pattern.steps.push(Step::Join { a, b, out });
        Ok(out)
    }

    /// Keeps `keep` of `axis`' iterations in each region, one assignment of the loops in `per`, and returns the loop
    /// over the kept ones. Where a loop of `per` lies inside `axis`, `axis` moves inwards to just below it.
    ///
    /// A ragged skip of one region is a skip by count.
    ///
    /// # Errors
    /// [`PatternError::NotLive`], [`PatternError::Twice`], a keep out of range, [`PatternError::RaggedTwice`],
    /// [`PatternError::RaggedAxis`], [`PatternError::RaggedRegion`].
    pub fn skip(&mut self, axis: AxisId, per: &[AxisId], keep: Keep) -> Result<AxisId, PatternError> {
        let at = self.live("skip", axis)?;
        let mut named = per.to_vec();
        named.push(axis);
        self.distinct("skip", &named)?;
        let places = per.iter().map(|&p| self.live("skip", p)).collect::<Result<Vec<_>, _>>()?;
        self.not_ragged("skip", axis)?;
        self.not_ragged_region("skip", axis)?;
        let parent = self.pattern.axis(axis).clone();
        let len = parent.len;
        let all = self.pattern.regions(per).saturating_mul(len);
        let in_range = |found: usize, len: usize| match found {
            0 => Err(PatternError::KeepZero { len }),
            _ if found > len => Err(PatternError::KeepTooMany { found, len }),
            _ => Ok(()),
        };
        let keep = match keep {
            Keep::Ragged(ratio) if per.is_empty() => Keep::Ratio(ratio),
            Keep::RaggedCount(count) if per.is_empty() => Keep::Count(count),
            other => other,
        };
        let kept_len = match keep {
            Keep::Count(count) => {
                in_range(count, len)?;
                count
            }
            Keep::Ratio(ratio) => ratio.of(len),
            Keep::Of { kept, of } => {
                if of != len {
                    return Err(PatternError::KeepOf { kept, of, len });
                }
                in_range(kept, len)?;
                kept
            }
            Keep::Ragged(_) => len,
            Keep::RaggedCount(count) => {
                in_range(count, all)?;
                len
            }
        };
        let step = self.pattern.steps.len();
        let ragged_before = self.pattern.axes.iter().any(|a| a.ragged.is_some());
        if keep.is_ragged() && ragged_before {
            return Err(PatternError::RaggedTwice);
        }
        // A region that a ragged skip left empty is a tail to the skips inside it; so is one where an earlier skip kept
        // only iterations that the tail lacks.
        let emptied = |s: &Step| matches!(s, Step::Skip { axis, .. } if self.pattern.axis(*axis).tail);
        let tail = parent.tail
            || ragged_before
            || per.iter().any(|&p| self.pattern.axis(p).tail)
            || self.pattern.steps.iter().any(emptied);
        let out = self.add(Axis { kind: parent.kind, len: kept_len, ragged: keep.is_ragged().then_some(step), tail });
        self.pattern.order.remove(at);
        let below = places.into_iter().map(|p| if p > at { p } else { p + 1 }).max().unwrap_or(0);
        self.pattern.order.insert(at.max(below), out);
        self.pattern.steps.push(Step::Skip { axis, per: per.to_vec(), keep, out });
        Ok(out)
    }

    /// Puts `axis`' iterations in an order that pruning finds, and returns the loop in that order.
    ///
    /// # Errors
    /// [`PatternError::NotLive`], [`PatternError::RaggedAxis`].
    pub fn permute(&mut self, axis: AxisId) -> Result<AxisId, PatternError> {
        let at = self.live("permute", axis)?;
        self.not_ragged("permute", axis)?;
        let out = self.add(self.pattern.axis(axis).clone());
        self.pattern.order[at] = out;
        self.pattern.steps.push(Step::Permute { axis, out });
        Ok(out)
    }

    /// The finished pattern.
    pub fn build(self) -> Pattern {
        self.pattern
    }

    fn add(&mut self, axis: Axis) -> AxisId {
        self.pattern.axes.push(axis);
        AxisId((self.pattern.axes.len() - 1) as u32)
    }

    fn live(&self, op: &'static str, axis: AxisId) -> Result<usize, PatternError> {
        self.pattern.order.iter().position(|&a| a == axis).ok_or(PatternError::NotLive { op, axis: axis.0 })
    }

    fn distinct(&self, op: &'static str, axes: &[AxisId]) -> Result<(), PatternError> {
        match axes.iter().enumerate().find(|(i, a)| axes[..*i].contains(a)) {
            Some((_, axis)) => Err(PatternError::Twice { op, axis: axis.0 }),
            None => Ok(()),
        }
    }

    fn not_ragged(&self, op: &'static str, axis: AxisId) -> Result<(), PatternError> {
        match self.pattern.axis(axis).ragged {
            Some(_) => Err(PatternError::RaggedAxis { op, axis: axis.0 }),
            None => Ok(()),
        }
    }

    /// A ragged region's beginning is looked up by its axes: they must be known before the ragged loop.
    fn not_ragged_region(&self, op: &'static str, axis: AxisId) -> Result<(), PatternError> {
        let regions = self.pattern.steps.iter().find_map(|step| match step {
            Step::Skip { per, keep, .. } if keep.is_ragged() => Some(per),
            _ => None,
        });
        match regions {
            Some(per) if per.iter().any(|&p| self.pattern.leaves(p).contains(&axis)) => {
                Err(PatternError::RaggedRegion { op, axis: axis.0 })
            }
            _ => Ok(()),
        }
    }
}
