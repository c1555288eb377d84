//! Groups of columns of which every context keeps its best few: which columns share a group, and which of them are spare.
//!
//! What a group retains is the sum over contexts (rows, as a rule) of its `most` greatest scores. Exchanging two columns
//! of different groups, or one with a spare column, changes two sums alone. With t the `most`-th greatest score of the
//! *others* in a column's group, a column v in its place makes the group's sum that of the others plus the sum of
//! max(0, v - t): so all exchanges are known from one table of columns by columns, and the best ones that do not
//! touch each other are made until none is left that gains (Pool & Yu 2021, "Channel permutations for N:M sparsity").

use rayon::prelude::*;

/// Contexts that are computed at once; heights are multiples of it.
pub(super) const LANES: usize = 16;

/// An exchange must gain more than this part of the two groups' sums: less is rounding.
const ROUNDING: f32 = 4e-6;

/// Rounds of exchanges of one cluster, at most.
const ROUNDS: usize = 64;

/// Groups of more columns stay as they are: work and memory of a cluster grow with the square of their width, and what the
/// greedy choice loses falls with it.
const WIDEST: usize = 128;

/// Scores of columns, each in every context: column j at `values[j * height..]`.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a> {
    pub(super) values: &'a [f32],
    pub(super) height: usize,
}

impl Columns<'_> {
    pub(super) fn len(&self) -> usize {
        self.values.len() / self.height
    }

    /// Of each context, the `most`-th greatest score among `which`.
    pub(super) fn thresholds(&self, which: &[u32], most: usize) -> Vec<f32> {
        let mut scores = Vec::with_capacity(which.len());
        let threshold = |context: usize| {
            scores.clear();
            scores.extend(which.iter().map(|&j| self.column(j)[context]));
            *scores.select_nth_unstable_by(most - 1, |a, b| b.total_cmp(a)).1
        };
        (0..self.height).map(threshold).collect()
    }

    fn column(&self, j: u32) -> &[f32] {
        &self.values[j as usize * self.height..][..self.height]
    }

    #[inline(always)]
    fn chunks(&self, j: u32) -> &[[f32; LANES]] {
        self.values[j as usize * self.height..][..self.height].as_chunks().0
    }

    /// What a group retains.
    pub(super) fn retained(&self, group: &[u32], most: usize) -> f32 {
        Best { columns: *self, group, most, least: &mut [], next: &mut [] }.sum()
    }

    /// The sum of what groups retain.
    pub(super) fn retained_of_all(&self, groups: &[Vec<u32>], most: usize) -> f64 {
        groups.iter().map(|group| f64::from(self.retained(group, most))).sum()
    }

    /// Of each of `which`, the sum of what it exceeds `thresholds` by.
    pub(super) fn excess(&self, which: &[u32], thresholds: &[f32]) -> Vec<f32> {
        let mut gains = vec![0.0; which.len()];
        pulp::Arch::new().dispatch(Excess { columns: *self, which, thresholds, base: 0.0, gains: &mut gains });
        gains
    }
}

/// Sums over contexts of the `most` greatest of a group. Where there is room, each context leaves the least of those in
/// `least` and the greatest of the others in `next`.
struct Best<'a> {
    columns: Columns<'a>,
    group: &'a [u32],
    most: usize,
    least: &'a mut [f32],
    next: &'a mut [f32],
}

/// Up to so many scores are ranked in their places; of more, the greatest are selected context by context.
const RANKED: usize = 8;

impl Best<'_> {
    fn sum(self) -> f32 {
        if self.most > RANKED { self.selected() } else { pulp::Arch::new().dispatch(self) }
    }

    fn selected(self) -> f32 {
        let most = self.most.min(self.group.len());
        if most == 0 {
            return 0.0;
        }
        let (mut scores, mut sum) = (Vec::with_capacity(self.group.len()), 0.0);
        let (mut least_of_all, mut next_of_all) = (self.least.iter_mut(), self.next.iter_mut());
        for context in 0..self.columns.height {
            scores.clear();
            scores.extend(self.group.iter().map(|&j| self.columns.column(j)[context]));
            let (greater, &mut least, others) = scores.select_nth_unstable_by(most - 1, |a, b| b.total_cmp(a));
            sum += greater.iter().sum::<f32>() + least;
            if let Some(to) = least_of_all.next() {
                *to = least;
            }
            if let Some(to) = next_of_all.next() {
                *to = others.iter().copied().fold(f32::NEG_INFINITY, greatest);
            }
        }
        sum
    }
}

impl pulp::WithSimd for Best<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> f32 {
        match self.most.min(self.group.len()) {
            // The common number has its places in registers.
            2 => self.ranked([[0.0; LANES]; 2]),
            most => self.ranked(vec![[0.0; LANES]; most]),
        }
    }
}

impl Best<'_> {
    #[inline(always)]
    fn ranked(self, mut best: impl AsMut<[[f32; LANES]]>) -> f32 {
        let best = best.as_mut();
        let mut sums = [0.0f32; LANES];
        let (mut least, mut next) = (self.least.as_chunks_mut().0.iter_mut(), self.next.as_chunks_mut().0.iter_mut());
        for at in 0..self.columns.height / LANES {
            best.fill([f32::NEG_INFINITY; LANES]);
            let mut other = [f32::NEG_INFINITY; LANES];
            for &j in self.group {
                let mut column = self.columns.chunks(j)[at];
                for place in best.iter_mut() {
                    rank(place, &mut column);
                }
                rank(&mut other, &mut column);
            }
            for place in best.iter() {
                for lane in 0..LANES {
                    sums[lane] += place[lane];
                }
            }
            if let Some(to) = least.next() {
                *to = best.last().copied().unwrap_or([0.0; LANES]);
            }
            if let Some(to) = next.next() {
                *to = other;
            }
        }
        sums.iter().sum()
    }
}

/// For a group without `column`: `thresholds` becomes each context's `most`-th greatest score, where those of the whole group
/// are `least` and the ones after them `next`; the result is how much less such a group retains.
struct Without<'a> {
    column: &'a [f32],
    least: &'a [f32],
    next: &'a [f32],
    thresholds: &'a mut [f32],
}

impl pulp::WithSimd for Without<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> f32 {
        let mut sums = [0.0f32; LANES];
        let (column, least) = (self.column.as_chunks::<LANES>().0, self.least.as_chunks::<LANES>().0);
        let (next, thresholds) = (self.next.as_chunks::<LANES>().0, self.thresholds.as_chunks_mut::<LANES>().0);
        for (((v, least), next), to) in column.iter().zip(least).zip(next).zip(thresholds) {
            for lane in 0..LANES {
                let kept = v[lane] >= least[lane];
                to[lane] = if kept { next[lane] } else { least[lane] };
                sums[lane] += if kept { v[lane] - next[lane] } else { 0.0 };
            }
        }
        sums.iter().sum()
    }
}

/// Leaves the greater in `place`, the other in `v`.
#[inline(always)]
fn rank(place: &mut [f32; LANES], v: &mut [f32; LANES]) {
    for lane in 0..LANES {
        let low = least(place[lane], v[lane]);
        place[lane] = greatest(place[lane], v[lane]);
        v[lane] = low;
    }
}

/// `gains[x] = base +` the sum over contexts of what column `which[x]` exceeds the thresholds by.
struct Excess<'a> {
    columns: Columns<'a>,
    which: &'a [u32],
    thresholds: &'a [f32],
    base: f32,
    gains: &'a mut [f32],
}

impl pulp::WithSimd for Excess<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Excess { columns, which, thresholds, base, gains } = self;
        let (thresholds, _) = thresholds.as_chunks::<LANES>();
        let total = |sums: &[f32; LANES]| base + sums.iter().sum::<f32>();
        let (fours, rest) = which.as_chunks::<4>();
        let (out, last) = gains.as_chunks_mut::<4>();
        for (&[a, b, c, d], out) in fours.iter().zip(out) {
            let [mut sum_a, mut sum_b, mut sum_c, mut sum_d] = [[0.0f32; LANES]; 4];
            let (a, b) = (columns.chunks(a).iter(), columns.chunks(b).iter());
            let (c, d) = (columns.chunks(c).iter(), columns.chunks(d).iter());
            for ((((t, a), b), c), d) in thresholds.iter().zip(a).zip(b).zip(c).zip(d) {
                add_excess(&mut sum_a, a, t);
                add_excess(&mut sum_b, b, t);
                add_excess(&mut sum_c, c, t);
                add_excess(&mut sum_d, d, t);
            }
            *out = [total(&sum_a), total(&sum_b), total(&sum_c), total(&sum_d)];
        }
        for (&j, gain) in rest.iter().zip(last) {
            let mut sum = [0.0f32; LANES];
            for (t, v) in thresholds.iter().zip(columns.chunks(j)) {
                add_excess(&mut sum, v, t);
            }
            *gain = total(&sum);
        }
    }
}

#[inline(always)]
fn add_excess(sum: &mut [f32; LANES], v: &[f32; LANES], t: &[f32; LANES]) {
    for lane in 0..LANES {
        sum[lane] += greatest(v[lane] - t[lane], 0.0);
    }
}

// Of numbers that are no NaN these are one instruction; `f32::max` and `f32::min` are several.
#[inline(always)]
fn greatest(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn least(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// How long exchanges are looked for.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// Columns of one cluster: within it all exchanges are weighed against each other.
    pub(super) cluster: usize,
    /// Times that groups are dealt into clusters.
    pub(super) phases: usize,
    /// In each cluster, times that a few random exchanges are made to leave a local optimum.
    pub(super) escapes: usize,
}

/// Exchanges columns of different groups, and spare ones, as long as it gains. The sums of what groups retain never fall.
pub(super) fn improve(
    columns: Columns<'_>,
    groups: &mut [Vec<u32>],
    spare: &mut [u32],
    most: usize,
    patience: Patience,
    seed: u64,
) {
    let size = groups.iter().map(Vec::len).max().unwrap_or(1).max(1);
    if (groups.len() < 2 && spare.is_empty()) || size > WIDEST {
        return;
    }
    let mut random = Random(seed);
    let clusters = groups.len().div_ceil((patience.cluster / size).max(2));
    let (mut numbers, mut spares): (Vec<usize>, Vec<usize>) = ((0..groups.len()).collect(), (0..spare.len()).collect());
    for _ in 0..patience.phases {
        if clusters > 1 {
            random.shuffle(&mut numbers);
            random.shuffle(&mut spares);
        }
        let seeds: Vec<u64> = (0..clusters).map(|_| random.next()).collect();
        let part = |count: usize, c: usize| count * c / clusters..count * (c + 1) / clusters;
        let found: Vec<(f64, Cluster<'_>)> = (0..clusters)
            .into_par_iter()
            .map(|c| {
                let groups = numbers[part(numbers.len(), c)].iter().map(|&g| groups[g].as_slice());
                let spare = spares[part(spares.len(), c)].iter().map(|&s| spare[s]);
                let mut cluster = Cluster::new(columns, most, groups, spare);
                let before = cluster.retained();
                cluster.climb();
                cluster.escape(patience.escapes, &mut Random(seeds[c]));
                (cluster.retained() - before, cluster)
            })
            .collect();
        let (mut gained, mut all) = (0.0, 0.0);
        for (c, (gain, cluster)) in found.into_iter().enumerate() {
            gained += gain;
            all += cluster.retained();
            for (g, &number) in numbers[part(numbers.len(), c)].iter().enumerate() {
                groups[number].copy_from_slice(cluster.group(g));
            }
            for (&s, &column) in spares[part(spares.len(), c)].iter().zip(&cluster.at[cluster.slots()..]) {
                spare[s] = column;
            }
        }
        if clusters == 1 || gained <= 2e-5 * all {
            return;
        }
    }
}

/// Some groups and spare columns, and what every exchange of them gives.
struct Cluster<'a> {
    columns: Columns<'a>,
    most: usize,
    /// The column in each slot, the spare ones last.
    at: Vec<u32>,
    /// The group of each slot.
    group_of: Vec<usize>,
    /// Where each group's slots begin, and one past the last.
    begin: Vec<usize>,
    /// `slot * at.len() + x`: what the slot's group retains with column x in the slot.
    with: Vec<f32>,
}

impl<'a> Cluster<'a> {
    fn new<'g>(
        columns: Columns<'a>,
        most: usize,
        groups: impl Iterator<Item = &'g [u32]>,
        spare: impl Iterator<Item = u32>,
    ) -> Cluster<'a> {
        let (mut at, mut group_of, mut begin) = (Vec::new(), Vec::new(), vec![0]);
        for (number, group) in groups.enumerate() {
            at.extend(group);
            group_of.resize(at.len(), number);
            begin.push(at.len());
        }
        at.extend(spare);
        let with = vec![0.0; group_of.len() * at.len()];
        let mut cluster = Cluster { columns, most, at, group_of, begin, with };
        (0..cluster.groups()).for_each(|g| cluster.refresh(g));
        cluster
    }

    fn groups(&self) -> usize {
        self.begin.len() - 1
    }

    fn slots(&self) -> usize {
        self.group_of.len()
    }

    fn group(&self, g: usize) -> &[u32] {
        &self.at[self.begin[g]..self.begin[g + 1]]
    }

    /// What the group of a slot retains.
    fn now(&self, slot: usize) -> f32 {
        self.with[slot * self.at.len() + slot]
    }

    fn retained(&self) -> f64 {
        (0..self.groups()).filter(|&g| !self.group(g).is_empty()).map(|g| f64::from(self.now(self.begin[g]))).sum()
    }

    /// Computes what group `g` retains with every column in each of its slots.
    fn refresh(&mut self, g: usize) {
        let (columns, all, height) = (self.columns, self.at.len(), self.columns.height);
        let slots = self.begin[g]..self.begin[g + 1];
        if slots.len() <= self.most {
            // All are kept.
            let sums: Vec<f32> = self.at.iter().map(|&j| columns.column(j).iter().sum()).collect();
            let whole: f32 = sums[slots.clone()].iter().sum();
            for slot in slots {
                let others = whole - sums[slot];
                self.with[slot * all..][..all].iter_mut().zip(&sums).for_each(|(with, sum)| *with = others + sum);
            }
            return;
        }
        let [mut least, mut next, mut thresholds] = [(); 3].map(|()| vec![0.0; height]);
        let best =
            Best { columns, group: &self.at[slots.clone()], most: self.most, least: &mut least, next: &mut next };
        let whole = best.sum();
        for slot in slots {
            let column = columns.column(self.at[slot]);
            let arch = pulp::Arch::new();
            let less = arch.dispatch(Without { column, least: &least, next: &next, thresholds: &mut thresholds });
            let gains = &mut self.with[slot * all..][..all];
            let (which, thresholds) = (&self.at[..], &thresholds[..]);
            arch.dispatch(Excess { columns, which, thresholds, base: whole - less, gains });
        }
    }

    /// Exchanges the columns at two places, the first a slot; the groups are to be refreshed.
    fn exchange(&mut self, slot: usize, x: usize) {
        let all = self.at.len();
        self.at.swap(slot, x);
        self.with.chunks_exact_mut(all).for_each(|row| row.swap(slot, x));
    }

    fn refresh_around(&mut self, slot: usize, x: usize) {
        self.refresh(self.group_of[slot]);
        if let Some(&g) = self.group_of.get(x) {
            self.refresh(g);
        }
    }

    /// Of each slot, the best exchange that gains, the best of all first.
    fn best_exchanges(&self) -> Vec<(f32, usize, usize)> {
        let (all, slots) = (self.at.len(), self.slots());
        let mut found = Vec::new();
        for slot in 0..slots {
            let row = &self.with[slot * all..][..all];
            let (mut best, now) = ((0.0, 0), row[slot]);
            let later = self.begin[self.group_of[slot] + 1];
            for (x, with) in row.iter().enumerate().take(slots).skip(later) {
                let there = self.now(x);
                let gain = with + self.with[x * all + slot] - now - there;
                if gain > best.0 && gain > ROUNDING * (now.abs() + there.abs()) {
                    best = (gain, x);
                }
            }
            for (x, with) in row.iter().enumerate().skip(slots) {
                let gain = with - now;
                if gain > best.0 && gain > ROUNDING * now.abs() {
                    best = (gain, x);
                }
            }
            if best.0 > 0.0 {
                found.push((best.0, slot, best.1));
            }
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        found
    }

    /// Makes the best exchanges until none gains.
    fn climb(&mut self) {
        for _ in 0..ROUNDS {
            let found = self.best_exchanges();
            if found.is_empty() {
                return;
            }
            let mut touched = vec![false; self.groups()];
            let mut taken = vec![false; self.at.len()];
            for (_, slot, x) in found {
                let other = self.group_of.get(x).copied();
                if touched[self.group_of[slot]] || taken[x] || other.is_some_and(|g| touched[g]) {
                    continue;
                }
                touched[self.group_of[slot]] = true;
                taken[x] = true;
                other.into_iter().for_each(|g| touched[g] = true);
                self.exchange(slot, x);
            }
            (0..touched.len()).filter(|&g| touched[g]).for_each(|g| self.refresh(g));
        }
    }

    /// Makes a few random exchanges and climbs again, and goes back where that was no gain.
    fn escape(&mut self, times: usize, random: &mut Random) {
        if self.at.len() == self.slots() && self.groups() < 2 {
            return;
        }
        let mut best = self.retained();
        for _ in 0..times {
            let (at, with) = (self.at.clone(), self.with.clone());
            for _ in 0..2 {
                let (slot, x) = (random.below(self.slots()), random.below(self.at.len()));
                if self.group_of.get(x) != Some(&self.group_of[slot]) {
                    self.exchange(slot, x);
                    self.refresh_around(slot, x);
                }
            }
            self.climb();
            let found = self.retained();
            if found > best {
                best = found;
            } else {
                (self.at, self.with) = (at, with);
            }
        }
    }
}

/// SplitMix64 (Steele, Lea & Flood 2014).
pub(in crate::pattern) struct Random(pub(in crate::pattern) u64);

impl Random {
    pub(in crate::pattern) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(in crate::pattern) fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at + 1));
        }
    }
}

/// Groups ascending, each ascending in itself; a short one stays last.
pub(super) fn tidy(groups: &mut [Vec<u32>]) {
    groups.iter_mut().for_each(|group| group.sort_unstable());
    let full = groups.first().map_or(0, Vec::len);
    let whole = groups.iter().take_while(|group| group.len() == full).count();
    groups[..whole].sort_unstable();
}
