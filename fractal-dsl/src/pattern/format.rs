//! Fractal-ELL, the packed format, derived from a pattern.
//!
//! Values lie in the order of the nest: a kept element's place is the sum of its loop values times the loops' strides.
//! Each skip has an index vector with one entry for each kept iteration of each region, the place among the iterations
//! of its own axis; nothing below the last skip has an index. A ragged skip has offsets besides: its loops stand
//! outermost, and each region has as many of them as it keeps.

use super::{AxisId, AxisKind, IndexArray, Keep, Kept, Level, Pattern, PatternBuilder, Selection, Step};
use serde::Serialize;
use std::fmt;

/// One loop of the value array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct FormatLoop {
    /// The axis it runs over.
    pub axis: AxisId,
    /// Iterations stored; of a ragged loop, the most.
    pub extent: usize,
    /// Values between two iterations; 0 for the loops of a ragged region, which its offsets replace.
    pub stride: usize,
}

/// The index vector of one skip or permutation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct IndexLevel {
    /// Index of the step.
    pub step: usize,
    /// The axes of its regions.
    pub per: Vec<AxisId>,
    /// Entries a region; `None` for the ragged level. A permutation has one region.
    pub kept: Option<usize>,
    /// Bits an entry: 1, 2, 4, 8, 16 or 32.
    pub bits: u8,
    /// The entry of a place that no iteration fills, where there can be one.
    pub pad: Option<u32>,
    /// Its regions lie inside the ragged loop, so that they are numbered by the iterations there are.
    pub under_ragged: bool,
}

/// The ragged skip of a format.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RaggedLevel {
    /// Index of the step.
    pub step: usize,
    /// The axes of its regions.
    pub per: Vec<AxisId>,
    /// The loop whose length differs: the skip's own, or the outermost part it was split into.
    pub outer: AxisId,
    /// Kept iterations of the skip to one iteration of `outer`.
    pub chunk: usize,
    /// Values to one iteration of `outer`.
    pub block: usize,
}

/// How a pattern's weights are packed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Format {
    /// The loops of the value array, outermost first.
    pub loops: Vec<FormatLoop>,
    /// The ragged skip, if there is one.
    pub ragged: Option<RaggedLevel>,
    /// One index vector a skip or permutation, in the order of the steps.
    pub indices: Vec<IndexLevel>,
    /// Values stored; `None` where a ragged skip lets the weights decide.
    pub slots: Option<usize>,
}

impl Pattern {
    /// The pattern in the form in which it is packed and executed; admits the same masks.
    ///
    /// A skip of joined rows and columns as one region (one threshold over all units) becomes a ragged skip of the
    /// columns for each row. The loops of a ragged skip move outermost.
    pub fn executed(&self) -> Pattern {
        let split = self.threshold_join();
        let mut ids: Vec<Option<AxisId>> = vec![None; self.axes.len()];
        ids[0] = Some(AxisId::N);
        ids[1] = Some(AxisId::K);
        let mut rows_of_join = None;
        const LEGAL: &str = "the steps of a pattern are legal";
        let mut builder = PatternBuilder::new(self.n, self.k).expect(LEGAL);
        for (number, step) in self.steps.iter().enumerate() {
            let new = |axis: &AxisId| ids[axis.index()].expect("axes are made before they are used");
            match step {
                Step::Split { axis, factor, outer, inner } => {
                    let (o, i) = builder.split(new(axis), *factor).expect(LEGAL);
                    ids[outer.index()] = Some(o);
                    ids[inner.index()] = Some(i);
                }
                Step::Join { .. } if split.as_ref().is_some_and(|s| s.join == number) => {}
                Step::Join { a, b, out } => ids[out.index()] = Some(builder.join(new(a), new(b)).expect(LEGAL)),
                Step::Permute { axis, out } => ids[out.index()] = Some(builder.permute(new(axis)).expect(LEGAL)),
                Step::Skip { axis, per, keep, out } => match &split {
                    Some(s) if s.skip == number => {
                        let count = self.kept_per_region(number).expect("a threshold join is not ragged");
                        let (rows, columns) = (new(&s.rows), new(&s.columns));
                        let kept = builder.skip(columns, &[rows], Keep::RaggedCount(count)).expect(LEGAL);
                        ids[out.index()] = Some(kept);
                        rows_of_join = Some((kept, rows));
                    }
                    _ => {
                        let per: Vec<AxisId> = per.iter().map(new).collect();
                        ids[out.index()] = Some(builder.skip(new(axis), &per, *keep).expect(LEGAL));
                    }
                },
            }
        }
        let mut order = Vec::new();
        for axis in self.order.iter().filter_map(|a| ids[a.index()]) {
            if let Some((_, rows)) = rows_of_join.filter(|(kept, _)| *kept == axis) {
                order.push(rows);
            }
            order.push(axis);
        }
        builder.reorder(&order).expect(LEGAL);
        let mut pattern = builder.build();
        if let Some((_, per, outer, _)) = pattern.ragged_skip() {
            let regions: Vec<AxisId> = per.iter().flat_map(|&p| pattern.leaves(p)).collect();
            let rank = |axis: &AxisId| match axis {
                a if regions.contains(a) => 0,
                a if *a == outer => 1,
                _ => 2,
            };
            pattern.order.sort_by_key(rank);
        }
        pattern
    }

    /// A selection of this pattern as one of [`Pattern::executed`].
    pub fn executed_selection(&self, selection: &Selection) -> Selection {
        let Some(split) = self.threshold_join() else { return selection.clone() };
        let (rows, columns) = (self.axis(split.rows).len, self.axis(split.columns).len);
        let levels = selection.of_steps(self).map(|(step, level)| match level {
            Level::Kept(kept) if step == split.skip => {
                let mut lists: Vec<Vec<u32>> = vec![Vec::new(); rows];
                for &unit in &kept.kept {
                    let (a, b) = (unit as usize / split.inner, unit as usize % split.inner);
                    let (row, column) = if split.rows_first { (a, b) } else { (b, a) };
                    debug_assert!(column < columns);
                    lists[row].push(column as u32);
                }
                let mut split_up = Kept { offsets: vec![0], kept: Vec::with_capacity(kept.kept.len()) };
                for list in lists {
                    split_up.kept.extend(list);
                    split_up.offsets.push(split_up.kept.len() as u32);
                }
                Level::Kept(split_up)
            }
            other => other.clone(),
        });
        Selection { levels: levels.collect() }
    }

    /// The packed format of this pattern.
    pub fn format(&self) -> Format {
        self.executed().format_of_executed()
    }

    pub(crate) fn format_of_executed(&self) -> Format {
        let ragged = self.ragged_skip();
        let regions: Vec<AxisId> = match &ragged {
            Some((_, per, ..)) => per.iter().flat_map(|&p| self.leaves(p)).collect(),
            None => Vec::new(),
        };
        let mut stride = 1;
        let mut loops: Vec<FormatLoop> = Vec::new();
        for &axis in self.order.iter().rev() {
            let extent = self.axis(axis).len;
            if regions.contains(&axis) {
                loops.push(FormatLoop { axis, extent, stride: 0 });
            } else {
                loops.push(FormatLoop { axis, extent, stride });
                stride *= extent;
            }
        }
        loops.reverse();
        let ragged = ragged.map(|(step, per, outer, chunk)| {
            let block = loops.iter().find(|l| l.axis == outer).map_or(1, |l| l.stride);
            RaggedLevel { step, per, outer, chunk, block }
        });
        let mut indices = Vec::new();
        for (number, step) in self.steps.iter().enumerate() {
            match step {
                Step::Skip { axis, per, out, .. } => {
                    let len = self.axis(*axis).len;
                    let here = ragged.as_ref().filter(|r| r.step == number);
                    let padded = self.axis(*out).tail || here.is_some_and(|r| r.chunk > 1);
                    indices.push(IndexLevel {
                        step: number,
                        per: per.clone(),
                        kept: self.kept_per_region(number),
                        bits: IndexArray::bits_for(len + usize::from(padded)),
                        pad: padded.then_some(len as u32),
                        under_ragged: ragged.as_ref().is_some_and(|r| {
                            r.step < number && per.contains(&r.outer) && r.per.iter().all(|p| per.contains(p))
                        }),
                    });
                }
                Step::Permute { axis, .. } => {
                    let len = self.axis(*axis).len;
                    indices.push(IndexLevel {
                        step: number,
                        per: Vec::new(),
                        kept: Some(len),
                        bits: IndexArray::bits_for(len),
                        pad: None,
                        under_ragged: false,
                    });
                }
                _ => {}
            }
        }
        let slots = ragged.is_none().then_some(stride);
        Format { loops, ragged, indices, slots }
    }

    /// The loops of the nest that `axis` was turned into; itself where it is one.
    pub fn leaves(&self, axis: AxisId) -> Vec<AxisId> {
        for step in &self.steps {
            match step {
                Step::Split { axis: a, outer, inner, .. } if *a == axis => {
                    return [self.leaves(*outer), self.leaves(*inner)].concat();
                }
                Step::Join { a, b, out } if *a == axis || *b == axis => return self.leaves(*out),
                Step::Skip { axis: a, out, .. } | Step::Permute { axis: a, out } if *a == axis => {
                    return self.leaves(*out);
                }
                _ => {}
            }
        }
        vec![axis]
    }

    /// The ragged skip: its step, regions, the loop of varying length, and kept iterations to one of that loop.
    fn ragged_skip(&self) -> Option<(usize, Vec<AxisId>, AxisId, usize)> {
        let (step, per, mut outer) = self.steps.iter().enumerate().find_map(|(number, step)| match step {
            Step::Skip { per, keep, out, .. } if keep.is_ragged() => Some((number, per.clone(), *out)),
            _ => None,
        })?;
        let mut chunk = 1;
        for s in &self.steps[step..] {
            if let Step::Split { axis, factor, outer: o, .. } = s
                && *axis == outer
            {
                outer = *o;
                chunk *= factor;
            }
        }
        Some((step, per, outer, chunk))
    }

    fn names_in_per(&self, axes: &[AxisId]) -> bool {
        self.steps.iter().any(|s| matches!(s, Step::Skip { per, .. } if per.iter().any(|p| axes.contains(p))))
    }

    /// The join of rows and columns that a skip of one region follows and nothing else touches.
    fn threshold_join(&self) -> Option<ThresholdJoin> {
        if self.axes.iter().any(|a| a.ragged.is_some()) {
            return None;
        }
        self.steps.iter().enumerate().find_map(|(join, step)| {
            let Step::Join { a, b, out } = step else { return None };
            let kinds = (self.axis(*a).kind, self.axis(*b).kind);
            let (rows, columns) = match kinds {
                (AxisKind::Spatial, AxisKind::Reduction) => (*a, *b),
                (AxisKind::Reduction, AxisKind::Spatial) => (*b, *a),
                _ => return None,
            };
            self.steps.iter().enumerate().find_map(|(skip, step)| match step {
                Step::Skip { axis, per, out: kept, .. }
                    if axis == out
                        && per.is_empty()
                        && self.order.contains(kept)
                        && !self.names_in_per(&[*out, *kept]) =>
                {
                    let inner = self.axis(*b).len;
                    Some(ThresholdJoin { join, skip, rows, columns, rows_first: rows == *a, inner })
                }
                _ => None,
            })
        })
    }
}

struct ThresholdJoin {
    join: usize,
    skip: usize,
    rows: AxisId,
    columns: AxisId,
    rows_first: bool,
    /// Length of the join's faster axis.
    inner: usize,
}

impl Format {
    /// Bytes of the packed weight at `element` bytes a value, index vectors included; `None` where a ragged skip lets
    /// the weights decide.
    pub fn bytes(&self, pattern: &Pattern, element: usize) -> Option<usize> {
        let indices = self.indices.iter().map(|level| {
            let entries = level.kept? * pattern.executed().regions(&level.per);
            Some((entries * level.bits as usize).div_ceil(8))
        });
        Some(self.slots? * element + indices.sum::<Option<usize>>()?)
    }
}

impl fmt::Display for Format {
    /// One line a loop and an index vector.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for l in &self.loops {
            let ragged = self.ragged.as_ref().is_some_and(|r| r.outer == l.axis);
            let at_most = if ragged { "<=" } else { "" };
            writeln!(f, "loop #{}: {at_most}{} x stride {}", l.axis.0, l.extent, l.stride)?;
        }
        for i in &self.indices {
            match i.kept {
                Some(kept) => writeln!(f, "index of step #{}: {kept} a region, {} bits", i.step, i.bits)?,
                None => writeln!(f, "index of step #{}: ragged, {} bits", i.step, i.bits)?,
            }
        }
        Ok(())
    }
}
