//! Primitives, one by one, on the nest that the ones before have made.

use super::Dims;
use super::operands::Operands;
use super::scope::{Loop, Scope};
use super::tensorize::{self, Illegal, Tiles};
use crate::ast::{Name, Number, Op, Primitive};
use crate::diagnostic::{At, Diagnostic, Errors, did_you_mean, quoted};
use crate::directive::{Directive, Level, Memory};
use crate::lineage::End;
use crate::pattern::{AxisKind, Keep};
use crate::program::Dimension;

/// The deepest pipeline of any kernel, in stages.
const MAX_PIPELINE: usize = 8;

/// Checks all primitives; the directives are complete where no error is noted.
pub(super) fn check(
    primitives: &[&Primitive],
    dims: &Dims,
    operands: &Operands,
    lost: &[String],
    errors: &mut Errors,
) -> Vec<Directive> {
    let scope = Scope::new(operands, dims.size(Dimension::N), dims.size(Dimension::K), lost);
    let mut checker = Checker {
        scope,
        operands,
        lost,
        errors,
        illegal: Vec::new(),
        tiles: Tiles::default(),
        tensorize: None,
        seen: Vec::new(),
        ragged: false,
    };
    let directives = primitives.iter().filter_map(|primitive| checker.primitive(primitive)).collect();
    let Checker { scope, illegal, tiles, tensorize, ragged, errors, .. } = checker;
    if let Some(statement) = tensorize {
        tensorize::check(&statement, &scope, operands, &tiles, &illegal, ragged, errors);
    }
    directives
}

/// "`k` was split into `ko`, `ki`".
pub(super) fn gone(name: &str, end: &End, left: &[&str]) -> Diagnostic {
    let into: Vec<String> = end.into.iter().map(|name| format!("`{name}`")).collect();
    let did = if end.by == "split" { "split" } else { "joined" };
    Diagnostic::new(format!("`{name}` was {did} into {}", into.join(", ")))
        .expected("a loop of the nest")
        .found(format!("`{name}`"))
        .help(if left.len() == 1 {
            format!("use `{}`", left[0])
        } else {
            format!("use one of {}", quoted(left.iter().copied(), "or"))
        })
}

struct Checker<'a> {
    scope: Scope<'a>,
    operands: &'a Operands,
    lost: &'a [String],
    errors: &'a mut Errors,
    /// Primitives that tensor cores cannot run.
    illegal: Vec<Illegal>,
    tiles: Tiles,
    tensorize: Option<tensorize::Statement>,
    /// Choices that can be made once.
    seen: Vec<String>,
    ragged: bool,
}

impl Checker<'_> {
    fn wrong<T>(&mut self, error: Diagnostic, at: At) -> Option<T> {
        self.errors.push(error.at(at));
        None
    }

    fn primitive(&mut self, primitive: &Primitive) -> Option<Directive> {
        match &primitive.op {
            Op::Split { axis, factor, outer, inner } => self.split(axis, *factor, outer, inner),
            Op::Join { a, b, out } => self.join(a, b, out, primitive.at),
            Op::Reorder { loops } => self.reorder(loops, primitive.at),
            Op::Skip { axis, per, keep, keep_at } => self.skip(axis, per.as_deref(), *keep, *keep_at, primitive.at),
            Op::Permute { axis } => {
                let at = self.scope.require(axis, "permute", self.errors)?;
                self.not_ragged(at, "permute", axis)?;
                self.replaced(&[axis]);
                Some(Directive::Permute { axis: axis.text.clone() })
            }
            Op::Tile { axis, size } => self.tile(axis, *size),
            Op::Condense { operand, run } => {
                self.once(&format!("condense({})", operand.text), primitive.at);
                self.operand(operand, "condense")?;
                let run = match run {
                    Some(run) => Some(self.size("box size", *run)?),
                    None => None,
                };
                Some(Directive::Condense { operand: operand.text.clone(), run })
            }
            Op::Resident { operand } => {
                self.once("resident", primitive.at);
                self.operand(operand, "resident")?;
                Some(Directive::Resident { operand: operand.text.clone() })
            }
            Op::Cluster { axis, size } => {
                self.once(&format!("cluster of `{}`", axis.text), axis.at);
                let axes = self.scope.axes.clone();
                self.root("cluster", axis, &[&axes.m, &axes.k])?;
                let size = self.size("cluster size", *size)?;
                Some(Directive::Cluster { axis: axis.text.clone(), size })
            }
            Op::Bind { axis, level } => {
                let levels = Level::ALL.map(Level::name);
                let to = Level::ALL.into_iter().find(|l| l.name() == level.text);
                self.once(&format!("bind of `{}`", axis.text), primitive.at);
                if !self.scope.is_m(&axis.text) {
                    self.scope.require(axis, "bind", self.errors);
                }
                match to {
                    Some(level) => Some(Directive::Bind { axis: axis.text.clone(), level }),
                    None => self.not_in_list("level", level, &levels),
                }
            }
            Op::Stage { operand, memory } => {
                let memories = Memory::ALL.map(Memory::name);
                let to = Memory::ALL.into_iter().find(|m| m.name() == memory.text);
                self.once(&format!("stage({}, {})", operand.text, memory.text), primitive.at);
                self.operand(operand, "stage");
                match to {
                    Some(memory) => Some(Directive::Stage { operand: operand.text.clone(), memory }),
                    None => self.not_in_list("memory", memory, &memories),
                }
            }
            Op::Pipeline { depth } => {
                self.once("pipeline", primitive.at);
                if (1..=MAX_PIPELINE).contains(&depth.value) {
                    return Some(Directive::Pipeline { depth: depth.value });
                }
                let error =
                    Diagnostic::new("pipeline depth is out of range").expected(format!("1 to {MAX_PIPELINE} stages"));
                self.wrong(error.found(depth.value.to_string()), depth.at)
            }
            Op::Tensorize { loops, intrinsic } => {
                self.once("tensorize", primitive.at);
                let statement = tensorize::names(loops, intrinsic, primitive.at, &self.scope, self.errors)?;
                let directive = statement.directive();
                self.tensorize = Some(statement);
                Some(directive)
            }
        }
    }

    /// Reports a choice that was made before.
    fn once(&mut self, choice: &str, at: At) {
        if self.seen.iter().any(|seen| seen == choice) {
            let error = Diagnostic::new(format!("a second {choice}")).help("a schedule makes each choice once");
            self.errors.push(error.at(at));
        }
        self.seen.push(choice.to_owned());
    }

    fn not_in_list<T>(&mut self, what: &str, name: &Name, list: &[&str]) -> Option<T> {
        let error = Diagnostic::new(format!("unknown {what} `{}`", name.text))
            .expected(quoted(list.iter().copied(), "or"))
            .found(format!("`{}`", name.text))
            .maybe_help(did_you_mean(&name.text, list.iter().copied()));
        self.wrong(error, name.at)
    }

    /// An operand that the primitive takes.
    fn operand(&mut self, name: &Name, primitive: &str) -> Option<()> {
        let input = self.operands.input.as_ref().map(|declared| declared.operand.name.as_str());
        let sparse = self.operands.weight.as_ref().map(|declared| declared.operand.name.as_str());
        let (weight, input) = (sparse.filter(|_| primitive != "condense"), input.filter(|_| primitive != "resident"));
        let allowed: Vec<&str> = weight.into_iter().chain(input).collect();
        if allowed.contains(&name.text.as_str()) {
            return Some(());
        }
        if self.operands.axes.is_none() || self.lost.contains(&name.text) {
            return None;
        }
        let help = match primitive {
            "stage" => "the output is staged by the kernel itself",
            "resident" => "tiles of the weight can stay while tokens pass; those of the input change with them",
            _ => "condense gathers the rows of the input that the pattern keeps",
        };
        let error = Diagnostic::new(format!("`{primitive}` cannot take `{}`", name.text))
            .expected(quoted(allowed.iter().copied(), "or"))
            .found(format!("`{}`", name.text))
            .maybe_help(did_you_mean(&name.text, allowed).or(Some(help.to_owned())));
        self.wrong(error, name.at)
    }

    /// One of the gemm's axes that the primitive takes.
    fn root(&mut self, primitive: &str, axis: &Name, roots: &[&str]) -> Option<()> {
        if roots.contains(&axis.text.as_str()) || self.operands.axes.is_none() || self.lost.contains(&axis.text) {
            return Some(());
        }
        let error = Diagnostic::new(format!("`{primitive}` takes an axis of the gemm"))
            .expected(quoted(roots.iter().copied(), "or"))
            .found(format!("`{}`", axis.text))
            .maybe_help(did_you_mean(&axis.text, roots.iter().copied()));
        self.wrong(error, axis.at)
    }

    /// A number of elements or blocks.
    fn size(&mut self, what: &str, size: Number) -> Option<usize> {
        if (1..1 << 31).contains(&size.value) {
            return Some(size.value);
        }
        let error = Diagnostic::new(format!("{what} is out of range")).expected("1 to 2^31 - 1");
        self.wrong(error.found(size.value.to_string()), size.at)
    }

    fn tile(&mut self, axis: &Name, size: Number) -> Option<Directive> {
        self.once(&format!("tile of `{}`", axis.text), axis.at);
        let axes = self.scope.axes.clone();
        self.root("tile", axis, &[&axes.m, &axes.n, &axes.k])?;
        self.size("tile size", size)?;
        if self.scope.is_m(&axis.text) {
            self.tiles.tokens.push(size);
        } else if axis.text == axes.n {
            self.tiles.rows = Some(size);
        }
        Some(Directive::Tile { axis: axis.text.clone(), size: size.value })
    }

    /// Names the loops that a primitive makes; `false` where one of the names cannot be used.
    fn declare(&mut self, names: &[&Name]) -> bool {
        let mut fresh = true;
        for (number, name) in names.iter().enumerate() {
            if names[..number].iter().any(|other| other.text == name.text) {
                fresh = false;
                let error = Diagnostic::new(format!("two loops are called `{}`", name.text));
                self.errors.push(error.help("give each loop a name of its own").at(name.at));
            } else {
                fresh &= self.scope.is_fresh(name, self.errors);
            }
        }
        fresh
    }

    fn replaced(&mut self, names: &[&Name]) {
        for illegal in &mut self.illegal {
            names.iter().for_each(|name| illegal.replaced(&name.text));
        }
    }

    fn poison<T>(&mut self, names: &[&Name]) -> Option<T> {
        for name in names {
            self.scope.poison(name);
        }
        None
    }

    fn split(&mut self, axis: &Name, factor: Number, outer: &Name, inner: &Name) -> Option<Directive> {
        let at = self.scope.require(axis, "split", self.errors);
        let fresh = self.declare(&[outer, inner]);
        if factor.value == 0 {
            let error = Diagnostic::new("split factor is 0").expected("at least 1").found("0");
            self.errors.push(error.help("the factor is the length of the inner loop").at(factor.at));
        }
        let Some(at) = at.filter(|_| fresh) else { return self.poison(&[outer, inner]) };
        let parent = self.scope.order[at].clone();
        let by = factor.value.max(1);
        let mut first = Loop::new(&outer.text, parent.kind, parent.len.map(|len| len.div_ceil(by.min(len))));
        first.ragged = parent.ragged;
        let mut second = Loop::new(&inner.text, parent.kind, Some(parent.len.map_or(by, |len| by.min(len))));
        second.inner = true;
        (first.counts_ragged, second.counts_ragged) = (parent.counts_ragged, parent.counts_ragged);
        self.scope.order.splice(at..=at, [first, second]);
        self.scope.lineage.end(&axis.text, "split", &[&outer.text, &inner.text]);
        self.replaced(&[axis]);
        Some(Directive::Split {
            axis: axis.text.clone(),
            factor: factor.value,
            outer: outer.text.clone(),
            inner: inner.text.clone(),
        })
    }

    fn join(&mut self, a: &Name, b: &Name, out: &Name, at: At) -> Option<Directive> {
        let places = (self.scope.require(a, "join", self.errors), self.scope.require(b, "join", self.errors));
        let fresh = self.declare(&[out]);
        let (Some(first), Some(second)) = places else { return self.poison(&[out]) };
        if first == second {
            let error = Diagnostic::new(format!("`{}` is joined with itself", a.text)).expected("two loops");
            self.errors.push(error.at(b.at));
            return self.poison(&[out]);
        }
        let smooth = [(first, a), (second, b)].map(|(place, name)| self.unrelated_to_ragged(place, "join", name));
        if !fresh || smooth != [true, true] {
            return self.poison(&[out]);
        }
        let (x, y) = (self.scope.order[first].clone(), self.scope.order[second].clone());
        let len = x.len.zip(y.len).map(|(a, b)| a.saturating_mul(b));
        if let (Some(len), Some(m), Some(n)) = (len, x.len, y.len)
            && len >= u32::MAX as usize
        {
            let error = Diagnostic::new("the joined loop is too long")
                .expected("fewer than 2^32 - 1 iterations")
                .found(format!("{m} * {n}"))
                .help("split first and join the outer loops");
            self.errors.push(error.at(at));
        }
        let kind = if x.kind == y.kind { x.kind } else { AxisKind::Mixed };
        self.scope.order[first] = Loop::new(&out.text, kind, len);
        self.scope.order.remove(second);
        self.scope.lineage.end(&a.text, "join", &[&out.text]);
        self.scope.lineage.end(&b.text, "join", &[&out.text]);
        self.replaced(&[a, b]);
        if kind == AxisKind::Mixed {
            let direct = x.kind != AxisKind::Mixed && y.kind != AxisKind::Mixed;
            self.illegal.push(Illegal::Join { out: out.text.clone(), direct, at });
        }
        Some(Directive::Join { a: a.text.clone(), b: b.text.clone(), out: out.text.clone() })
    }

    fn reorder(&mut self, loops: &[Name], at: At) -> Option<Directive> {
        if loops.is_empty() {
            let error = Diagnostic::new("`reorder` names no loop").expected("at least one loop, outermost first");
            return self.wrong(error, at);
        }
        let mut places: Vec<usize> = Vec::new();
        let mut right = true;
        for name in loops {
            match self.scope.require(name, "reorder", self.errors) {
                Some(place) if places.contains(&place) => {
                    right = false;
                    let error = Diagnostic::new(format!("`{}` is named twice", name.text));
                    self.errors.push(error.help("name each loop once").at(name.at));
                }
                Some(place) => places.push(place),
                None => right = false,
            }
        }
        if right {
            let moved: Vec<Loop> = places.iter().map(|&place| self.scope.order[place].clone()).collect();
            places.sort_unstable();
            for (place, moved) in places.into_iter().zip(moved) {
                self.scope.order[place] = moved;
            }
        }
        Some(Directive::Reorder { loops: loops.iter().map(|name| name.text.clone()).collect() })
    }

    fn not_ragged(&mut self, place: usize, op: &str, name: &Name) -> Option<()> {
        if !self.scope.order[place].ragged {
            return Some(());
        }
        let error = Diagnostic::new(format!("`{}` is ragged: each region keeps its own count", name.text))
            .expected(format!("a loop of one length for `{op}`"))
            .found(format!("`{}`", name.text))
            .help("only a split may follow, and a skip of its inner loop");
        self.wrong(error, name.at)
    }

    /// The loop is neither ragged nor one of the regions that a ragged loop is counted for.
    fn unrelated_to_ragged(&mut self, place: usize, op: &str, name: &Name) -> bool {
        if self.scope.order[place].counts_ragged {
            let error =
                Diagnostic::new(format!("each iteration of `{}` has its own count of a ragged loop", name.text))
                    .expected(format!("another loop for `{op}`"))
                    .found(format!("`{}`", name.text))
                    .help(format!("write the `{op}` before the ragged skip"));
            self.errors.push(error.at(name.at));
            return false;
        }
        self.not_ragged(place, op, name).is_some()
    }

    fn skip(&mut self, axis: &Name, per: Option<&[Name]>, keep: Keep, keep_at: At, at: At) -> Option<Directive> {
        let place = self.scope.require(axis, "skip", self.errors);
        let mut region: Vec<usize> = Vec::new();
        let mut right = true;
        for name in per.unwrap_or_default() {
            let Some(family) = self.scope.require_family(name, "per", self.errors) else {
                right = false;
                continue;
            };
            let own = place.filter(|place| family.contains(place));
            let twice = family.iter().find(|place| region.contains(place));
            let error = if own.is_some() {
                Diagnostic::new(format!("`{}` cannot be a region of its own skip", axis.text))
                    .expected(format!("loops other than `{}`", axis.text))
                    .found(format!("`{}`", name.text))
            } else if let Some(&twice) = twice {
                Diagnostic::new(format!("`{}` is named twice", self.scope.order[twice].name))
                    .help("name each loop once")
            } else {
                region.extend(family);
                continue;
            };
            right = false;
            self.errors.push(error.at(name.at));
        }
        let place = place?;
        if !self.unrelated_to_ragged(place, "skip", axis) {
            return None;
        }
        if per.is_none() {
            region = (0..place).collect();
        }
        let regions = region.iter().try_fold(1usize, |all, &p| Some(all.saturating_mul(self.scope.order[p].len?)));
        let len = self.scope.order[place].len;
        let kept = self.keep(keep, len, regions.filter(|_| right), axis, keep_at);
        let ragged = keep.is_ragged() && !region.is_empty();
        if ragged && std::mem::replace(&mut self.ragged, true) {
            let error = Diagnostic::new("a second ragged skip").expected("at most one a pattern");
            self.errors.push(error.help("give this one a count or a ratio").at(keep_at));
        }
        let others = |kind: AxisKind| region.iter().any(|&p| self.scope.order[p].kind != kind);
        if self.scope.order[place].kind == AxisKind::Spatial && others(AxisKind::Spatial) {
            self.illegal.push(Illegal::Skip { at });
        }
        let skips_all = region.is_empty();
        for illegal in &mut self.illegal {
            illegal.used(&axis.text, skips_all, region.iter().map(|&p| self.scope.order[p].name.as_str()));
        }
        if ragged {
            region.iter().for_each(|&p| self.scope.order[p].counts_ragged = true);
        }
        let mut kept_loop = self.scope.order.remove(place);
        kept_loop.len = kept;
        kept_loop.ragged = ragged;
        kept_loop.kept = Some((kept, len));
        let below = region.into_iter().map(|p| if p > place { p } else { p + 1 }).max().unwrap_or(0);
        self.scope.order.insert(place.max(below), kept_loop);
        let per = per.map(|names| names.iter().map(|name| name.text.clone()).collect());
        Some(Directive::Skip { axis: axis.text.clone(), per, keep })
    }

    /// How many iterations a skip keeps of `len`, where both can be known.
    fn keep(&mut self, keep: Keep, len: Option<usize>, regions: Option<usize>, axis: &Name, at: At) -> Option<usize> {
        let out_of_range =
            |expected: String, found: String| Diagnostic::new("keep is out of range").expected(expected).found(found);
        let (count, most) = match keep {
            Keep::Ratio(ratio) => return len.map(|len| ratio.of(len)),
            Keep::Ragged(_) => return len,
            Keep::Count(count) => (count, len),
            Keep::RaggedCount(count) => (count, len.zip(regions).map(|(len, regions)| len.saturating_mul(regions))),
            Keep::Of { kept, of } => {
                if let Some(len) = len
                    && of != len
                {
                    let error = Diagnostic::new(format!("`{}` has {len} iterations", axis.text))
                        .expected(format!("a loop of {of} for `{kept} of {of}`"))
                        .found(format!("{len}"))
                        .help(if len > of {
                            format!("split it first: `let (outer, inner) = split({}, {of});`", axis.text)
                        } else {
                            "a ratio such as `50%` fits any length".to_owned()
                        });
                    return self.wrong(error, at);
                }
                (kept, Some(of))
            }
        };
        if count == 0 {
            let error = out_of_range("at least 1".into(), "0".into());
            return self.wrong(error.help("to drop a whole layer, remove it"), at);
        }
        if let Some(most) = most
            && count > most
        {
            let all = if matches!(keep, Keep::RaggedCount(_)) { " in all regions" } else { "" };
            let expected = format!("at most {most}, the iterations of `{}`{all}", axis.text);
            let error = out_of_range(expected, count.to_string());
            return self.wrong(error, at);
        }
        if matches!(keep, Keep::RaggedCount(_)) { len } else { Some(count) }
    }
}
