//! Shows that LoopIr stays inside its operands, by the ranges of its variables.
//!
//! Every variable has an interval; a guard narrows it in its body. Entries of an index vector lie in 0..=max, offsets
//! and anything else that the weights decide in 0..=2^40. What depends on the weights alone (the length of a ragged
//! index vector, slots behind an offset) is checked when the weight is loaded, and passed over here.

use crate::loop_ir::{Expr, Guard, LoopIr, Stmt, Strided, Table, TileId, Var, WeightTile};
use std::collections::HashMap;
use thiserror::Error;

/// A statement that may leave its operands.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("verify: {what} ranges over {low}..={high}; expected {expected}")]
pub struct VerifyError {
    /// What is addressed.
    pub what: String,
    /// The least value found.
    pub low: i64,
    /// The greatest value found.
    pub high: i64,
    /// What was expected.
    pub expected: String,
}

/// The greatest number of tokens that kernels are verified for.
const TOKENS: i64 = 1 << 31;
/// The greatest value of what the weights decide.
const UNKNOWN: i64 = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    low: i64,
    high: i64,
    /// An offset or token count is in it: bounds that the weights or the call decide.
    open: bool,
}

/// Checks the whole kernel.
///
/// # Errors
/// Every statement that cannot be shown to stay inside.
pub fn verify(ir: &LoopIr) -> Result<(), Vec<VerifyError>> {
    let mut check = Check { ir, vars: HashMap::new(), tiles: HashMap::new(), errors: Vec::new() };
    check.block(&ir.body);
    if check.errors.is_empty() { Ok(()) } else { Err(check.errors) }
}

struct Check<'a> {
    ir: &'a LoopIr,
    vars: HashMap<Var, Range>,
    tiles: HashMap<TileId, Range>,
    errors: Vec<VerifyError>,
}

impl Check<'_> {
    fn fail(&mut self, what: impl Into<String>, range: Range, expected: impl Into<String>) {
        let error = VerifyError { what: what.into(), low: range.low, high: range.high, expected: expected.into() };
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    fn range(&mut self, expr: &Expr) -> Range {
        let both = |a: Range, b: Range, values: [i64; 4]| Range {
            low: values.into_iter().min().unwrap_or(0),
            high: values.into_iter().max().unwrap_or(0),
            open: a.open || b.open,
        };
        match expr {
            Expr::Int(value) => Range { low: *value, high: *value, open: false },
            Expr::M => Range { low: 0, high: TOKENS, open: true },
            Expr::Var(var) => match self.vars.get(var) {
                Some(range) => *range,
                None => {
                    let none = Range { low: i64::from(var.0), high: i64::from(var.0), open: false };
                    self.fail("variable number", none, "one that is set before it is read");
                    none
                }
            },
            Expr::Add(a, b) => {
                let (a, b) = (self.range(a), self.range(b));
                Range { low: a.low + b.low, high: a.high.saturating_add(b.high), open: a.open || b.open }
            }
            Expr::Sub(a, b) => {
                // Offsets rise and a tile begins below M: such differences are known to be sizes.
                let (a, b) = (self.range(a), self.range(b));
                let open = a.open && b.open;
                Range { low: if open { 0 } else { a.low - b.high }, high: a.high - b.low, open: a.open || b.open }
            }
            Expr::Mul(a, b) => {
                let (a, b) = (self.range(a), self.range(b));
                let by = |x: i64, y: i64| x.saturating_mul(y);
                both(a, b, [by(a.low, b.low), by(a.low, b.high), by(a.high, b.low), by(a.high, b.high)])
            }
            Expr::Div(a, b) | Expr::Rem(a, b) => {
                let (a, b) = (self.range(a), self.range(b));
                if a.low < 0 || b.low <= 0 {
                    self.fail(
                        "a quotient or remainder",
                        if a.low < 0 { a } else { b },
                        "of a natural by a positive number",
                    );
                    return a;
                }
                match expr {
                    Expr::Div(..) => Range { low: a.low / b.high, high: a.high / b.low, open: a.open || b.open },
                    _ => Range { low: 0, high: a.high.min(b.high - 1), open: b.open },
                }
            }
            Expr::Min(a, b) => {
                let (a, b) = (self.range(a), self.range(b));
                Range { low: a.low.min(b.low), high: a.high.min(b.high), open: a.open && b.open }
            }
            Expr::Load(table, at) => {
                let at = self.range(at);
                let (len, max) = match table {
                    Table::Offsets => (self.ir.ragged_regions.map(|r| r + 1), UNKNOWN),
                    Table::Index(number) => match self.ir.tables.get(*number) {
                        Some(info) => (info.len, i64::from(info.max)),
                        None => (Some(0), 0),
                    },
                };
                match len {
                    Some(len) if at.low < 0 || at.high >= len as i64 => {
                        self.fail(format!("a place in {table:?}"), at, format!("0..{len}"));
                    }
                    None if at.low < 0 => self.fail(format!("a place in {table:?}"), at, "0 or more"),
                    _ => {}
                }
                Range { low: 0, high: max, open: *table == Table::Offsets }
            }
        }
    }

    fn within(&mut self, what: &str, expr: &Expr, bound: Option<i64>) {
        let range = self.range(expr);
        let over = bound.is_some_and(|bound| range.high >= bound);
        if range.low < 0 || (over && !range.open) {
            self.fail(what, range, bound.map_or("0 or more".into(), |b| format!("0..{b}")));
        }
    }

    fn tile_row(&mut self, tile: TileId, row: &Expr) {
        match self.tiles.get(&tile).copied() {
            Some(rows) => self.within("row of a tile", row, (!rows.open).then_some(rows.high)),
            None => {
                let number = i64::from(tile.0);
                self.fail("tile", Range { low: number, high: number, open: false }, "one that is made before");
            }
        }
    }

    /// A multiplication of this many rows of a tile, which may be none.
    fn whole_tile(&mut self, tile: TileId, rows: &Expr) {
        let rows = self.range(rows);
        match self.tiles.get(&tile).copied() {
            Some(made) if rows.low >= 0 && rows.high <= made.high => {}
            Some(made) => self.fail("rows of a tile", rows, format!("at most {}", made.high)),
            None => self.fail(
                "tile",
                Range { low: tile.0.into(), high: tile.0.into(), open: false },
                "one that is made before",
            ),
        }
    }

    fn block(&mut self, stmts: &[Stmt]) {
        let outer = (self.vars.clone(), self.tiles.clone());
        for stmt in stmts {
            self.stmt(stmt);
        }
        (self.vars, self.tiles) = outer;
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::For { var, extent, body, .. } => {
                let extent = self.range(extent);
                if extent.low < 0 {
                    self.fail("a loop's extent", extent, "0 or more");
                }
                // A body that never runs cannot leave anything.
                if extent.high > 0 {
                    self.vars.insert(*var, Range { low: 0, high: extent.high - 1, open: extent.open });
                    self.block(body);
                    self.vars.remove(var);
                }
            }
            Stmt::Let { var, value } => {
                let range = self.range(value);
                self.vars.insert(*var, range);
            }
            Stmt::If { guards, body } => {
                let before = self.vars.clone();
                for guard in guards {
                    let (Guard::Below(var, _) | Guard::IsNot(var, _)) = guard;
                    let mut range = self.range(&Expr::Var(*var));
                    match guard {
                        Guard::Below(_, bound) => range.high = range.high.min(*bound as i64 - 1),
                        Guard::IsNot(_, entry) if range.high == i64::from(*entry) => range.high -= 1,
                        Guard::IsNot(..) => {}
                    }
                    self.vars.insert(*var, range);
                }
                self.block(body);
                self.vars = before;
            }
            Stmt::Tile { tile, rows, columns } => {
                self.within("tile columns", columns, None);
                let rows = self.range(rows);
                if rows.low < 0 {
                    self.fail("tile rows", rows, "0 or more");
                }
                self.tiles.insert(*tile, rows);
            }
            Stmt::Condense { tile, row, k, m, columns } => {
                self.tile_row(*tile, row);
                self.within("row of X", k, Some(self.ir.k as i64));
                self.tokens(m, columns);
            }
            Stmt::MulAdd { acc, row, slot, k, m, columns } => {
                self.tile_row(*acc, row);
                self.within("slot", slot, self.ir.slots.map(|s| s as i64));
                self.within("row of X", k, Some(self.ir.k as i64));
                self.tokens(m, columns);
            }
            Stmt::Store { acc, row, n, m, columns } => {
                self.tile_row(*acc, row);
                self.within("row of Y", n, Some(self.ir.n as i64));
                self.tokens(m, columns);
            }
            Stmt::Mma { acc, weights, x } => self.mma(*acc, weights, *x),
        }
    }

    fn tokens(&mut self, m: &Expr, columns: &Expr) {
        self.within("token", m, None);
        self.within("tokens", columns, None);
    }

    fn mma(&mut self, acc: TileId, weights: &WeightTile, x: TileId) {
        let last = |loops: &[Strided]| -> (Expr, Expr) {
            let one = Expr::Int(1);
            loops.iter().fold((Expr::Int(0), Expr::Int(1)), |(slot, count), l| {
                (slot.plus(l.extent.clone().minus(one.clone()).times(l.stride)), count.product(l.extent.clone()))
            })
        };
        let (row_slot, rows) = last(&weights.rows);
        let (column_slot, columns) = last(&weights.columns);
        if self.ir.slots.is_some() {
            let slot = weights.base.clone().plus(row_slot).plus(column_slot);
            self.within("last slot of a tile", &slot, self.ir.slots.map(|s| s as i64));
        }
        self.whole_tile(acc, &rows);
        self.whole_tile(x, &columns);
    }
}
