//! Reorder: the loops of a nest in any order reach the same elements.

use super::{Definition, Family, Match, Rule, list, rewrite, when};
use fractal_dsl::pattern::AxisKind;

/// Whether the loop `a` belongs inside the loop `b`: kernels have rows outside columns and coarse loops outside fine ones.
pub(super) fn belongs_inside(m: &Match<'_>, a: &str, b: &str) -> Option<bool> {
    let rank = |kind| match kind {
        AxisKind::Spatial => 0,
        AxisKind::Mixed => 1,
        AxisKind::Reduction => 2,
    };
    let (a, b) = (m.axis(a)?, m.axis(b)?);
    let key = |axis: &crate::egraph::analysis::AxisData| (rank(axis.kind), std::cmp::Reverse(axis.scale));
    Some(key(a) > key(b))
}

/// The order of loops.
pub(super) const RULES: &[Definition] = &[
    // (nest k (outer n 8) (inner n 8)) -> (nest (outer n 8) k (inner n 8))
    Definition {
        rule: Rule {
            name: "reorder",
            family: Family::Reorder,
            before: "(nest … a b …)",
            after: "(nest … b a …)",
            condition: "a is of columns and b of rows, or a is the finer one of the same kind",
            reason: "which elements a nest reaches does not depend on the order, and sums may be taken in any; the \
                     condition only keeps the search from trying all orders",
        },
        rewrites: |name, most| {
            let mut rewrites = Vec::new();
            for len in 2..=most.nest {
                for at in 0..len - 1 {
                    let left = list("nest", len, &[(at, "?a"), (at + 1, "?b")]);
                    let right = list("nest", len, &[(at, "?b"), (at + 1, "?a")]);
                    let name = format!("{name}@{len}.{at}");
                    rewrites.push(rewrite(&name, &left, &right, |m| when(belongs_inside(m, "?a", "?b")?)));
                }
            }
            rewrites
        },
    },
];
