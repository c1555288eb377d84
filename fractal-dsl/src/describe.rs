//! PatternIR -> directives: a pattern that was found or named, as schedule text to paste.

use crate::cursor::is_keyword;
use crate::directive::Directive;
use crate::pattern::{AxisId, Pattern, PatternBuilder, Step};
use crate::program::{Dimension, Parts, Program};
use crate::{DType, Diagnostic, Diagnostics};

impl Program {
    /// The program `y[n, m] += w[n, k] * x[k, m]` of a pattern, with N and K fixed to its sizes and M run-time.
    ///
    /// # Errors
    /// None for a pattern that [`PatternBuilder`] made; the diagnostics otherwise.
    pub fn for_pattern(pattern: &Pattern, dtype: DType) -> Result<Program, Diagnostics> {
        let program = Program::builder("", dtype).n(pattern.n()).k(pattern.k()).build()?;
        program.with_pattern(pattern)
    }

    /// The same program with the primitives of `pattern` in place of its own, and without the choices that follow them.
    ///
    /// # Errors
    /// Where the epilogue's operands have the names of loops, or the pattern is not of the program's sizes.
    pub fn with_pattern(&self, pattern: &Pattern) -> Result<Program, Diagnostics> {
        for (dimension, found) in [(Dimension::N, pattern.n()), (Dimension::K, pattern.k())] {
            if let Some(fixed) = self.dim(dimension).fixed().filter(|&fixed| fixed != found) {
                let error = Diagnostic::new(format!("the pattern is for another {dimension}"));
                return Err(Diagnostics::lone(error.expected(fixed.to_string()).found(found.to_string())));
            }
        }
        let axes = self.axes();
        let taken = |name: &str| {
            let declared = [self.weight(), self.input(), self.output()].into_iter().chain(self.extras());
            declared.into_iter().any(|operand| operand.name == name) || axes.m == name
        };
        let directives = describe(pattern, [&axes.n, &axes.k], &taken);
        Parts { directives, ..self.0.clone() }.check()
    }
}

/// The directives that make `pattern` out of the loops `roots` (n and k).
fn describe(pattern: &Pattern, roots: [&str; 2], taken: &dyn Fn(&str) -> bool) -> Vec<Directive> {
    let mut names: Vec<String> = vec![String::new(); pattern.axes().len()];
    let mut used: Vec<String> = roots.iter().map(|&root| root.to_owned()).collect();
    names[AxisId::N.index()] = roots[0].to_owned();
    names[AxisId::K.index()] = roots[1].to_owned();
    let mut fresh = |base: String| {
        let mut name = base.replace("r#", "");
        while is_keyword(&name) || taken(&name) || used.contains(&name) {
            name.push('_');
        }
        used.push(name.clone());
        name
    };
    let mut directives = Vec::new();
    for step in pattern.steps() {
        let name = |axis: &AxisId| names[axis.index()].clone();
        let (directive, made) = match step {
            Step::Split { axis, factor, outer, inner } => {
                let base = name(axis);
                let (o, i) = (fresh(format!("{base}o")), fresh(format!("{base}i")));
                let split = Directive::Split { axis: base, factor: *factor, outer: o.clone(), inner: i.clone() };
                (split, vec![(*outer, o), (*inner, i)])
            }
            Step::Join { a, b, out } => {
                let joined = fresh(format!("{}{}", name(a), name(b)));
                (Directive::Join { a: name(a), b: name(b), out: joined.clone() }, vec![(*out, joined)])
            }
            Step::Skip { axis, per, keep, out } => {
                let per = Some(per.iter().map(name).collect());
                (Directive::Skip { axis: name(axis), per, keep: *keep }, vec![(*out, name(axis))])
            }
            Step::Permute { axis, out } => (Directive::Permute { axis: name(axis) }, vec![(*out, name(axis))]),
        };
        for (axis, name) in made {
            names[axis.index()] = name;
        }
        directives.push(directive);
    }
    // Before its end a nest's order decides only about regions, which are written out.
    if order_without_reorder(pattern).as_deref() != Some(pattern.order()) {
        let loops = pattern.order().iter().map(|axis| names[axis.index()].clone()).collect();
        directives.push(Directive::Reorder { loops });
    }
    directives
}

/// The order of the loops that the steps alone make.
fn order_without_reorder(pattern: &Pattern) -> Option<Vec<AxisId>> {
    let mut builder = PatternBuilder::new(pattern.n(), pattern.k()).ok()?;
    for step in pattern.steps() {
        match step {
            Step::Split { axis, factor, .. } => drop(builder.split(*axis, *factor).ok()?),
            Step::Join { a, b, .. } => drop(builder.join(*a, *b).ok()?),
            Step::Skip { axis, per, keep, .. } => drop(builder.skip(*axis, per, *keep).ok()?),
            Step::Permute { axis, .. } => drop(builder.permute(*axis).ok()?),
        }
    }
    Some(builder.order().to_vec())
}
