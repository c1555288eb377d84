//! Operands: Y = W X with tokens contiguous, or Y' = X' W' between two transposes.

use super::{Definition, Family, Rule, closing};
use crate::egraph::schedule::Choice;
use fractal_dsl::Layout;

const fn rule(name: &'static str, after: &'static str, condition: &'static str, reason: &'static str) -> Rule {
    Rule { name, family: Family::Operands, before: "(run p (tile-k:c s))", after, condition, reason }
}

/// Y = W X as Y' = X' W'.
pub(super) const RULES: &[Definition] = &[
    // (run p (tile-k:64 s)) -> (run p (turn:false (tile-k:64 s)))
    Definition {
        rule: rule(
            "operands-as-they-lie",
            "(run p (turn:false …))",
            "features first, or an instruction whose kernels store tokens first",
            "nothing is moved",
        ),
        rewrites: |name, _| {
            vec![closing(name, Choice::Turn(false), |context, _, schedule| {
                let hopper = schedule.request.intrinsic.is_some_and(|i| i.is_arch_specific());
                context.layout == Layout::FeatureMajor || !hopper
            })]
        },
    },
    // (run p (tile-k:64 s)) -> (run p (turn:true (tile-k:64 s))) of token-major operands
    Definition {
        rule: rule(
            "operands-turned",
            "(run p (turn:true …))",
            "operands lie tokens first",
            "(X' W')' = W X: operands are turned before and after",
        ),
        rewrites: |name, _| {
            vec![closing(name, Choice::Turn(true), |context, _, _| context.layout == Layout::TokenMajor)]
        },
    },
];
