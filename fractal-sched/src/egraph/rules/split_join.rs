//! Split and join: one loop is the two that a split makes of it, whatever the factors.

use super::{Definition, Family, Rule, at_each, at_pairs, rewrite, when};
use crate::egraph::lang::Lang;

const fn rule(
    name: &'static str,
    before: &'static str,
    after: &'static str,
    condition: &'static str,
    reason: &'static str,
) -> Rule {
    Rule { name, family: Family::SplitJoin, before, after, condition, reason }
}

/// Splits of splits, joins of splits, and loops of one iteration.
pub(super) const RULES: &[Definition] = &[
    // (outer (outer n 8) 4) -> (outer n 32)
    Definition {
        rule: rule(
            "outer-of-outer",
            "(outer (outer a f) g)",
            "(outer a f*g)",
            "always",
            "dividing twice, rounding down, is dividing by the product",
        ),
        rewrites: |name, _| {
            vec![rewrite(name, "(outer (outer ?a ?f) ?g)", "(outer ?a ?h)", |m| {
                let factor = m.number("?f")?.saturating_mul(m.number("?g")?);
                Some(vec![("?h", Lang::Num(factor.min(m.len("?a")?.max(1))))])
            })]
        },
    },
    // (inner (outer n 8) 4) -> (outer (inner n 32) 8)
    Definition {
        rule: rule(
            "inner-of-outer",
            "(inner (outer a f) g)",
            "(outer (inner a f*g) f)",
            "always",
            "(v / f) mod g = (v mod f g) / f",
        ),
        rewrites: |name, _| {
            vec![rewrite(name, "(inner (outer ?a ?f) ?g)", "(outer (inner ?a ?h) ?f)", |m| {
                let factor = m.number("?f")?.saturating_mul(m.number("?g")?);
                Some(vec![("?h", Lang::Num(factor))])
            })]
        },
    },
    // (inner (inner n 32) 8) -> (inner n 8)
    Definition {
        rule: rule(
            "inner-of-inner",
            "(inner (inner a f) g)",
            "(inner a g)",
            "g divides f",
            "(v mod f) mod g = v mod g where g divides f",
        ),
        rewrites: |name, _| {
            vec![rewrite(name, "(inner (inner ?a ?f) ?g)", "(inner ?a ?g)", |m| {
                when(m.number("?f")?.is_multiple_of(m.number("?g")?))
            })]
        },
    },
    // (joined (outer n 8) (inner n 8)) -> n
    Definition {
        rule: rule(
            "join-of-split",
            "(joined (outer a f) (inner a f))",
            "a",
            "f divides the length of a",
            "(v / f) f + v mod f = v; a tail would leave the joined axis longer",
        ),
        rewrites: |name, _| {
            vec![rewrite(name, "(joined (outer ?a ?f) (inner ?a ?f))", "?a", |m| {
                when(m.len("?a")?.is_multiple_of(m.number("?f")?))
            })]
        },
    },
    // (joined (outer n 32) (outer (inner n 32) 8)) -> (outer n 8)
    Definition {
        rule: rule(
            "join-of-split-of-split",
            "(joined (outer a h) (outer (inner a h) f))",
            "(outer a f)",
            "f divides h, h divides the length of a",
            "the two slower parts of a split into three are the slower one of a split into two",
        ),
        rewrites: |name, _| {
            vec![rewrite(name, "(joined (outer ?a ?h) (outer (inner ?a ?h) ?f))", "(outer ?a ?f)", |m| {
                let (h, f) = (m.number("?h")?, m.number("?f")?);
                when(h.is_multiple_of(f) && m.len("?a")?.is_multiple_of(h))
            })]
        },
    },
    // (joined (joined a b) c) -> (joined a (joined b c))
    Definition {
        rule: rule(
            "join-associates",
            "(joined (joined a b) c)",
            "(joined a (joined b c))",
            "always",
            "((a B + b) C + c) = a B C + (b C + c)",
        ),
        rewrites: |name, _| {
            vec![rewrite(name, "(joined (joined ?a ?b) ?c)", "(joined ?a (joined ?b ?c))", |_| when(true))]
        },
    },
    // (outer n 1) -> n
    Definition {
        rule: rule("outer-of-one", "(outer a 1)", "a", "always", "v / 1 = v"),
        rewrites: |name, _| vec![rewrite(name, "(outer ?a 1)", "?a", |_| when(true))],
    },
    // (joined (outer n 128) k) -> k where n has at most 128 rows
    Definition {
        rule: rule(
            "join-with-one-before",
            "(joined a b)",
            "b",
            "a has one iteration and no choice in it",
            "0 B + b = b",
        ),
        rewrites: |name, _| {
            vec![rewrite(name, "(joined ?a ?b)", "?b", |m| when(m.len("?a")? == 1 && m.axis("?a")?.total))]
        },
    },
    // (joined k (outer n 128)) -> k where n has at most 128 rows
    Definition {
        rule: rule(
            "join-with-one-behind",
            "(joined a b)",
            "a",
            "b has one iteration and no choice in it",
            "a 1 + 0 = a",
        ),
        rewrites: |name, _| {
            vec![rewrite(name, "(joined ?a ?b)", "?a", |m| when(m.len("?b")? == 1 && m.axis("?b")?.total))]
        },
    },
    // (nest (outer n 8) (inner n 8) k) -> (nest n k)
    Definition {
        rule: rule(
            "loops-of-split",
            "(nest … (outer a f) … (inner a f) …)",
            "(nest … a …)",
            "always",
            "the two loops of a split reach what the loop reaches; a tail is masked",
        ),
        rewrites: |name, most| {
            at_pairs(name, "nest", most.nest, ("(outer ?a ?f)", "(inner ?a ?f)"), "?a", |_, _| when(true))
        },
    },
    // (nest (outer n 32) (outer (inner n 32) 8) (inner n 8) k) -> (nest (outer n 8) (inner n 8) k)
    Definition {
        rule: rule(
            "loops-of-split-of-split",
            "(nest … (outer a h) … (outer (inner a h) f) …)",
            "(nest … (outer a f) …)",
            "f divides h",
            "(v / h, (v mod h) / f) and v / f tell each other where f divides h",
        ),
        rewrites: |name, most| {
            let left = ("(outer ?a ?h)", "(outer (inner ?a ?h) ?f)");
            at_pairs(name, "nest", most.nest, left, "(outer ?a ?f)", |m, _| {
                when(m.number("?h")?.is_multiple_of(m.number("?f")?))
            })
        },
    },
    // (nest (joined (outer n 8) (inner n 8)) k) -> (nest (outer n 8) (inner n 8) k)
    Definition {
        rule: rule(
            "loops-of-join",
            "(nest … (joined a b) …)",
            "(nest … a b …)",
            "always",
            "a joined loop is its two loops, one inside the other",
        ),
        rewrites: |name, most| {
            // One loop more.
            at_each(name, "nest", most.nest.saturating_sub(1), "(joined ?a ?b)", "?a ?b", |_, _| when(true))
        },
    },
    // (nest (outer n 128) n k) of at most 128 rows -> (nest n k)
    Definition {
        rule: rule(
            "loop-of-one",
            "(nest … a …)",
            "(nest … …)",
            "a has one iteration and no choice in it, and is not the only loop",
            "a loop of one iteration that drops nothing does nothing",
        ),
        rewrites: |name, most| {
            at_each(name, "nest", most.nest, "?a", "", |m, rest| {
                when(!rest.is_empty() && m.len("?a")? == 1 && m.axis("?a")?.total)
            })
        },
    },
];
