//! LoopIr and a packed weight -> what each tile of rows keeps: runs the loops once for one token and records them.
//!
//! The weight's index vectors are known, so that nothing of them is left to look up when a kernel runs.

use fractal_dsl::pattern::Packed;
use fractal_sched::execute::Slots;
use fractal_sched::loop_ir::TileId;
use fractal_sched::{ExecuteError, LoopIr, Machine, Tables, execute};
use std::collections::BTreeMap;

/// Rows that keep the same columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedTile {
    /// Rows of W.
    pub rows: Vec<u32>,
    /// Of each row, its part of a weight's slot.
    pub row_slots: Vec<usize>,
    /// Kept columns in the order of the loops: k and its part of a slot, or nothing in a place that a tail leaves empty.
    pub columns: Vec<Option<(u32, usize)>>,
}

/// Records a kernel, lowered in either form, for one packed weight. Tiles that keep no column are left out.
///
/// # Errors
/// [`ExecuteError`] where the index vectors do not fit the kernel.
pub fn record_tiles(ir: &LoopIr, packed: &Packed<f32>) -> Result<Vec<RecordedTile>, ExecuteError> {
    let mut recorder = Recorder { slots: packed.values.len(), ..Recorder::default() };
    execute(ir, &Tables::of(packed), 1, &mut recorder)?;
    let open: Vec<TileId> = recorder.accumulators.keys().copied().collect();
    open.into_iter().for_each(|acc| recorder.close(acc));
    let rows = std::mem::take(&mut recorder.elements).into_iter().map(|(n, mut columns)| {
        columns.sort_unstable_by_key(|&(k, _)| k);
        RecordedTile { rows: vec![n], row_slots: vec![0], columns: columns.into_iter().map(Some).collect() }
    });
    let tiles: Vec<RecordedTile> = std::mem::take(&mut recorder.finished).into_iter().chain(rows).collect();
    for tile in &tiles {
        let last_row = tile.row_slots.iter().max().copied().unwrap_or(0);
        let last = tile.columns.iter().flatten().map(|&(_, slot)| slot + last_row).max().unwrap_or(0);
        if last >= packed.values.len().max(1) {
            let expected = format!("below {}", packed.values.len());
            return Err(ExecuteError::Place { what: "slot", found: last as i64, expected });
        }
    }
    Ok(tiles)
}

/// The multiplications onto an accumulator.
#[derive(Default)]
struct Open {
    row_slots: Vec<usize>,
    columns: Vec<Option<(u32, usize)>>,
    stored: Vec<(usize, u32)>,
}

#[derive(Default)]
struct Recorder {
    slots: usize,
    /// The row of X in each row of a condensed tile; of every tile, by its number.
    condensed: Vec<Vec<Option<u32>>>,
    accumulators: BTreeMap<TileId, Open>,
    finished: Vec<RecordedTile>,
    /// Of kernels in scalar form: (k, slot) of each row.
    elements: BTreeMap<u32, Vec<(u32, usize)>>,
}

impl Recorder {
    fn condensed(&mut self, tile: TileId) -> &mut Vec<Option<u32>> {
        let at = tile.0 as usize;
        if self.condensed.len() <= at {
            self.condensed.resize(at + 1, Vec::new());
        }
        &mut self.condensed[at]
    }

    fn close(&mut self, acc: TileId) {
        let Some(open) = self.accumulators.remove(&acc).filter(|o| o.columns.iter().any(Option::is_some)) else {
            return;
        };
        let (rows, row_slots) =
            open.stored.into_iter().filter_map(|(row, n)| Some((n, *open.row_slots.get(row)?))).unzip();
        self.finished.push(RecordedTile { rows, row_slots, columns: open.columns });
    }
}

impl Machine for Recorder {
    fn tile(&mut self, tile: TileId, _rows: usize, _columns: usize) -> Result<(), ExecuteError> {
        self.close(tile);
        self.condensed(tile).clear();
        Ok(())
    }

    fn condense(&mut self, tile: TileId, row: usize, k: usize, _m: usize, _columns: usize) -> Result<(), ExecuteError> {
        let rows = self.condensed(tile);
        if rows.len() <= row {
            rows.resize(row + 1, None);
        }
        rows[row] = Some(k as u32);
        Ok(())
    }

    fn mma(&mut self, acc: TileId, weights: &Slots, x: TileId) -> Result<(), ExecuteError> {
        let open = self.accumulators.entry(acc).or_default();
        // Several multiplications onto one accumulator differ in their columns; the base goes with those.
        open.row_slots = Slots::places(&weights.rows);
        let condensed = self.condensed.get(x.0 as usize);
        for (position, place) in Slots::places(&weights.columns).into_iter().enumerate() {
            let k = condensed.and_then(|rows| rows.get(position).copied().flatten());
            open.columns.push(k.map(|k| (k, weights.base + place)));
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
        if slot >= self.slots {
            return Err(ExecuteError::Place {
                what: "slot",
                found: slot as i64,
                expected: format!("below {}", self.slots),
            });
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
