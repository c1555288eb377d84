//! Stage: the weights of a tile come by stages, or stay in shared memory while tokens pass.

use super::{Definition, Family, Rule, closing};
use crate::egraph::schedule::Choice;
use fractal_dsl::Intrinsic;

const fn rule(name: &'static str, after: &'static str, condition: &'static str, reason: &'static str) -> Rule {
    Rule { name, family: Family::Stage, before: "(run p (cluster:sxt s))", after, condition, reason }
}

/// Weights that stay.
pub(super) const RULES: &[Definition] = &[
    // (run p (cluster:1x1 s)) -> (run p (resident:false (cluster:1x1 s)))
    Definition {
        rule: rule("weights-by-stages", "(run p (resident:false …))", "always", "each step brings its weights"),
        rewrites: |name, _| vec![closing(name, Choice::Resident(false), |_, _, _| true)],
    },
    // (run p (cluster:1x1 s)) -> (run p (resident:true (cluster:1x1 s))) of tiles of at most 512 columns
    Definition {
        rule: rule(
            "weights-resident",
            "(run p (resident:true …))",
            "wgmma with 128 rows and 128 tokens, a block alone, no stored zeros, at most 8 steps in every tile",
            "weights are the same for all tokens",
        ),
        rewrites: |name, _| {
            vec![closing(name, Choice::Resident(true), |context, facts, schedule| {
                let request = &schedule.request;
                let tiles = facts.dense.filter(|t| !facts.ragged && t.columns.div_ceil(64) <= 8);
                let alone = (request.split, request.share) == (Some(1), Some(1));
                (request.intrinsic, request.rows, request.tokens) == (Some(Intrinsic::Wgmma), Some(128), Some(128))
                    && alone
                    && tiles.is_some_and(|t| !context.stores_zeros(Intrinsic::Wgmma, 128, &t))
            })]
        },
    },
];
