//! Recorded tiles -> [`TilePlan`].

use super::plan::{Tile, TilePlan, Values};
use crate::record::record_tiles;
use fractal_dsl::DType;
use fractal_dsl::pattern::Packed;
use fractal_sched::{ExecuteError, LoopIr};

/// Makes the plan of a kernel, lowered in either form, for one packed weight.
///
/// # Errors
/// [`ExecuteError`] where the index vectors do not fit the kernel.
pub fn record(ir: &LoopIr, packed: &Packed<f32>, dtype: DType) -> Result<TilePlan, ExecuteError> {
    let tiles = record_tiles(ir, packed)?;
    let mut plan = TilePlan {
        n: ir.n,
        k: ir.k,
        dtype,
        tiles: Vec::with_capacity(tiles.len()),
        rows: Vec::new(),
        ks: Vec::new(),
        values: Values::zeros(dtype, 0),
    };
    let width = |columns: &[Option<(u32, usize)>]| columns.iter().flatten().count();
    plan.values = Values::zeros(dtype, tiles.iter().map(|t| t.rows.len() * width(&t.columns)).sum());
    let mut begin = 0;
    for recorded in tiles {
        let mut columns: Vec<(u32, usize)> = recorded.columns.into_iter().flatten().collect();
        columns.sort_unstable_by_key(|&(k, _)| k);
        let (rows, ks) = (plan.rows.len() as u32, plan.ks.len() as u32);
        plan.rows.extend(&recorded.rows);
        plan.ks.extend(columns.iter().map(|&(k, _)| k));
        let tile = Tile { rows: rows..plan.rows.len() as u32, ks: ks..plan.ks.len() as u32, values: begin };
        for (kk, &(_, column)) in columns.iter().enumerate() {
            for (r, row) in recorded.row_slots.iter().enumerate() {
                plan.values.set(tile.value_index(r, kk), packed.values[row + column]);
            }
        }
        begin += recorded.rows.len() * columns.len();
        plan.tiles.push(tile);
    }
    Ok(plan)
}
