//! Skip and split: a split passes a coarse skip where it does not cut through the skipped units.
//!
//! A skip of coarse units is `(joined (kept (outer k f) …) (inner k f))`: the kept columns, in units of f.
//!
//! Two of these rules forget one side of a join, which the other loop of the split still knows, and with it which elements
//! that side drops. A side of one iteration is known to no other loop, and where there are tails what is dropped of one side
//! decides how much there is of the other: there it must drop nothing.

use super::{Definition, Family, Match, Rule, rewrite, when};
use crate::egraph::lang::Lang;

const fn rule(
    name: &'static str,
    before: &'static str,
    after: &'static str,
    condition: &'static str,
    reason: &'static str,
) -> Rule {
    Rule { name, family: Family::SkipSplit, before, after, condition, reason }
}

/// Whether a side of a join that is forgotten drops nothing, or decides the other loop of the split and not how much there
/// is of the side that stays.
fn known_elsewhere(m: &Match<'_>, side: &str, stays: &str) -> Option<bool> {
    let (side, stays) = (m.axis(side)?, m.axis(stays)?);
    Some(side.total || side.len > 1 && side.whole && stays.whole)
}

/// Splits of joined axes.
pub(super) const RULES: &[Definition] = &[
    // (outer (joined (kept (outer k 16) …) (inner k 16)) 4) -> (joined (kept (outer k 16) …) (outer (inner k 16) 4))
    Definition {
        rule: rule(
            "split-inside-units",
            "(outer (joined a b) g)",
            "(joined a (outer b g))",
            "g divides the length of b",
            "(a B + b) / g = a (B / g) + b / g where g divides B",
        ),
        rewrites: |name, _| {
            vec![rewrite(name, "(outer (joined ?a ?b) ?g)", "(joined ?a (outer ?b ?g))", |m| {
                when(m.len("?b")?.is_multiple_of(m.number("?g")?))
            })]
        },
    },
    // (outer (joined (kept (outer k 16) …) (inner k 16)) 32) -> (outer (kept (outer k 16) …) 2)
    Definition {
        rule: rule(
            "split-of-units",
            "(outer (joined a b) g)",
            "(outer a g/B)",
            "the length B of b divides g; b has no choice in it, or more than one iteration and neither side a tail",
            "(a B + b) / (B h) = a / h; the other loop of the split knows b",
        ),
        rewrites: |name, _| {
            vec![rewrite(name, "(outer (joined ?a ?b) ?g)", "(outer ?a ?h)", |m| {
                let (g, len) = (m.number("?g")?, m.len("?b")?);
                (g.is_multiple_of(len) && known_elsewhere(m, "?b", "?a")?).then(|| vec![("?h", Lang::Num(g / len))])
            })]
        },
    },
    // (inner (joined (kept (outer k 16) …) (inner k 16)) 4) -> (inner (inner k 16) 4)
    Definition {
        rule: rule(
            "rest-inside-units",
            "(inner (joined a b) g)",
            "(inner b g)",
            "g divides the length of b; a has no choice in it, or more than one iteration and neither side a tail",
            "(a B + b) mod g = b mod g where g divides B; the other loop of the split knows a",
        ),
        rewrites: |name, _| {
            vec![rewrite(name, "(inner (joined ?a ?b) ?g)", "(inner ?b ?g)", |m| {
                when(m.len("?b")?.is_multiple_of(m.number("?g")?) && known_elsewhere(m, "?a", "?b")?)
            })]
        },
    },
    // (inner (joined (kept (outer k 16) …) (inner k 16)) 32) -> (joined (inner (kept (outer k 16) …) 2) (inner k 16))
    Definition {
        rule: rule(
            "rest-of-units",
            "(inner (joined a b) g)",
            "(joined (inner a g/B) b)",
            "the length B of b divides g",
            "(a B + b) mod (B h) = (a mod h) B + b",
        ),
        rewrites: |name, _| {
            vec![rewrite(name, "(inner (joined ?a ?b) ?g)", "(joined (inner ?a ?h) ?b)", |m| {
                let (g, len) = (m.number("?g")?, m.len("?b")?);
                g.is_multiple_of(len).then(|| vec![("?h", Lang::Num(g / len))])
            })]
        },
    },
];
