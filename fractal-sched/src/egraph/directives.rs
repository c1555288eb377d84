//! Candidate -> statements of the language.

use crate::schedule::KernelRequest;
use fractal_dsl::pattern::{AxisId, Pattern, Step};
use fractal_dsl::{Directive, Memory};
use std::collections::HashMap;

/// The primitives of a pattern as statements of a program whose axes are called n and k.
///
/// Before: `k` split by 4. After: `let (ko, ki) = split(k, 4)`.
pub fn pattern_directives(pattern: &Pattern) -> Vec<Directive> {
    let mut names: HashMap<AxisId, String> =
        HashMap::from([(AxisId::N, "n".to_string()), (AxisId::K, "k".to_string())]);
    let mut directives = Vec::new();
    for step in pattern.steps() {
        let name = |axis: &AxisId| names[axis].clone();
        let (directive, made) = match step {
            Step::Split { axis, factor, outer, inner } => {
                let axis = name(axis);
                let (o, i) = (format!("{axis}o"), format!("{axis}i"));
                let made = vec![(*outer, o.clone()), (*inner, i.clone())];
                (Directive::Split { axis, factor: *factor, outer: o, inner: i }, made)
            }
            Step::Join { a, b, out } => {
                let joined = format!("{}_{}", name(a), name(b));
                let made = vec![(*out, joined.clone())];
                (Directive::Join { a: name(a), b: name(b), out: joined }, made)
            }
            Step::Skip { axis, per, keep, out } => {
                let per = Some(per.iter().map(name).collect());
                (Directive::Skip { axis: name(axis), per, keep: *keep }, vec![(*out, name(axis))])
            }
            Step::Permute { axis, out } => (Directive::Permute { axis: name(axis) }, vec![(*out, name(axis))]),
        };
        directives.push(directive);
        names.extend(made);
    }
    if !pattern.steps().is_empty() && pattern.order().len() > 1 {
        directives.push(Directive::Reorder { loops: pattern.order().iter().map(|axis| names[axis].clone()).collect() });
    }
    directives
}

/// What of a request there are statements for.
pub(super) fn schedule_directives(request: &KernelRequest) -> Vec<Directive> {
    let mut directives = Vec::new();
    let Some(intrinsic) = request.intrinsic else { return directives };
    directives.push(Directive::Condense { operand: "x".into() });
    for (axis, size) in [("n", request.rows), ("m", request.tokens), ("k", request.step)] {
        directives.extend(size.map(|size| Directive::Tile { axis: axis.into(), size }));
    }
    if request.resident == Some(true) {
        directives.push(Directive::Stage { operand: "w".into(), memory: Memory::Shared });
    }
    directives.extend(request.stages.map(|depth| Directive::Pipeline { depth }));
    let loops = ["n", "m", "k"].map(String::from).to_vec();
    directives.push(Directive::Tensorize { loops, intrinsic });
    directives
}
