//! Runs the control flow of LoopIr on the index vectors of a packed weight, and hands each operation to a [`Machine`]:
//! the interpreter computes with it, the CPU backend records what is to be done.

use crate::loop_ir::{Expr, Guard, LoopIr, Stmt, Table, TileId};
use fractal_dsl::pattern::{IndexArray, Packed};
use thiserror::Error;

/// What went wrong while LoopIr ran: a fault of the IR or of the tables, never of the data.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// A read outside a table.
    #[error("execute: entry {at} of {table:?}, which has {len}")]
    Table {
        /// The table.
        table: Table,
        /// The place.
        at: i64,
        /// Entries.
        len: usize,
    },
    /// A variable that is not set, a tile that is not made, or a place outside an operand.
    #[error("execute: {what}: found {found}, expected {expected}")]
    Place {
        /// What was addressed.
        what: &'static str,
        /// The place.
        found: i64,
        /// What was expected.
        expected: String,
    },
}

/// The integer tables of a packed weight.
#[derive(Clone, Debug)]
pub struct Tables<'a> {
    index: Vec<&'a IndexArray>,
    offsets: &'a [u32],
}

impl<'a> Tables<'a> {
    /// Those of `packed`.
    pub fn of<T>(packed: &'a Packed<T>) -> Tables<'a> {
        Tables { index: packed.levels.iter().map(|l| &l.index).collect(), offsets: &packed.offsets }
    }

    fn get(&self, table: Table, at: i64) -> Result<i64, ExecuteError> {
        let (len, value): (usize, Option<u32>) = match table {
            Table::Offsets => {
                (self.offsets.len(), usize::try_from(at).ok().and_then(|at| self.offsets.get(at)).copied())
            }
            Table::Index(number) => {
                let index = self.index.get(number);
                let len = index.map_or(0, |i| i.len());
                let inside = usize::try_from(at).ok().filter(|&at| at < len);
                (len, index.zip(inside).map(|(index, at)| index.get(at)))
            }
        };
        value.map(i64::from).ok_or(ExecuteError::Table { table, at, len })
    }
}

/// A tile of weights in numbers: the slot of its first value, and (extent, stride) of its loops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Slot of the first value.
    pub base: usize,
    /// The loops over rows.
    pub rows: Vec<(usize, usize)>,
    /// The loops over columns.
    pub columns: Vec<(usize, usize)>,
}

impl Slots {
    /// The slot of each row relative to the first, in the order of the rows; or of each column.
    pub fn places(loops: &[(usize, usize)]) -> Vec<usize> {
        loops.iter().fold(vec![0], |places, &(extent, stride)| {
            places.iter().flat_map(|&p| (0..extent).map(move |i| p + i * stride)).collect()
        })
    }
}

/// What the operations of LoopIr do. Rows, tokens and slots are not negative; everything else is the machine's to check.
pub trait Machine {
    /// Makes a tile of zeros.
    fn tile(&mut self, tile: TileId, rows: usize, columns: usize) -> Result<(), ExecuteError>;
    /// Copies `columns` tokens from m on of row k of X into a row of a tile.
    fn condense(&mut self, tile: TileId, row: usize, k: usize, m: usize, columns: usize) -> Result<(), ExecuteError>;
    /// Multiplies a tile of weights with a tile of activations onto an accumulator.
    fn mma(&mut self, acc: TileId, weights: &Slots, x: TileId) -> Result<(), ExecuteError>;
    /// Multiplies one weight with `columns` tokens from m on of row k of X onto a row of an accumulator.
    fn mul_add(
        &mut self,
        acc: TileId,
        row: usize,
        slot: usize,
        k: usize,
        m: usize,
        columns: usize,
    ) -> Result<(), ExecuteError>;
    /// Stores a row of an accumulator, `columns` tokens from m on, to row n of Y.
    fn store(&mut self, acc: TileId, row: usize, n: usize, m: usize, columns: usize) -> Result<(), ExecuteError>;
}

/// Runs `ir` for `m` tokens.
///
/// # Errors
/// [`ExecuteError`] where the IR or the tables are at fault, or from the machine.
pub fn execute(ir: &LoopIr, tables: &Tables<'_>, m: usize, machine: &mut impl Machine) -> Result<(), ExecuteError> {
    let mut run = Run { vars: vec![None; ir.names.len()], tables, m: m as i64, machine };
    run.block(&ir.body)
}

struct Run<'a, M> {
    vars: Vec<Option<i64>>,
    tables: &'a Tables<'a>,
    m: i64,
    machine: &'a mut M,
}

impl<M: Machine> Run<'_, M> {
    fn eval(&self, expr: &Expr) -> Result<i64, ExecuteError> {
        Ok(match expr {
            Expr::Int(value) => *value,
            Expr::Var(var) => self.var(var.0)?,
            Expr::M => self.m,
            Expr::Add(a, b) => self.eval(a)? + self.eval(b)?,
            Expr::Sub(a, b) => self.eval(a)? - self.eval(b)?,
            Expr::Mul(a, b) => self.eval(a)? * self.eval(b)?,
            Expr::Div(a, b) => self.eval(a)? / self.divisor(b)?,
            Expr::Rem(a, b) => self.eval(a)? % self.divisor(b)?,
            Expr::Min(a, b) => self.eval(a)?.min(self.eval(b)?),
            Expr::Load(table, at) => self.tables.get(*table, self.eval(at)?)?,
        })
    }

    fn divisor(&self, expr: &Expr) -> Result<i64, ExecuteError> {
        let value = self.eval(expr)?;
        if value > 0 { Ok(value) } else { Err(place("divisor", value, "more than 0")) }
    }

    fn var(&self, number: u32) -> Result<i64, ExecuteError> {
        let value = self.vars.get(number as usize).copied().flatten();
        value.ok_or_else(|| place("variable", i64::from(number), "one that is set"))
    }

    fn set(&mut self, number: u32, value: i64) -> Result<(), ExecuteError> {
        match self.vars.get_mut(number as usize) {
            Some(var) => {
                *var = Some(value);
                Ok(())
            }
            None => Err(place("variable", i64::from(number), "one of the kernel's names")),
        }
    }

    fn size(&self, what: &'static str, expr: &Expr) -> Result<usize, ExecuteError> {
        let value = self.eval(expr)?;
        usize::try_from(value).map_err(|_| place(what, value, "0 or more"))
    }

    fn sizes(&self, loops: &[crate::loop_ir::Strided]) -> Result<Vec<(usize, usize)>, ExecuteError> {
        loops.iter().map(|l| Ok((self.size("extent", &l.extent)?, l.stride))).collect()
    }

    fn block(&mut self, stmts: &[Stmt]) -> Result<(), ExecuteError> {
        stmts.iter().try_for_each(|stmt| self.stmt(stmt))
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<(), ExecuteError> {
        match stmt {
            Stmt::For { var, extent, body, .. } => {
                for i in 0..self.eval(extent)? {
                    self.set(var.0, i)?;
                    self.block(body)?;
                }
                Ok(())
            }
            Stmt::Let { var, value } => {
                let value = self.eval(value)?;
                self.set(var.0, value)
            }
            Stmt::If { guards, body } => {
                for guard in guards {
                    let holds = match guard {
                        Guard::Below(var, bound) => self.var(var.0)? < *bound as i64,
                        Guard::IsNot(var, entry) => self.var(var.0)? != i64::from(*entry),
                    };
                    if !holds {
                        return Ok(());
                    }
                }
                self.block(body)
            }
            Stmt::Tile { tile, rows, columns } => {
                let (rows, columns) = (self.size("rows", rows)?, self.size("columns", columns)?);
                self.machine.tile(*tile, rows, columns)
            }
            Stmt::Condense { tile, row, k, m, columns } => {
                let (row, k) = (self.size("row", row)?, self.size("k", k)?);
                let (m, columns) = (self.size("m", m)?, self.size("columns", columns)?);
                self.machine.condense(*tile, row, k, m, columns)
            }
            Stmt::Mma { acc, weights, x } => {
                let base = self.size("slot", &weights.base)?;
                let slots = Slots { base, rows: self.sizes(&weights.rows)?, columns: self.sizes(&weights.columns)? };
                self.machine.mma(*acc, &slots, *x)
            }
            Stmt::MulAdd { acc, row, slot, k, m, columns } => {
                let (row, slot, k) = (self.size("row", row)?, self.size("slot", slot)?, self.size("k", k)?);
                let (m, columns) = (self.size("m", m)?, self.size("columns", columns)?);
                self.machine.mul_add(*acc, row, slot, k, m, columns)
            }
            Stmt::Store { acc, row, n, m, columns } => {
                let (row, n) = (self.size("row", row)?, self.size("n", n)?);
                let (m, columns) = (self.size("m", m)?, self.size("columns", columns)?);
                self.machine.store(*acc, row, n, m, columns)
            }
        }
    }
}

pub(crate) fn place(what: &'static str, found: i64, expected: &str) -> ExecuteError {
    ExecuteError::Place { what, found, expected: expected.to_string() }
}
