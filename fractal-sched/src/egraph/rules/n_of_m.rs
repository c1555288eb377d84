//! N of M: a skip inside the groups of a split.

use super::{Definition, Family, Rule, rewrite, when};

/// Groups of a split.
pub(super) const RULES: &[Definition] = &[
    // (kept (inner k 1024) (per n) 256) of 1024 columns -> (kept k (per n) 256)
    Definition {
        rule: Rule {
            name: "group-of-all",
            family: Family::NOfM,
            before: "(inner a f)",
            after: "a",
            condition: "f is at least the length of a",
            reason: "one group of all columns: N of M is a plain skip",
        },
        rewrites: |name, _| vec![rewrite(name, "(inner ?a ?f)", "?a", |m| when(m.number("?f")? >= m.len("?a")?))],
    },
];
