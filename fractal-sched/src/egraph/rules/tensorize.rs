//! Tensorize: the instruction that multiplies.

use super::{Definition, Family, Rule, closing};
use crate::egraph::schedule::Choice;
use fractal_dsl::Intrinsic;

const fn rule(name: &'static str, after: &'static str, condition: &'static str, reason: &'static str) -> Rule {
    Rule { name, family: Family::Tensorize, before: "(run p (condense:r s))", after, condition, reason }
}

fn closings(name: &str, intrinsic: Intrinsic) -> super::Rewrites {
    vec![closing(name, Choice::Tensorize(intrinsic), move |context, facts, schedule| {
        // Only Hopper's kernels have the copy engine bring boxes.
        let run = schedule.request.run.unwrap_or(1);
        let tiles = context.tiles(intrinsic, facts);
        let boxes = |found: usize| found.is_multiple_of(run) || found == facts.k;
        let fits = tiles.is_some_and(|t| run == 1 || intrinsic.is_arch_specific() && boxes(t.column_run));
        fits && context.target.has(intrinsic) && intrinsic.dtypes().contains(&context.dtype)
    })]
}

/// The instruction.
pub(super) const RULES: &[Definition] = &[
    // (run p (condense:1 open)) -> (run p (tensorize:ffma (condense:1 open)))
    Definition {
        rule: rule(
            "tensorize-ffma",
            "(run p (tensorize:ffma …))",
            "row by row",
            "a tile of products is what CUDA cores sum",
        ),
        rewrites: |name, _| closings(name, Intrinsic::Ffma),
    },
    // (run p (condense:1 open)) -> (run p (tensorize:mma_sync (condense:1 open)))
    Definition {
        rule: rule(
            "tensorize-mma-sync",
            "(run p (tensorize:mma_sync …))",
            "row by row; f16 or bf16; sm_80 and later",
            "m16n8k16 sums 16 rows by 8 tokens by 16 kept columns",
        ),
        rewrites: |name, _| closings(name, Intrinsic::MmaSync),
    },
    // (run p (condense:1 open)) -> (run p (tensorize:mma_sp (condense:1 open))) of tvw:64
    Definition {
        rule: rule(
            "tensorize-mma-sp",
            "(run p (tensorize:mma_sp …))",
            "row by row; two of each four columns that 16 rows and more share; f16 or bf16; sm_80 and later",
            "m16n8k32 picks the two of four by their positions",
        ),
        rewrites: |name, _| closings(name, Intrinsic::MmaSp),
    },
    // (run p (condense:64 open)) -> (run p (tensorize:wgmma (condense:64 open)))
    Definition {
        rule: rule(
            "tensorize-wgmma",
            "(run p (tensorize:wgmma …))",
            "f16 or bf16; sm_90a",
            "m64nNk16 sums 64 rows by up to 256 tokens by 16 kept columns",
        ),
        rewrites: |name, _| closings(name, Intrinsic::Wgmma),
    },
    // (run p (condense:1 open)) -> (run p (tensorize:wgmma_sp (condense:1 open))) of tvw:64
    Definition {
        rule: rule(
            "tensorize-wgmma-sp",
            "(run p (tensorize:wgmma_sp …))",
            "two of each four columns that 16 rows and more share; f16 or bf16; sm_90a",
            "m64nNk32 picks the two of four by their positions",
        ),
        rewrites: |name, _| closings(name, Intrinsic::WgmmaSp),
    },
];
