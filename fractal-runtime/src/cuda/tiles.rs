//! Recorded tiles -> what a generated kernel reads: blocks of rows with one list of kept columns each, and their values.
//!
//! Rows that do not keep the same columns can still share a block: it keeps the union and stores zeros (a cover of the
//! pattern's mask). Those that keep nearly the same do. How much is stored beside what is kept is reported.

use super::choose::Load;
use super::residue::DeviceResidue;
use crate::record::RecordedTile;
use fractal_dsl::Intrinsic;
use fractal_sched::codegen::KernelConfig;
use fractal_sched::codegen::tables::{NOTHING, position_place, position_words, weight_place};
use std::cmp::Reverse;
use std::collections::VecDeque;

/// The tables of one weight, in the order that `tables` of the generator says.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceTiles {
    /// Kept columns of each step.
    pub columns: Vec<i32>,
    /// The first step of each block, and one past the last.
    pub begin: Vec<i32>,
    /// Rows of each block.
    pub rows: Vec<i32>,
    /// Values, step by step.
    pub values: Vec<f32>,
    /// Of 2-of-4 kernels: positions, step by step.
    pub positions: Vec<u32>,
    /// Elements on top of the tiles, where the weight has a residue.
    pub residue: Option<DeviceResidue>,
    /// Stored over kept elements, at least 1; 2-of-4 kernels count what they store.
    pub waste: f64,
}

impl DeviceTiles {
    /// Blocks.
    pub fn blocks(&self) -> usize {
        self.begin.len().saturating_sub(1)
    }

    /// Whether, in every block of `rows` rows, the rows of each 64 follow one another, and there are 64 of them or W ends.
    pub fn runs(&self, rows: usize, n: usize) -> bool {
        self.rows.chunks(rows).flat_map(|block| block.chunks(64)).all(|run| {
            let there = run.iter().take_while(|&&r| r != NOTHING).count();
            let first = run[0] as usize;
            run[..there].iter().enumerate().all(|(i, &r)| r as usize == first + i)
                && run[there..].iter().all(|&r| r == NOTHING)
                && (there == 64 || there == 0 || first + there == n)
        })
    }

    /// The largest of 64, 32, 16 and 8 for which the columns of every group of so many follow one another, of a weight of `k`
    /// columns: a group may be nothing, or end where the weight ends. 0 if there is none.
    pub fn column_run(&self, k: usize) -> usize {
        let follow = |group: &[i32]| {
            let there = group.iter().take_while(|&&c| c != NOTHING).count();
            let first = group[0] as usize;
            group[..there].iter().enumerate().all(|(i, &c)| c as usize == first + i)
                && group[there..].iter().all(|&c| c == NOTHING)
                && (there == group.len() || there == 0 || first + there == k)
        };
        [64, 32, 16, 8].into_iter().find(|&run| self.columns.chunks(run).all(follow)).unwrap_or(0)
    }

    /// Bytes on the device with `element` bytes a value.
    pub fn bytes(&self, element: usize) -> usize {
        let residue = self.residue.as_ref().map_or(0, |r| 8 * r.elements.len() + 4 * r.begin.len());
        residue
            + self.values.len() * element
            + 4 * (self.columns.len() + self.begin.len() + self.rows.len() + self.positions.len())
    }
}

/// One block before it is laid out: rows of W, the columns in order, and where (row, column) has its value.
struct Block<'a> {
    rows: Vec<u32>,
    columns: Vec<Option<u32>>,
    /// Tiles that make it, with the first of their rows here and the rows taken.
    parts: Vec<Part<'a>>,
}

struct Part<'a> {
    tile: &'a RecordedTile,
    /// First row within the tile, and rows.
    from: usize,
    len: usize,
}

/// Heights of tables' tiles, in rows.
pub(super) const HEIGHTS: [usize; 4] = [16, 32, 64, 128];

/// What it takes that stored zeros are kept from infinities and that rows are stored one by one, where tiles share blocks: 3 to
/// 7 % of the time on an H200.
const SHARED: f64 = 1.05;

/// The height of blocks with the least expected time, and whether it makes tiles share blocks.
///
/// `efficiency` gives, for 16, 32, 64 and 128 rows, the part of the instruction's peak that a block of them reaches, which may depend
/// on the most columns of one, none where tiles share blocks; 0 where there is no such kernel.
pub fn choose_rows(
    tiles: &[RecordedTile],
    n: usize,
    efficiency: impl Fn(usize, Option<usize>) -> f64,
) -> (usize, bool) {
    let time = |rows: usize| {
        let blocks = blocks(tiles, rows, true);
        let stored: usize = blocks.iter().map(|b| b.columns.len() * rows).sum();
        let shared = blocks.iter().any(|b| b.parts.len() > 1);
        let most = blocks.iter().map(|b| b.columns.len()).max().filter(|_| !shared);
        (if shared { SHARED } else { 1.0 } * stored as f64 / efficiency(rows, most), shared)
    };
    let there = HEIGHTS.into_iter().filter(|&rows| efficiency(rows, None) > 0.0);
    let least = there.clone().next().unwrap_or(HEIGHTS[0]);
    let fitting = there.filter(|&rows| rows == least || rows / 2 < n);
    let best = fitting.map(|rows| (rows, time(rows))).min_by(|a, b| a.1.0.total_cmp(&b.1.0));
    best.map_or((least, false), |(rows, (_, shared))| (rows, shared))
}

/// Whether blocks of so many rows make tiles share them.
pub fn shares_blocks(tiles: &[RecordedTile], rows: usize) -> bool {
    blocks(tiles, rows, true).iter().any(|b| b.parts.len() > 1)
}

/// Cuts tiles that are too high, and puts `together` those that are too low.
fn blocks(tiles: &[RecordedTile], rows: usize, together: bool) -> Vec<Block<'_>> {
    let (high, low): (Vec<_>, Vec<_>) = tiles.iter().partition(|tile| !together || tile.rows.len() >= rows);
    let mut blocks = Vec::new();
    for tile in high {
        for from in (0..tile.rows.len()).step_by(rows) {
            let len = rows.min(tile.rows.len() - from);
            blocks.push(Block {
                rows: tile.rows[from..from + len].to_vec(),
                columns: tile.columns.iter().map(|c| c.map(|(k, _)| k)).collect(),
                parts: vec![Part { tile, from, len }],
            });
        }
    }
    blocks.extend(alike(&low, rows).into_iter().map(|group| Block {
        rows: group.iter().flat_map(|tile| &tile.rows).copied().collect(),
        columns: vec![],
        parts: group.into_iter().map(|tile| Part { tile, from: 0, len: tile.rows.len() }).collect(),
    }));
    let mut used = Vec::new();
    for block in &mut blocks {
        if block.parts.len() > 1 {
            let kept = || block.parts.iter().flat_map(|p| p.tile.columns.iter().flatten().map(|c| c.0));
            used.resize(kept().max().map_or(0, |last| last as usize + 1), false);
            kept().for_each(|k| used[k as usize] = true);
            block.columns = (0..).zip(&used).filter(|(_, used)| **used).map(|(k, _)| Some(k)).collect();
            used.clear();
        } else if block.columns.is_empty() {
            block.columns = block.parts[0].tile.columns.iter().map(|c| c.map(|(k, _)| k)).collect();
        }
    }
    blocks
}

/// Comparisons of 64 columns for which tiles look for others to share a block with: some hundredths of a second.
const COMPARISONS: usize = 1 << 25;

/// Groups of tiles, of so many rows at most, whose unions are small: to the first tile that is left comes the one that adds the
/// fewest columns, of equals the nearest, as long as one fits. That is within 4 % of what exchanges find on top (random blocks
/// of 32 x 32, 75 %: unions of neighbours are 1.75 times what is kept, these 1.59).
fn alike<'a>(tiles: &[&'a RecordedTile], rows: usize) -> Vec<Vec<&'a RecordedTile>> {
    let kept = |tile: &'a RecordedTile| tile.columns.iter().flatten().map(|&(k, _)| k as usize);
    let words = tiles.iter().flat_map(|tile| kept(tile)).max().map_or(0, |last| last / 64 + 1);
    let bits = |tile: &&'a RecordedTile| {
        let mut bits = vec![0u64; words];
        kept(tile).for_each(|k| bits[k / 64] |= 1 << (k % 64));
        bits
    };
    let mut left: VecDeque<_> = tiles.iter().map(|tile| (*tile, bits(tile))).collect();
    let reach = (COMPARISONS / (tiles.len() * (words + 8)).max(1)).max(1);
    let count = |bits: &[u64]| bits.iter().map(|word| word.count_ones()).sum::<u32>();
    let mut all = vec![0; words];
    left.iter().flat_map(|(_, bits)| bits.iter().enumerate()).for_each(|(word, bits)| all[word] |= bits);
    let all = count(&all);
    let mut groups = Vec::new();
    while let Some((first, mut union)) = left.pop_front() {
        let (mut group, mut height) = (vec![first], first.rows.len());
        loop {
            let added = |bits: &[u64]| union.iter().zip(bits).map(|(u, b)| (b & !u).count_ones()).sum::<u32>();
            let mut fit = left.iter().enumerate().take(reach).filter(|(_, (tile, _))| height + tile.rows.len() <= rows);
            // To a union of all columns, none adds any.
            let best = if count(&union) == all { fit.next() } else { fit.min_by_key(|(_, (_, bits))| added(bits)) };
            let Some((at, _)) = best else { break };
            let Some((tile, bits)) = left.remove(at) else { break };
            union.iter_mut().zip(&bits).for_each(|(u, b)| *u |= b);
            height += tile.rows.len();
            group.push(tile);
        }
        groups.push(group);
    }
    groups
}

/// Orders the runs of 64 or 32 columns that blocks keep so that many blocks of a band read the same run at the same time, which the
/// second-level cache serves best: of what blocks still have to read, the run that most have, for all of these; then the one that
/// most of the others have, until each has one. A last run that is not whole stays the last.
///
/// Of single columns in rising order, blocks read the same ones at nearly the same time anyway.
fn in_step(band: &mut [Block<'_>]) {
    let whole = |unit: &[Option<u32>], run: usize| {
        unit.len() == run && unit[0].is_some_and(|first| (first..).map(Some).zip(unit).all(|(k, found)| k == *found))
    };
    let units = |block: &Block<'_>, run: usize| block.columns.chunks(run).take_while(|unit| whole(unit, run)).count();
    let all_whole = |run: &usize| band.iter().all(|b| b.columns.len() - units(b, *run) * run <= *run);
    let Some(run) = [64, 32].into_iter().find(all_whole) else { return };
    // First columns of runs, and of each block those that it keeps, by number.
    let of_block =
        |block: &Block<'_>| block.columns.chunks(run).take(units(block, run)).flat_map(|unit| unit[0]).collect();
    let kept: Vec<Vec<u32>> = band.iter().map(of_block).collect();
    let mut firsts = kept.concat();
    firsts.sort_unstable();
    firsts.dedup();
    // Runs that begin anywhere, as orders of columns that differ from tile to tile leave them, have little in common.
    if firsts.last().is_some_and(|&last| last as usize / run + 1 < firsts.len()) {
        return;
    }
    let numbers = |kept: &Vec<u32>| kept.iter().flat_map(|first| firsts.binary_search(first)).collect();
    let mut left: Vec<Vec<usize>> = kept.iter().map(numbers).collect();
    let mut order = vec![Vec::new(); band.len()];
    loop {
        let mut open: Vec<usize> = (0..band.len()).filter(|&b| !left[b].is_empty()).collect();
        if open.is_empty() {
            break;
        }
        let mut wanted = vec![0u32; firsts.len()];
        open.iter().flat_map(|&b| &left[b]).for_each(|&unit| wanted[unit] += 1);
        while !open.is_empty() {
            let Some(most) = (0..wanted.len()).max_by_key(|&unit| (wanted[unit], Reverse(unit))) else { break };
            open.retain(|&b| {
                let Some(at) = left[b].iter().position(|&unit| unit == most) else { return true };
                left[b].iter().for_each(|&unit| wanted[unit] -= 1);
                left[b].remove(at);
                order[b].push(firsts[most]);
                false
            });
        }
    }
    for (block, order) in band.iter_mut().zip(order) {
        let columns = order.iter().flat_map(|&first| (first..).take(run).map(Some));
        let rest = block.columns.split_off(order.len() * run);
        block.columns = columns.chain(rest).collect();
    }
}

/// Lays out a weight for the kernel of `config`, of which the tiles keep `kept` elements. Rows in no tile get a block without columns, so that their epilogue runs.
///
/// # Errors
/// A sentence, where a 2-of-4 kernel meets a row that keeps more than two of four columns.
pub fn lay_out(
    config: &KernelConfig,
    tiles: &[RecordedTile],
    packed: &[f32],
    n: usize,
    kept: usize,
) -> Result<DeviceTiles, String> {
    let (rows, step, stored) = (config.rows, config.step, config.stored_step());
    let sparse = config.intrinsic == Intrinsic::MmaSp;
    // Groups of four columns belong to one tile.
    let mut blocks = blocks(tiles, rows, !sparse);
    // The longest first: what is left at the end of a wave is short then.
    blocks.sort_by_key(|b| Reverse(b.columns.len()));
    if !sparse {
        let steps = || blocks.iter().map(|b| b.columns.len().div_ceil(step));
        let without = n.saturating_sub(blocks.iter().map(|b| b.rows.len()).sum()).div_ceil(rows.max(1));
        let (tiles, longest) = (blocks.len() + without, steps().max().unwrap_or(0));
        let load = Load { tiles, steps: steps().sum(), longest };
        let band = load.band(rows);
        blocks.chunks_mut(band).for_each(in_step);
    }
    let mut out = DeviceTiles {
        columns: vec![],
        begin: vec![0],
        rows: vec![],
        values: vec![],
        positions: vec![],
        residue: None,
        waste: 1.0,
    };
    let mut seen = vec![false; n];
    for block in &blocks {
        out.rows.extend(block.rows.iter().map(|&r| r as i32));
        out.rows.resize(out.rows.len().next_multiple_of(rows), NOTHING);
        block.rows.iter().for_each(|&r| seen[r as usize] = true);
        let steps = block.columns.len().div_ceil(step);
        let (first_column, first_step) = (out.columns.len(), out.columns.len() / step);
        out.columns.extend(block.columns.iter().map(|c| c.map_or(NOTHING, |k| k as i32)));
        out.columns.resize(first_column + steps * step, NOTHING);
        out.begin.push((first_step + steps) as i32);
        let image = rows * stored;
        out.values.resize((first_step + steps) * image, 0.0);
        if sparse {
            out.positions.resize((first_step + steps) * position_words(config), 0);
            fill_sparse(config, block, packed, first_step, &mut out)?;
        } else {
            fill_dense(config, block, packed, first_step, &mut out);
        }
    }
    let mut rest = (0..n).filter(|&r| !seen[r]).peekable();
    while rest.peek().is_some() {
        out.rows.extend(rest.by_ref().take(rows).map(|r| r as i32));
        out.rows.resize(out.rows.len().next_multiple_of(rows), NOTHING);
        out.begin.push(out.begin.last().copied().unwrap_or(0));
    }
    out.waste = (out.values.len() as f64 / kept.max(1) as f64).max(1.0);
    Ok(out)
}

fn fill_dense(config: &KernelConfig, block: &Block<'_>, packed: &[f32], first_step: usize, out: &mut DeviceTiles) {
    let image = config.rows * config.stored_step();
    let mut put = |row: usize, column: usize, value: f32| {
        let at = (first_step + column / config.step) * image + weight_place(config, row, column % config.step);
        out.values[at] = value;
    };
    // Of each column, its position.
    let mut place = vec![0; block.columns.iter().flatten().max().map_or(0, |last| *last as usize + 1)];
    for (at, k) in block.columns.iter().enumerate().filter_map(|(at, k)| k.map(|k| (at, k))) {
        place[k as usize] = at;
    }
    let mut top = 0;
    for part in &block.parts {
        for (k, slot) in part.tile.columns.iter().flatten() {
            let at = place[*k as usize];
            for (r, row_slot) in part.tile.row_slots[part.from..part.from + part.len].iter().enumerate() {
                put(top + r, at, packed[slot + row_slot]);
            }
        }
        top += part.len;
    }
}

fn fill_sparse(
    config: &KernelConfig,
    block: &Block<'_>,
    packed: &[f32],
    first_step: usize,
    out: &mut DeviceTiles,
) -> Result<(), String> {
    let (step, image) = (config.step, config.rows * config.stored_step());
    let steps = block.columns.len().div_ceil(step);
    let part = &block.parts[0];
    for s in 0..steps {
        for row in 0..config.rows {
            let row_slot = part.tile.row_slots[part.from..part.from + part.len].get(row);
            for group in 0..step / 4 {
                let column = |i: usize| part.tile.columns.get(s * step + group * 4 + i).copied().flatten();
                let value = |i: usize| match (row_slot, column(i)) {
                    (Some(row_slot), Some((_, slot))) => packed[row_slot + slot],
                    _ => 0.0,
                };
                let mut chosen: Vec<usize> = (0..4).filter(|&i| value(i) != 0.0).collect();
                if chosen.len() > 2 {
                    let n = block.rows.get(row).copied().unwrap_or(0);
                    return Err(format!(
                        "row {n} keeps {} of the four columns from position {}",
                        chosen.len(),
                        s * step + group * 4
                    ));
                }
                // Places without a column read zeros: no activation meets the zero weight that stands there.
                let mut spare: Vec<usize> = (0..4).filter(|i| !chosen.contains(i)).collect();
                spare.sort_by_key(|&i| column(i).is_some());
                chosen.extend(spare.into_iter().take(2 - chosen.len().min(2)));
                chosen.sort_unstable();
                for (at, &i) in chosen.iter().enumerate() {
                    let place = weight_place(config, row, group * 2 + at);
                    out.values[(first_step + s) * image + place] = value(i);
                }
                let (word, bit) = position_place(row, group);
                out.positions[(first_step + s) * position_words(config) + word] |=
                    ((chosen[0] | chosen[1] << 2) as u32) << bit;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tiles of these heights, one below the other, that keep these columns.
    fn tiles(kept: &[(usize, Vec<u32>)]) -> Vec<RecordedTile> {
        let mut next = 0;
        let tile = |(height, columns): &(usize, Vec<u32>)| {
            let rows: Vec<u32> = (next..).take(*height).collect();
            next += *height as u32;
            RecordedTile {
                row_slots: vec![0; rows.len()],
                rows,
                columns: columns.iter().map(|&k| Some((k, 0))).collect(),
            }
        };
        kept.iter().map(tile).collect()
    }

    #[test]
    fn tiles_that_keep_the_same_share_a_block() {
        let [one, other] = [vec![3, 64, 200], vec![3, 70, 71]];
        let tiles = tiles(&[(32, one.clone()), (32, other.clone()), (64, vec![1]), (32, other), (32, one)]);
        let blocks = blocks(&tiles, 64, true);
        let all: Vec<_> = blocks.iter().map(|b| (b.rows[0], b.rows[b.rows.len() - 1], b.columns.len())).collect();
        assert_eq!(all, [(64, 127, 1), (0, 191, 3), (32, 159, 3)]);
        assert_eq!(blocks[1].columns, [Some(3), Some(64), Some(200)]);
    }

    proptest! {
        #[test]
        fn every_tile_is_in_one_group_and_no_group_too_high(
            kept in proptest::collection::vec((1usize..=40, proptest::collection::btree_set(0u32..300, 0..40)), 0..40)
        ) {
            let kept: Vec<_> = kept.into_iter().map(|(height, columns)| (height, columns.into_iter().collect())).collect();
            let tiles = tiles(&kept);
            let groups = alike(&tiles.iter().collect::<Vec<_>>(), 64);
            let mut rows: Vec<u32> = groups.iter().flatten().flat_map(|tile| tile.rows.clone()).collect();
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..kept.iter().map(|k| k.0 as u32).sum()).collect::<Vec<u32>>());
            let heights = groups.iter().map(|group| group.iter().map(|tile| tile.rows.len()).sum::<usize>());
            prop_assert!(heights.into_iter().all(|height| height <= 64));
        }
    }

    /// Tiles of so many rows that keep these of `all` blocks of 32 columns each, at random.
    fn random_blocks(tiles_rows: (usize, usize), kept: usize, all: u32) -> Vec<(usize, Vec<u32>)> {
        let mut state = 1u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        let tile = |_| {
            let mut left: Vec<u32> = (0..all).collect();
            let mut blocks: Vec<u32> =
                (0..kept).map(|_| left.swap_remove(random(left.len() as u32) as usize)).collect();
            blocks.sort_unstable();
            (tiles_rows.1, blocks.iter().flat_map(|b| b * 32..b * 32 + 32).collect())
        };
        (0..tiles_rows.0).map(tile).collect()
    }

    #[test]
    fn unions_of_random_blocks_are_smaller_than_those_of_neighbours() {
        // 64 tiles that keep 16 of 64 blocks of 32 columns: a union of two neighbours has 28 on average.
        let tiles = tiles(&random_blocks((64, 32), 16, 64));
        let union: usize = blocks(&tiles, 64, true).iter().map(|b| b.columns.len() / 32).sum();
        assert!(union < 32 * 26, "{union} blocks in 32 unions");
    }

    #[test]
    fn blocks_read_the_same_columns_at_the_same_time() {
        let tiles = tiles(&random_blocks((32, 64), 16, 64));
        let mut band = blocks(&tiles, 64, true);
        // One ends with a run that is not whole, where the weight ends.
        band[3].columns.extend([Some(2048), Some(2049), None]);
        let before: Vec<Vec<Option<u32>>> = band.iter().map(|b| b.columns.clone()).collect();
        let different = |columns: &[Vec<Option<u32>>]| {
            let at =
                |slot: usize| columns.iter().map(|c| c[slot * 32]).collect::<std::collections::BTreeSet<_>>().len();
            (0..16).map(at).sum::<usize>()
        };
        in_step(&mut band);
        let after: Vec<Vec<Option<u32>>> = band.iter().map(|b| b.columns.clone()).collect();
        assert!(different(&after) * 3 < different(&before) * 2, "{} {}", different(&after), different(&before));
        assert_eq!(after[3][512..], [Some(2048), Some(2049), None]);
        for (after, before) in after.iter().zip(&before) {
            assert!(after.chunks(32).all(|run| run.windows(2).all(|c| c[1].is_none() || c[1] == c[0].map(|k| k + 1))));
            let sorted =
                |columns: &[Option<u32>]| columns.iter().flatten().copied().collect::<std::collections::BTreeSet<_>>();
            assert_eq!(sorted(after), sorted(before));
        }
    }
}
