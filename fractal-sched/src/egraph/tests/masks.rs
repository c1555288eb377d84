//! Every mask that a small pattern admits, by trying every choice of every step on every element.

use fractal_dsl::pattern::{Keep, Pattern, Step};
use std::collections::{BTreeMap, BTreeSet};

/// Which selections of a skip there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// In ascending order: what pruning makes.
    Ascending,
    /// In any order: what a selection may hold, so that positions fall into groups otherwise.
    AnyOrder,
}

/// The masks as bits, element n * columns + k; `None` where there are too many choices to try.
pub(super) fn masks(pattern: &Pattern, mode: Mode, budget: usize) -> Option<BTreeSet<u64>> {
    let elements = pattern.n() * pattern.k();
    assert!(elements <= 64);
    let mut values = vec![vec![None; elements]; pattern.axes().len()];
    values[0] = (0..elements).map(|element| Some(element / pattern.k())).collect();
    values[1] = (0..elements).map(|element| Some(element % pattern.k())).collect();
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
                values[outer.index()] = values[axis.index()].iter().map(|v| v.map(|v| v / factor)).collect();
                values[inner.index()] = values[axis.index()].iter().map(|v| v.map(|v| v % factor)).collect();
                self.step(number + 1, values, alive)
            }
            Step::Join { a, b, out } => {
                let len = pattern.axis(*b).len;
                let both = values[a.index()].iter().zip(&values[b.index()]);
                values[out.index()] = both.map(|(a, b)| a.zip(*b).map(|(a, b)| a * len + b)).collect();
                self.step(number + 1, values, alive)
            }
            Step::Permute { axis, out } => {
                let len = pattern.axis(*axis).len;
                orders(&(0..len).collect::<Vec<_>>(), len).into_iter().all(|order| {
                    let mut values = values.clone();
                    values[out.index()] = values[axis.index()].iter().map(|v| v.map(|v| order[v])).collect();
                    self.step(number + 1, values, alive)
                })
            }
            Step::Skip { axis, per, keep, out } => {
                let mut regions: BTreeMap<Vec<usize>, BTreeSet<usize>> = BTreeMap::new();
                let region = |e: usize| per.iter().map(|p| values[p.index()][e]).collect::<Option<Vec<usize>>>();
                // What the skip's own axes reach: which of two skips comes first, where neither is made of the other, does
                // not decide how many there are.
                let places: Vec<_> = (0..elements).map(|e| region(e).zip(values[axis.index()][e])).collect();
                for (at, value) in places.iter().flatten() {
                    regions.entry(at.clone()).or_default().insert(*value);
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
                    if iterations.len() > 6 && self.mode == Mode::AnyOrder {
                        return false;
                    }
                    let lists = self.lists(iterations, each, total != usize::MAX);
                    if choices.len() * lists.len() > self.budget {
                        return false;
                    }
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
                }
                if total != usize::MAX {
                    choices.retain(|chosen| chosen.values().map(Vec::len).sum::<usize>() == total);
                }
                choices.into_iter().all(|chosen| {
                    let place = |(at, value): &(Vec<usize>, usize)| chosen[at].iter().position(|i| i == value);
                    let mut values = values.clone();
                    values[out.index()] = places.iter().map(|at| at.as_ref().and_then(place)).collect();
                    let kept = values[out.index()].iter().enumerate().filter(|(_, v)| v.is_some());
                    let left = alive & kept.map(|(e, _)| 1 << e).sum::<u64>();
                    self.step(number + 1, values, left)
                })
            }
        }
    }

    /// What one region may keep.
    fn lists(&self, iterations: &[usize], each: usize, ragged: bool) -> Vec<Vec<usize>> {
        let most = each.min(iterations.len());
        let sizes = if !ragged { most..=most } else { 0..=most };
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
    // 1 of 2 columns for each of 2 rows: 2 x 2 masks.
    let mut b = PatternBuilder::new(2, 2).unwrap();
    b.skip(AxisId::K, &[AxisId::N], Keep::Count(1)).unwrap();
    let pattern = b.build();
    assert_eq!(masks(&pattern, Mode::Ascending, 1000).unwrap(), BTreeSet::from([0b0101, 0b0110, 0b1001, 0b1010]));
    assert_eq!(masks(&pattern, Mode::AnyOrder, 1000).unwrap().len(), 4);
    // 3 of 4 elements wherever they lie.
    let mut b = PatternBuilder::new(2, 2).unwrap();
    let all = b.join(AxisId::N, AxisId::K).unwrap();
    b.skip(all, &[], Keep::Count(3)).unwrap();
    assert_eq!(masks(&b.build(), Mode::Ascending, 1000).unwrap().len(), 4);
    // All of 4 columns, and then 1 of each 2 positions: in another order, other columns share a group.
    let mut b = PatternBuilder::new(1, 4).unwrap();
    let all = b.skip(AxisId::K, &[], Keep::Count(4)).unwrap();
    let (group, within) = b.split(all, 2).unwrap();
    b.skip(within, &[group], Keep::Count(1)).unwrap();
    let pattern = b.build();
    assert_eq!(masks(&pattern, Mode::Ascending, 1000).unwrap().len(), 4);
    assert_eq!(masks(&pattern, Mode::AnyOrder, 1000).unwrap().len(), 6);
}
