//! Skips: two of one axis as one, one that drops nothing, one threshold over rows and columns.
//!
//! These change which choices there are, so each looks at the whole nest: what it takes away, nothing else may mention.

use super::{Definition, Family, Match, Rule, at_each, when};
use crate::egraph::analysis::{is_ragged, mentions};
use crate::egraph::lang::{KeepTerm, Lang};
use egg::Id;
use fractal_dsl::pattern::AxisKind;

const fn rule(
    name: &'static str,
    before: &'static str,
    after: &'static str,
    condition: &'static str,
    reason: &'static str,
) -> Rule {
    Rule { name, family: Family::Skip, before, after, condition, reason }
}

/// The class of `node` where it is there, as the left side of a match is.
pub(super) fn class(m: &Match<'_>, node: Lang) -> Option<Id> {
    m.graph.lookup(node)
}

/// Whether none of the other loops mentions `part`.
pub(super) fn free_of(m: &Match<'_>, rest: &[String], part: Id) -> bool {
    rest.iter().all(|loop_| !mentions(m.graph, m.id(loop_), part))
}

/// Two skips as one, skips of nothing, thresholds.
pub(super) const RULES: &[Definition] = &[
    // (nest (kept (kept k (per n) 64) (per n) 16) n) -> (nest (kept k (per n) 16) n)
    Definition {
        rule: rule(
            "skip-of-skip",
            "(nest … (kept (kept a p c) p d) …)",
            "(nest … (kept a p min(c, d)) …)",
            "no other loop mentions either skip; neither is ragged",
            "d of c of the iterations are any d of them",
        ),
        rewrites: |name, most| {
            let left = "(kept (kept ?a ?p ?c) ?p ?d)";
            at_each(name, "nest", most.nest, left, "(kept ?a ?p ?e)", |m, rest| {
                let (KeepTerm::Count(c), KeepTerm::Count(d)) = (m.keep("?c")?, m.keep("?d")?) else { return None };
                let first = class(m, Lang::Kept([m.id("?a"), m.id("?p"), m.id("?c")]))?;
                let second = class(m, Lang::Kept([first, m.id("?p"), m.id("?d")]))?;
                let free = free_of(m, rest, first) && free_of(m, rest, second);
                free.then(|| vec![("?e", Lang::Keep(KeepTerm::Count(c.min(d))))])
            })
        },
    },
    // (nest n (kept k (per n) 1024)) of 1024 columns -> (nest n k)
    Definition {
        rule: rule(
            "skip-of-nothing",
            "(nest … (kept a p c) …)",
            "(nest … a …)",
            "c is the length of a, and no other loop mentions the skip",
            "keeping every iteration drops none; a later skip could work on groups of kept positions, and a selection may \
             list them in any order",
        ),
        rewrites: |name, most| {
            at_each(name, "nest", most.nest, "(kept ?a ?p ?c)", "?a", |m, rest| {
                let KeepTerm::Count(count) = m.keep("?c")? else { return None };
                let skip = class(m, Lang::Kept([m.id("?a"), m.id("?p"), m.id("?c")]))?;
                when(count >= m.len("?a")? && free_of(m, rest, skip))
            })
        },
    },
    // (nest (kept (joined n k) (per) 4096)) -> (nest n (kept k (per n) (ragged 4096)))
    Definition {
        rule: rule(
            "threshold-of-join",
            "(nest … (kept (joined a b) (per) c) …)",
            "(nest … a (kept b (per a) (ragged c)) …)",
            "a is of rows and b of columns; no other loop mentions the skip; no other skip is ragged",
            "c of all units, wherever they lie, are c of them with each row its own count",
        ),
        rewrites: |name, most| {
            let (left, right) = ("(kept (joined ?a ?b) (per) ?c)", "?a (kept ?b (per ?a) ?d)");
            at_each(name, "nest", most.nest.saturating_sub(1), left, right, |m, rest| {
                let KeepTerm::Count(count) = m.keep("?c")? else { return None };
                let joined = class(m, Lang::Joined([m.id("?a"), m.id("?b")]))?;
                let skip = class(m, Lang::Kept([joined, class(m, Lang::Per(Box::default()))?, m.id("?c")]))?;
                let kinds = (m.axis("?a")?.kind, m.axis("?b")?.kind) == (AxisKind::Spatial, AxisKind::Reduction);
                let ragged = rest.iter().any(|loop_| is_ragged(m.graph, m.id(loop_)))
                    || is_ragged(m.graph, m.id("?a"))
                    || is_ragged(m.graph, m.id("?b"));
                let free = free_of(m, rest, skip) && free_of(m, rest, joined);
                (kinds && free && !ragged).then(|| vec![("?d", Lang::Keep(KeepTerm::RaggedCount(count)))])
            })
        },
    },
];
