//! Block-wise: blocks of columns are columns that are kept in units.

use super::{Definition, Family, Rule, at_pairs, when};

/// Blocks as coarse columns.
pub(super) const RULES: &[Definition] = &[
    // (nest (outer n 32) (kept (outer k 16) (per (outer n 32)) 8) (inner k 16) (inner n 32))
    // -> (nest (outer n 32) (joined (kept (outer k 16) (per (outer n 32)) 8) (inner k 16)) (inner n 32))
    Definition {
        rule: Rule {
            name: "blocks-as-columns",
            family: Family::BlockWise,
            before: "(nest … (kept (outer a f) p c) … (inner a f) …)",
            after: "(nest … (joined (kept (outer a f) p c) (inner a f)) …)",
            condition: "always",
            reason: "a block-wise pattern is a tile-wise one whose columns come f at a time",
        },
        rewrites: |name, most| {
            let left = ("(kept (outer ?a ?f) ?p ?c)", "(inner ?a ?f)");
            let right = "(joined (kept (outer ?a ?f) ?p ?c) (inner ?a ?f))";
            at_pairs(name, "nest", most.nest, left, right, |_, _| when(true))
        },
    },
];
