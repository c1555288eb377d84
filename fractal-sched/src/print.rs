//! LoopIr as text: one statement a line, names instead of numbers.

use crate::loop_ir::{Bind, Expr, Guard, LoopIr, Stmt, Strided, Table, Var};
use std::fmt::{self, Display, Formatter};

impl Display for LoopIr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "gemm y[{}, M] = w[{}, {}] x[{}, M]", self.n, self.n, self.k, self.k)?;
        for step in &self.epilogue {
            write!(f, " | {step}")?;
        }
        writeln!(f)?;
        Printer { names: &self.names }.block(f, &self.body, 1)
    }
}

struct Printer<'a> {
    names: &'a [String],
}

impl Printer<'_> {
    fn name(&self, var: Var) -> &str {
        self.names.get(var.0 as usize).map_or("?", |n| n)
    }

    fn block(&self, f: &mut Formatter<'_>, stmts: &[Stmt], depth: usize) -> fmt::Result {
        stmts.iter().try_for_each(|stmt| self.stmt(f, stmt, depth))
    }

    fn stmt(&self, f: &mut Formatter<'_>, stmt: &Stmt, depth: usize) -> fmt::Result {
        write!(f, "{:width$}", "", width = 2 * depth)?;
        let e = |expr| Text { printer: self, expr, tight: false };
        match stmt {
            Stmt::For { var, extent, bind, body } => {
                let bind = if *bind == Bind::Parallel { "parallel " } else { "" };
                writeln!(f, "{bind}for {} in 0..{}", self.name(*var), e(extent))?;
                self.block(f, body, depth + 1)
            }
            Stmt::Let { var, value } => writeln!(f, "let {} = {}", self.name(*var), e(value)),
            Stmt::If { guards, body } => {
                let guards: Vec<String> = guards
                    .iter()
                    .map(|guard| match guard {
                        Guard::Below(var, bound) => format!("{} < {bound}", self.name(*var)),
                        Guard::IsNot(var, entry) => format!("{} != {entry}", self.name(*var)),
                    })
                    .collect();
                writeln!(f, "if {}", guards.join(" and "))?;
                self.block(f, body, depth + 1)
            }
            Stmt::Tile { tile, rows, columns } => writeln!(f, "tile t{}[{}, {}] = 0", tile.0, e(rows), e(columns)),
            Stmt::Condense { tile, row, k, m, columns } => {
                let (row, k, m) = (e(row), e(k), e(m));
                writeln!(f, "t{}[{row}, ..] = x[{k}, {m} .. + {}]", tile.0, e(columns))
            }
            Stmt::Mma { acc, weights, x } => {
                let (rows, columns) = (self.loops(&weights.rows), self.loops(&weights.columns));
                writeln!(f, "t{} += values[{}; rows {rows}; columns {columns}] * t{}", acc.0, e(&weights.base), x.0)
            }
            Stmt::MulAdd { acc, row, slot, k, m, columns } => {
                let (row, slot, k, m) = (e(row), e(slot), e(k), e(m));
                writeln!(f, "t{}[{row}, ..] += values[{slot}] * x[{k}, {m} .. + {}]", acc.0, e(columns))
            }
            Stmt::Store { acc, row, n, m, columns } => {
                let (row, n, m) = (e(row), e(n), e(m));
                writeln!(f, "y[{n}, {m} .. + {}] = epilogue(t{}[{row}, ..])", e(columns), acc.0)
            }
        }
    }

    fn loops(&self, loops: &[Strided]) -> String {
        if loops.is_empty() {
            return "1".into();
        }
        let one = |l: &Strided| format!("{}:{}", Text { printer: self, expr: &l.extent, tight: true }, l.stride);
        loops.iter().map(one).collect::<Vec<_>>().join(" x ")
    }
}

struct Text<'a> {
    printer: &'a Printer<'a>,
    expr: &'a Expr,
    /// Whether a sum needs parentheses here.
    tight: bool,
}

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let inner = |expr| Text { printer: self.printer, expr, tight: true };
        let loose = |expr| Text { printer: self.printer, expr, tight: false };
        match self.expr {
            Expr::Int(value) => write!(f, "{value}"),
            Expr::Var(var) => write!(f, "{}", self.printer.name(*var)),
            Expr::M => write!(f, "M"),
            Expr::Add(a, b) if self.tight => write!(f, "({} + {})", loose(a), loose(b)),
            Expr::Add(a, b) => write!(f, "{} + {}", loose(a), loose(b)),
            Expr::Sub(a, b) => write!(f, "({} - {})", loose(a), inner(b)),
            Expr::Mul(a, b) => write!(f, "{} * {}", inner(a), inner(b)),
            Expr::Div(a, b) => write!(f, "({} / {})", inner(a), inner(b)),
            Expr::Rem(a, b) => write!(f, "({} % {})", inner(a), inner(b)),
            Expr::Min(a, b) => write!(f, "min({}, {})", loose(a), loose(b)),
            Expr::Load(Table::Index(number), at) => write!(f, "index{number}[{}]", loose(at)),
            Expr::Load(Table::Offsets, at) => write!(f, "offsets[{}]", loose(at)),
        }
    }
}
