//! Epilogue: what follows the multiplication, in the kernel or behind it.

use super::{Definition, Family, Rule, closing};
use crate::egraph::schedule::Choice;

const fn rule(name: &'static str, after: &'static str, condition: &'static str, reason: &'static str) -> Rule {
    Rule { name, family: Family::Epilogue, before: "(run p (turn:t s))", after, condition, reason }
}

/// What follows the multiplication.
pub(super) const RULES: &[Definition] = &[
    // (run p (turn:false s)) -> (run p (fuse:true (turn:false s)))
    Definition {
        rule: rule(
            "epilogue-fused",
            "(run p (fuse:true …))",
            "always; whether registers suffice shows when the kernel is closed",
            "each sum is finished where it is",
        ),
        rewrites: |name, _| vec![closing(name, Choice::Fuse(true), |_, _, _| true)],
    },
    // (run p (turn:false s)) -> (run p (fuse:false (turn:false s))) of a program with an epilogue
    Definition {
        rule: rule(
            "epilogue-apart",
            "(run p (fuse:false …))",
            "there is an epilogue, and the target has kernels for it alone",
            "the epilogue works on one sum at a time, so that it can wait for all of them",
        ),
        rewrites: |name, _| {
            vec![closing(name, Choice::Fuse(false), |context, _, _| {
                context.target.apart && !context.epilogue.is_empty()
            })]
        },
    },
];
