//! [`Ast`] -> [`Program`]. Every error is noted and checking goes on; a program comes out only without errors.
//!
//! | file | what it checks |
//! |---|---|
//! | `mod` | dimensions and the whole |
//! | `operands` | declarations and the contraction |
//! | `epilogue` | epilogue statements |
//! | `schedule` | primitives, one by one |
//! | `scope` | names, order, lengths of the loops |
//! | `tensorize` | the intrinsic against the whole schedule |

mod epilogue;
mod operands;
mod schedule;
mod scope;
mod tensorize;

use crate::ast::{Ast, DimDecl, Statement};
use crate::const_expr::{self, Value};
use crate::diagnostic::{Diagnostic, Errors, did_you_mean};
use crate::program::{Dim, Dimension, Parts, Program};

/// What happens to a dimension whose constant has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbound {
    /// It stays [`Dim::Const`].
    Keep,
    /// It is an error.
    Refuse,
}

/// What the checker knows beside the tree.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Values of constants, or of dimensions by their own names.
    pub bindings: &'a [(&'a str, usize)],
    /// What happens to the others.
    pub unbound: Unbound,
}

/// The sizes of the header.
struct Dims {
    m: Dim,
    n: Dim,
    k: Dim,
}

impl Dims {
    fn size(&self, dimension: Dimension) -> Option<usize> {
        match dimension {
            Dimension::M => self.m.fixed(),
            Dimension::N => self.n.fixed(),
            Dimension::K => self.k.fixed(),
        }
    }
}

/// Checks a tree; see the module.
pub fn check(ast: &Ast, options: Options<'_>, errors: &mut Errors) -> Option<Program> {
    let dims = dims(ast, options, errors);
    let operands = operands::check(ast, errors);
    let (epilogue, implicit) = epilogue::check(ast, &operands, errors);
    let schedule: Vec<_> = ast
        .statements
        .iter()
        .filter_map(|statement| match statement {
            Statement::Schedule(primitives) => Some(primitives),
            _ => None,
        })
        .flatten()
        .collect();
    let directives = schedule::check(&schedule, &dims, &operands, &ast.lost, errors);
    if !errors.is_empty() {
        return None;
    }
    let mut extras: Vec<_> = operands.extras.iter().map(|extra| extra.operand.clone()).collect();
    extras.extend(implicit);
    let program = Program(Parts {
        name: ast.name.as_ref().map(|name| name.text.clone()),
        docs: ast.docs.clone(),
        m: dims.m,
        n: dims.n,
        k: dims.k,
        axes: operands.axes?,
        weight: operands.weight?.operand,
        input: operands.input?.operand,
        output: operands.output?.operand,
        extras,
        epilogue,
        directives,
    });
    // The checks above speak of names and places; PatternIR has the last word where all sizes are known.
    if let (Some(n), Some(k)) = (program.dim(Dimension::N).fixed(), program.dim(Dimension::K).fixed())
        && let Err((number, error)) = program.0.replay(n, k)
    {
        let at = number.map_or(ast.header, |number| schedule[number].at);
        errors.push(Diagnostic::new(error.to_string()).at(at));
        return None;
    }
    Some(program)
}

fn dims(ast: &Ast, options: Options<'_>, errors: &mut Errors) -> Dims {
    let mut found: [Option<&DimDecl>; 3] = [None; 3];
    for decl in &ast.dims {
        let meant = Dimension::from_name(&decl.name.text.to_uppercase());
        let Some(dimension) = Dimension::from_name(&decl.name.text) else {
            let help = did_you_mean(&decl.name.text, Dimension::ALL.map(Dimension::name));
            errors.push(
                Diagnostic::new(format!("unknown dimension `{}`", decl.name.text))
                    .expected("`M` (tokens), `N` (output features) and `K` (input features)")
                    .found(format!("`{}`", decl.name.text))
                    .maybe_help(help)
                    .at(decl.name.at),
            );
            if let Some(meant) = meant {
                found[meant as usize].get_or_insert(decl);
            }
            continue;
        };
        if found[dimension as usize].replace(decl).is_some() {
            let message = format!("dimension `{dimension}` is given twice");
            errors.push(Diagnostic::new(message).help("name each dimension once").at(decl.name.at));
        }
    }
    let mut at = [ast.header; 3];
    let [m, n, k] = Dimension::ALL.map(|dimension| match found[dimension as usize] {
        Some(decl) => {
            at[dimension as usize] = decl.value.as_ref().map_or(decl.name.at, |value| value.at);
            dim(dimension, decl, options, errors)
        }
        None => {
            if !ast.dims.is_empty() {
                let message = format!("dimension `{dimension}` ({}) is missing", dimension.meaning());
                let help = format!("write `{dimension}` for a run-time size or `{dimension} = 1024` for a fixed one");
                errors.push(Diagnostic::new(message).help(help).at(ast.header));
            }
            Dim::Runtime
        }
    });
    if ast.dims.is_empty() {
        let nothing = Diagnostic::new("the header has no dimensions")
            .expected("`<M, N = 4096, K = 1024>`")
            .found("`<>`")
            .help("a dimension without a value is given at run time: `<M, N, K>`");
        errors.push(nothing.at(ast.header));
    }
    let too_many = |n: usize, k: usize| n.checked_mul(k).is_none_or(|elements| elements > 1 << 40);
    if let (Some(n), Some(k)) = (n.fixed(), k.fixed())
        && n < 1 << 31
        && k < 1 << 31
        && too_many(n, k)
    {
        errors.push(
            Diagnostic::new("the weight has too many elements")
                .expected("N * K of at most 2^40")
                .found(format!("{n} * {k}"))
                .help("shard the layer")
                .at(at[Dimension::N as usize]),
        );
    }
    Dims { m, n, k }
}

fn dim(dimension: Dimension, decl: &DimDecl, options: Options<'_>, errors: &mut Errors) -> Dim {
    let Some(value) = &decl.value else { return Dim::Runtime };
    let lookup = |name: &str| options.bindings.iter().find(|(bound, _)| *bound == name).map(|(_, size)| *size);
    let text = || const_expr::text(&value.tokens);
    let size = match (const_expr::evaluate(&value.tokens, &lookup), lookup(dimension.name())) {
        (Value::Known(size), _) | (Value::Unbound(_) | Value::Opaque, Some(size)) => size,
        (Value::Unbound(_) | Value::Opaque, None) if options.unbound == Unbound::Keep => return Dim::Const(text()),
        (Value::Unbound(names), None) => {
            for name in names {
                errors.push(
                    Diagnostic::new(format!("`{name}` has no value in text that is read at run time"))
                        .expected("a number, or a name with a binding")
                        .found(format!("`{name}`"))
                        .help(format!("bind it: `Program::parse_with(text, &[(\"{name}\", …)])`"))
                        .at(value.at),
                );
            }
            return Dim::Const(text());
        }
        (Value::Opaque, None) => {
            errors.push(
                Diagnostic::new(format!("dimension `{dimension}` cannot be evaluated at run time"))
                    .expected("a number or arithmetic on numbers and names")
                    .found(format!("`{}`", text()))
                    .help(format!("bind the dimension: `Program::parse_with(text, &[(\"{dimension}\", …)])`"))
                    .at(value.at),
            );
            return Dim::Const(text());
        }
        (Value::Wrong(why), _) => {
            let error = Diagnostic::new(format!("dimension `{dimension}` {why}")).expected("a size from 1 to 2^31 - 1");
            errors.push(error.found(format!("`{}`", text())).at(value.at));
            return Dim::Const(text());
        }
    };
    if size == 0 || size >= 1 << 31 {
        let what = if size == 0 { "is zero" } else { "is too large" };
        errors.push(
            Diagnostic::new(format!("dimension `{dimension}` ({}) {what}", dimension.meaning()))
                .expected("a size from 1 to 2^31 - 1")
                .found(format!("{size}"))
                .at(value.at),
        );
        return Dim::Const(text());
    }
    Dim::Fixed(size)
}
