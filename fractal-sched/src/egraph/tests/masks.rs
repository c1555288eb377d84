//! Every mask that a small pattern admits, by trying every choice of every step on every element.

use fractal_dsl::pattern::{Keep, Pattern, Step};
use std::collections::{BTreeMap, BTreeSet};

/// Which selections of a skip there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// As many as there are, in ascending order: what pruning makes.
    Full,
    /// No more than that, in ascending order.
    AtMost,
    /// No more than that, in any order: what a selection may hold.
    AnyOrder,
}

/// The masks as bits, element n * columns + k; `None` where there are too many choices to try.
pub(super) fn masks(pattern: &Pattern, mode: Mode, budget: usize) -> Option<BTreeSet<u64>> {
    let elements = pattern.n() * pattern.k();
    assert!(elements <= 64);
    let mut values = vec![vec![None; elements]; pattern.axes().len()];
    for element in 0..elements {
        values[0][element] = Some(element / pattern.k());
        values[1][element] = Some(element % pattern.k());
    }
    let alive = if elements == 64 { u64::MAX } else { (1 << elements) - 1 };
    let mut all = All { pattern, mode, budget, found: BTreeSet::new() };
    all.step(0, values, alive).then_some(all.found)
}

type Values = Vec<Vec<Option<usize>>>;

struct All<'p> {
    pattern: &'p Pattern,
    mode: Mode,
    budget: usize,
    found: BTreeSet<u64>,
}

impl All<'_> {
    /// Whether all choices from this step on could be tried.
    fn step(&mut self, number: usize, mut values: Values, alive: u64) -> bool {
        if self.budget == 0 {
            return false;
        }
        self.budget -= 1;
        let pattern = self.pattern;
        let Some(step) = pattern.steps().get(number) else {
            self.found.insert(alive);
            return true;
        };
        let elements = values[0].len();
        match step {
            Step::Split { axis, factor, outer, inner } => {
                for e in 0..elements {
                    values[outer.index()][e] = values[axis.index()][e].map(|v| v / factor);
                    values[inner.index()][e] = values[axis.index()][e].map(|v| v % factor);
                }
                self.step(number + 1, values, alive)
            }
            Step::Join { a, b, out } => {
                let len = pattern.axis(*b).len;
                for e in 0..elements {
                    let both = values[a.index()][e].zip(values[b.index()][e]);
                    values[out.index()][e] = both.map(|(a, b)| a * len + b);
                }
                self.step(number + 1, values, alive)
            }
            Step::Permute { axis, out } => {
                let len = pattern.axis(*axis).len;
                orders(&(0..len).collect::<Vec<_>>(), len).into_iter().all(|order| {
                    let mut values = values.clone();
                    for e in 0..elements {
                        values[out.index()][e] = values[axis.index()][e].map(|v| order[v]);
                    }
                    self.step(number + 1, values, alive)
                })
            }
            Step::Skip { axis, per, keep, out } => {
                let mut regions: BTreeMap<Vec<usize>, BTreeSet<usize>> = BTreeMap::new();
                let region = |e: usize| per.iter().map(|p| values[p.index()][e]).collect::<Option<Vec<usize>>>();
                for e in (0..elements).filter(|e| alive >> e & 1 == 1) {
                    let at = region(e).expect("an element that is alive has a value on every axis");
                    regions.entry(at).or_default().insert(values[axis.index()][e].expect("as above"));
                }
                let all: usize = regions.values().map(BTreeSet::len).sum();
                let (each, total) = match (pattern.kept_per_region(number), keep) {
                    (Some(count), _) => (count, usize::MAX),
                    (None, Keep::RaggedCount(count)) => (usize::MAX, (*count).min(all)),
                    (None, Keep::Ragged(ratio)) => (usize::MAX, ratio.of(all)),
                    _ => unreachable!("only ragged skips have no count"),
                };
                let regions: Vec<(Vec<usize>, Vec<usize>)> =
                    regions.into_iter().map(|(at, set)| (at, set.into_iter().collect())).collect();
                let mut choices: Vec<BTreeMap<Vec<usize>, Vec<usize>>> = vec![BTreeMap::new()];
                for (at, iterations) in &regions {
                    let lists = self.lists(iterations, each, total != usize::MAX);
                    choices = choices
                        .iter()
                        .flat_map(|chosen| {
                            lists.iter().map(|list| {
                                let mut chosen = chosen.clone();
                                chosen.insert(at.clone(), list.clone());
                                chosen
                            })
                        })
                        .filter(|chosen| chosen.values().map(Vec::len).sum::<usize>() <= total)
                        .collect();
                    if choices.len() > self.budget {
                        return false;
                    }
                }
                if total != usize::MAX && self.mode == Mode::Full {
                    choices.retain(|chosen| chosen.values().map(Vec::len).sum::<usize>() == total);
                }
                choices.into_iter().all(|chosen| {
                    let (mut values, mut left) = (values.clone(), alive);
                    for e in 0..elements {
                        let place = if alive >> e & 1 == 1 {
                            let value = values[axis.index()][e];
                            let list = per.iter().map(|p| values[p.index()][e]).collect::<Option<Vec<usize>>>();
                            list.and_then(|at| chosen[&at].iter().position(|&i| Some(i) == value))
                        } else {
                            None
                        };
                        values[out.index()][e] = place;
                        if place.is_none() {
                            left &= !(1 << e);
                        }
                    }
                    self.step(number + 1, values, left)
                })
            }
        }
    }

    /// What one region may keep.
    fn lists(&self, iterations: &[usize], each: usize, ragged: bool) -> Vec<Vec<usize>> {
        let most = each.min(iterations.len());
        let sizes = if self.mode == Mode::Full && !ragged { most..=most } else { 0..=most };
        match self.mode {
            Mode::AnyOrder => sizes.flat_map(|size| orders(iterations, size)).collect(),
            _ => {
                let subsets = 0u32..1 << iterations.len();
                let subset = |bits: u32| {
                    (0..iterations.len()).filter(move |i| bits >> i & 1 == 1).map(|i| iterations[i]).collect::<Vec<_>>()
                };
                subsets.filter(|bits| sizes.contains(&(bits.count_ones() as usize))).map(subset).collect()
            }
        }
    }
}

/// Every list of `size` different ones of `items`.
fn orders(items: &[usize], size: usize) -> Vec<Vec<usize>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, &first) in items.iter().enumerate() {
        let rest: Vec<usize> = items.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, &item)| item).collect();
        all.extend(orders(&rest, size - 1).into_iter().map(|list| [vec![first], list].concat()));
    }
    all
}

#[test]
fn small_sets_are_as_counted_by_hand() {
    use fractal_dsl::pattern::{AxisId, PatternBuilder};
    // 1 of 2 columns for each of 2 rows: 2 x 2 masks; with fewer allowed, 3 x 3.
    let mut b = PatternBuilder::new(2, 2).unwrap();
    b.skip(AxisId::K, &[AxisId::N], Keep::Count(1)).unwrap();
    let pattern = b.build();
    assert_eq!(masks(&pattern, Mode::Full, 1000).unwrap(), BTreeSet::from([0b0101, 0b0110, 0b1001, 0b1010]));
    assert_eq!(masks(&pattern, Mode::AtMost, 1000).unwrap().len(), 9);
    // 3 of 4 elements wherever they lie.
    let mut b = PatternBuilder::new(2, 2).unwrap();
    let all = b.join(AxisId::N, AxisId::K).unwrap();
    b.skip(all, &[], Keep::Count(3)).unwrap();
    assert_eq!(masks(&b.build(), Mode::Full, 1000).unwrap().len(), 4);
}
