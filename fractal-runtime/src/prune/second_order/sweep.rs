//! Weights that are best without the finest skip -> what that skip keeps, chosen column by column while the kept weights to the right
//! make up for what is dropped (Frantar and Alistarh, SparseGPT, 2023, section 3; the factor as there, of the inverse Hessian).

use super::factor::Factor;
use super::problem::Problem;
use faer::Par;
use fractal_dsl::pattern::{Kept, Mask, Pattern, Selection, Step};
use rayon::prelude::*;
use std::collections::HashMap;

/// Columns that are swept before what they leave is carried to all others.
const BLOCK: usize = 64;
/// Rows of one task.
const ROWS: usize = 32;
/// Columns of a region at most: its choice is made when its first column is reached.
const LONGEST: usize = 32;

/// One row's columns in the order of the sweep: (column, region, iteration).
type Places = Vec<(usize, usize, usize)>;

/// Columns in the order of the sweep, and the rows that have them: rows that share a factor.
type Tile = (Vec<usize>, Vec<(usize, Places)>);

/// Whether the finest skip chooses a few single columns of one row each time, so many in every region.
pub(super) fn finest_of_rows(pattern: &Pattern, selection: &Selection) -> Option<usize> {
    let step = pattern.steps().iter().rposition(|s| matches!(s, Step::Skip { .. }))?;
    let ends = pattern.steps()[step..].iter().any(|s| matches!(s, Step::Permute { .. }));
    pattern.kept_per_region(step)?;
    let Step::Skip { axis, .. } = &pattern.steps()[step] else { return None };
    if ends || pattern.axis(*axis).len > LONGEST {
        return None;
    }
    let mut owner: HashMap<usize, usize> = HashMap::new();
    let mut single = true;
    pattern.for_each_place(selection, step, |row, places| {
        let mut seen = std::collections::HashSet::with_capacity(places.len());
        for &(_, region, iteration) in places {
            single &= *owner.entry(region).or_insert(row) == row && seen.insert((region, iteration));
        }
    });
    single.then_some(step)
}

/// Chooses the level of `step`, the finest skip, from weights \[n, k\] that are best on what the levels of `selection` before it keep; of
/// those outside `within` only what a region cannot be filled without.
pub(super) fn sweep(
    problem: &Problem,
    pattern: &Pattern,
    selection: &Selection,
    step: usize,
    weights: &[f32],
    within: Option<&Mask>,
) -> Kept {
    let k = problem.k;
    let Step::Skip { axis, per, .. } = &pattern.steps()[step] else { unreachable!("a skip, as found") };
    let (regions, len) = (pattern.regions(per), pattern.axis(*axis).len);
    let most = pattern.kept_per_region(step).unwrap_or(len);
    // Rows with the same columns in the same order share a factor.
    let mut orders: HashMap<Vec<usize>, usize> = HashMap::new();
    let mut tiles: Vec<Tile> = Vec::new();
    pattern.for_each_place(selection, step, |row, places| {
        let mut places = places.to_vec();
        places.sort_by_key(|&(column, region, iteration)| (region, iteration, column));
        let columns: Vec<usize> = places.iter().map(|&(column, _, _)| column).collect();
        let at = *orders.entry(columns.clone()).or_insert_with(|| {
            tiles.push((columns, Vec::new()));
            tiles.len() - 1
        });
        tiles[at].1.push((row, places));
    });
    let par = if tiles.len() >= 2 * rayon::current_num_threads() { Par::Seq } else { Par::rayon(0) };
    let one = |(columns, rows): &Tile| {
        let upper = upper_factor(problem, columns, par);
        let chunks =
            rows.par_chunks(ROWS).map(|rows| rows_of_tile(&upper, columns.len(), rows, (weights, k), most, within));
        chunks.flatten().collect::<Vec<(usize, u32)>>()
    };
    let mut chosen: Vec<(usize, u32)> = tiles.par_iter().flat_map_iter(one).collect();
    chosen.sort_unstable();
    let mut offsets = vec![0u32; regions + 1];
    chosen.iter().for_each(|&(region, _)| offsets[region + 1] += 1);
    (0..regions).for_each(|region| offsets[region + 1] += offsets[region]);
    Kept { offsets, kept: chosen.into_iter().map(|(_, iteration)| iteration).collect() }
}

/// U of the inverse Hessian U'U of these columns, row-major.
fn upper_factor(problem: &Problem, columns: &[usize], par: Par) -> Vec<f64> {
    let len = columns.len();
    let backwards: Vec<usize> = columns.iter().rev().copied().collect();
    let inverse = Factor::of(&problem.hessian, problem.k, &backwards, par).inverse();
    let mut upper = vec![0.0; len * len];
    upper.par_chunks_mut(len.max(1)).enumerate().for_each(|(i, row)| inverse.reversed_row(i, &mut row[i..]));
    upper
}

/// The (region, iteration) pairs that these rows keep.
fn rows_of_tile(
    upper: &[f64],
    len: usize,
    rows: &[(usize, Places)],
    (weights, k): (&[f32], usize),
    most: usize,
    within: Option<&Mask>,
) -> Vec<(usize, u32)> {
    let mut chosen = Vec::new();
    let values = |(row, places): &(usize, Places)| {
        let row = *row;
        places.iter().map(move |&(column, _, _)| f64::from(weights[row * k + column])).collect::<Vec<f64>>()
    };
    let mut current: Vec<f64> = rows.iter().flat_map(values).collect();
    let mut errors = vec![0.0; rows.len() * BLOCK];
    let mut keep = vec![false; len];
    for begin in (0..len).step_by(BLOCK) {
        let end = (begin + BLOCK).min(len);
        for ((at, (row, places)), w) in rows.iter().enumerate().zip(current.chunks_exact_mut(len)) {
            for j in begin..end {
                let region = places[j].1;
                if j == 0 || places[j - 1].1 != region {
                    // A region that goes on in the next block is chosen by what is known now.
                    let last = places[j..].iter().take_while(|p| p.1 == region).count() + j;
                    let score = |i: usize| match within {
                        Some(within) if !within.contains(*row, places[i].0) => -1.0,
                        _ => (w[i] / upper[i * len + i]).powi(2),
                    };
                    let mut ranked: Vec<(f64, usize)> = (j..last).map(|i| (score(i), i)).collect();
                    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
                    ranked.iter().enumerate().for_each(|(rank, &(_, i))| keep[i] = rank < most);
                    chosen.extend((j..last).filter(|&i| keep[i]).map(|i| (region, places[i].2 as u32)));
                }
                let error = if keep[j] { 0.0 } else { w[j] / upper[j * len + j] };
                errors[at * BLOCK + j - begin] = error;
                if error != 0.0 {
                    let row = &upper[j * len..][j..end];
                    w[j..end].iter_mut().zip(row).for_each(|(w, u)| *w -= error * u);
                }
            }
        }
        carry(&mut current, &errors, upper, rows.len(), len, begin..end);
    }
    chosen
}

/// Takes the errors of the block's columns from all columns behind it.
fn carry(current: &mut [f64], errors: &[f64], upper: &[f64], rows: usize, len: usize, block: std::ops::Range<usize>) {
    let (begin, end) = (block.start, block.end);
    if end == len {
        return;
    }
    assert!(current.len() == rows * len && errors.len() == rows * BLOCK && upper.len() == len * len);
    // SAFETY: rows x (len - end) values of `current` from column `end` on, rows x (end - begin) of `errors`, and the block's rows of
    // `upper` from column `end` on lie inside their buffers; `current` is borrowed mutably.
    unsafe {
        gemm::gemm(
            rows,
            len - end,
            end - begin,
            current.as_mut_ptr().add(end),
            1,
            len as isize,
            true,
            errors.as_ptr(),
            1,
            BLOCK as isize,
            upper.as_ptr().add(begin * len + end),
            1,
            len as isize,
            1.0,
            -1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
