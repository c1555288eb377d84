//! What kernels can make use of in a pattern: tiles of rows that keep the same columns, runs, two of four.
//!
//! Facts are about the masks of a pattern, so that what one pattern of an e-class shows holds for all of them.

use crate::loop_ir::{Bind, Stmt};
use crate::lower;
use crate::schedule::{Form, Schedule};
use egg::DidMerge;
use fractal_dsl::pattern::{AxisId, Keep, Pattern, Step};
use serde::Serialize;

/// The tiles of a pattern's condensed form.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tiles {
    /// Rows of a tile: they keep the same columns.
    pub rows: usize,
    /// Of which so many follow one another in W.
    pub row_run: usize,
    /// Tiles of the whole weight, at most.
    pub tiles: usize,
    /// Kept columns of a tile, at most; two-of-four tiles count all four.
    pub columns: usize,
    /// Kept columns of a tile, on average.
    pub mean_columns: f64,
    /// Kept columns come in groups of so many that follow one another and begin at a multiple of it; all k if none is dropped.
    pub column_run: usize,
}

/// What is known of a pattern's masks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// Rows of the weight.
    pub n: usize,
    /// Columns of the weight.
    pub k: usize,
    /// Elements kept, on average.
    pub kept: f64,
    /// Tiles for dense instructions; `None` where the pattern is not legal on GPUs.
    pub dense: Option<Tiles>,
    /// Tiles for two-of-four instructions; `None` where the columns do not come in groups of four.
    pub sparse: Option<Tiles>,
    /// Some tiles keep more columns than others.
    pub ragged: bool,
}

impl Facts {
    /// Those of a pattern.
    pub fn of(pattern: &Pattern) -> Facts {
        let executed = pattern.executed();
        let dense = tiles(&executed);
        let groups = if executed.keeps_two_of_four() { executed.coarser() } else { None };
        let sparse = groups.filter(columns_in_fours).and_then(|groups| tiles(&groups));
        Facts {
            n: pattern.n(),
            k: pattern.k(),
            kept: kept(&executed),
            dense,
            sparse: sparse.filter(|t| t.rows >= 16),
            ragged: executed.axes().iter().any(|a| a.ragged.is_some()),
        }
    }

    /// What either of two equal patterns shows.
    pub(super) fn join(&mut self, other: &Facts) -> DidMerge {
        let before = *self;
        self.dense = join_tiles(self.dense, other.dense);
        self.sparse = join_tiles(self.sparse, other.sparse);
        self.ragged &= other.ragged;
        self.kept = self.kept.min(other.kept);
        DidMerge(*self != before, *self != *other)
    }
}

fn join_tiles(a: Option<Tiles>, b: Option<Tiles>) -> Option<Tiles> {
    let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
    Some(Tiles {
        rows: a.rows.max(b.rows),
        row_run: a.row_run.max(b.row_run),
        tiles: a.tiles.min(b.tiles),
        columns: a.columns.min(b.columns),
        mean_columns: a.mean_columns.min(b.mean_columns),
        column_run: a.column_run.max(b.column_run),
    })
}

/// The part of its axis that a skip keeps.
fn part(pattern: &Pattern, number: usize) -> f64 {
    let Step::Skip { axis, per, keep, .. } = &pattern.steps()[number] else { return 1.0 };
    let len = pattern.axis(*axis).len as f64;
    match (pattern.kept_per_region(number), keep) {
        (Some(kept), _) => kept as f64 / len,
        (None, Keep::RaggedCount(count)) => *count as f64 / (pattern.regions(per) as f64 * len),
        (None, Keep::Ragged(ratio)) => ratio.fraction(),
        (None, _) => 1.0,
    }
}

fn kept(pattern: &Pattern) -> f64 {
    (0..pattern.steps().len()).map(|number| part(pattern, number)).product::<f64>() * (pattern.n() * pattern.k()) as f64
}

/// Of each axis: the distance in n or k between two iterations, where it is the same for all and nothing is missing but
/// at the end of W.
fn strides(pattern: &Pattern) -> Vec<Option<usize>> {
    let mut strides = vec![None; pattern.axes().len()];
    (strides[0], strides[1]) = (Some(1), Some(1));
    // n and k, and the outer loops of their splits: what they lack lies at the end of W.
    let mut slowest = vec![false; pattern.axes().len()];
    (slowest[0], slowest[1]) = (true, true);
    for step in pattern.steps() {
        match step {
            Step::Split { axis, factor, outer, inner } => {
                slowest[outer.index()] = slowest[axis.index()];
                let even = slowest[axis.index()] || pattern.axis(*axis).len.is_multiple_of(*factor);
                strides[outer.index()] = strides[axis.index()].map(|s| s * factor);
                strides[inner.index()] = strides[axis.index()].filter(|_| even);
            }
            Step::Join { a, b, out } if pattern.axis(*a).kind == pattern.axis(*b).kind => {
                let (slow, fast) = (strides[a.index()], strides[b.index()]);
                let lines_up = fast.is_some_and(|fast| slow == Some(fast * pattern.axis(*b).len));
                strides[out.index()] = fast.filter(|_| lines_up);
            }
            // A choice, or both rows and columns.
            Step::Join { .. } | Step::Skip { .. } | Step::Permute { .. } => {}
        }
    }
    strides
}

/// Iterations of the innermost loops together that follow one another.
fn run(pattern: &Pattern, strides: &[Option<usize>], loops: &[AxisId]) -> usize {
    // Where a skip of the same dimension has regions along a loop, its choice differs from one iteration to the next.
    let decides = |axis: &AxisId| {
        pattern.steps().iter().any(|step| match step {
            Step::Skip { axis: skipped, per, .. } => {
                pattern.axis(*skipped).kind == pattern.axis(*axis).kind
                    && per.iter().any(|&p| pattern.leaves(p).contains(axis))
            }
            _ => false,
        })
    };
    let mut run = 1;
    for axis in loops.iter().rev() {
        match strides[axis.index()] {
            Some(stride) if stride == run && !decides(axis) => run *= pattern.axis(*axis).len,
            // No choice, and nowhere to go.
            Some(_) if pattern.axis(*axis).len == 1 => {}
            _ => return run,
        }
    }
    run
}

/// The loops of a condensed kernel that stand for rows of a tile, for its columns, and those around it.
#[derive(Default)]
struct Loops {
    outer: Vec<AxisId>,
    rows: Vec<AxisId>,
    columns: Vec<AxisId>,
}

impl Loops {
    fn find(&mut self, pattern: &Pattern, stmts: &[Stmt], around: &mut Vec<AxisId>) {
        for stmt in stmts {
            match stmt {
                Stmt::For { var, bind, body, .. } => {
                    let axis = pattern.order().iter().copied().find(|a| a.index() == var.0 as usize);
                    let parallel = *bind == Bind::Parallel;
                    match axis {
                        Some(axis) if parallel => self.outer.push(axis),
                        Some(axis) => around.push(axis),
                        None => {}
                    }
                    self.find(pattern, body, around);
                    if !parallel && axis.is_some() {
                        around.pop();
                    }
                }
                Stmt::If { body, .. } => self.find(pattern, body, around),
                Stmt::Condense { .. } => self.columns = around.clone(),
                Stmt::Store { .. } if !around.is_empty() || self.rows.is_empty() => self.rows = around.clone(),
                _ => {}
            }
        }
    }
}

fn tiles(pattern: &Pattern) -> Option<Tiles> {
    let schedule = Schedule { form: Form::Condensed, m_tile: 1, epilogue: Vec::new() };
    let ir = lower(pattern, &schedule).ok()?;
    let executed = pattern.executed();
    let mut loops = Loops::default();
    loops.find(&executed, &ir.body, &mut Vec::new());
    let count = |loops: &[AxisId]| loops.iter().map(|&a| executed.axis(a).len).product::<usize>();
    let strides = strides(&executed);
    let columns = count(&loops.columns);
    let column_run = run(&executed, &strides, &loops.columns);
    let (rows, tiles) = (count(&loops.rows), count(&loops.outer));
    // Rows that are not there take no place in a tile.
    let row_run = match run(&executed, &strides, &loops.rows) {
        run if run < rows && loops.rows.iter().any(|&a| executed.axis(a).tail) => 1,
        run => run,
    };
    let ragged = (0..executed.steps().len())
        .find(|&s| matches!(&executed.steps()[s], Step::Skip { keep, .. } if keep.is_ragged()));
    Some(Tiles {
        rows,
        row_run,
        tiles,
        columns,
        mean_columns: columns as f64 * ragged.map_or(1.0, |step| part(&executed, step)),
        column_run: if column_run >= executed.k() { executed.k() } else { column_run },
    })
}

fn columns_in_fours(pattern: &Pattern) -> bool {
    let schedule = Schedule { form: Form::Condensed, m_tile: 1, epilogue: Vec::new() };
    lower(pattern, &schedule).is_ok_and(|ir| ir.columns_in_fours())
}
