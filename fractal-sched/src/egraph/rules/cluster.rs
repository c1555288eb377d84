//! Clusters: blocks that share the steps of a tile, or its weights.

use super::{Definition, Family, Rule, closing};
use crate::egraph::schedule::Choice;
use fractal_dsl::Intrinsic;

const fn rule(name: &'static str, after: &'static str, condition: &'static str, reason: &'static str) -> Rule {
    Rule { name, family: Family::Cluster, before: "(run p (fuse:f s))", after, condition, reason }
}

/// Blocks that share.
pub(super) const RULES: &[Definition] = &[
    // (run p (fuse:true s)) -> (run p (cluster:1x1 (fuse:true s)))
    Definition {
        rule: rule("block-alone", "(run p (cluster:1x1 …))", "always", "a block has its tile for itself"),
        rewrites: |name, _| vec![closing(name, Choice::Cluster(1, 1), |_, _, _| true)],
    },
    // (run p (fuse:true s)) -> (run p (cluster:2x1 (fuse:true s)))
    Definition {
        rule: rule(
            "cluster-over-k",
            "(run p (cluster:sx1 …)), s of 2, 4",
            "wgmma or wgmma_sp, with as many steps",
            "a sum is the sum of its parts",
        ),
        rewrites: |name, _| {
            [2, 4]
                .map(|split| {
                    closing(name, Choice::Cluster(split, 1), move |context, facts, schedule| {
                        let intrinsic = schedule.request.intrinsic.filter(|i| i.is_arch_specific());
                        let tiles = intrinsic.and_then(|i| context.tiles(i, facts));
                        tiles.is_some_and(|t| t.columns.div_ceil(64) >= split)
                    })
                })
                .into()
        },
    },
    // (run p (fuse:true s)) -> (run p (cluster:1x2 (fuse:true s)))
    Definition {
        rule: rule(
            "cluster-over-m",
            "(run p (cluster:1x2 …))",
            "wgmma with 128 rows and 256 tokens",
            "tokens are summed independently, with the same weights",
        ),
        rewrites: |name, _| {
            vec![closing(name, Choice::Cluster(1, 2), |_, _, schedule| {
                let request = &schedule.request;
                (request.intrinsic, request.rows, request.tokens) == (Some(Intrinsic::Wgmma), Some(128), Some(256))
            })]
        },
    },
];
