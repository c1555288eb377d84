//! The loops of the nest at one point of a schedule: names, order, and lengths where the sizes are known.

use super::operands::Operands;
use super::schedule::gone;
use crate::ast::Name;
use crate::diagnostic::{Diagnostic, Errors, did_you_mean, quoted};
use crate::lineage::Lineage;
use crate::pattern::AxisKind;
use crate::program::AxisNames;

/// One loop of the nest.
#[derive(Clone, Debug)]
pub(super) struct Loop {
    pub name: String,
    pub kind: AxisKind,
    /// Iterations; `None` where they depend on a size that is not known yet.
    pub len: Option<usize>,
    /// Each region has its own count.
    pub ragged: bool,
    /// It counts the regions of a ragged loop.
    pub counts_ragged: bool,
    /// What the last skip of it kept, of how many.
    pub kept: Option<(Option<usize>, Option<usize>)>,
    /// It is the inner loop of a split.
    pub inner: bool,
}

impl Loop {
    pub fn new(name: &str, kind: AxisKind, len: Option<usize>) -> Loop {
        Loop { name: name.to_owned(), kind, len, ragged: false, counts_ragged: false, kept: None, inner: false }
    }
}

pub(super) struct Scope<'a> {
    pub order: Vec<Loop>,
    pub lineage: Lineage,
    pub axes: AxisNames,
    /// Names whose declaration is in error: their uses are not reported again.
    poisoned: Vec<String>,
    operands: &'a Operands,
}

impl<'a> Scope<'a> {
    pub fn new(operands: &'a Operands, n: Option<usize>, k: Option<usize>, lost: &[String]) -> Scope<'a> {
        let axes = operands.axes.clone().unwrap_or_default();
        let order = vec![Loop::new(&axes.n, AxisKind::Spatial, n), Loop::new(&axes.k, AxisKind::Reduction, k)];
        let mut poisoned = lost.to_vec();
        if operands.axes.is_none() {
            // The indices may have other names than the default ones: nothing can be said about any name.
            poisoned.push(String::new());
        }
        Scope { order, lineage: Lineage::default(), axes, poisoned, operands }
    }

    pub fn live(&self) -> impl Iterator<Item = &str> {
        self.order.iter().map(|l| l.name.as_str())
    }

    pub fn position(&self, name: &str) -> Option<usize> {
        self.order.iter().position(|l| l.name == name)
    }

    pub fn get(&self, name: &str) -> Option<&Loop> {
        self.order.iter().find(|l| l.name == name)
    }

    pub fn is_m(&self, name: &str) -> bool {
        self.axes.m == name
    }

    /// The positions of all loops that are left of a loop, named now or earlier.
    pub fn family(&self, name: &str) -> Vec<usize> {
        let names = self.lineage.descendants(name, self.live());
        names.into_iter().filter_map(|name| self.position(name)).collect()
    }

    /// The position of a loop of the nest; anything else is an error. `op` is the primitive that needs it.
    pub fn require(&self, name: &Name, op: &str, errors: &mut Errors) -> Option<usize> {
        if let Some(position) = self.position(&name.text) {
            return Some(position);
        }
        if self.is_m(&name.text) {
            errors.push(self.m_error(op).at(name.at));
        } else if let Some(end) = self.lineage.get(&name.text) {
            let left: Vec<&str> = self.lineage.descendants(&name.text, self.live());
            errors.push(gone(&name.text, end, &left).at(name.at));
        } else {
            self.unknown(name, errors);
        }
        None
    }

    /// The positions that a name stands for in `per` and `tensorize`.
    pub fn require_family(&self, name: &Name, op: &str, errors: &mut Errors) -> Option<Vec<usize>> {
        if self.position(&name.text).is_some() || self.lineage.get(&name.text).is_some() {
            return Some(self.family(&name.text));
        }
        if self.is_m(&name.text) {
            errors.push(self.m_error(op).at(name.at));
        } else {
            self.unknown(name, errors);
        }
        None
    }

    pub fn unknown(&self, name: &Name, errors: &mut Errors) {
        let excused = |poison: &String| *poison == name.text || poison.is_empty();
        if self.poisoned.iter().any(excused) {
            return;
        }
        let live = || self.live();
        let error = Diagnostic::new(format!("unknown axis `{}`", name.text))
            .expected(format!("a loop of the nest: {}", quoted(live(), "or")))
            .found(if self.operands.is_declared(&name.text) {
                format!("the operand `{}`", name.text)
            } else {
                format!("`{}`", name.text)
            })
            .maybe_help(did_you_mean(&name.text, live()));
        errors.push(error.at(name.at));
    }

    /// Whether a new loop may have this name; if not, an error is noted.
    pub fn is_fresh(&self, name: &Name, errors: &mut Errors) -> bool {
        let text = &name.text;
        let what = if self.is_m(text) || self.position(text).is_some() {
            "is a loop already"
        } else if self.lineage.get(text).is_some() {
            "was a loop before"
        } else if self.operands.is_declared(text) {
            "is an operand"
        } else {
            return true;
        };
        errors.push(
            Diagnostic::new(format!("a new loop cannot be called `{text}`"))
                .expected("a name that nothing else has")
                .found(format!("`{text}`, which {what}"))
                .help("loops keep their names for a whole schedule, so that each name means one thing")
                .at(name.at),
        );
        false
    }

    /// Takes note of a name whose declaration is in error.
    pub fn poison(&mut self, name: &Name) {
        self.poisoned.push(name.text.clone());
    }

    /// The axis m in a primitive of the pattern.
    fn m_error(&self, op: &str) -> Diagnostic {
        let AxisNames { m, n, k } = &self.axes;
        let loops = format!("a loop of `{n}` or `{k}`");
        let (message, help) = match op {
            "skip" => (
                format!("`{m}` is an axis of dense operands and cannot be skipped"),
                format!("only the weight is sparse: skip {loops}"),
            ),
            "per" => {
                (format!("`{m}` is no axis of the weight"), "one pattern serves all tokens; leave it out".to_owned())
            }
            _ => (
                format!("`{m}` is no loop of the weight"),
                format!("to choose the kernel's tile of tokens, write `tile({m}, 128)`"),
            ),
        };
        Diagnostic::new(message).expected(loops).found(format!("`{m}`")).help(help)
    }
}
