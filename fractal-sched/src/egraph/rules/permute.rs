//! Permutations: an order that pruning finds matters only to what is grouped or skipped in it.
//!
//! `(permuted a) = a` is no equality of axes: a split of a permuted axis makes other groups. Only a whole nest can tell
//! that nothing depends on the order.

use super::skip::{class, free_of};
use super::{Definition, Family, Rule, at_each, when};
use crate::egraph::analysis::mentions;
use crate::egraph::lang::Lang;

const fn rule(
    name: &'static str,
    before: &'static str,
    after: &'static str,
    condition: &'static str,
    reason: &'static str,
) -> Rule {
    Rule { name, family: Family::Permute, before, after, condition, reason }
}

/// Orders that nothing depends on.
pub(super) const RULES: &[Definition] = &[
    // (nest (permuted n) (kept k (per) 16)) -> (nest n (kept k (per) 16))
    Definition {
        rule: rule(
            "permuted-loop",
            "(nest … (permuted a) …)",
            "(nest … a …)",
            "no other loop mentions the permutation",
            "a loop in any order does the same; gathers on read and scatters on write fall away",
        ),
        rewrites: |name, most| {
            at_each(name, "nest", most.nest, "(permuted ?a)", "?a", |m, rest| {
                let permuted = class(m, Lang::Permuted([m.id("?a")]))?;
                when(free_of(m, rest, permuted))
            })
        },
    },
    // (nest n (kept (permuted k) (per n) 16)) -> (nest n (kept k (per n) 16))
    Definition {
        rule: rule(
            "skip-of-permuted",
            "(nest … (kept (permuted a) p c) …)",
            "(nest … (kept a p c) …)",
            "no other loop and no region mentions the permutation or the skip",
            "c of the iterations in any order are any c of them",
        ),
        rewrites: |name, most| {
            at_each(name, "nest", most.nest, "(kept (permuted ?a) ?p ?c)", "(kept ?a ?p ?c)", |m, rest| {
                let permuted = class(m, Lang::Permuted([m.id("?a")]))?;
                let skip = class(m, Lang::Kept([permuted, m.id("?p"), m.id("?c")]))?;
                let regions = mentions(m.graph, m.id("?p"), permuted);
                when(!regions && free_of(m, rest, permuted) && free_of(m, rest, skip))
            })
        },
    },
    // (per (permuted n)) -> (per n)
    Definition {
        rule: rule(
            "regions-of-permuted",
            "(per … (permuted a) …)",
            "(per … a …)",
            "always",
            "an order of single iterations only numbers the regions",
        ),
        rewrites: |name, most| at_each(name, "per", most.per, "(permuted ?a)", "?a", |_, _| when(true)),
    },
];
