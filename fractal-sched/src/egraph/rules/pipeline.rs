//! Pipeline: how many steps are on their way at a time. The last choice: it closes the kernel.

use super::{Definition, Family, Rule, closing};
use crate::egraph::schedule::Choice;

/// Copies in flight.
pub(super) const RULES: &[Definition] = &[
    // (run p (resident:false s)) -> (run p (pipeline:4 (resident:false s)))
    Definition {
        rule: Rule {
            name: "pipeline",
            family: Family::Pipeline,
            before: "(run p (resident:b s))",
            after: "(run p (pipeline:d …)), d of 2 to 8",
            condition: "the kernel that is now closed passes `KernelConfig::check` and fits the target's shared memory",
            reason: "when a step was fetched does not change what it holds",
        },
        rewrites: |name, _| {
            let depths = 2..=8;
            depths
                .map(|depth| {
                    closing(name, Choice::Pipeline(depth), |context, facts, schedule| {
                        context.config(schedule, facts, None).is_ok()
                    })
                })
                .collect()
        },
    },
];
