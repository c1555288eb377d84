//! Regions of a skip: what matters is which elements share one, not how the regions are numbered.

use super::reorder::belongs_inside;
use super::{Definition, Family, Rule, at_each, at_pairs, list, rewrite, when};

const fn rule(
    name: &'static str,
    before: &'static str,
    after: &'static str,
    condition: &'static str,
    reason: &'static str,
) -> Rule {
    Rule { name, family: Family::Regions, before, after, condition, reason }
}

/// How the regions of a skip are written.
pub(super) const RULES: &[Definition] = &[
    // (per k (outer n 8)) -> (per (outer n 8) k)
    Definition {
        rule: rule(
            "regions-in-order",
            "(per … a b …)",
            "(per … b a …)",
            "a is of columns and b of rows, or a is the finer one of the same kind",
            "the order of the axes only numbers the regions",
        ),
        rewrites: |name, most| {
            let mut rewrites = Vec::new();
            for len in 2..=most.per {
                for at in 0..len - 1 {
                    let left = list("per", len, &[(at, "?a"), (at + 1, "?b")]);
                    let right = list("per", len, &[(at, "?b"), (at + 1, "?a")]);
                    let name = format!("{name}@{len}.{at}");
                    rewrites.push(rewrite(&name, &left, &right, |m| when(belongs_inside(m, "?a", "?b")?)));
                }
            }
            rewrites
        },
    },
    // (per (outer n 8) (inner n 8)) -> (per n)
    Definition {
        rule: rule(
            "regions-of-split",
            "(per … (outer a f) … (inner a f) …)",
            "(per … a …)",
            "always",
            "(v / f, v mod f) and v tell each other",
        ),
        rewrites: |name, most| {
            at_pairs(name, "per", most.per, ("(outer ?a ?f)", "(inner ?a ?f)"), "?a", |_, _| when(true))
        },
    },
    // (per (outer n 32) (outer (inner n 32) 8)) -> (per (outer n 8))
    Definition {
        rule: rule(
            "regions-of-split-of-split",
            "(per … (outer a h) … (outer (inner a h) f) …)",
            "(per … (outer a f) …)",
            "f divides h",
            "(v / h, (v mod h) / f) and v / f tell each other where f divides h",
        ),
        rewrites: |name, most| {
            let left = ("(outer ?a ?h)", "(outer (inner ?a ?h) ?f)");
            at_pairs(name, "per", most.per, left, "(outer ?a ?f)", |m, _| {
                when(m.number("?h")?.is_multiple_of(m.number("?f")?))
            })
        },
    },
    // (per (joined n (outer k 4))) -> (per n (outer k 4))
    Definition {
        rule: rule(
            "regions-of-join",
            "(per … (joined a b) …)",
            "(per … a b …)",
            "always",
            "a B + b and (a, b) tell each other",
        ),
        rewrites: |name, most| {
            at_each(name, "per", most.per.saturating_sub(1), "(joined ?a ?b)", "?a ?b", |_, _| when(true))
        },
    },
    // (per (outer n 128) (outer k 4)) of at most 128 rows -> (per (outer k 4))
    Definition {
        rule: rule(
            "regions-of-one",
            "(per … a …)",
            "(per … …)",
            "a has one iteration and no choice in it",
            "an axis of one value tells no regions apart",
        ),
        rewrites: |name, most| {
            at_each(name, "per", most.per, "?a", "", |m, _| when(m.len("?a")? == 1 && m.axis("?a")?.total))
        },
    },
];
