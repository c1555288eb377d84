//! Selection -> where each element stands in a skip: its region and its iteration.

use super::selection::choice_steps;
use super::walk::Walk;
use super::{Pattern, Selection, Step};

impl Pattern {
    /// Hands over each row in order: for each column that the steps before `step`, a skip, leave there, the region of that skip and
    /// the iteration, `(column, region, iteration)`. `selection` holds the choices of the steps before, and may hold more.
    ///
    /// # Panics
    /// Where `step` is no skip, or a choice before it is missing or does not fit.
    pub fn for_each_place(
        &self,
        selection: &Selection,
        step: usize,
        mut row: impl FnMut(usize, &[(usize, usize, usize)]),
    ) {
        let Step::Skip { axis, per, .. } = &self.steps[step] else { panic!("step #{step} is no skip") };
        let mut walk = Walk::new(self);
        let before = choice_steps(self).take_while(|&choice| choice < step).count();
        assert!(selection.levels.len() >= before, "{} of {before} choices", selection.levels.len());
        for (choice, level) in choice_steps(self).zip(&selection.levels[..before]) {
            walk.choose(choice, level);
        }
        let len = self.axis(*axis).len;
        let (mut places, mut found) = (Vec::new(), Vec::new());
        for n in 0..self.n {
            walk.row(n, step);
            walk.places(per, *axis, &mut places);
            found.clear();
            let alive = (0..self.k).filter(|&k| walk.alive(k));
            found.extend(alive.map(|k| (k, places[k] / len, places[k] % len)));
            row(n, &found);
        }
    }
}
