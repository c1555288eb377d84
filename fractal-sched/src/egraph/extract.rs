//! The cheapest candidates of a class: every pattern that its nests build, with every schedule that is closed for it.

use super::Saturated;
use super::analysis::{Data, term};
use super::cost::CostModel;
use super::explain::Pair;
use super::facts::Facts;
use super::lang::Lang;
use super::schedule::{Choice, Context, Partial};
use super::term::{Axis, Writer, nest_of};
use crate::codegen::KernelConfig;
use crate::request::KernelRequest;
use crate::schedule::Form;
use egg::Id;
use fractal_dsl::pattern::Pattern;
use fractal_dsl::{AxisNames, DType, Directive, Program};
use serde::Serialize;
use std::sync::Arc;

/// A pattern and a schedule that compute what the program computes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// It admits the same masks as the program's.
    pub pattern: Pattern,
    /// How it runs.
    pub form: Form,
    /// The kernel, all choices made; nothing where it runs element by element.
    pub request: KernelRequest,
    /// Operands that lie token-major are turned around the kernel.
    pub turned: bool,
    /// The epilogue is part of the kernel.
    pub fused: bool,
    /// What is known of the pattern's masks.
    pub facts: Facts,
    /// By the cost model, in its unit.
    pub cost: f64,
    /// The rules that lead here from the program, each once.
    pub rules: Vec<&'static str>,
    #[serde(skip)]
    schedule: Partial,
    #[serde(skip)]
    pair: PairBox,
}

/// A [`Pair`], equal to every other: it follows from the rest.
#[derive(Clone, Debug)]
struct PairBox(Pair);

impl PartialEq for PairBox {
    fn eq(&self, _: &PairBox) -> bool {
        true
    }
}

impl Candidate {
    /// The term of the e-graph, to be explained.
    pub fn pair(&self) -> &Pair {
        &self.pair.0
    }

    /// Pattern and schedule as statements of a program with the axes n, m, k and the operands w, x.
    pub fn directives(&self) -> Vec<Directive> {
        let program = Program::for_pattern(&self.pattern, DType::F32);
        let own = program.as_ref().map_or(&[][..], |program| program.directives());
        own.iter().cloned().chain(self.request.directives(&AxisNames::default(), "w", "x")).collect()
    }
}

/// One way to write the masks.
struct Member {
    loops: Vec<Arc<Axis>>,
    pattern: Pattern,
    facts: Facts,
}

impl Context {
    /// The kernel of a closed schedule for a pattern of its own facts, not those of its class, and m tokens.
    fn kernel(&self, schedule: &Partial, facts: &Facts, m: usize) -> Option<KernelConfig> {
        let request = &schedule.request;
        let intrinsic = request.intrinsic?;
        let tiles = self.tiles(intrinsic, facts)?;
        let run = request.run.unwrap_or(1);
        let boxes = run == 1 || tiles.column_run.is_multiple_of(run) || tiles.column_run == self.k;
        let high_enough = !intrinsic.is_sparse() || request.rows >= Some(tiles.rows.min(128));
        // Hopper's kernels copy 16 bytes of tokens at a time.
        let whole = !intrinsic.is_arch_specific() || m.is_multiple_of(8);
        if !(boxes && high_enough && whole) {
            return None;
        }
        self.config(schedule, facts, Some(m)).ok()
    }
}

impl Saturated {
    /// The `most` cheapest candidates for `m` tokens, cheapest first. No two have the same schedule on patterns of the
    /// same facts; of those the one with the fewest primitives stays.
    pub fn candidates(&mut self, cost: &dyn CostModel, m: usize, most: usize) -> Vec<Candidate> {
        let members = self.members();
        let mut found: Vec<(f64, usize, Partial)> = Vec::new();
        for schedule in self.schedules() {
            for (at, member) in members.iter().enumerate() {
                let scalar = schedule.last == Some(Choice::Scalar);
                let context = &self.graph.analysis.context;
                if !scalar && context.kernel(&schedule, &member.facts, m).is_none() {
                    continue;
                }
                let (pattern, request) = (&member.pattern, &schedule.request);
                let mut total = cost.cost(pattern, &member.facts, request, m);
                total += if schedule.turned { cost.turn(pattern, m) } else { 0.0 };
                let apart = !schedule.fused && !scalar && !context.epilogue.is_empty();
                total += if apart { cost.apart(pattern, m) } else { 0.0 };
                if total.is_finite() {
                    found.push((total, at, schedule));
                }
            }
        }
        let order = |of: &(f64, usize, Partial)| (members[of.1].pattern.steps().len(), of.1, of.2);
        found.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| order(a).cmp(&order(b))));
        let mut kept: Vec<(f64, usize, Partial)> = Vec::new();
        for (cost, at, schedule) in found {
            let same = |k: &&(f64, usize, Partial)| k.2 == schedule && members[k.1].facts == members[at].facts;
            if kept.len() < most && !kept.iter().any(|k| same(&k)) {
                kept.push((cost, at, schedule));
            }
        }
        kept.into_iter().map(|(cost, at, schedule)| self.candidate(&members[at], schedule, cost)).collect()
    }

    /// The kernel that a candidate of this search denotes for `m` tokens; `None` where it runs element by element, or not
    /// for so many tokens.
    pub fn kernel(&self, candidate: &Candidate, m: usize) -> Option<KernelConfig> {
        self.graph.analysis.context.kernel(&candidate.schedule, &candidate.facts, m)
    }

    /// The different patterns that the search has found for the program's masks, the program's own first.
    pub fn patterns(&mut self) -> Vec<Pattern> {
        self.members().into_iter().map(|member| member.pattern).collect()
    }

    /// The kernels of all closed schedules on a pattern with these facts, whatever the number of tokens.
    #[cfg(test)]
    pub(super) fn kernels(&self, facts: &Facts) -> impl Iterator<Item = KernelConfig> {
        self.schedules().into_iter().filter_map(|schedule| self.graph.analysis.context.kernel(&schedule, facts, 8))
    }

    fn candidate(&mut self, member: &Member, schedule: Partial, cost: f64) -> Candidate {
        let mut writer = Writer::default();
        let nest = writer.nest(&member.loops);
        let choices = schedule.choices();
        let open = writer.add(Lang::Open);
        let closed = choices.into_iter().fold(open, |before, choice| writer.add(Lang::Close(choice, [before])));
        writer.add(Lang::Run([nest, closed]));
        let pair = Pair { expr: writer.expr };
        let original = self.original.clone();
        Candidate {
            pattern: member.pattern.clone(),
            form: if schedule.last == Some(Choice::Scalar) { Form::Scalar } else { Form::Condensed },
            request: schedule.request,
            turned: schedule.turned,
            fused: schedule.fused,
            facts: member.facts,
            cost,
            schedule,
            rules: self.rules_between(&original, &pair),
            pair: PairBox(pair),
        }
    }

    /// The patterns of the root's nests, the program's own first, then those of fewest primitives; equal ones once.
    fn members(&mut self) -> Vec<Member> {
        let mut nests: Vec<Vec<Id>> = Vec::new();
        for class in self.nests() {
            nests.extend(self.graph[class].nodes.iter().filter_map(|node| match node {
                Lang::Nest(loops) => Some(loops.to_vec()),
                _ => None,
            }));
        }
        let own =
            Member { loops: nest_of(&self.pattern), pattern: self.pattern.clone(), facts: Facts::of(&self.pattern) };
        let mut members = Vec::new();
        for ids in nests {
            let terms: Option<Vec<_>> = ids.iter().map(|&id| term(&self.graph, id)).collect();
            let Some(loops) = terms else { continue };
            if let Some((pattern, facts)) = self.graph.analysis.pattern(&loops) {
                members.push(Member { pattern: pattern.clone(), facts: *facts, loops });
            }
        }
        members.sort_by(|a, b| (a.pattern.steps().len(), &a.loops).cmp(&(b.pattern.steps().len(), &b.loops)));
        members.insert(0, own);
        let mut distinct: Vec<Member> = Vec::new();
        for member in members {
            if !distinct.iter().any(|d| d.pattern == member.pattern) {
                distinct.push(member);
            }
        }
        distinct
    }

    fn runs(&self) -> impl Iterator<Item = [Id; 2]> {
        let root = &self.graph[self.root];
        root.nodes.iter().filter_map(|node| if let Lang::Run(pair) = node { Some(*pair) } else { None })
    }

    fn nests(&self) -> Vec<Id> {
        let mut nests: Vec<Id> = self.runs().map(|[nest, _]| self.graph.find(nest)).collect();
        nests.sort_unstable();
        nests.dedup();
        nests
    }

    fn schedules(&self) -> Vec<Partial> {
        let mut closed: Vec<Partial> = self
            .runs()
            .filter_map(|[_, schedule]| match self.graph[schedule].data {
                Data::Schedule(Some(partial)) if partial.is_closed() => Some(partial),
                _ => None,
            })
            .collect();
        closed.sort_unstable();
        closed.dedup();
        closed
    }
}
