//! Condense in or out: kept rows of X in a dense tile, row by row or in boxes; or no tile at all.

use super::{Definition, Family, Rule, closing};
use crate::egraph::schedule::Choice;

const fn rule(
    name: &'static str,
    before: &'static str,
    after: &'static str,
    condition: &'static str,
    reason: &'static str,
) -> Rule {
    Rule { name, family: Family::Condense, before, after, condition, reason }
}

/// Gathering rows of X into tiles.
pub(super) const RULES: &[Definition] = &[
    // (run p open) -> (run p (condense:1 open))
    Definition {
        rule: rule(
            "condense-rows",
            "(run p open)",
            "(run p (condense:1 open))",
            "the pattern is legal on GPUs",
            "rows that keep the same columns multiply one dense tile of the kept rows of X",
        ),
        rewrites: |name, _| {
            vec![closing(name, Choice::Condense(1), |_, facts, _| facts.dense.is_some() || facts.sparse.is_some())]
        },
    },
    // (run p open) -> (run p (condense:64 open)) of bw:128x64
    Definition {
        rule: rule(
            "condense-boxes",
            "(run p open)",
            "(run p (condense:r open)), r of 8, 16, 32, 64",
            "kept columns follow one another in groups of r, from a multiple of r on",
            "a group of rows that follow one another is one box of X",
        ),
        rewrites: |name, _| {
            let boxes = [8, 16, 32, 64].into_iter();
            boxes
                .map(|run| {
                    closing(name, Choice::Condense(run), move |_, facts, _| {
                        let tiles = [facts.dense, facts.sparse];
                        let follow = |found: usize| found.is_multiple_of(run) || found == facts.k;
                        tiles.iter().flatten().any(|t| follow(t.column_run))
                    })
                })
                .collect()
        },
    },
    // (run p open) -> (run p (scalar open))
    Definition {
        rule: rule(
            "element-by-element",
            "(run p open)",
            "(run p (scalar open))",
            "the target runs patterns so",
            "each kept weight multiplies its row of X, in the order of the nest",
        ),
        rewrites: |name, _| vec![closing(name, Choice::Scalar, |context, _, _| context.target.scalar)],
    },
];
