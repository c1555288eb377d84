//! Pattern and schedule -> LoopIr.
//!
//! Before: `tw:128` of a 256x64 weight, condensed. After:
//! ```text
//! parallel for no in 0..2
//!   parallel for mo in 0..ceil(M / 64)
//!     tile acc0[128, ..] = 0, x1[16, ..] = 0
//!     for k' in 0..16: let k = index0[no * 16 + k']; x1[k', ..] = x[k, ..]
//!     acc0 += values[no * 2048 + ..] * x1
//!     for ni in 0..128: y[no * 128 + ni, ..] = acc0[ni, ..]
//! ```
//! The axes of the pattern are recovered by undoing its steps, last to first: each `let` stands as far out as its
//! operands allow, and each guard right behind its `let`.

use crate::loop_ir::{Bind, Expr, Guard, LoopIr, Stmt, Strided, Table, TableInfo, TileId, Var, WeightTile};
use crate::schedule::{Form, Schedule};
use fractal_dsl::pattern::{AxisId, AxisKind, Format, Pattern, Step};
use std::collections::BTreeSet;
use thiserror::Error;

/// Why a pattern cannot be lowered with a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LowerError {
    /// A condensed form of a pattern whose rows do not share columns tile by tile.
    #[error(
        "lower: the condensed form needs a pattern that is legal on GPUs, but {reason}; use the scalar form or a cover"
    )]
    NotCondensable {
        /// The rule that is broken.
        reason: String,
    },
    /// A token tile of nothing.
    #[error("lower: the schedule's token tile is 0; expected at least 1")]
    EmptyTile,
}

/// Lowers `pattern`, in the form in which it is packed ([`Pattern::executed`]), with `schedule`.
///
/// # Errors
/// [`LowerError`].
pub fn lower(pattern: &Pattern, schedule: &Schedule) -> Result<LoopIr, LowerError> {
    if schedule.m_tile == 0 {
        return Err(LowerError::EmptyTile);
    }
    let pattern = pattern.executed();
    let format = pattern.format();
    let lowering = Lowering { pattern: &pattern, format: &format };
    let body = match schedule.form {
        Form::Scalar => lowering.scalar(),
        Form::Condensed => lowering.condensed(schedule.m_tile)?,
    };
    let under = |level: &fractal_dsl::pattern::IndexLevel| level.under_ragged || level.kept.is_none();
    let tables = format.indices.iter().map(|level| TableInfo {
        len: (!under(level)).then(|| level.kept.unwrap_or(0) * pattern.regions(&level.per)),
        max: level.pad.unwrap_or_else(|| lowering.len_before(level.step) as u32 - 1),
    });
    Ok(LoopIr {
        n: pattern.n(),
        k: pattern.k(),
        slots: format.slots,
        tables: tables.collect(),
        ragged_regions: format.ragged.as_ref().map(|r| pattern.regions(&r.per)),
        names: lowering.names(),
        epilogue: schedule.epilogue.clone(),
        body,
    })
}

struct Lowering<'a> {
    pattern: &'a Pattern,
    format: &'a Format,
}

/// One axis recovered from others.
struct Definition {
    axis: AxisId,
    /// The axes it is computed from.
    from: Vec<AxisId>,
    value: Expr,
    guards: Vec<Guard>,
}

/// Variables beyond the axes: tokens in a loop, and the first of a tile.
const TOKEN_LOOP: u32 = 0;
const TOKEN: u32 = 1;

impl Lowering<'_> {
    fn var(&self, axis: AxisId) -> Var {
        Var(axis.index() as u32)
    }

    fn extra(&self, which: u32) -> Var {
        Var(self.pattern.axes().len() as u32 + which)
    }

    fn names(&self) -> Vec<String> {
        let axes = self.pattern.axes().iter().enumerate().map(|(id, axis)| match (id, axis.kind) {
            (0, _) => "n".to_string(),
            (1, _) => "k".to_string(),
            (id, AxisKind::Spatial) => format!("n{id}"),
            (id, AxisKind::Reduction) => format!("k{id}"),
            (id, AxisKind::Mixed) => format!("nk{id}"),
        });
        axes.chain(["mo".to_string(), "m".to_string()]).collect()
    }

    fn value(&self, axis: AxisId) -> Expr {
        Expr::Var(self.var(axis))
    }

    /// Iterations of the axis that the step works on.
    fn len_before(&self, step: usize) -> usize {
        match &self.pattern.steps()[step] {
            Step::Split { axis, .. } | Step::Skip { axis, .. } | Step::Permute { axis, .. } => {
                self.pattern.axis(*axis).len
            }
            Step::Join { out, .. } => self.pattern.axis(*out).len,
        }
    }

    fn flat(&self, axes: &[AxisId]) -> Expr {
        axes.iter().fold(Expr::Int(0), |flat, &axis| flat.times(self.pattern.axis(axis).len).plus(self.value(axis)))
    }

    /// Where the ragged region's iterations begin, and one past their end.
    fn ragged_range(&self) -> Option<(Expr, Expr)> {
        let ragged = self.format.ragged.as_ref()?;
        let region = self.flat(&ragged.per);
        Some((region.clone().load(Table::Offsets), region.plus(Expr::Int(1)).load(Table::Offsets)))
    }

    /// The axes undone, last step first.
    fn definitions(&self) -> Vec<Definition> {
        let mut definitions = Vec::new();
        for (number, step) in self.pattern.steps().iter().enumerate().rev() {
            match step {
                Step::Split { axis, factor, outer, inner } => {
                    let len = self.pattern.axis(*axis).len;
                    let tail = !len.is_multiple_of(*factor);
                    definitions.push(Definition {
                        axis: *axis,
                        from: vec![*outer, *inner],
                        value: self.value(*outer).times(*factor).plus(self.value(*inner)),
                        guards: if tail { vec![Guard::Below(self.var(*axis), len)] } else { vec![] },
                    });
                }
                Step::Join { a, b, out } => {
                    let len = self.pattern.axis(*b).len;
                    for (axis, value) in [(*a, self.value(*out).over(len)), (*b, self.value(*out).modulo(len))] {
                        definitions.push(Definition { axis, from: vec![*out], value, guards: vec![] });
                    }
                }
                Step::Permute { axis, out } => {
                    let value = self.value(*out).load(self.table(number));
                    definitions.push(Definition { axis: *axis, from: vec![*out], value, guards: vec![] });
                }
                Step::Skip { axis, per, out, .. } => {
                    let table = self.table(number);
                    let Table::Index(at) = table else { unreachable!("a skip has an index vector") };
                    let level = &self.format.indices[at];
                    let place = match (level.kept, &self.format.ragged) {
                        (Some(kept), Some(ragged)) if level.under_ragged => {
                            let (from, _) = self.ragged_range().expect("the format is ragged");
                            let others: Vec<AxisId> =
                                per.iter().copied().filter(|p| *p != ragged.outer && !ragged.per.contains(p)).collect();
                            let region = from
                                .plus(self.value(ragged.outer))
                                .times(self.pattern.regions(&others))
                                .plus(self.flat(&others));
                            region.times(kept)
                        }
                        (Some(kept), _) => self.flat(per).times(kept),
                        (None, ragged) => {
                            let (from, _) = self.ragged_range().expect("a level without a count is ragged");
                            from.times(ragged.as_ref().map_or(1, |r| r.chunk))
                        }
                    };
                    let mut from = per.clone();
                    from.push(*out);
                    definitions.push(Definition {
                        axis: *axis,
                        from,
                        value: place.plus(self.value(*out)).load(table),
                        guards: level.pad.map(|pad| Guard::IsNot(self.var(*axis), pad)).into_iter().collect(),
                    });
                }
            }
        }
        definitions
    }

    fn table(&self, step: usize) -> Table {
        let at = self.format.indices.iter().position(|i| i.step == step);
        Table::Index(at.expect("every choice has an index vector"))
    }

    /// The loops that decide an axis' value.
    fn loops_of(&self, definitions: &[Definition], axis: AxisId) -> BTreeSet<AxisId> {
        match definitions.iter().find(|d| d.axis == axis) {
            Some(d) => d.from.iter().flat_map(|&a| self.loops_of(definitions, a)).collect(),
            None => BTreeSet::from([axis]),
        }
    }

    fn extent(&self, axis: AxisId) -> Expr {
        match (&self.format.ragged, self.ragged_range()) {
            // Bounded by the length as well, so that no offsets whatever lead outside a tile.
            (Some(ragged), Some((from, to))) if ragged.outer == axis => {
                to.minus(from).min(Expr::int(self.pattern.axis(axis).len))
            }
            _ => Expr::int(self.pattern.axis(axis).len),
        }
    }

    fn stride(&self, axis: AxisId) -> usize {
        self.format.loops.iter().find(|l| l.axis == axis).map_or(0, |l| l.stride)
    }

    /// The slot that the given loops reach, the ragged region's beginning included.
    fn slot(&self, loops: &[AxisId]) -> Expr {
        let begin = match (&self.format.ragged, self.ragged_range()) {
            (Some(ragged), Some((from, _))) => from.times(ragged.block),
            _ => Expr::Int(0),
        };
        loops.iter().fold(begin, |slot, &axis| slot.plus(self.value(axis).times(self.stride(axis))))
    }

    /// Nests `loops` around `inner`, with each definition as far out as it can stand. `known` are the axes that are
    /// there already and grows by what is defined.
    fn nest(
        &self,
        loops: &[(AxisId, Bind)],
        known: &mut BTreeSet<AxisId>,
        definitions: &[Definition],
        inner: impl FnOnce(&mut BTreeSet<AxisId>) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let mut stmts = Vec::new();
        let mut guards = Vec::new();
        while let Some(d) =
            definitions.iter().find(|d| !known.contains(&d.axis) && d.from.iter().all(|a| known.contains(a)))
        {
            stmts.push(Stmt::Let { var: self.var(d.axis), value: d.value.clone() });
            known.insert(d.axis);
            if !d.guards.is_empty() {
                // What follows may only be computed where the guard holds: it may index with this axis.
                guards = d.guards.clone();
                break;
            }
        }
        let rest = |known: &mut BTreeSet<AxisId>| match loops.split_first() {
            _ if !guards.is_empty() => self.nest(loops, known, definitions, inner),
            Some((&(axis, bind), loops)) => {
                known.insert(axis);
                let body = self.nest(loops, known, definitions, inner);
                vec![Stmt::For { var: self.var(axis), extent: self.extent(axis), bind, body }]
            }
            None => inner(known),
        };
        let body = rest(known);
        if guards.is_empty() {
            stmts.extend(body);
        } else {
            stmts.push(Stmt::If { guards, body });
        }
        stmts
    }

    /// All rows of the result, from the accumulator of all of them.
    fn store_all(&self, acc: TileId) -> Stmt {
        let n = self.var(AxisId::N);
        Stmt::For {
            var: n,
            extent: Expr::int(self.pattern.n()),
            bind: Bind::Serial,
            body: vec![Stmt::Store { acc, row: Expr::Var(n), n: Expr::Var(n), m: Expr::Int(0), columns: Expr::M }],
        }
    }

    fn scalar(&self) -> Vec<Stmt> {
        let definitions = self.definitions();
        let loops: Vec<AxisId> = self.format.loops.iter().map(|l| l.axis).collect();
        let bound: Vec<(AxisId, Bind)> = loops.iter().map(|&a| (a, Bind::Serial)).collect();
        let acc = TileId(0);
        let mut body = vec![Stmt::Tile { tile: acc, rows: Expr::int(self.pattern.n()), columns: Expr::M }];
        body.extend(self.nest(&bound, &mut BTreeSet::new(), &definitions, |_| {
            vec![Stmt::MulAdd {
                acc,
                row: self.value(AxisId::N),
                slot: self.slot(&loops),
                k: self.value(AxisId::K),
                m: Expr::Int(0),
                columns: Expr::M,
            }]
        }));
        body.push(self.store_all(acc));
        body
    }

    fn condensed(&self, m_tile: usize) -> Result<Vec<Stmt>, LowerError> {
        let broken = self.pattern.gpu_violations();
        if let Some(reason) = broken.into_iter().next() {
            return Err(LowerError::NotCondensable { reason });
        }
        let definitions = self.definitions();
        let loops: Vec<AxisId> = self.format.loops.iter().map(|l| l.axis).collect();
        if let Some(mixed) = loops.iter().find(|&&l| self.pattern.axis(l).kind == AxisKind::Mixed) {
            let reason = format!("loop #{} runs over rows and columns", mixed.index());
            return Err(LowerError::NotCondensable { reason });
        }
        let deciding = self.loops_of(&definitions, AxisId::K);
        let is_column = |a: &&AxisId| self.pattern.axis(**a).kind == AxisKind::Reduction;
        let columns: Vec<AxisId> = loops.iter().filter(is_column).copied().collect();
        if let Some(column) = self.loops_of(&definitions, AxisId::N).iter().find(is_column) {
            let reason = format!("the rows depend on the column loop #{}", column.index());
            return Err(LowerError::NotCondensable { reason });
        }
        // A ragged loop over rows is no dimension of a tile: its length differs.
        let ragged_row = |a: &AxisId| self.format.ragged.as_ref().is_some_and(|r| r.outer == *a);
        let (outer, rows): (Vec<AxisId>, Vec<AxisId>) = loops
            .iter()
            .filter(|a| !is_column(a))
            .partition(|&a| deciding.contains(a) || ragged_row(a) || self.stride(*a) == 0);
        let mut body = Vec::new();
        if self.drops_rows() {
            body.push(Stmt::Tile { tile: TileId(2), rows: Expr::int(self.pattern.n()), columns: Expr::M });
            body.push(self.store_all(TileId(2)));
        }
        let bound: Vec<(AxisId, Bind)> = outer.iter().map(|&a| (a, Bind::Parallel)).collect();
        let mut known = BTreeSet::new();
        body.extend(self.nest(&bound, &mut known, &definitions, |known| {
            self.tile(m_tile, &outer, &rows, &columns, known, &definitions)
        }));
        Ok(body)
    }

    /// Whether whole rows may be dropped: no tile stores them.
    fn drops_rows(&self) -> bool {
        let spatial = |a: &AxisId| self.pattern.axis(*a).kind == AxisKind::Spatial;
        self.pattern.steps().iter().any(|s| matches!(s, Step::Skip { axis, .. } if spatial(axis)))
    }

    fn tile(
        &self,
        m_tile: usize,
        outer: &[AxisId],
        rows: &[AxisId],
        columns: &[AxisId],
        known: &BTreeSet<AxisId>,
        definitions: &[Definition],
    ) -> Vec<Stmt> {
        let (mo, m) = (self.extra(TOKEN_LOOP), self.extra(TOKEN));
        let width = || Expr::int(m_tile).min(Expr::M.minus(Expr::Var(m)));
        let extents = |loops: &[AxisId]| loops.iter().fold(Expr::Int(1), |e, &a| e.product(self.extent(a)));
        let flat = |loops: &[AxisId]| {
            loops.iter().fold(Expr::Int(0), |flat, &a| flat.product(self.extent(a)).plus(self.value(a)))
        };
        let strided = |loops: &[AxisId]| -> Vec<Strided> {
            loops.iter().map(|&a| Strided { extent: self.extent(a), stride: self.stride(a) }).collect()
        };
        let serial = |loops: &[AxisId]| -> Vec<(AxisId, Bind)> { loops.iter().map(|&a| (a, Bind::Serial)).collect() };
        let (acc, x) = (TileId(0), TileId(1));
        // Columns that count the regions of a ragged loop stay outside the tile, whose width depends on them.
        let (regions, columns): (Vec<AxisId>, Vec<AxisId>) = columns.iter().partition(|&&a| self.stride(a) == 0);
        let mut body = vec![
            Stmt::Let { var: m, value: Expr::Var(mo).times(m_tile) },
            Stmt::Tile { tile: acc, rows: extents(rows), columns: width() },
        ];
        body.extend(self.nest(&serial(&regions), &mut known.clone(), definitions, |known| {
            let mut body = vec![Stmt::Tile { tile: x, rows: extents(&columns), columns: width() }];
            body.extend(self.nest(&serial(&columns), &mut known.clone(), definitions, |_| {
                let (k, m) = (self.value(AxisId::K), Expr::Var(m));
                vec![Stmt::Condense { tile: x, row: flat(&columns), k, m, columns: width() }]
            }));
            let weights = WeightTile { base: self.slot(outer), rows: strided(rows), columns: strided(&columns) };
            body.push(Stmt::Mma { acc, weights, x });
            body
        }));
        body.extend(self.nest(&serial(rows), &mut known.clone(), definitions, |_| {
            let (n, m) = (self.value(AxisId::N), Expr::Var(m));
            vec![Stmt::Store { acc, row: flat(rows), n, m, columns: width() }]
        }));
        let extent = Expr::M.plus(Expr::int(m_tile - 1)).over(m_tile);
        vec![Stmt::For { var: mo, extent, bind: Bind::Parallel, body }]
    }
}
