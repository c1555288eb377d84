//! The intrinsic against the whole schedule: element types, shapes, 2 of 4, and the rules of tensor-core kernels.

use super::operands::Operands;
use super::scope::Scope;
use crate::Intrinsic;
use crate::ast::{Name, Number};
use crate::diagnostic::{At, Diagnostic, Errors, did_you_mean, quoted};
use crate::directive::Directive;
use crate::pattern::AxisKind;

/// A primitive that tensor cores cannot run, though pruning, packing and the CPU can.
pub(super) enum Illegal {
    /// A join of a spatial and a reduction loop. `direct`: of two loops that are not such joins themselves.
    Join { out: String, direct: bool, at: At },
    /// A join that is one threshold over all units: each row then keeps columns of its own, which is legal.
    Threshold { out: String, at: At },
    /// A skip of a spatial loop inside a reduction loop.
    Skip { at: At },
}

impl Illegal {
    /// Takes note of a skip of `axis` in regions of `region`.
    pub fn used<'a>(&mut self, axis: &str, skips_all: bool, region: impl Iterator<Item = &'a str>) {
        let mut region = region;
        match self {
            Illegal::Join { out, direct: true, at } if out == axis && skips_all => {
                *self = Illegal::Threshold { out: std::mem::take(out), at: *at };
            }
            Illegal::Threshold { out, at } if out == axis || region.any(|name| name == out) => {
                *self = Illegal::Join { out: std::mem::take(out), direct: false, at: *at };
            }
            _ => {}
        }
    }

    /// Takes note that another primitive replaces `axis`: only a loop that stays can be one threshold.
    pub fn replaced(&mut self, axis: &str) {
        if let Illegal::Join { out, at, .. } | Illegal::Threshold { out, at } = self
            && out == axis
        {
            *self = Illegal::Join { out: std::mem::take(out), direct: false, at: *at };
        }
    }
}

/// Sizes of tiles, and where they stand.
#[derive(Default)]
pub(super) struct Tiles {
    /// Of m.
    pub tokens: Vec<Number>,
    /// Of n.
    pub rows: Option<Number>,
}

/// A `tensorize` whose names are known.
pub(super) struct Statement {
    loops: [Name; 3],
    intrinsic: Intrinsic,
    intrinsic_at: At,
}

impl Statement {
    pub fn directive(&self) -> Directive {
        let loops = self.loops.iter().map(|name| name.text.clone()).collect();
        Directive::Tensorize { loops, intrinsic: self.intrinsic }
    }
}

/// Checks the names of a `tensorize` where it stands.
pub(super) fn names(
    loops: &[Name],
    intrinsic: &Name,
    at: At,
    scope: &Scope<'_>,
    errors: &mut Errors,
) -> Option<Statement> {
    let known = Intrinsic::from_name(&intrinsic.text);
    if known.is_none() {
        let all = Intrinsic::ALL.map(Intrinsic::name);
        errors.push(
            Diagnostic::new(format!("unknown intrinsic `{}`", intrinsic.text))
                .expected(quoted(all, "or"))
                .found(format!("`{}`", intrinsic.text))
                .maybe_help(did_you_mean(&intrinsic.text, all))
                .at(intrinsic.at),
        );
    }
    let Ok(loops) = <[Name; 3]>::try_from(loops.to_vec()) else {
        errors.push(
            Diagnostic::new("`tensorize` takes three loops and an intrinsic")
                .expected(format!("a loop of {}, `{}`, a loop of {}", scope.axes.n, scope.axes.m, scope.axes.k))
                .found(format!("{} loops", loops.len()))
                .at(at),
        );
        return None;
    };
    let mut right = true;
    for (number, (name, kind)) in
        loops.iter().zip([Some(AxisKind::Spatial), None, Some(AxisKind::Reduction)]).enumerate()
    {
        let is = if scope.is_m(&name.text) {
            None
        } else {
            let Some(family) = scope.require_family(name, "tensorize", errors) else {
                right = false;
                continue;
            };
            let kinds: Vec<AxisKind> = family.iter().map(|&place| scope.order[place].kind).collect();
            // A mixed loop is the fault of its join, which is reported there.
            Some(kinds.first().copied().filter(|&first| kinds.iter().all(|&k| k == first)).unwrap_or(AxisKind::Mixed))
        };
        if is != kind && is != Some(AxisKind::Mixed) {
            right = false;
            let expected = match number {
                0 => format!("a loop of `{}` (output features) first", scope.axes.n),
                1 => format!("`{}` (tokens) second", scope.axes.m),
                _ => format!("a loop of `{}` (the reduction) third", scope.axes.k),
            };
            let error = Diagnostic::new("the loops of `tensorize` are out of order").expected(expected);
            errors.push(error.found(format!("`{}`", name.text)).at(name.at));
        }
    }
    let intrinsic_at = intrinsic.at;
    Some(Statement { loops, intrinsic: known?, intrinsic_at }).filter(|_| right)
}

/// Checks the statement against the schedule as it is at its end.
pub(super) fn check(
    statement: &Statement,
    scope: &Scope<'_>,
    operands: &Operands,
    tiles: &Tiles,
    illegal: &[Illegal],
    ragged: bool,
    errors: &mut Errors,
) {
    let Statement { loops, intrinsic, intrinsic_at } = statement;
    let name = intrinsic.name();
    if let Some(weight) = &operands.weight
        && !intrinsic.dtypes().contains(&weight.operand.dtype)
    {
        let names = intrinsic.dtypes().iter().map(|dtype| dtype.name());
        errors.push(
            Diagnostic::new(format!("`{name}` has no {} form", weight.operand.dtype))
                .expected(format!("a weight of {}", quoted(names, "or")))
                .found(format!("`{}`", weight.operand))
                .help("change the element type, or use `ffma`")
                .at(*intrinsic_at),
        );
    }
    let multiple = |what: &str, step: usize, found: usize| {
        Diagnostic::new(format!("`{name}` has no shape of {found} {what}"))
            .expected(format!("a multiple of {step}"))
            .found(found.to_string())
    };
    // A tile of its own rows takes several of the pattern's, or a part of one.
    if let Some(rows) = tiles.rows {
        if rows.value % intrinsic.rows() != 0 {
            errors.push(multiple("rows", intrinsic.rows(), rows.value).at(rows.at));
        }
    } else if let Some(&last) = scope.family(&loops[0].text).last() {
        let inner = &scope.order[last];
        if let Some(len) = inner.len
            && inner.inner
            && inner.kept.is_none()
            && len % intrinsic.rows() != 0
        {
            let error = multiple("rows", intrinsic.rows(), len);
            errors.push(error.help(format!("split by a multiple of {}", intrinsic.rows())).at(loops[0].at));
        }
    }
    if let Some(inner) = scope.get(&loops[2].text)
        && let Some(len) = inner.len
        && inner.inner
        && inner.kept.is_none()
        && !intrinsic.is_sparse()
        && len % intrinsic.depth() != 0
    {
        let error = multiple("reduction steps", intrinsic.depth(), len);
        errors.push(error.help(format!("split by a multiple of {}", intrinsic.depth())).at(loops[2].at));
    }
    for tile in &tiles.tokens {
        if tile.value % intrinsic.token_step() != 0 {
            errors.push(multiple("tokens", intrinsic.token_step(), tile.value).at(tile.at));
        }
    }
    if intrinsic.is_sparse() {
        two_of_four(*intrinsic, scope, *intrinsic_at, errors);
    }
    if intrinsic.is_tensor_core() {
        // A pattern has one ragged loop, which a threshold over joined rows and columns becomes.
        let mut may_be_ragged = !ragged;
        for illegal in illegal {
            let (message, found, at) = match illegal {
                Illegal::Threshold { .. } if std::mem::take(&mut may_be_ragged) => continue,
                Illegal::Join { at, .. } | Illegal::Threshold { at, .. } => {
                    ("a join of a spatial and a reduction loop does not run on tensor cores", "one loop over both", at)
                }
                Illegal::Skip { at } => (
                    "a spatial loop skipped inside a reduction loop does not run on tensor cores",
                    "regions inside the reduction",
                    at,
                ),
            };
            let help = "reorder the regions, or drop `tensorize`: the pattern still prunes, and runs on the CPU \
                        and through a cover";
            errors.push(
                Diagnostic::new(message)
                    .expected(format!("a pattern that `{name}` can run"))
                    .found(found)
                    .help(help)
                    .at(*at),
            );
        }
    }
}

/// A sparse intrinsic reads a weight of which the innermost reduction loop keeps 2 of 4.
fn two_of_four(intrinsic: Intrinsic, scope: &Scope<'_>, at: At, errors: &mut Errors) {
    let innermost = scope.order.iter().rev().find(|l| l.kind == AxisKind::Reduction);
    let Some(innermost) = innermost else { return };
    let found = match innermost.kept {
        Some((Some(kept), Some(4))) if kept <= 2 => return,
        Some((Some(kept), None)) if kept <= 2 => return,
        Some((Some(kept), Some(of))) => format!("`{}`, which keeps {kept} of {of}", innermost.name),
        Some(_) => format!("`{}`, which keeps another number", innermost.name),
        None => format!("`{}`, which keeps all", innermost.name),
    };
    errors.push(
        Diagnostic::new(format!("`{intrinsic}` needs a weight that is 2 of 4"))
            .expected("an innermost reduction loop that keeps 2 of 4")
            .found(found)
            .help(format!(
                "split a loop of the reduction by 4 and skip the inner one with `keep = 2 of 4`, or use `{}`",
                intrinsic.other_density()
            ))
            .at(at),
    );
}
