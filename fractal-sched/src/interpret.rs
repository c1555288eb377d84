//! The reference backend: runs LoopIr element by element in f32. Slow and exact; the test of lowering and packing.

use crate::execute::{ExecuteError, Machine, Slots, Tables, execute, place};
use crate::loop_ir::{LoopIr, TileId};
use crate::schedule::EpilogueStep;
use std::collections::HashMap;

/// The operands of one run, all f32 and feature-major.
#[derive(Clone, Debug, Default)]
pub struct Operands<'a> {
    /// Packed values.
    pub values: &'a [f32],
    /// X[k, m].
    pub x: &'a [f32],
    /// Tokens.
    pub m: usize,
    /// Bias vectors, n entries each.
    pub bias: Vec<&'a [f32]>,
    /// Residual matrices, [n, m] each.
    pub residual: Vec<&'a [f32]>,
}

/// Computes Y[n, m].
///
/// # Errors
/// [`ExecuteError`] where an operand is too short or the IR is at fault.
pub fn interpret(ir: &LoopIr, tables: &Tables<'_>, operands: &Operands<'_>) -> Result<Vec<f32>, ExecuteError> {
    let m = operands.m;
    let short = |what, found: usize, expected: usize| {
        if found == expected { Ok(()) } else { Err(place(what, found as i64, &format!("{expected} elements"))) }
    };
    short("x", operands.x.len(), ir.k * m)?;
    operands.bias.iter().try_for_each(|b| short("bias", b.len(), ir.n))?;
    operands.residual.iter().try_for_each(|r| short("residual", r.len(), ir.n * m))?;
    let mut machine = Interpreter { ir, operands, tiles: HashMap::new(), y: vec![f32::NAN; ir.n * m] };
    execute(ir, tables, m, &mut machine)?;
    Ok(machine.y)
}

/// Applies one epilogue step to an accumulator that ends up in element (n, m).
///
/// # Errors
/// [`ExecuteError::Place`] where an operand is missing.
pub fn apply_epilogue(
    step: EpilogueStep,
    value: f32,
    n: usize,
    m: usize,
    operands: &Operands<'_>,
) -> Result<f32, ExecuteError> {
    let at =
        |found: Option<&f32>, what| found.copied().ok_or_else(|| place(what, n as i64, "an operand with this row"));
    Ok(match step {
        EpilogueStep::Bias(b) => value + at(operands.bias.get(b).and_then(|b| b.get(n)), "bias")?,
        EpilogueStep::Residual(r) => {
            value + at(operands.residual.get(r).and_then(|r| r.get(n * operands.m + m)), "residual")?
        }
        EpilogueStep::Relu => value.max(0.0),
        EpilogueStep::Gelu => {
            let x = f64::from(value);
            (0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2))) as f32
        }
        EpilogueStep::Silu => {
            let x = f64::from(value);
            (x / (1.0 + (-x).exp())) as f32
        }
        EpilogueStep::Scale(bits) => value * f32::from_bits(bits),
    })
}

struct Tile {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

struct Interpreter<'a> {
    ir: &'a LoopIr,
    operands: &'a Operands<'a>,
    tiles: HashMap<TileId, Tile>,
    y: Vec<f32>,
}

impl Interpreter<'_> {
    fn tile_row(&mut self, tile: TileId, row: usize, columns: usize) -> Result<&mut [f32], ExecuteError> {
        let made = self.tiles.get_mut(&tile).ok_or_else(|| place("tile", i64::from(tile.0), "one that is made"))?;
        if row >= made.rows || columns > made.columns {
            return Err(place("tile row", row as i64, &format!("below {} with {} columns", made.rows, made.columns)));
        }
        Ok(&mut made.values[row * made.columns..][..columns])
    }

    fn x_row(&self, k: usize, m: usize, columns: usize) -> Result<&[f32], ExecuteError> {
        if k >= self.ir.k || m + columns > self.operands.m {
            return Err(place("row of X", k as i64, &format!("below {}, tokens below {}", self.ir.k, self.operands.m)));
        }
        Ok(&self.operands.x[k * self.operands.m + m..][..columns])
    }

    fn weight(&self, slot: usize) -> Result<f32, ExecuteError> {
        let values = self.operands.values;
        values.get(slot).copied().ok_or_else(|| place("slot", slot as i64, &format!("below {}", values.len())))
    }
}

impl Machine for Interpreter<'_> {
    fn tile(&mut self, tile: TileId, rows: usize, columns: usize) -> Result<(), ExecuteError> {
        self.tiles.insert(tile, Tile { rows, columns, values: vec![0.0; rows * columns] });
        Ok(())
    }

    fn condense(&mut self, tile: TileId, row: usize, k: usize, m: usize, columns: usize) -> Result<(), ExecuteError> {
        let source = self.x_row(k, m, columns)?.to_vec();
        self.tile_row(tile, row, columns)?.copy_from_slice(&source);
        Ok(())
    }

    fn mma(&mut self, acc: TileId, weights: &Slots, x: TileId) -> Result<(), ExecuteError> {
        let (rows, columns) = (Slots::places(&weights.rows), Slots::places(&weights.columns));
        let width = self.tiles.get(&x).map_or(0, |t| t.columns);
        for (r, row) in rows.iter().enumerate() {
            for (q, column) in columns.iter().enumerate() {
                let weight = self.weight(weights.base + row + column)?;
                // A place that nothing fills has weight zero and a row of zeros.
                let source = self.tile_row(x, q, width)?.to_vec();
                self.tile_row(acc, r, width)?.iter_mut().zip(source).for_each(|(a, x)| *a += weight * x);
            }
        }
        Ok(())
    }

    fn mul_add(
        &mut self,
        acc: TileId,
        row: usize,
        slot: usize,
        k: usize,
        m: usize,
        columns: usize,
    ) -> Result<(), ExecuteError> {
        let weight = self.weight(slot)?;
        let source = self.x_row(k, m, columns)?.to_vec();
        self.tile_row(acc, row, columns)?.iter_mut().zip(source).for_each(|(a, x)| *a += weight * x);
        Ok(())
    }

    fn store(&mut self, acc: TileId, row: usize, n: usize, m: usize, columns: usize) -> Result<(), ExecuteError> {
        if n >= self.ir.n || m + columns > self.operands.m {
            return Err(place("row of Y", n as i64, &format!("below {}, tokens below {}", self.ir.n, self.operands.m)));
        }
        let sums = self.tile_row(acc, row, columns)?.to_vec();
        for (column, sum) in sums.into_iter().enumerate() {
            let steps = self.ir.epilogue.iter();
            let result = steps.copied().try_fold(sum, |v, step| apply_epilogue(step, v, n, m + column, self.operands));
            self.y[n * self.operands.m + m + column] = result?;
        }
        Ok(())
    }
}
