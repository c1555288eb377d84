//! Runs a [`ValidPlan`]: input X[k, m], output Y[n, m].
//!
//! A task is a slice of m's columns and a group of tiles. A thread copies its slice of X once into panels of a few
//! vectors' width, as f32; after that a kept row of X is a few adjacent cache lines whatever m and the storage type are,
//! so the micro-kernel condenses by index and no tile gathers. k is never divided between threads and the order of a
//! sum depends on the plan and m alone, so results are the same bits for any number of threads.

use super::epilogue::{Epilogue, EpilogueOp, Step};
use super::matrix::{Element, ElementsMut, MatMut, MatRef, Typed};
use super::plan::{ROW_BLOCK, ValidPlan};
use super::raw::{self, Bounded, Isa, LANES, MAX_FEW, OutputTask, OutputTasks, Row, Weights};
use fractal_dsl::DType;
use half::{bf16, f16};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Operands that do not fit the plan or each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecuteError {
    /// An operand has the wrong extents.
    #[error("{operand}: expected {} x {}, got {} x {}", .expected.0, .expected.1, .got.0, .got.1)]
    Shape {
        /// `x`, `y`, `w`, `bias` or `residual`.
        operand: &'static str,
        /// Rows and columns needed.
        expected: (usize, usize),
        /// Rows and columns given.
        got: (usize, usize),
    },
    /// An operand has the wrong storage type.
    #[error("{operand}: expected {expected}, got {got}")]
    DType {
        /// `x`, `y`, `w` or `residual`.
        operand: &'static str,
        /// The plan's type.
        expected: DType,
        /// The operand's type.
        got: DType,
    },
}

/// Y = epilogue(W X) with up to `threads` threads (0 counts as 1) of the current rayon pool.
///
/// `x` is [k, m] and `y` [n, m], both of the plan's storage type. Every element of `y` is written, whatever it held.
///
/// # Errors
/// [`ExecuteError`] when an operand's shape or type does not fit; `y` is untouched then.
pub fn execute(
    plan: &ValidPlan,
    x: MatRef<'_>,
    y: MatMut<'_>,
    epilogue: &Epilogue<'_>,
    threads: usize,
) -> Result<(), ExecuteError> {
    execute_in(Isa::best(), plan, x, y, epilogue, threads).map(drop)
}

/// [`execute()`] in an instruction set, and whether the rows of X that the plan reads are finite.
pub(super) fn execute_in(
    isa: Isa,
    plan: &ValidPlan,
    x: MatRef<'_>,
    y: MatMut<'_>,
    epilogue: &Epilogue<'_>,
    threads: usize,
) -> Result<bool, ExecuteError> {
    check_operands((plan.n, plan.k, plan.dtype()), x, &y, epilogue)?;
    let stride = y.stride();
    let m = y.cols();
    Ok(match y.into_elements() {
        ElementsMut::F32(y) => Run::<f32>::new(isa, plan, x, epilogue, m, threads).run(y, stride),
        ElementsMut::F16(y) => Run::<f16>::new(isa, plan, x, epilogue, m, threads).run(y, stride),
        ElementsMut::BF16(y) => Run::<bf16>::new(isa, plan, x, epilogue, m, threads).run(y, stride),
    })
}

/// Checks all operands of an [n, k] weight of type `dtype` against each other.
pub(super) fn check_operands(
    (n, k, dtype): (usize, usize, DType),
    x: MatRef<'_>,
    y: &MatMut<'_>,
    epilogue: &Epilogue<'_>,
) -> Result<(), ExecuteError> {
    let m = x.cols();
    let mut operands =
        vec![("x", (k, m), (x.rows(), x.cols()), x.dtype()), ("y", (n, m), (y.rows(), y.cols()), y.dtype())];
    for op in &epilogue.ops {
        match op {
            EpilogueOp::Bias(b) => operands.push(("bias", (n, 1), (b.len(), 1), dtype)),
            EpilogueOp::Residual(r) => operands.push(("residual", (n, m), (r.rows(), r.cols()), r.dtype())),
            EpilogueOp::Relu | EpilogueOp::Gelu | EpilogueOp::Silu | EpilogueOp::Scale(_) => {}
        }
    }
    for (operand, expected, got, got_dtype) in operands {
        if expected != got {
            return Err(ExecuteError::Shape { operand, expected, got });
        }
        if got_dtype != dtype {
            return Err(ExecuteError::DType { operand, expected: dtype, got: got_dtype });
        }
    }
    Ok(())
}

/// Bytes of a slice of X in panel form at most. A narrower slice would stay in a nearer cache, but every slice reads all
/// weights again: for k = 16384 four panels run 1.3 times as fast as one.
const SLICE_BYTES: usize = 13 << 20;
/// Panels of a slice at most: more no longer save reads of the weights worth their room.
const SLICE_PANELS: usize = 4;
/// Rows that a group of tiles shares one set of sums for, at least.
const BATCH_ROWS: usize = 128;
/// Groups of each slice at most; a thread that ends early takes over groups of another's slice.
const GROUPS: usize = 8;

/// Buffers that a thread keeps from call to call.
#[derive(Default)]
struct Scratch {
    panels: Vec<f32>,
    buffers: Buffers,
}

#[derive(Default)]
struct Buffers {
    sums: Vec<f32>,
    weights: Vec<f32>,
    wide: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// `len` elements of `buffer` from a cache line's start on: a vector that crosses a line costs two loads.
fn at_least(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    const LINE: usize = 64;
    let needed = len + LINE / size_of::<f32>();
    if buffer.len() < needed {
        // A fresh buffer, since growing would copy what nobody reads.
        *buffer = vec![0.0; needed];
    }
    let start = buffer.as_ptr().align_offset(LINE);
    &mut buffer[start..start + len]
}

struct Run<'a, T> {
    isa: Isa,
    plan: &'a ValidPlan,
    values: &'a [T],
    x: Typed<'a, T>,
    steps: Vec<Step<'a, T>>,
    m: usize,
    /// So few columns that vectors lie along n instead of m.
    few: bool,
    threads: usize,
    /// Whether all that was packed of X is finite.
    finite: AtomicBool,
}

impl<'a, T: Element> Run<'a, T> {
    /// Panics when types differ; [`check_operands`] has seen to that.
    fn new(isa: Isa, plan: &'a ValidPlan, x: MatRef<'a>, epilogue: &Epilogue<'a>, m: usize, threads: usize) -> Self {
        let steps = epilogue.ops.iter().map(|op| Step::new(op).expect("types were checked")).collect();
        let values = T::of(plan.values.elements()).expect("types were checked");
        let x = x.typed().expect("types were checked");
        let few = m <= plan.few;
        Run { isa, plan, values, x, steps, m, few, threads: threads.max(1), finite: AtomicBool::new(true) }
    }

    fn run(self, y: &mut [T], stride: usize) -> bool {
        if self.m == 0 || self.plan.n == 0 {
            return true;
        }
        let tasks = OutputTasks::new(y, stride, &self.plan.order, self.groups(), self.slices());
        let helpers = self.threads.min(rayon::current_num_threads().max(1)) - 1;
        if helpers == 0 {
            self.work(&tasks);
        } else {
            rayon::in_place_scope(|scope| {
                for _ in 0..helpers {
                    scope.spawn(|_| self.work(&tasks));
                }
                self.work(&tasks);
            });
        }
        drop(tasks);
        self.finite.into_inner()
    }

    /// Equal slices of whole panels, as many as a multiple of the threads where m allows it.
    fn slices(&self) -> Vec<Range<usize>> {
        if self.few {
            return std::iter::once(0..self.m).collect();
        }
        let width = self.panel_width();
        let panels = self.m.div_ceil(width);
        let fit = (SLICE_BYTES / (4 * width * self.plan.used.len().max(1))).clamp(1, SLICE_PANELS);
        let slices = panels.div_ceil(fit).next_multiple_of(self.threads).min(panels);
        (0..slices).map(|s| (s * panels / slices * width)..((s + 1) * panels / slices * width).min(self.m)).collect()
    }

    /// Ranges of row positions on tile borders, of about equal work.
    fn groups(&self) -> Vec<Range<usize>> {
        let plan = self.plan;
        let total = plan.kept() + plan.n;
        let share = total.div_ceil(if self.threads == 1 { 1 } else { GROUPS.max(2 * self.threads) });
        let mut groups = Vec::new();
        let (mut start, mut work) = (0, 0);
        for (t, tile) in plan.tiles.iter().enumerate() {
            work += tile.rows.len() * (tile.ks.len() + 1);
            if work >= share {
                groups.push(start..plan.first_row[t + 1]);
                start = plan.first_row[t + 1];
                work = 0;
            }
        }
        if start < plan.n {
            groups.push(start..plan.n);
        }
        groups
    }

    fn panel_width(&self) -> usize {
        self.isa.panel_vectors(self.plan.row_wise) * LANES
    }

    /// Panels of a slice of `cols` columns: where each begins and its width in vectors; only the last is narrower.
    fn panels(&self, cols: usize) -> impl Iterator<Item = (usize, usize)> + use<'a, T> {
        let width = self.panel_width();
        (0..cols).step_by(width).map(move |c| (c, (cols - c).min(width).div_ceil(LANES)))
    }

    fn work(&self, tasks: &OutputTasks<'_, T>) {
        // Taken, not borrowed: a caller's own rayon job may run on this thread while this one waits.
        let Scratch { mut panels, mut buffers } = SCRATCH.take();
        let mut packed = None;
        let mut slice: &mut [f32] = &mut [];
        while let Some(mut task) = tasks.next(packed) {
            if packed != Some(task.slice) {
                slice = self.pack(task.columns(), &mut panels);
                packed = Some(task.slice);
            }
            self.task(&mut task, slice, &mut buffers);
        }
        SCRATCH.set(Scratch { panels, buffers });
    }

    /// Copies the used rows of some columns of X as f32: panel by panel, each k-major and padded with zeros to whole
    /// vectors; or, for few columns, one k-major panel without padding.
    fn pack<'s>(&self, columns: Range<usize>, out: &'s mut Vec<f32>) -> &'s mut [f32] {
        let (used, cols) = (&self.plan.used, columns.len());
        if self.few {
            let out = at_least(out, used.len() * cols);
            T::pack(self.isa, self.x.columns(used, columns), cols, out);
            self.check(out);
            return out;
        }
        let out = at_least(out, used.len() * cols.next_multiple_of(LANES));
        for (c, vectors) in self.panels(cols) {
            let width = vectors * LANES;
            let start = columns.start + c;
            let part = self.x.columns(used, start..columns.end.min(start + width));
            let panel = &mut out[used.len() * c..][..used.len() * width];
            T::pack(self.isa, part, width, panel);
            self.check(panel);
        }
        out
    }

    /// Notes an infinity or NaN in a panel, which is in a near cache now.
    fn check(&self, panel: &[f32]) {
        let mut finite = true;
        raw::check_finite(self.isa, panel, &mut finite);
        if !finite {
            self.finite.store(false, Ordering::Relaxed);
        }
    }

    fn task(&self, task: &mut OutputTask<'_, T>, panels: &[f32], buffers: &mut Buffers) {
        let positions = task.positions();
        let first_row = &self.plan.first_row;
        let mut tile = first_row.partition_point(|&f| f < positions.start);
        let mut position = positions.start;
        while position < positions.end {
            // A batch: tiles that are worked through together, k block by k block.
            let first = tile;
            let tiles_end = self.plan.tiles.len();
            while tile < tiles_end && first_row[tile + 1] <= positions.end && first_row[tile] < position + BATCH_ROWS {
                tile += 1;
            }
            let end = if tile > first { first_row[tile] } else { positions.end.min(position + BATCH_ROWS) };
            self.batch(task, first..tile, position..end, panels, buffers);
            position = end;
        }
    }

    /// Sums and stores the rows of `tiles`, which are at `positions`; without tiles, rows of zeros.
    fn batch(
        &self,
        task: &mut OutputTask<'_, T>,
        tiles: Range<usize>,
        positions: Range<usize>,
        panels: &[f32],
        buffers: &mut Buffers,
    ) {
        let cols = task.columns().len();
        let stride = if self.few { cols } else { cols.next_multiple_of(LANES) };
        let Buffers { sums, weights, wide } = buffers;
        let sums = at_least(sums, positions.len() * stride);
        if self.few || tiles.is_empty() || self.plan.used.is_empty() {
            sums.fill(0.0);
        }
        for b in 0..self.plan.k_blocks() {
            let weights = self.widen(tiles.clone(), b, weights);
            if self.few {
                self.few_columns(tiles.clone(), b, cols, panels, weights, sums);
                continue;
            }
            let single = self.single_rows(tiles.clone(), b, weights);
            for (c, vectors) in self.panels(cols) {
                let used = self.plan.used.len();
                let panel = &panels[used * c..][..used * vectors * LANES];
                if let Some(rows) = &single {
                    raw::accumulate_rows(self.isa, rows, panel, vectors, (&mut sums[c..], stride), b == 0);
                    continue;
                }
                self.panel(tiles.clone(), b, (panel, vectors), weights, (&mut sums[c..], stride));
            }
        }
        if self.plan.has_residue() {
            self.restore(positions.clone(), cols, panels, (sums, stride));
        }
        let start = task.columns().start;
        for (position, sums) in positions.zip(sums.chunks_exact_mut(stride)) {
            let (row, out) = task.segment(position);
            let sums = &mut sums[..cols];
            for step in &self.steps {
                step.apply(self.isa, row, start, sums, wide);
            }
            T::narrow(self.isa, sums, out);
        }
    }

    /// Adds the residue of the rows at `positions` to their sums.
    fn restore(&self, positions: Range<usize>, cols: usize, panels: &[f32], (sums, stride): (&mut [f32], usize)) {
        let first = positions.start;
        let rows = positions.filter_map(|position| {
            let (weights, ks) = self.plan.restored(position)?;
            Some(Row { weights, ks, at: position - first })
        });
        if self.few {
            for Row { weights, ks, at } in rows {
                let sums = &mut sums[at * stride..][..cols];
                if cols == 1 {
                    sums[0] += dot(weights, ks.as_slice(), panels);
                    continue;
                }
                for (weight, &k) in weights.iter().zip(ks.as_slice()) {
                    sums.iter_mut().zip(&panels[k as usize * cols..]).for_each(|(sum, x)| *sum += weight * x);
                }
            }
            return;
        }
        let (rows, used): (Vec<Row<'_>>, _) = (rows.collect(), self.plan.used.len());
        for (c, vectors) in self.panels(cols) {
            let panel = &panels[used * c..][..used * vectors * LANES];
            raw::accumulate_rows(self.isa, &rows, panel, vectors, (&mut sums[c..], stride), false);
        }
    }

    /// The stored values of tile `t`'s row block from `row` on, those of the kept positions `kept`.
    fn values(&self, t: usize, row: usize, kept: &Range<usize>) -> &'a [T] {
        let tile = &self.plan.tiles[t];
        let height = ROW_BLOCK.min(tile.rows.len() - row);
        &self.values[tile.values + row * tile.ks.len() + kept.start * height..][..kept.len() * height]
    }

    /// The values that `tiles` use in k block `b`, one after the other as f32; empty where they are f32 in the plan.
    fn widen<'s>(&self, tiles: Range<usize>, b: usize, buffer: &'s mut Vec<f32>) -> &'s [f32] {
        if T::as_f32(&[]).is_some() {
            return &[];
        }
        let len = tiles.clone().map(|t| self.plan.tiles[t].rows.len() * self.plan.split(t, b).len()).sum();
        let out = at_least(buffer, len);
        let mut at = 0;
        for t in tiles {
            let kept = self.plan.split(t, b);
            for row in (0..self.plan.tiles[t].rows.len()).step_by(ROW_BLOCK) {
                let values = self.values(t, row, &kept);
                T::widen(self.isa, values, &mut out[at..at + values.len()]);
                at += values.len();
            }
        }
        out
    }

    /// Visits the row blocks of `tiles` that have kept positions in k block `b`: the block's first row among those of
    /// the tiles, its rows, its positions and its values as f32, which are in `widened` unless the plan has them.
    fn blocks<'s>(
        &'s self,
        tiles: Range<usize>,
        b: usize,
        widened: &'s [f32],
        mut visit: impl FnMut(usize, usize, Bounded<'s>, &'s [f32]),
    ) {
        let first = self.plan.first_row[tiles.start];
        let mut at = 0;
        for t in tiles {
            let tile = &self.plan.tiles[t];
            let rows = tile.rows.len();
            let kept = self.plan.split(t, b);
            let ks = self.plan.ks.part(tile.ks.start as usize + kept.start..tile.ks.start as usize + kept.end);
            for row in (0..rows).step_by(ROW_BLOCK) {
                let values = self.values(t, row, &kept);
                let block = T::as_f32(values).unwrap_or_else(|| &widened[at..at + values.len()]);
                at += values.len();
                visit(self.plan.first_row[t] - first + row, ROW_BLOCK.min(rows - row), ks, block);
            }
        }
    }

    /// The rows of `tiles` in k block `b` when each tile is one row.
    fn single_rows<'s>(&'s self, tiles: Range<usize>, b: usize, widened: &'s [f32]) -> Option<Vec<Row<'s>>> {
        if !self.plan.row_wise || self.plan.tiles[tiles.clone()].iter().any(|t| t.rows.len() != 1) {
            return None;
        }
        let mut rows = Vec::with_capacity(tiles.len());
        self.blocks(tiles, b, widened, |at, _, ks, weights| rows.push(Row { weights, ks, at }));
        Some(rows)
    }

    /// Adds the products of `tiles` in k block `b` to the sums under one panel; block 0 begins them.
    fn panel(
        &self,
        tiles: Range<usize>,
        b: usize,
        (panel, vectors): (&[f32], usize),
        widened: &[f32],
        (sums, stride): (&mut [f32], usize),
    ) {
        let step = self.isa.max_rows(vectors);
        self.blocks(tiles, b, widened, |first, height, ks, block| {
            if ks.as_slice().is_empty() {
                if b == 0 {
                    (first..first + height).for_each(|r| sums[r * stride..][..vectors * LANES].fill(0.0));
                }
                return;
            }
            for row in (0..height).step_by(step) {
                let weights = Weights { data: &block[row..], stride: height, rows: step.min(height - row) };
                let sums = (&mut sums[(first + row) * stride..], stride);
                raw::accumulate(self.isa, weights, ks, panel, vectors, sums, b == 0);
            }
        });
    }

    /// Adds the products of `tiles` in k block `b` to the sums of the few columns of `x`.
    fn few_columns(&self, tiles: Range<usize>, b: usize, cols: usize, x: &[f32], widened: &[f32], sums: &mut [f32]) {
        self.blocks(tiles, b, widened, |first, height, ks, block| {
            let sums = &mut sums[first * cols..][..height * cols];
            if height == 1 && cols == 1 {
                sums[0] += dot(block, ks.as_slice(), x);
                return;
            }
            let mut across = [0.0; LANES * MAX_FEW];
            raw::sum_rows(self.isa, block, height, ks, x, cols, &mut across);
            for (i, sums) in sums.chunks_exact_mut(cols).enumerate() {
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum += across[j * LANES + i];
                }
            }
        });
    }
}

/// Sum of `weights[t] * x[ks[t]]`, in eight interleaved sums so that additions do not wait for each other.
fn dot(weights: &[f32], ks: &[u32], x: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    let (mut w, mut k) = (weights.chunks_exact(8), ks.chunks_exact(8));
    for (w, k) in (&mut w).zip(&mut k) {
        for i in 0..8 {
            sums[i] += w[i] * x[k[i] as usize];
        }
    }
    for (w, &k) in w.remainder().iter().zip(k.remainder()) {
        sums[0] += w * x[k as usize];
    }
    ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))
}
