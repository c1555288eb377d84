//! LoopIr: the loops of one sparse GEMM Y[n, m] = W[n, k] X[k, m], with tiles and the operations on them.
//!
//! Immutable data. Integers are exact; the only arrays that are read as integers are index vectors and offsets.

use crate::schedule::EpilogueStep;
use serde::{Deserialize, Serialize};

/// An integer variable: a loop's or a `let`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Var(pub u32);

/// A tile of f32 values, all zero when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TileId(pub u32);

/// An array of integers that belongs to a packed weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Table {
    /// The index vector of this number among the format's.
    Index(usize),
    /// The offsets of the ragged level.
    Offsets,
}

/// An integer expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Expr {
    /// A constant.
    Int(i64),
    /// A variable.
    Var(Var),
    /// The number of tokens, known when the kernel runs.
    M,
    /// Sum.
    Add(Box<Expr>, Box<Expr>),
    /// Difference.
    Sub(Box<Expr>, Box<Expr>),
    /// Product.
    Mul(Box<Expr>, Box<Expr>),
    /// Quotient of non-negative numbers, rounded down.
    Div(Box<Expr>, Box<Expr>),
    /// Remainder of non-negative numbers.
    Rem(Box<Expr>, Box<Expr>),
    /// The lesser.
    Min(Box<Expr>, Box<Expr>),
    /// An entry of a table.
    Load(Table, Box<Expr>),
}

impl Expr {
    /// The constant `value`.
    pub fn int(value: usize) -> Expr {
        Expr::Int(value as i64)
    }

    /// `self + other`, folded where a side is constant.
    pub fn plus(self, other: Expr) -> Expr {
        match (self, other) {
            (Expr::Int(0), e) | (e, Expr::Int(0)) => e,
            (Expr::Int(a), Expr::Int(b)) => Expr::Int(a + b),
            (a, b) => Expr::Add(Box::new(a), Box::new(b)),
        }
    }

    /// `self - other`.
    pub fn minus(self, other: Expr) -> Expr {
        match (self, other) {
            (e, Expr::Int(0)) => e,
            (Expr::Int(a), Expr::Int(b)) => Expr::Int(a - b),
            (a, b) => Expr::Sub(Box::new(a), Box::new(b)),
        }
    }

    /// `self * factor`.
    pub fn times(self, factor: usize) -> Expr {
        match (self, factor) {
            (_, 0) => Expr::Int(0),
            (e, 1) => e,
            (Expr::Int(a), f) => Expr::Int(a * f as i64),
            (e, f) => Expr::Mul(Box::new(e), Box::new(Expr::int(f))),
        }
    }

    /// `self * other`, both variable.
    pub fn product(self, other: Expr) -> Expr {
        match (self, other) {
            (Expr::Int(a), e) | (e, Expr::Int(a)) if a >= 0 => e.times(a as usize),
            (a, b) => Expr::Mul(Box::new(a), Box::new(b)),
        }
    }

    /// `self / divisor`.
    pub fn over(self, divisor: usize) -> Expr {
        if divisor == 1 { self } else { Expr::Div(Box::new(self), Box::new(Expr::int(divisor))) }
    }

    /// `self % divisor`.
    pub fn modulo(self, divisor: usize) -> Expr {
        if divisor == 1 { Expr::Int(0) } else { Expr::Rem(Box::new(self), Box::new(Expr::int(divisor))) }
    }

    /// The lesser of two.
    pub fn min(self, other: Expr) -> Expr {
        Expr::Min(Box::new(self), Box::new(other))
    }

    /// `table[self]`.
    pub fn load(self, table: Table) -> Expr {
        Expr::Load(table, Box::new(self))
    }
}

/// What a condition compares.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Guard {
    /// The variable is below a bound: the iteration is no tail.
    Below(Var, usize),
    /// The variable is not the entry that stands for nothing.
    IsNot(Var, u32),
}

/// How a loop's iterations may be spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bind {
    /// One after the other.
    Serial,
    /// In any order, at once: they write different rows or tokens.
    Parallel,
}

/// One dimension of a tile of weights: iterations and the slots between two.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Strided {
    /// Iterations.
    pub extent: Expr,
    /// Slots between two.
    pub stride: usize,
}

/// A tile of the packed values: rows by columns, each a nest of strided loops, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WeightTile {
    /// Slot of the first value.
    pub base: Expr,
    /// The loops over rows (n).
    pub rows: Vec<Strided>,
    /// The loops over columns (k).
    pub columns: Vec<Strided>,
}

/// One statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stmt {
    /// `for var in 0..extent`.
    For {
        /// Its variable.
        var: Var,
        /// Iterations.
        extent: Expr,
        /// How they may be spread.
        bind: Bind,
        /// What is done.
        body: Vec<Stmt>,
    },
    /// Names a value.
    Let {
        /// The name.
        var: Var,
        /// The value.
        value: Expr,
    },
    /// Does `body` where all guards hold.
    If {
        /// The guards.
        guards: Vec<Guard>,
        /// What is done.
        body: Vec<Stmt>,
    },
    /// Makes a tile of zeros that lasts to the end of the block.
    Tile {
        /// The tile.
        tile: TileId,
        /// Rows.
        rows: Expr,
        /// Columns.
        columns: Expr,
    },
    /// `tile[row, 0..columns] = x[k, m..m + columns]`.
    Condense {
        /// The tile.
        tile: TileId,
        /// Its row.
        row: Expr,
        /// The row of X.
        k: Expr,
        /// The first token.
        m: Expr,
        /// Tokens.
        columns: Expr,
    },
    /// `acc[r, c] += sum over q of weights[r, q] * x[q, c]` on whole tiles.
    Mma {
        /// The accumulator.
        acc: TileId,
        /// The weights.
        weights: WeightTile,
        /// The condensed activations.
        x: TileId,
    },
    /// `acc[row, 0..columns] += values[slot] * x[k, m..m + columns]`.
    MulAdd {
        /// The accumulator.
        acc: TileId,
        /// Its row.
        row: Expr,
        /// The slot of the weight.
        slot: Expr,
        /// The row of X.
        k: Expr,
        /// The first token.
        m: Expr,
        /// Tokens.
        columns: Expr,
    },
    /// `y[n, m..m + columns] = epilogue(acc[row, 0..columns])`.
    Store {
        /// The accumulator.
        acc: TileId,
        /// Its row.
        row: Expr,
        /// The row of Y.
        n: Expr,
        /// The first token.
        m: Expr,
        /// Tokens.
        columns: Expr,
    },
}

/// The loops of one sparse GEMM.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LoopIr {
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Values of the packed weight; `None` where a ragged level lets the weights decide.
    pub slots: Option<usize>,
    /// Of each index vector: entries (where the weights do not decide) and the greatest entry.
    pub tables: Vec<TableInfo>,
    /// Regions of the ragged level.
    pub ragged_regions: Option<usize>,
    /// Names of the variables, by number.
    pub names: Vec<String>,
    /// What follows the multiplication.
    pub epilogue: Vec<EpilogueStep>,
    /// The statements.
    pub body: Vec<Stmt>,
}

/// What is known of an index vector before there are weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TableInfo {
    /// Entries; `None` where a ragged level lets the weights decide.
    pub len: Option<usize>,
    /// The greatest entry.
    pub max: u32,
}

impl LoopIr {
    /// Whether the columns of some tile come in groups of four, in tiles of at least 16 rows: what 2-of-4 instructions take.
    pub fn columns_in_fours(&self) -> bool {
        fn any(stmts: &[Stmt]) -> bool {
            stmts.iter().any(|stmt| match stmt {
                Stmt::For { body, .. } | Stmt::If { body, .. } => any(body),
                Stmt::Mma { weights, .. } => {
                    let rows = weights.rows.iter().map(|l| if let Expr::Int(e) = l.extent { e } else { 1 });
                    rows.product::<i64>() >= 16 && weights.columns.last().is_some_and(|l| l.extent == Expr::Int(4))
                }
                _ => false,
            })
        }
        any(&self.body)
    }
}
