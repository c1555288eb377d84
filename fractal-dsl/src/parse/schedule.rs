//! The statements of `schedule { … }`.

use crate::ast::{Name, Number, Op, Primitive};
use crate::cursor::{Cursor, Parse, decimal, whole};
use crate::diagnostic::{At, Diagnostic, Errors, did_you_mean, quoted};
use crate::directive::PRIMITIVES;
use crate::pattern::{Keep, Ratio};
use proc_macro2::{Delimiter, TokenTree};

const KEEP: &str = "a count, `25%`, `2 of 4`, `ragged 25%` or `ragged 4096`";

pub(super) fn primitives(
    cursor: &mut Cursor,
    open_end: bool,
    lost: &mut Vec<String>,
    errors: &mut Errors,
) -> Vec<Primitive> {
    let mut list = Vec::new();
    while !cursor.is_empty() {
        if !cursor.eat(";") {
            list.extend(super::one(cursor, open_end, lost, errors, primitive));
        }
    }
    list
}

fn primitive(cursor: &mut Cursor) -> Parse<Primitive> {
    if cursor.eat_word("let") {
        return binding(cursor);
    }
    let at = cursor.here();
    if !cursor.is_ident(0) {
        return Err(cursor.error("this is no schedule primitive", quoted(PRIMITIVES, "or")));
    }
    let name = super::word(cursor);
    let known = PRIMITIVES.contains(&name.text.as_str());
    if !known {
        return Err(Diagnostic::new(format!("unknown primitive `{}`", name.text))
            .expected(quoted(PRIMITIVES, "or"))
            .found(format!("`{}`", name.text))
            .maybe_help(did_you_mean(&name.text, PRIMITIVES))
            .at(at));
    }
    if matches!(name.text.as_str(), "split" | "join") {
        let help = if name.text == "split" { "let (outer, inner) = split(…);" } else { "let joined = join(…);" };
        return Err(Diagnostic::new(format!("the loops that `{}` makes have no names", name.text))
            .expected("`let`")
            .found(format!("`{}`", name.text))
            .help(format!("write `{help}`"))
            .at(at));
    }
    let (mut args, _) = cursor.group(Delimiter::Parenthesis, &format!("`{}` has no arguments", name.text))?;
    let op = arguments(&name.text, &mut args)?;
    args.finish(&format!("`{}` has too many arguments", name.text), "`)`")?;
    Ok(Primitive { op, at })
}

/// `(no, ni) = split(n, 128)` or `nk = join(n, k)`, after `let`.
fn binding(cursor: &mut Cursor) -> Parse<Primitive> {
    if cursor.is_group(0, Delimiter::Parenthesis) {
        let (mut inner, names_at) = cursor.group(Delimiter::Parenthesis, "")?;
        let names = inner.list("the names have no comma here", |c| c.name("the name of a loop"))?;
        cursor.expect("=", "`let` has no value")?;
        let (at, mut args) = call(cursor, "split")?;
        let Ok([outer, inner]) = <[Name; 2]>::try_from(names) else {
            return Err(Diagnostic::new("a split makes two loops")
                .expected("`let (outer, inner) = split(…)`")
                .found("another number of names")
                .at(names_at));
        };
        let axis = loop_name(&mut args)?;
        args.expect(",", "`split` has no factor")?;
        let factor = args.number("the factor")?;
        end(&mut args, "split")?;
        return Ok(Primitive { op: Op::Split { axis, factor, outer, inner }, at });
    }
    let out = cursor.name("the name of a loop")?;
    cursor.expect("=", "`let` has no value")?;
    let (at, mut args) = call(cursor, "join")?;
    let a = loop_name(&mut args)?;
    args.expect(",", "`join` has no second loop")?;
    let b = loop_name(&mut args)?;
    end(&mut args, "join")?;
    Ok(Primitive { op: Op::Join { a, b, out }, at })
}

/// `name(…)` for the one primitive that fits the names bound.
fn call(cursor: &mut Cursor, name: &str) -> Parse<(At, Cursor)> {
    let at = cursor.here();
    if cursor.eat_word(name) {
        let (args, _) = cursor.group(Delimiter::Parenthesis, &format!("`{name}` has no arguments"))?;
        return Ok((at, args));
    }
    let report = cursor.error(
        "this primitive does not make the loops that are bound",
        "`let (outer, inner) = split(…)` or `let joined = join(…)`",
    );
    let word = cursor.peek(0).map(ToString::to_string).unwrap_or_default();
    let help = match word.as_str() {
        "skip" | "permute" => Some("after `skip` and `permute` a loop keeps its name; drop the `let`".to_owned()),
        _ => did_you_mean(&word, ["split", "join"]),
    };
    Err(match help {
        Some(help) => report.help(help),
        None => report,
    })
}

fn end(args: &mut Cursor, primitive: &str) -> Parse<()> {
    args.eat(",");
    args.finish(&format!("`{primitive}` has too many arguments"), "`)`")
}

fn loop_name(args: &mut Cursor) -> Parse<Name> {
    args.name("a loop")
}

fn arguments(primitive: &str, args: &mut Cursor) -> Parse<Op> {
    let op = match primitive {
        "skip" => return skip(args),
        "reorder" => Op::Reorder { loops: args.list("`reorder` has no comma here", loop_name)? },
        "permute" => Op::Permute { axis: loop_name(args)? },
        "tile" | "cluster" => {
            let axis = loop_name(args)?;
            args.expect(",", &format!("`{primitive}` has no size"))?;
            let size = args.number("the size")?;
            if primitive == "tile" { Op::Tile { axis, size } } else { Op::Cluster { axis, size } }
        }
        "condense" => {
            let operand = args.name("an operand")?;
            let more = args.eat(",") && !args.is_empty();
            Op::Condense { operand, run: if more { Some(args.number("the rows of a box")?) } else { None } }
        }
        "resident" => Op::Resident { operand: args.name("an operand")? },
        "bind" => {
            let axis = loop_name(args)?;
            args.expect(",", "`bind` has no level")?;
            Op::Bind { axis, level: args.name("a level")? }
        }
        "stage" => {
            let operand = args.name("an operand")?;
            args.expect(",", "`stage` has no memory")?;
            Op::Stage { operand, memory: args.name("a memory")? }
        }
        "pipeline" => Op::Pipeline { depth: args.number("the depth")? },
        _ => {
            let at = args.here();
            let mut loops = args.list("`tensorize` has no comma here", loop_name)?;
            let Some(intrinsic) = loops.pop() else {
                return Err(Diagnostic::new("`tensorize` has no arguments")
                    .expected("`tensorize(n_loop, m, k_loop, intrinsic)`")
                    .at(at));
            };
            Op::Tensorize { loops, intrinsic }
        }
    };
    args.eat(",");
    Ok(op)
}

/// `k, per = (n, ko), keep = 2 of 4`
fn skip(args: &mut Cursor) -> Parse<Op> {
    let axis = loop_name(args)?;
    let (mut per, mut keep) = (None, None);
    while !args.is_empty() {
        args.expect(",", "`skip` has no comma here")?;
        if args.is_empty() {
            break;
        }
        let at = args.here();
        if !args.is_ident(0) || !args.is_punct(1, '=') {
            return Err(args.error("an argument of `skip` has no name", "`per = …` or `keep = …`"));
        }
        let name = super::word(args);
        args.expect("=", "an argument has no value")?;
        let twice = match name.text.as_str() {
            "per" => per.replace(region(args)?).is_some(),
            "keep" => keep.replace(keep_value(args)?).is_some(),
            _ => {
                return Err(Diagnostic::new(format!("`skip` has no argument `{}`", name.text))
                    .expected("`per` or `keep`")
                    .found(format!("`{}`", name.text))
                    .maybe_help(did_you_mean(&name.text, ["per", "keep"]))
                    .at(at));
            }
        };
        if twice {
            return Err(Diagnostic::new(format!("`{}` is given twice", name.text)).at(at));
        }
    }
    match keep {
        Some((keep, keep_at)) => Ok(Op::Skip { axis, per, keep, keep_at }),
        None => Err(args.error("`skip` does not say how much it keeps", "`keep = …`").help(format!("keep is {KEEP}"))),
    }
}

/// `no`, `(n, ko)` or `()`
fn region(args: &mut Cursor) -> Parse<Vec<Name>> {
    if args.is_group(0, Delimiter::Parenthesis) {
        let (mut inner, _) = args.group(Delimiter::Parenthesis, "")?;
        return inner.list("the loops have no comma here", loop_name);
    }
    Ok(vec![args.name("a loop of the region")?])
}

fn keep_value(args: &mut Cursor) -> Parse<(Keep, At)> {
    let start = args.here();
    let ragged = args.eat_word("ragged");
    let at = args.here();
    let Some(TokenTree::Literal(literal)) = args.peek(0) else {
        return Err(args.error("keep is missing or malformed", KEEP));
    };
    let text = literal.to_string();
    if args.is_punct(1, '%') {
        let Some(percent) = decimal(&text) else { return Err(args.error("keep is malformed", KEEP)) };
        args.advance();
        args.advance();
        let whole = start.to(args.last());
        let Ok(ratio) = Ratio::percent(percent) else {
            return Err(Diagnostic::new("keep is out of range")
                .expected("more than 0% and at most 100%, in steps of 0.0001%")
                .found(format!("{text}%"))
                .at(at.to(whole)));
        };
        return Ok((if ragged { Keep::Ragged(ratio) } else { Keep::Ratio(ratio) }, whole));
    }
    if whole(&text).is_none() && decimal(&text).is_some() {
        return Err(args.error("keep is a fraction", KEEP).help(format!("as a ratio write `{}%`", percent_of(&text))));
    }
    let Number { value, .. } = args.number("keep")?;
    if !ragged && args.eat_word("of") {
        let of = args.number("the M of `N of M`")?.value;
        return Ok((Keep::Of { kept: value, of }, start.to(args.last())));
    }
    let keep = if ragged { Keep::RaggedCount(value) } else { Keep::Count(value) };
    Ok((keep, start.to(args.last())))
}

/// A fraction as the percentage that was probably meant.
fn percent_of(text: &str) -> f64 {
    decimal(text).map_or(50.0, |fraction| fraction * 100.0)
}
