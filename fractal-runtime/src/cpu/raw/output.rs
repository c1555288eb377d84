//! The output that threads write at once, in tasks that do not overlap.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows without repetition.
#[derive(Clone, Debug)]
pub struct DistinctRows {
    rows: Vec<u32>,
    bound: usize,
}

impl DistinctRows {
    /// `None` when a row repeats or is not below `bound`.
    pub fn new(rows: Vec<u32>, bound: usize) -> Option<Self> {
        let mut seen = vec![false; bound];
        for &r in &rows {
            if std::mem::replace(seen.get_mut(r as usize)?, true) {
                return None;
            }
        }
        Some(DistinctRows { rows, bound })
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The row at a position.
    pub fn row(&self, position: usize) -> usize {
        self.rows[position] as usize
    }
}

/// A row-major output that threads write at once, cut into tasks: every pair of a column slice and a group of rows.
/// Each task is handed out once, so what two threads may write never overlaps.
pub struct OutputTasks<'a, T> {
    start: *mut T,
    stride: usize,
    rows: &'a DistinctRows,
    groups: Vec<Range<usize>>,
    slices: Vec<Range<usize>>,
    next_slice: AtomicUsize,
    next_group: Vec<AtomicUsize>,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: threads share only the atomic counters; through them each gets elements that no other thread gets.
unsafe impl<T: Send> Sync for OutputTasks<'_, T> {}

/// One task: the only access to its elements.
pub struct OutputTask<'t, T> {
    all: &'t OutputTasks<'t, T>,
    pub slice: usize,
    pub group: usize,
}

impl<'a, T> OutputTasks<'a, T> {
    /// `groups` are ranges of positions in `rows`; `slices` are column ranges. Both ascend without overlap.
    ///
    /// # Panics
    /// When they do not, or leave `rows` or `data`.
    pub fn new(
        data: &'a mut [T],
        stride: usize,
        rows: &'a DistinctRows,
        groups: Vec<Range<usize>>,
        slices: Vec<Range<usize>>,
    ) -> Self {
        let ascends = |parts: &[Range<usize>]| {
            parts.iter().all(|p| p.start <= p.end) && parts.windows(2).all(|p| p[0].end <= p[1].start)
        };
        assert!(ascends(&groups) && ascends(&slices));
        assert!(groups.last().is_none_or(|g| g.end <= rows.len()));
        let cols = slices.last().map_or(0, |s| s.end);
        assert!(cols <= stride || rows.bound <= 1);
        assert!(rows.bound == 0 || (rows.bound - 1) * stride + cols <= data.len());
        let next_group = slices.iter().map(|_| AtomicUsize::new(0)).collect();
        let start = data.as_mut_ptr();
        let next_slice = AtomicUsize::new(0);
        OutputTasks { start, stride, rows, groups, slices, next_slice, next_group, borrow: PhantomData }
    }

    /// The next task: of slice `current` while it has any, then of a slice that no thread has begun, then of any.
    pub fn next(&self, current: Option<usize>) -> Option<OutputTask<'_, T>> {
        if let Some(task) = current.and_then(|s| self.claim(s)) {
            return Some(task);
        }
        while self.next_slice.load(Ordering::Relaxed) < self.slices.len() {
            let s = self.next_slice.fetch_add(1, Ordering::Relaxed);
            if s < self.slices.len()
                && let Some(task) = self.claim(s)
            {
                return Some(task);
            }
        }
        (0..self.slices.len()).find_map(|s| self.claim(s))
    }

    fn claim(&self, slice: usize) -> Option<OutputTask<'_, T>> {
        let counter = &self.next_group[slice];
        if counter.load(Ordering::Relaxed) >= self.groups.len() {
            return None;
        }
        // Only a counter's first passage of a number gives that task out.
        let group = counter.fetch_add(1, Ordering::Relaxed);
        (group < self.groups.len()).then_some(OutputTask { all: self, slice, group })
    }
}

impl<T> OutputTask<'_, T> {
    pub fn columns(&self) -> Range<usize> {
        self.all.slices[self.slice].clone()
    }

    pub fn positions(&self) -> Range<usize> {
        self.all.groups[self.group].clone()
    }

    /// The row at `position` and its elements in this task's columns.
    ///
    /// # Panics
    /// When the position is not this task's.
    pub fn segment(&mut self, position: usize) -> (usize, &mut [T]) {
        assert!(self.positions().contains(&position));
        let row = self.all.rows.rows[position] as usize;
        let columns = self.columns();
        // SAFETY: `OutputTasks::new` checked that the last row's columns end within the data and that rows do not
        // overlap. No other task has both this position and these columns, positions stand for distinct rows, and the
        // borrow of `self` ends before this task gives out another segment.
        let segment = unsafe {
            let start = self.all.start.add(row * self.all.stride + columns.start);
            std::slice::from_raw_parts_mut(start, columns.len())
        };
        (row, segment)
    }
}
