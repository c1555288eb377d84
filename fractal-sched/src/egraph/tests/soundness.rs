//! Every rule alone, and all of them together: random programs keep their masks and their products.

use super::common::pattern_and_scores;
use super::masks::{Mode, masks};
use super::sample::{Numbers, nest, shortest};
use super::{more, product, saturate};
use crate::egraph::build::build;
use crate::egraph::{Family, Saturated, rules};
use fractal_dsl::pattern::{AxisId, AxisKind, Keep, Pattern, PatternBuilder, Ratio, Step};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use std::cell::Cell;

/// A small pattern made of what rules look for: splits of splits and their joins, skips of the same axis and of everything,
/// units of columns, permutations, axes of one iteration.
fn program(numbers: &mut Numbers) -> Pattern {
    let (n, k) = [(1, 6), (2, 4), (2, 6), (3, 3), (3, 5), (4, 2), (4, 4), (5, 2), (6, 2), (1, 8), (8, 1), (2, 8)]
        [numbers.below(12)];
    let mut b = PatternBuilder::new(n, k).unwrap();
    let mut split: Option<(AxisId, AxisId)> = None;
    let mut skip: Option<(AxisId, Vec<AxisId>)> = None;
    // What random primitives seldom meet.
    let base = [AxisId::N, AxisId::K][numbers.below(2)];
    let factor = |numbers: &mut Numbers| 1 + numbers.below(4);
    match numbers.below(10) {
        0 => {
            // Three axes as one.
            let (outer, inner) = b.split(base, factor(numbers)).unwrap();
            let other = if base == AxisId::N { AxisId::K } else { AxisId::N };
            let mut three = [outer, inner, other];
            three.rotate_left(numbers.below(3));
            let two = b.join(three[0], three[1]).unwrap();
            b.join(two, three[2]).unwrap();
        }
        1 => {
            // The slower two of a split into three, as one axis or as regions.
            let (outer, rest) = b.split(base, 2 * factor(numbers)).unwrap();
            let (middle, _) = b.split(rest, factor(numbers)).unwrap();
            if numbers.below(2) == 0 {
                b.join(outer, middle).unwrap();
            } else {
                let other = if base == AxisId::N { AxisId::K } else { AxisId::N };
                let keep = 1 + numbers.below(b.axis(other).unwrap().len);
                b.skip(other, &[middle, outer], Keep::Count(keep)).unwrap();
            }
        }
        2 | 3 => {
            // Regions in any order, some of them joined.
            let (group, within) = b.split(base, factor(numbers)).unwrap();
            let other = if base == AxisId::N { AxisId::K } else { AxisId::N };
            let (o, i) = b.split(other, factor(numbers)).unwrap();
            let per = match numbers.below(4) {
                0 => vec![b.join(o, group).unwrap(), i],
                1 => vec![group, i, o],
                2 => vec![i, o, group],
                _ => vec![o, group],
            };
            let keep = 1 + numbers.below(b.axis(within).unwrap().len);
            b.skip(within, &per, Keep::Count(keep)).unwrap();
        }
        4 | 5 => {
            // A permutation that is skipped, or that regions are named by.
            let other = if base == AxisId::N { AxisId::K } else { AxisId::N };
            if b.axis(base).unwrap().len <= 4 {
                let permuted = b.permute(base).unwrap();
                let (axis, per) = if numbers.below(2) == 0 { (permuted, vec![other]) } else { (other, vec![permuted]) };
                let keep = 1 + numbers.below(b.axis(axis).unwrap().len);
                b.skip(axis, &per[..numbers.below(2)], Keep::Count(keep)).ok();
            }
        }
        6 => {
            // One threshold over rows and columns.
            let (_, fast) = b.split(base, factor(numbers)).unwrap();
            let other = if base == AxisId::N { AxisId::K } else { AxisId::N };
            let both = if base == AxisId::N { b.join(fast, other) } else { b.join(other, fast) }.unwrap();
            let keep = 1 + numbers.below(b.axis(both).unwrap().len);
            b.skip(both, &[], Keep::Count(keep)).unwrap();
        }
        7 => {
            // Columns kept in units, often a single one, and split again inside, outside or across them.
            let (outer, inner) = b.split(base, factor(numbers)).unwrap();
            let other = if base == AxisId::N { AxisId::K } else { AxisId::N };
            let keep = (1 + numbers.below(3)).min(b.axis(outer).unwrap().len);
            let kept = b.skip(outer, &[other][..numbers.below(2)], Keep::Count(keep)).unwrap();
            let units = b.join(kept, inner).unwrap();
            let (_, within) = b.split(units, factor(numbers)).unwrap();
            let keep = 1 + numbers.below(b.axis(within).unwrap().len);
            b.skip(within, &[other][..numbers.below(2)], Keep::Count(keep)).unwrap();
        }
        _ => {}
    }
    for _ in 0..numbers.below(6) {
        let order = b.order().to_vec();
        let axis = order[numbers.below(order.len())];
        let len = b.axis(axis).unwrap().len;
        let others = |numbers: &mut Numbers, axis: AxisId| -> Vec<AxisId> {
            order.iter().copied().filter(|&a| a != axis && numbers.below(2) == 0).collect()
        };
        let keep = |numbers: &mut Numbers, len: usize| match numbers.below(6) {
            0 | 1 => Keep::Count(len),
            2 => Keep::Ragged(Ratio::new(0.5).unwrap()),
            _ => Keep::Count(1 + numbers.below(len)),
        };
        match numbers.below(10) {
            0..=2 => split = b.split(axis, [1, 2, 2, 3, 4, len][numbers.below(6)]).ok().or(split),
            3 => {
                // What a split made, or its skipped outer loop with the rest of the units.
                if let Some((outer, inner)) = split.take() {
                    let outer =
                        skip.as_ref().map_or(outer, |(kept, _)| if order.contains(&outer) { outer } else { *kept });
                    let _ = b.join(outer, inner);
                }
            }
            4 => {
                let other = order[numbers.below(order.len())];
                let _ = b.join(axis, other);
            }
            5 | 6 => {
                let (axis, len) = match split {
                    Some((outer, inner)) if numbers.below(2) == 0 => {
                        let axis = if numbers.below(2) == 0 { outer } else { inner };
                        (axis, b.axis(axis).unwrap().len)
                    }
                    _ => (axis, len),
                };
                let (per, keep) = (others(numbers, axis), keep(numbers, len));
                skip = b.skip(axis, &per, keep).ok().map(|kept| (kept, per)).or(skip);
            }
            7 => {
                if let Some((kept, per)) = skip.take() {
                    let len = b.axis(kept).unwrap().len;
                    let _ = b.skip(kept, &per, Keep::Count(1 + numbers.below(len)));
                }
            }
            8 => {
                // All orders of more are too many to try.
                if len <= 4 && !b.clone().build().steps().iter().any(|s| matches!(s, Step::Permute { .. })) {
                    let _ = b.permute(axis);
                }
            }
            _ => {
                let other = order[numbers.below(order.len())];
                let _ = b.reorder(&[axis, other]);
            }
        }
    }
    b.build()
}

/// Whether both admit the same masks; `None` where no mode could be tried to the end.
fn same_masks(a: &Pattern, b: &Pattern) -> Result<Option<()>, TestCaseError> {
    let mut tried = None;
    for (mode, budget) in [(Mode::Ascending, 5000), (Mode::AnyOrder, 5000)] {
        let (Some(left), Some(right)) = (masks(a, mode, budget), masks(b, mode, budget)) else { continue };
        tried = Some(());
        prop_assert!(
            left == right,
            "{mode:?}: {} masks became {}\n{:?}\n{:?}",
            left.len(),
            right.len(),
            a.steps(),
            b.steps()
        );
    }
    Ok(tried)
}

/// Compares random terms of the program's class with the program; returns how many others were compared.
fn compare(
    pattern: &Pattern,
    found: &Saturated,
    numbers: &mut Numbers,
    samples: usize,
) -> Result<usize, TestCaseError> {
    let mut others: Vec<Pattern> = Vec::new();
    let random = (0..samples).filter_map(|_| nest(found, numbers)).collect::<Vec<_>>();
    for loops in random.into_iter().chain(shortest(found)) {
        others.extend(build(&loops, pattern.n(), pattern.k()).filter(|p| p != pattern && !others.contains(p)));
    }
    let mut compared = 0;
    for other in &others {
        compared += usize::from(same_masks(pattern, other)?.is_some());
    }
    Ok(compared)
}

/// One rule alone on random programs: enough of them use it, and all keep their masks.
fn holds(rule: &'static str) {
    let (fired, compared) = (Cell::new(0), Cell::new(0));
    let config = ProptestConfig { cases: 600 * more(), failure_persistence: None, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&any::<u64>(), |seed| {
        let mut numbers = Numbers(seed);
        let pattern = program(&mut numbers);
        let found = saturate(&pattern, Some(&[rule]));
        if found.applied.contains_key(rule) {
            fired.set(fired.get() + 1);
            compared.set(compared.get() + compare(&pattern, &found, &mut numbers, 6)?);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("{rule}: {e}"));
    println!("{rule}: {} programs, {} other patterns", fired.get(), compared.get());
    assert!(fired.get() >= 5, "{rule}: only {} programs use it", fired.get());
}

macro_rules! rules_hold {
    ($($test:ident: $rule:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            holds($rule);
        })*

        #[test]
        fn every_rule_of_patterns_has_its_test() {
            let tested = [$($rule),*];
            let missing: Vec<&str> = rules().iter()
                .filter(|rule| rule.family < Family::Condense && !tested.contains(&rule.name))
                .map(|rule| rule.name)
                .collect();
            assert!(missing.is_empty(), "{missing:?}");
        }
    };
}

rules_hold! {
    outer_of_outer: "outer-of-outer",
    inner_of_outer: "inner-of-outer",
    inner_of_inner: "inner-of-inner",
    join_of_split: "join-of-split",
    join_of_split_of_split: "join-of-split-of-split",
    join_associates: "join-associates",
    outer_of_one: "outer-of-one",
    join_with_one_before: "join-with-one-before",
    join_with_one_behind: "join-with-one-behind",
    loops_of_split: "loops-of-split",
    loops_of_split_of_split: "loops-of-split-of-split",
    loops_of_join: "loops-of-join",
    loop_of_one: "loop-of-one",
    reorder: "reorder",
    regions_in_order: "regions-in-order",
    regions_of_split: "regions-of-split",
    regions_of_split_of_split: "regions-of-split-of-split",
    regions_of_join: "regions-of-join",
    regions_of_one: "regions-of-one",
    split_inside_units: "split-inside-units",
    split_of_units: "split-of-units",
    rest_inside_units: "rest-inside-units",
    rest_of_units: "rest-of-units",
    skip_of_skip: "skip-of-skip",
    skip_of_nothing: "skip-of-nothing",
    threshold_of_join: "threshold-of-join",
    blocks_as_columns: "blocks-as-columns",
    group_of_all: "group-of-all",
    permuted_loop: "permuted-loop",
    skip_of_permuted: "skip-of-permuted",
    regions_of_permuted: "regions-of-permuted",
}

#[test]
fn all_rules_together_keep_all_masks() {
    let (compared, config) =
        (Cell::new(0), ProptestConfig { cases: 800 * more(), failure_persistence: None, ..ProptestConfig::default() });
    let outcome = TestRunner::new(config).run(&any::<u64>(), |seed| {
        let mut numbers = Numbers(seed);
        let pattern = program(&mut numbers);
        let found = saturate(&pattern, None);
        compared.set(compared.get() + compare(&pattern, &found, &mut numbers, 10)?);
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("{e}"));
    println!("{} other patterns", compared.get());
    assert!(compared.get() >= 1000, "only {} other patterns", compared.get());
}

#[test]
fn a_nest_builds_the_pattern_that_it_is_of() {
    let config = ProptestConfig { cases: 800 * more(), failure_persistence: None, ..ProptestConfig::default() };
    let (built, all) = (Cell::new(0), Cell::new(0));
    let outcome = TestRunner::new(config).run(&any::<u64>(), |seed| {
        let pattern = program(&mut Numbers(seed));
        all.set(all.get() + 1);
        if let Some(again) = build(&crate::egraph::term::nest_of(&pattern), pattern.n(), pattern.k()) {
            built.set(built.get() + 1);
            same_masks(&pattern, &again)?;
        }
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("{e}"));
    println!("{} of {}", built.get(), all.get());
    assert!(built.get() * 10 >= all.get() * 7, "{} of {}", built.get(), all.get());
}

/// Whether the way to a mask can always be found: no order was made by pruning, and no skip works on kept positions.
fn finds_every_mask(pattern: &Pattern) -> bool {
    let mut compacted = vec![false; pattern.axes().len()];
    pattern.steps().iter().all(|step| match step {
        Step::Permute { .. } => false,
        Step::Split { axis, outer, inner, .. } => {
            compacted[outer.index()] = compacted[axis.index()];
            compacted[inner.index()] = compacted[axis.index()];
            true
        }
        Step::Join { a, b, out } => {
            compacted[out.index()] = compacted[a.index()] || compacted[b.index()];
            true
        }
        Step::Skip { axis, per, out, .. } => {
            compacted[out.index()] = true;
            !compacted[axis.index()] && !per.iter().any(|p| compacted[p.index()])
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400 * more(), failure_persistence: None, ..ProptestConfig::default() })]

    /// Odd sizes, random masks, integers: every pattern that the search finds computes what the program computes.
    #[test]
    fn every_pattern_found_computes_the_same_product(
        (pattern, scores) in pattern_and_scores(), m in 0usize..6, seed in any::<u64>(),
    ) {
        let mask = pattern.mask(&pattern.project(&scores).unwrap()).unwrap();
        let mut found = saturate(&pattern, None);
        for other in found.patterns() {
            match product::check(&other, &mask, m, seed) {
                Ok(()) => {}
                // The program itself may not find its way back either.
                Err(_) if !finds_every_mask(&other) || pattern.admits(&mask).is_err() => {}
                Err(error) => prop_assert!(false, "{error}\n{:?}\n{:?}", pattern.steps(), other.steps()),
            }
        }
    }
}

#[test]
fn kinds_of_axes_survive() {
    // A guard of the generator: it makes every kind of loop.
    let mut kinds = [false; 3];
    for seed in 0..500 {
        for axis in program(&mut Numbers(seed * 7919)).axes() {
            kinds[match axis.kind {
                AxisKind::Spatial => 0,
                AxisKind::Reduction => 1,
                AxisKind::Mixed => 2,
            }] = true;
        }
    }
    assert_eq!(kinds, [true; 3]);
}
