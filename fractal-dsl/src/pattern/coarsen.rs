//! A coarser pattern whose masks contain those of a finer one.

use super::selection::choice_steps;
use super::{AxisId, Keep, Pattern, PatternBuilder, Ratio, Selection, Step};

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
        self.rebuilt(|at, _, keep| (at != number).then_some(keep))
    }

    /// A selection of [`Pattern::executed`] as one of [`Pattern::coarser`].
    pub fn coarser_selection(&self, executed: &Selection) -> Selection {
        let pattern = self.executed();
        let last = pattern.steps.iter().rposition(|s| matches!(s, Step::Skip { .. }));
        let levels = choice_steps(&pattern).zip(&executed.levels).filter(|(step, _)| Some(*step) != last);
        Selection { levels: levels.map(|(_, level)| level.clone()).collect() }
    }

    /// Where pruning has gone a part of the way, above 0 to 1, to this pattern: a skip that keeps the part f of its loop in the end keeps
    /// f^part of it now, rounded up to whole iterations. `None` where rounding leaves no such pattern.
    ///
    /// Before: `tw:64` of 6.25 %, at 0.5. After: `tw:64` of 25 %.
    pub fn at_stage(&self, part: f64) -> Option<Pattern> {
        if part >= 1.0 {
            return Some(self.clone());
        }
        self.rebuilt(|number, len, keep| {
            let Step::Skip { axis, .. } = &self.steps[number] else { unreachable!("only skips keep") };
            let old = self.axis(*axis).len;
            let count = |kept: usize| {
                let now = (len as f64 * (kept as f64 / old as f64).powf(part)).ceil() as usize;
                Keep::Count(now.clamp(1, len))
            };
            let ratio = |ratio: Ratio| Ratio::new(ratio.fraction().powf(part)).unwrap_or(Ratio::ALL);
            Some(match keep {
                Keep::Count(kept) | Keep::Of { kept, .. } => count(kept),
                Keep::Ratio(r) => count(r.of(old)),
                Keep::Ragged(r) => Keep::Ragged(ratio(r)),
                Keep::RaggedCount(kept) => {
                    let Step::Skip { per, .. } = &self.steps[number] else { unreachable!("only skips keep") };
                    let all = self.regions(per) * old;
                    Keep::Ragged(ratio(Ratio::new(kept as f64 / all as f64).unwrap_or(Ratio::ALL)))
                }
            })
        })
    }

    /// The same steps with other keeps: `keep` gets a skip's step, the length of its loop in the new pattern and what it keeps; a skip
    /// for which there is none is left out.
    fn rebuilt(&self, keep: impl Fn(usize, usize, Keep) -> Option<Keep>) -> Option<Pattern> {
        let mut builder = PatternBuilder::new(self.n, self.k).ok()?;
        let mut ids: Vec<AxisId> = (0..self.axes.len() as u32).map(AxisId).collect();
        for (number, step) in self.steps.iter().enumerate() {
            let new = |a: &AxisId| ids[a.index()];
            match step {
                Step::Split { axis, factor, outer, inner } => {
                    let (o, i) = builder.split(new(axis), *factor).ok()?;
                    ids[outer.index()] = o;
                    ids[inner.index()] = i;
                }
                Step::Join { a, b, out } => ids[out.index()] = builder.join(new(a), new(b)).ok()?,
                Step::Permute { axis, out } => ids[out.index()] = builder.permute(new(axis)).ok()?,
                Step::Skip { axis, per, keep: old, out } => {
                    let len = builder.axis(new(axis))?.len;
                    ids[out.index()] = match keep(number, len, *old) {
                        None => new(axis),
                        Some(keep) => {
                            let per: Vec<AxisId> = per.iter().map(new).collect();
                            builder.skip(new(axis), &per, keep).ok()?
                        }
                    };
                }
            }
        }
        let order: Vec<AxisId> = self.order.iter().map(|a| ids[a.index()]).collect();
        builder.reorder(&order).ok()?;
        Some(builder.build())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Named;

    #[test]
    fn stages_lead_from_dense_to_the_pattern() {
        let scores: Vec<f32> = (0..96 * 160).map(|at| (at * 7919 % 65_537) as f32).collect();
        let names = [
            "tw:16",
            "tw-global:16",
            "bw:16x8",
            "bw-global:16x8",
            "tw2:16",
            "tvw:16",
            "vnm:16",
            "ew",
            "hybrid:32x16/8x4",
        ];
        for name in names.into_iter().chain(["shfl-vw:16", "vw:16"]) {
            let pattern = name.parse::<Named>().unwrap().pattern(96, 160, 0.25).unwrap();
            let mut before = 1.0;
            for part in [0.25, 0.5, 0.75, 1.0] {
                let stage = pattern.at_stage(part).unwrap();
                let density = stage.mask(&stage.project(&scores).unwrap()).unwrap().density();
                let wanted = 0.25f64.powf(part);
                assert!(
                    density <= before && density > wanted - 0.02,
                    "{name} at {part} keeps {density}, before {before}"
                );
                before = density;
            }
            assert_eq!(pattern.at_stage(1.0).unwrap(), pattern);
        }
    }
}
