//! How many masks a pattern admits.

use super::project::{choose, totals};
use super::walk::Walk;
use super::{Level, Pattern, Step};

impl Pattern {
    /// The natural logarithm of the number of masks this pattern admits (Fractal's mask diversity): over all skips, the
    /// sum of `ln C(len, kept)` of each region; for a ragged skip, `ln C(all iterations, kept)`.
    ///
    /// A permutation into groups of g counts the ways to divide its iterations into such groups, so that the result is
    /// an upper bound where two divisions lead to one mask. Tails count the iterations that they have.
    pub fn log_diversity(&self) -> f64 {
        let regular = self.axes.iter().all(|a| !a.tail && a.ragged.is_none());
        let mut walk = (!regular).then(|| (Walk::new(self), vec![1.0f32; self.n * self.k]));
        let mut sum = 0.0;
        for (number, step) in self.steps.iter().enumerate() {
            match step {
                Step::Skip { axis, per, keep, .. } => {
                    let len = self.axis(*axis).len;
                    let count = self.kept_per_region(number);
                    let Some((walk, scores)) = &mut walk else {
                        sum += self.regions(per) as f64 * ln_choose(len, count.unwrap_or(len));
                        continue;
                    };
                    let totals = totals(walk, self, number, per, *axis, scores);
                    let (kept, _) = choose(&totals, len, *keep, count);
                    let exist = |region: usize| totals[region * len..][..len].iter().filter(|t| t.is_finite()).count();
                    sum += match count {
                        Some(_) => (0..kept.regions()).map(|r| ln_choose(exist(r), kept.region(r).len())).sum(),
                        None => ln_choose(totals.iter().filter(|t| t.is_finite()).count(), kept.kept.len()),
                    };
                    walk.choose(number, &Level::Kept(kept));
                }
                Step::Permute { axis, out } => {
                    let len = self.axis(*axis).len;
                    let group = self.steps[number..].iter().find_map(|s| match s {
                        Step::Split { axis, factor, .. } if axis == out => Some(*factor),
                        _ => None,
                    });
                    let group = group.unwrap_or(len);
                    let (groups, rest) = (len / group, len % group);
                    sum += ln_factorial(len)
                        - groups as f64 * ln_factorial(group)
                        - ln_factorial(rest)
                        - ln_factorial(groups);
                    if let Some((walk, _)) = &mut walk {
                        walk.choose(number, &Level::Order((0..len as u32).collect()));
                    }
                }
                _ => {}
            }
        }
        sum
    }
}

fn ln_choose(all: usize, kept: usize) -> f64 {
    ln_factorial(all) - ln_factorial(kept) - ln_factorial(all - kept)
}

fn ln_factorial(n: usize) -> f64 {
    libm::lgamma(n as f64 + 1.0)
}
