//! What a mask uses -> lists whose groups of a few iterations each stay within what the skip inside them keeps.
//!
//! In order, with unused iterations between, or as the very groups that a mask was made by: in every context, a full
//! group uses exactly as many of its iterations as its skip keeps. Give each context a random weight, and each iteration
//! the sum of the weights of those that use it: then the sums of all groups are the same. Two of a group are tried; the
//! other two are looked up among all pairs by what is missing.

use super::search::Random;
use std::collections::HashMap;

/// Iterations of a group that is looked up.
const FACTOR: usize = 4;

/// So many iterations have a table of pairs that fits memory.
const MOST: usize = 4096;

/// Pairs that are looked up, at most. Where there are contexts enough no other groups fit, and where there are two or three
/// most do; between, the way to all of them may be too long.
const LOOK_UPS: usize = 1 << 22;

/// Groups of `factor`, of which each context may use `most`.
pub(super) struct Groups<'a> {
    /// Of each iteration, the contexts that use it.
    pub(super) used: &'a [Vec<usize>],
    pub(super) factor: usize,
    pub(super) most: usize,
}

impl Groups<'_> {
    /// `list` where its groups fit, or else one as long of the same `users`, and of `fills` that no context uses, whose groups
    /// do. `None` where none is found.
    pub(super) fn list(&self, list: &[u32], users: &[u32], fills: &[u32]) -> Option<Vec<u32>> {
        if self.fit(list) {
            return Some(list.to_vec());
        }
        self.spread(list.len(), users, fills).or_else(|| self.exact(list))
    }

    fn fit(&self, list: &[u32]) -> bool {
        list.chunks(self.factor).all(|group| self.fits(group))
    }

    /// Whether no context uses more of a group than it may.
    fn fits(&self, group: &[u32]) -> bool {
        let mut counts: HashMap<usize, usize> = HashMap::new();
        group.iter().flat_map(|&i| &self.used[i as usize]).all(|&context| {
            let count = counts.entry(context).or_default();
            *count += 1;
            *count <= self.most
        })
    }

    /// The users in their order, over as many groups as it takes.
    fn spread(&self, len: usize, users: &[u32], fills: &[u32]) -> Option<Vec<u32>> {
        let mut groups: Vec<Vec<u32>> = vec![Vec::new()];
        for &i in users {
            let last = groups.last_mut().expect("there is always a group");
            last.push(i);
            if last.len() > self.factor || !self.fits(last) {
                last.pop();
                groups.push(vec![i]);
            }
        }
        let mut fills = fills.iter().copied();
        let mut list = Vec::with_capacity(len);
        for group in groups {
            list.extend_from_slice(&group);
            list.extend(fills.by_ref().take(self.factor - group.len()));
        }
        if list.len() > len && list[len..].iter().any(|&i| !self.used[i as usize].is_empty()) {
            return None;
        }
        list.truncate(len);
        let room = len - list.len();
        list.extend(fills.take(room));
        self.fit(&list).then_some(list)
    }

    /// The same iterations, each full group using exactly `most` of itself in every context.
    fn exact(&self, list: &[u32]) -> Option<Vec<u32>> {
        if self.factor != FACTOR || list.len() > MOST {
            return None;
        }
        let mut random = Random(list.len() as u64);
        let mut weights: HashMap<usize, u64> = HashMap::new();
        let mut sums = Vec::with_capacity(list.len());
        for &i in list {
            let weights = self.used[i as usize].iter().map(|&c| *weights.entry(c).or_insert_with(|| random.next()));
            sums.push(weights.fold(0u64, u64::wrapping_add));
        }
        let all = weights.values().fold(0u64, |sum, w| sum.wrapping_add(*w)).wrapping_mul(self.most as u64);
        let mut pairs: Vec<(u64, u32, u32)> = Vec::new();
        for b in 1..list.len() {
            pairs.extend((0..b).map(|a| (sums[a].wrapping_add(sums[b]), a as u32, b as u32)));
        }
        pairs.sort_unstable();
        LookUp { groups: self, list, sums, all, pairs, look_ups: 0 }.find()
    }
}

struct LookUp<'a> {
    groups: &'a Groups<'a>,
    list: &'a [u32],
    /// Of each place in the list, the weights of its contexts.
    sums: Vec<u64>,
    /// What the sums of a group are together.
    all: u64,
    /// Sum, and the two places, in order.
    pairs: Vec<(u64, u32, u32)>,
    look_ups: usize,
}

/// Where the search stands at one depth: the first place without a group, and what was tried for it.
struct Level {
    first: usize,
    /// The second place, and the one in `pairs` that comes next.
    next: (usize, Option<usize>),
    /// The group that is taken; of one member where `first` goes to the rest.
    taken: Vec<usize>,
}

impl LookUp<'_> {
    fn find(&mut self) -> Option<Vec<u32>> {
        let len = self.list.len();
        let mut free = vec![true; len];
        let mut rest = len % FACTOR;
        let mut levels: Vec<Level> = Vec::new();
        while let Some(first) = free.iter().position(|&free| free) {
            levels.push(Level { first, next: (first + 1, None), taken: Vec::new() });
            // The next way to go on at the deepest level that has one.
            loop {
                let level = levels.last_mut()?;
                level.taken.iter().for_each(|&i| free[i] = true);
                let was_rest = level.taken.len() == 1;
                rest += usize::from(was_rest);
                let found = if was_rest { None } else { self.group(level, &free) };
                match found {
                    Some(group) => level.taken = group,
                    None if !was_rest && rest > 0 && self.look_ups <= LOOK_UPS => {
                        rest -= 1;
                        level.taken = vec![level.first];
                    }
                    None => {
                        levels.pop();
                        continue;
                    }
                }
                level.taken.iter().for_each(|&i| free[i] = false);
                break;
            }
        }
        // Those of the rest last.
        levels.sort_by_key(|level| level.taken.len() != FACTOR);
        let list: Vec<u32> = levels.into_iter().flat_map(|level| level.taken).map(|at| self.list[at]).collect();
        self.groups.fit(&list).then_some(list)
    }

    /// The next group of a level's first iteration.
    fn group(&mut self, level: &mut Level, free: &[bool]) -> Option<Vec<usize>> {
        while level.next.0 < self.list.len() && self.look_ups <= LOOK_UPS {
            let (b, at) = level.next;
            if free[b] {
                self.look_ups += 1;
                let missing = self.all.wrapping_sub(self.sums[level.first]).wrapping_sub(self.sums[b]);
                let mut at =
                    at.unwrap_or_else(|| self.pairs.partition_point(|pair| *pair < (missing, b as u32 + 1, 0)));
                while let Some(&(_, c, d)) = self.pairs.get(at).filter(|pair| pair.0 == missing) {
                    at += 1;
                    let group = vec![level.first, b, c as usize, d as usize];
                    if free[c as usize] && free[d as usize] && self.fits(&group) {
                        level.next = (b, Some(at));
                        return Some(group);
                    }
                }
            }
            level.next = (b + 1, None);
        }
        None
    }

    fn fits(&self, places: &[usize]) -> bool {
        let group: Vec<u32> = places.iter().map(|&at| self.list[at]).collect();
        self.groups.fits(&group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Iterations in a shuffled order, of groups that each use two of four in every context.
    fn mask(len: usize, contexts: usize, seed: u64) -> Vec<Vec<usize>> {
        let mut random = Random(seed);
        let mut used = vec![Vec::new(); len];
        let mut order: Vec<usize> = (0..len).collect();
        random.shuffle(&mut order);
        for group in order.chunks(FACTOR) {
            for context in 0..contexts {
                let mut group = group.to_vec();
                random.shuffle(&mut group);
                group.iter().take(2).for_each(|&i| used[i].push(context));
            }
        }
        used
    }

    #[test]
    fn groups_of_a_mask_are_found() {
        for (len, contexts) in
            [(4, 1), (64, 1), (40, 2), (40, 3), (36, 5), (256, 32), (258, 32), (63, 24), (3, 2), (0, 4)]
        {
            let used = mask(len, contexts, 7 + len as u64);
            let list: Vec<u32> = (0..len as u32).collect();
            let groups = Groups { used: &used, factor: 4, most: 2 };
            let mut found = groups.exact(&list).unwrap_or_else(|| panic!("{len} in {contexts}"));
            assert!(groups.fit(&found));
            found.sort_unstable();
            assert_eq!(found, list);
        }
    }

    #[test]
    fn no_groups_are_made_up() {
        // Three of four are used in every row.
        let used = vec![vec![0, 1, 2], vec![0, 1, 2], vec![0, 1, 2], vec![]];
        assert_eq!(Groups { used: &used, factor: 4, most: 2 }.list(&[0, 1, 2, 3], &[0, 1, 2], &[3]), None);
    }
}
