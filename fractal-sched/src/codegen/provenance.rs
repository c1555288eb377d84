//! Where a kernel comes from, for its comments.

use fractal_dsl::pattern::{AxisId, AxisKind, Pattern, Step};

/// The program's lines that a kernel's parts come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Provenance {
    /// What the kernel is: the program's or the pattern's name.
    pub title: String,
    /// The statements that make the pattern.
    pub statements: Vec<String>,
}

impl Provenance {
    /// Statements as a schedule would say them.
    pub fn of_pattern(title: impl Into<String>, pattern: &Pattern) -> Provenance {
        let name = |axis: &AxisId| match (axis.index(), pattern.axis(*axis).kind) {
            (0, _) => "n".to_string(),
            (1, _) => "k".to_string(),
            (id, AxisKind::Spatial) => format!("n{id}"),
            (id, AxisKind::Reduction) => format!("k{id}"),
            (id, AxisKind::Mixed) => format!("nk{id}"),
        };
        let names = |axes: &[AxisId]| axes.iter().map(name).collect::<Vec<_>>().join(", ");
        let statement = |step: &Step| match step {
            Step::Split { axis, factor, outer, inner } => {
                format!("let ({}, {}) = split({}, {factor});", name(outer), name(inner), name(axis))
            }
            Step::Join { a, b, out } => format!("let {} = join({}, {});", name(out), name(a), name(b)),
            Step::Permute { axis, out } => format!("let {} = permute({});", name(out), name(axis)),
            Step::Skip { axis, per, keep, out } => {
                format!("let {} = skip({}, per = ({}), keep = {keep});", name(out), name(axis), names(per))
            }
        };
        Provenance { title: title.into(), statements: pattern.steps().iter().map(statement).collect() }
    }

    /// The statements that skip.
    pub(crate) fn skips(&self) -> Vec<&str> {
        self.statements.iter().map(String::as_str).filter(|s| s.contains("skip(")).collect()
    }
}
