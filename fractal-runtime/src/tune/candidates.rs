//! Sizes, scores and a goal -> the tilings that are worth measuring, in the order in which they are measured.

use super::estimate::Estimator;
use super::measure::{Inputs, cpu_time};
use super::space::{Tiling, fixed, tilings};
use super::tuner::{Event, Goal, Settings, TuneError, Tuner};
use crate::error::Error;
use crate::gemm::Gemm;
use crate::prune::{Magnitude, prune};
use crate::tensor::Tensor;
use fractal_dsl::pattern::Pattern;
use fractal_sched::egraph::Facts;
use rayon::prelude::*;
use std::collections::HashSet;
use std::time::Instant;

/// A candidate before it is pruned.
pub(super) struct Candidate {
    pub tiling: Tiling,
    pub fixed: bool,
    /// It is measured whatever was found before.
    pub must: bool,
    retained: f64,
    /// By the cost model of a GPU, microseconds; else a measure of work.
    pub expected: f64,
}

impl Tuner {
    /// What is worth measuring, the fixed patterns first, then best first; and how many tilings there were.
    pub(super) fn candidates(
        &self,
        (gemm, scores, m): (&Gemm, &[f32], usize),
        goal: Goal,
        settings: &Settings,
        begin: Instant,
        listen: &mut dyn FnMut(Event<'_>) -> bool,
    ) -> Result<(Vec<Candidate>, usize), TuneError> {
        let (n, k) = (gemm.pattern().n(), gemm.pattern().k());
        let estimator = Estimator::new(scores, n, k);
        let model = self.gpu.as_ref().map(|(_, model)| model);
        let one = |(tiling, fixed): &(Tiling, bool)| {
            let retained = estimator.retained(tiling).ok()?;
            let pattern = tiling.pattern(n, k).ok()?;
            let expected = match model {
                Some(model) => model.least(&gemm.clone().with_pattern(pattern), m),
                None => cpu_cost(&pattern, m),
            };
            Some(Candidate { tiling: tiling.clone(), fixed: *fixed, must: false, retained, expected })
        };
        // Without a cost model, expectations are no times.
        let scale =
            if model.is_none() && matches!(goal, Goal::Microseconds(_)) { self.cpu_scale(gemm, m)? } else { 1.0 };
        let wanted = |c: &Candidate| match goal {
            Goal::Sparsity(_) => true,
            Goal::Retained(floor) => c.retained >= floor - 0.004,
            Goal::Microseconds(most) => scale * c.expected <= 1.5 * most,
        };
        let (mut candidates, mut count, mut scored): (Vec<Candidate>, usize, usize) = (Vec::new(), 0, 0);
        // Tilings that retain enough already: to keep more of them would be slower.
        let mut enough: HashSet<String> = HashSet::new();
        'all: for keep in goal.keeps() {
            let known = fixed(keep);
            // No pattern retains more than single elements.
            if matches!(goal, Goal::Retained(floor) if estimator.most(keep) < floor - 0.004) {
                continue;
            }
            let mut of_keep = settings.tilings.clone().unwrap_or_else(|| tilings(n, k, keep));
            of_keep.retain(|tiling| !enough.contains(&tiling.shape()));
            let of_keep: Vec<_> = of_keep.into_iter().map(|t| (t.clone(), known.contains(&t))).collect();
            count += of_keep.len();
            // In parts, so that the listener hears of it.
            for part in of_keep.chunks(24) {
                let found: Vec<Candidate> = part.par_iter().filter_map(one).collect();
                scored += part.len();
                candidates.extend(found.into_iter().filter(wanted));
                // Measuring needs time, too.
                let late = begin.elapsed() > settings.time / 2 && !candidates.is_empty();
                if !listen(Event::Scored(scored, count)) || late {
                    break 'all;
                }
            }
            if matches!(goal, Goal::Retained(_)) {
                enough.extend(candidates.iter().map(|c| c.tiling.shape()));
            }
        }
        // Of one sparsity, every pattern of the literature is measured; of several, that would be all that is.
        let every_fixed = matches!(goal, Goal::Sparsity(_));
        // Estimates are that uncertain.
        let beaten = |a: &Candidate, b: &Candidate| b.retained > a.retained * 1.005 && b.expected < a.expected * 0.85;
        let dominated: Vec<bool> = candidates
            .par_iter()
            .map(|a| !(a.fixed && every_fixed) && candidates.iter().any(|b| beaten(a, b)))
            .collect();
        let mut at = dominated.iter();
        candidates.retain(|_| !at.next().copied().unwrap_or(false));
        match goal {
            Goal::Sparsity(_) => candidates = layers(candidates),
            Goal::Retained(_) => candidates.sort_by(|a, b| a.expected.total_cmp(&b.expected)),
            // Expectations are rough: some of all importances, ever closer.
            Goal::Microseconds(_) if model.is_none() => {
                candidates.sort_by(|a, b| b.retained.total_cmp(&a.retained));
                candidates = spread(candidates);
            }
            // What should be fast enough, the most important first; then what may be, the fastest first.
            Goal::Microseconds(most) => candidates.sort_by(|a, b| {
                let late = |c: &Candidate| if scale * c.expected <= most { 0.0 } else { c.expected };
                late(a).total_cmp(&late(b)).then(b.retained.total_cmp(&a.retained))
            }),
        }
        candidates.iter_mut().for_each(|c| c.must = c.fixed && every_fixed);
        Ok((candidates, count))
    }

    /// Microseconds a unit of [`cpu_cost`]: of the dense product.
    fn cpu_scale(&self, gemm: &Gemm, m: usize) -> Result<f64, TuneError> {
        let (n, k) = (gemm.pattern().n(), gemm.pattern().k());
        let ones = Tensor::from_f32(gemm.dtype(), n, k, &vec![1.0; n * k]).map_err(Error::from)?;
        let layer = self.device.compile(gemm)?.load(&prune(gemm.pattern(), &ones, &Magnitude)?)?;
        let time = cpu_time(gemm, &layer, &Inputs::random(gemm, m)?)?;
        Ok(time / cpu_cost(gemm.pattern(), m).max(1e-9))
    }
}

/// The fixed ones first, then layer by layer of what nothing of the layers before beats, in turns over the importance.
fn layers(candidates: Vec<Candidate>) -> Vec<Candidate> {
    let (mut ranked, mut rest): (Vec<Candidate>, Vec<Candidate>) = candidates.into_iter().partition(|c| c.fixed);
    while !rest.is_empty() {
        let better = |a: &Candidate, b: &Candidate| {
            b.retained >= a.retained && b.expected <= a.expected && (b.retained > a.retained || b.expected < a.expected)
        };
        let inner: Vec<bool> = rest.iter().map(|a| rest.iter().any(|b| better(a, b))).collect();
        let mut at = inner.iter();
        let (mut layer, others): (Vec<Candidate>, Vec<Candidate>) =
            rest.into_iter().partition(|_| !at.next().copied().unwrap_or(true));
        layer.sort_by(|a, b| b.retained.total_cmp(&a.retained));
        ranked.extend(layer);
        rest = others;
    }
    ranked
}

/// In an order in which any number from the beginning is spread over all: that of their reversed bits.
fn spread<T>(list: Vec<T>) -> Vec<T> {
    let bits = usize::BITS - list.len().leading_zeros();
    let mut places: Vec<(usize, T)> = list.into_iter().enumerate().collect();
    places.sort_by_key(|(at, _)| at.reverse_bits() >> (usize::BITS - bits.max(1)));
    places.into_iter().map(|(_, entry)| entry).collect()
}

/// Multiply-adds, since the CPU's own plan is made of the packed weight.
fn cpu_cost(pattern: &Pattern, m: usize) -> f64 {
    let facts = Facts::of(pattern);
    let tall = facts.dense.map_or(1.0, |tiles| (tiles.rows as f64 / 16.0).clamp(0.2, 1.0));
    facts.kept * m as f64 / tall / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_spread_over_all() {
        assert_eq!(spread((0..8).collect()), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(spread((0..5).collect()), [0, 4, 2, 1, 3]);
        assert_eq!(spread(Vec::<u8>::new()), [0u8; 0]);
    }
}
