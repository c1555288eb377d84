//! Random terms of an e-class: any node of each class, the same one wherever a term meets the class again.

use super::super::Saturated;
use super::super::analysis::{Data, keep, number, term};
use super::super::lang::Lang;
use super::super::term::Axis;
use egg::Id;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A small generator of numbers.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % most.max(1)
    }
}

struct Sampler<'a> {
    found: &'a Saturated,
    numbers: &'a mut Numbers,
    made: HashMap<Id, Arc<Axis>>,
    open: HashSet<Id>,
}

impl Sampler<'_> {
    fn axis(&mut self, id: Id) -> Option<Arc<Axis>> {
        let graph = &self.found.graph;
        let id = graph.find(id);
        if let Some(made) = self.made.get(&id) {
            return Some(made.clone());
        }
        if !self.open.insert(id) {
            // A class inside itself.
            return None;
        }
        let nodes = &graph[id].nodes;
        let first = self.numbers.below(nodes.len());
        let made = (0..nodes.len()).find_map(|at| self.node(&nodes[(first + at) % nodes.len()]));
        self.open.remove(&id);
        let made = made?;
        self.made.insert(id, made.clone());
        Some(made)
    }

    fn node(&mut self, node: &Lang) -> Option<Arc<Axis>> {
        let graph = &self.found.graph;
        Some(Arc::new(match node {
            Lang::N => Axis::N,
            Lang::K => Axis::K,
            Lang::Outer([a, f]) => Axis::Outer(self.axis(*a)?, number(graph, *f)?),
            Lang::Inner([a, f]) => Axis::Inner(self.axis(*a)?, number(graph, *f)?),
            Lang::Joined([a, b]) => Axis::Joined(self.axis(*a)?, self.axis(*b)?),
            Lang::Permuted([a]) => Axis::Permuted(self.axis(*a)?),
            Lang::Kept([a, per, c]) => {
                let lists = &graph[*per].nodes;
                let Lang::Per(regions) = &lists[self.numbers.below(lists.len())] else { return None };
                let regions = regions.iter().map(|&p| self.axis(p)).collect::<Option<_>>()?;
                Axis::Kept(self.axis(*a)?, regions, keep(graph, *c)?)
            }
            _ => return None,
        }))
    }
}

/// The loops of a random nest that is equal to the program's.
pub(super) fn nest(found: &Saturated, numbers: &mut Numbers) -> Option<Vec<Arc<Axis>>> {
    let graph = &found.graph;
    let run =
        graph[found.root].nodes.iter().find_map(|n| if let Lang::Run([nest, _]) = n { Some(*nest) } else { None });
    let nests: Vec<&Lang> = graph[run?].nodes.iter().filter(|n| matches!(n, Lang::Nest(_))).collect();
    let Lang::Nest(loops) = nests[numbers.below(nests.len())] else { return None };
    let mut sampler = Sampler { found, numbers, made: HashMap::new(), open: HashSet::new() };
    loops.iter().map(|&id| sampler.axis(id)).collect()
}

/// The shortest terms of every nest, as extraction takes them.
pub(super) fn shortest(found: &Saturated) -> Vec<Vec<Arc<Axis>>> {
    let graph = &found.graph;
    let nests = graph.classes().filter(|class| matches!(class.data, Data::Nest(_))).flat_map(|class| &class.nodes);
    let loops = nests.filter_map(|node| if let Lang::Nest(loops) = node { Some(loops) } else { None });
    loops.filter_map(|loops| loops.iter().map(|&id| term(graph, id)).collect()).collect()
}
