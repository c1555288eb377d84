//! A coarser pattern whose masks contain those of a finer one.

use super::selection::choice_steps;
use super::{AxisId, Pattern, PatternBuilder, Selection, Step};

impl Pattern {
    /// This pattern, as it is executed, without its last (finest) skip: what one keeps when the finer zeros are stored.
    /// `None` where nothing is skipped, or where a permutation orders what is left.
    ///
    /// Before: `tvw:64`, 2 of 4 of the columns that tiles of 64 rows keep. After: `tw:64`, the columns split by 4.
    pub fn coarser(&self) -> Option<Pattern> {
        let executed = self.executed();
        let last = executed.steps.iter().rposition(|s| matches!(s, Step::Skip { .. }))?;
        if executed.steps[last..].iter().any(|s| matches!(s, Step::Permute { .. })) {
            return None;
        }
        executed.without(last)
    }

    /// This pattern without the skip at step `number`. `None` where what follows is not legal then.
    pub(crate) fn without(&self, number: usize) -> Option<Pattern> {
        let mut builder = PatternBuilder::new(self.n, self.k).ok()?;
        let mut ids: Vec<AxisId> = (0..self.axes.len() as u32).map(AxisId).collect();
        for (at, step) in self.steps.iter().enumerate() {
            let new = |a: &AxisId| ids[a.index()];
            match step {
                Step::Split { axis, factor, outer, inner } => {
                    let (o, i) = builder.split(new(axis), *factor).ok()?;
                    ids[outer.index()] = o;
                    ids[inner.index()] = i;
                }
                Step::Join { a, b, out } => ids[out.index()] = builder.join(new(a), new(b)).ok()?,
                Step::Permute { axis, out } => ids[out.index()] = builder.permute(new(axis)).ok()?,
                Step::Skip { axis, out, .. } if at == number => ids[out.index()] = new(axis),
                Step::Skip { axis, per, keep, out } => {
                    let per: Vec<AxisId> = per.iter().map(new).collect();
                    ids[out.index()] = builder.skip(new(axis), &per, *keep).ok()?;
                }
            }
        }
        let order: Vec<AxisId> = self.order.iter().map(|a| ids[a.index()]).collect();
        builder.reorder(&order).ok()?;
        Some(builder.build())
    }

    /// A selection of [`Pattern::executed`] as one of [`Pattern::coarser`].
    pub fn coarser_selection(&self, executed: &Selection) -> Selection {
        let pattern = self.executed();
        let last = pattern.steps.iter().rposition(|s| matches!(s, Step::Skip { .. }));
        let levels = choice_steps(&pattern).zip(&executed.levels).filter(|(step, _)| Some(*step) != last);
        Selection { levels: levels.map(|(_, level)| level.clone()).collect() }
    }
}
