//! Tiles: rows and tokens of a block, kept columns of a step.

use super::{Definition, Family, Rule, closing};
use crate::codegen::FFMA_BLOCKS;
use crate::egraph::schedule::Choice;
use fractal_dsl::Intrinsic;

const fn rule(
    name: &'static str,
    before: &'static str,
    after: &'static str,
    condition: &'static str,
    reason: &'static str,
) -> Rule {
    Rule { name, family: Family::Tile, before, after, condition, reason }
}

/// Rows, tokens and columns of a tile.
pub(super) const RULES: &[Definition] = &[
    // (run p (tensorize:wgmma s)) -> (run p (tile-n:128 (tensorize:wgmma s)))
    Definition {
        rule: rule(
            "tile-rows",
            "(run p (tensorize:i s))",
            "(run p (tile-n:r …)), r of 16, 32, 64, 128",
            "wgmma: 64 or 128; no more than W has, rounded up; 2 of 4: what the tiles have, rounded up; \
             zeros that a higher block stores leave no place for boxes and no 2 of 4",
            "rows are summed independently; a block of several tiles has their columns and stores zeros",
        ),
        rewrites: |name, _| {
            let rows = [16, 32, 64, 128].into_iter();
            rows.map(|rows| {
                closing(name, Choice::TileN(rows), move |context, facts, schedule| {
                    let Some(intrinsic) = schedule.request.intrinsic else { return false };
                    let Some(tiles) = context.tiles(intrinsic, facts) else { return false };
                    let least = if intrinsic.is_arch_specific() { 64 } else { 16 };
                    let sparse = intrinsic.is_sparse();
                    let all = if sparse { tiles.rows.min(128) } else { context.n };
                    // The least block that holds them all, and no higher one.
                    let enough = rows <= all.max(1).next_power_of_two().max(least);
                    let zeros = context.stores_zeros(intrinsic, rows, tiles);
                    rows >= least && enough && (!sparse || rows >= tiles.rows.min(128)) && !(zeros && sparse)
                })
            })
            .collect()
        },
    },
    // (run p (tile-n:128 s)) -> (run p (tile-m:256 (tile-n:128 s)))
    Definition {
        rule: rule(
            "tile-tokens",
            "(run p (tile-n:r s))",
            "(run p (tile-m:t …)), t of 8 to 512",
            "the instruction has a kernel of r rows and t tokens; at most 32 boxes a step",
            "tokens are summed independently",
        ),
        rewrites: |name, _| {
            let tokens = [8, 16, 32, 48, 64, 128, 256, 512].into_iter();
            tokens
                .map(|tokens| {
                    closing(name, Choice::TileM(tokens), move |_, _, schedule| {
                        let request = &schedule.request;
                        let rows = request.rows.unwrap_or(0);
                        // The copy engine takes about 20 cycles a box.
                        let run = request.run.unwrap_or(1);
                        let boxes = run == 1 || tokens / 64 * (64 / run) <= 32;
                        boxes
                            && match request.intrinsic {
                                Some(Intrinsic::Ffma) => FFMA_BLOCKS.iter().any(|b| b.tokens == tokens),
                                Some(Intrinsic::MmaSync) => [8, 16, 32, 64, 128].contains(&tokens),
                                Some(Intrinsic::MmaSp) => [16, 32, 64, 128].contains(&tokens),
                                Some(Intrinsic::Wgmma | Intrinsic::WgmmaSp) if rows == 128 => {
                                    [64, 128, 256].contains(&tokens)
                                }
                                Some(Intrinsic::Wgmma | Intrinsic::WgmmaSp) => [128, 256, 512].contains(&tokens),
                                None => false,
                            }
                    })
                })
                .collect()
        },
    },
    // (run p (tile-m:256 s)) -> (run p (tile-k:64 (tile-m:256 s)))
    Definition {
        rule: rule(
            "tile-columns",
            "(run p (tile-m:t s))",
            "(run p (tile-k:c …)), c of 16, 64",
            "ffma: 16; else 64",
            "a sum may be taken in steps",
        ),
        rewrites: |name, _| {
            let steps = [16, 64].into_iter();
            steps
                .map(|step| {
                    closing(name, Choice::TileK(step), move |_, _, schedule| {
                        (schedule.request.intrinsic == Some(Intrinsic::Ffma)) == (step == 16)
                    })
                })
                .collect()
        },
    },
];
