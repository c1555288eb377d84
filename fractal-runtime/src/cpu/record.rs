//! LoopIr and a packed weight -> [`TilePlan`]: runs the loops once for one token and records what each tile does.
//!
//! The weight's index vectors are known, so that nothing of them is left to look up when the plan runs.

use super::plan::{Tile, TilePlan, Values};
use fractal_dsl::DType;
use fractal_dsl::pattern::Packed;
use fractal_sched::execute::Slots;
use fractal_sched::loop_ir::TileId;
use fractal_sched::{ExecuteError, LoopIr, Machine, Tables, execute};
use std::collections::{BTreeMap, HashMap};

/// Makes the plan of a kernel, lowered in either form, for one packed weight.
///
/// # Errors
/// [`ExecuteError`] where the index vectors do not fit the kernel.
pub fn record(ir: &LoopIr, packed: &Packed<f32>, dtype: DType) -> Result<TilePlan, ExecuteError> {
    let mut recorder = Recorder { values: &packed.values, ..Recorder::default() };
    execute(ir, &Tables::of(packed), 1, &mut recorder)?;
    let mut open: Vec<TileId> = recorder.accumulators.keys().copied().collect();
    open.sort_unstable();
    open.into_iter().for_each(|acc| recorder.close(acc));
    let elements = std::mem::take(&mut recorder.elements);
    let mut plan = TilePlan {
        n: ir.n,
        k: ir.k,
        dtype,
        tiles: Vec::new(),
        rows: Vec::new(),
        ks: Vec::new(),
        values: Values::zeros(dtype, 0),
    };
    let single = elements.into_iter().map(|(n, mut row)| {
        row.sort_unstable_by_key(|&(k, _)| k);
        let (ks, slots) = row.into_iter().unzip();
        Recorded { rows: vec![n], ks, row_slots: vec![0], column_slots: slots }
    });
    let tiles: Vec<Recorded> = recorder.finished.into_iter().chain(single).filter(|t| !t.ks.is_empty()).collect();
    let kept = tiles.iter().map(|t| t.rows.len() * t.ks.len()).sum();
    plan.values = Values::zeros(dtype, kept);
    let mut begin = 0;
    for recorded in tiles {
        let (rows, ks) = (plan.rows.len() as u32, plan.ks.len() as u32);
        plan.rows.extend(&recorded.rows);
        plan.ks.extend(&recorded.ks);
        let tile = Tile { rows: rows..plan.rows.len() as u32, ks: ks..plan.ks.len() as u32, values: begin };
        for (kk, column) in recorded.column_slots.iter().enumerate() {
            for (r, row) in recorded.row_slots.iter().enumerate() {
                let slot = row + column;
                let value = packed.values.get(slot).copied().ok_or_else(|| ExecuteError::Place {
                    what: "slot",
                    found: slot as i64,
                    expected: format!("below {}", packed.values.len()),
                })?;
                plan.values.set(tile.value_index(r, kk), value);
            }
        }
        begin += recorded.rows.len() * recorded.ks.len();
        plan.tiles.push(tile);
    }
    Ok(plan)
}

/// A tile whose rows are stored: rows of W, ascending k positions, and where their values are packed.
struct Recorded {
    rows: Vec<u32>,
    ks: Vec<u32>,
    row_slots: Vec<usize>,
    column_slots: Vec<usize>,
}

/// The multiplications onto an accumulator: k positions by column, and the slots of rows and columns.
#[derive(Default)]
struct Open {
    row_slots: Vec<usize>,
    columns: Vec<(u32, usize)>,
    stored: Vec<(usize, u32)>,
}

#[derive(Default)]
struct Recorder<'a> {
    values: &'a [f32],
    /// The row of X in each row of a condensed tile.
    condensed: HashMap<TileId, BTreeMap<usize, u32>>,
    accumulators: HashMap<TileId, Open>,
    finished: Vec<Recorded>,
    /// Of kernels in scalar form: (k, slot) of each row.
    elements: BTreeMap<u32, Vec<(u32, usize)>>,
}

impl Recorder<'_> {
    fn close(&mut self, acc: TileId) {
        let Some(open) = self.accumulators.remove(&acc).filter(|o| !o.columns.is_empty()) else { return };
        let mut columns = open.columns;
        columns.sort_unstable_by_key(|&(k, _)| k);
        let (ks, column_slots) = columns.into_iter().unzip();
        let (rows, row_slots) =
            open.stored.into_iter().filter_map(|(row, n)| Some((n, *open.row_slots.get(row)?))).unzip();
        self.finished.push(Recorded { rows, ks, row_slots, column_slots });
    }
}

impl Machine for Recorder<'_> {
    fn tile(&mut self, tile: TileId, _rows: usize, _columns: usize) -> Result<(), ExecuteError> {
        self.close(tile);
        self.condensed.insert(tile, BTreeMap::new());
        Ok(())
    }

    fn condense(&mut self, tile: TileId, row: usize, k: usize, _m: usize, _columns: usize) -> Result<(), ExecuteError> {
        self.condensed.entry(tile).or_default().insert(row, k as u32);
        Ok(())
    }

    fn mma(&mut self, acc: TileId, weights: &Slots, x: TileId) -> Result<(), ExecuteError> {
        let columns = Slots::places(&weights.columns);
        let open = self.accumulators.entry(acc).or_default();
        // Several multiplications onto one accumulator differ in their columns; the base goes with those.
        open.row_slots = Slots::places(&weights.rows);
        for (column, &k) in self.condensed.get(&x).into_iter().flatten() {
            if let Some(place) = columns.get(*column) {
                open.columns.push((k, weights.base + place));
            }
        }
        Ok(())
    }

    fn mul_add(
        &mut self,
        _acc: TileId,
        row: usize,
        slot: usize,
        k: usize,
        _m: usize,
        _columns: usize,
    ) -> Result<(), ExecuteError> {
        if slot >= self.values.len() {
            let expected = format!("below {}", self.values.len());
            return Err(ExecuteError::Place { what: "slot", found: slot as i64, expected });
        }
        self.elements.entry(row as u32).or_default().push((k as u32, slot));
        Ok(())
    }

    fn store(&mut self, acc: TileId, row: usize, n: usize, _m: usize, _columns: usize) -> Result<(), ExecuteError> {
        if let Some(open) = self.accumulators.get_mut(&acc) {
            open.stored.push((row, n as u32));
        }
        Ok(())
    }
}
