//! Stage: the weights of a tile come by stages, or stay in shared memory while tokens pass.

use super::{Definition, Family, Rule, closing};
use crate::codegen::KernelConfig;
use crate::egraph::schedule::Choice;

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
    // (run p (cluster:1x1 s)) -> (run p (resident:true (cluster:1x1 s))) of tiles of few columns
    Definition {
        rule: rule(
            "weights-resident",
            "(run p (resident:true …))",
            "a block alone, no stored zeros; 128 rows, 128 tokens, at most 8 steps in every tile, or 64, 256, 16",
            "weights are the same for all tokens",
        ),
        rewrites: |name, _| {
            vec![closing(name, Choice::Resident(true), |context, facts, schedule| {
                let request = &schedule.request;
                let (Some(intrinsic), Some(rows)) = (request.intrinsic.filter(|i| i.is_arch_specific()), request.rows)
                else {
                    return false;
                };
                let Some(tiles) = context.tiles(intrinsic, facts).filter(|_| !facts.ragged) else { return false };
                let alone = (request.split, request.share) == (Some(1), Some(1));
                let steps = tiles.columns.div_ceil(64);
                alone
                    && request.tokens == Some(KernelConfig::resident_tokens(rows))
                    && KernelConfig::resident_steps(rows, steps).is_some()
                    && !context.stores_zeros(intrinsic, rows, tiles)
            })]
        },
    },
];
