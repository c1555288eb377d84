//! The papers' notation of a nest as a schedule: `n0:32 k0:64^16 n1:32 k1:16`.
//!
//! Each loop is an axis (`n` or `k`), a level, a length and, after `^`, how many iterations each region keeps; loops
//! stand outermost first and the region of a loop is all loops outside it. An axis' lengths multiply to its size; where
//! they do not divide it, the outermost length is rounded up and the tail is padded.

use crate::ast::{Name, Op, Primitive};
use crate::cursor::{Cursor, Parse};
use crate::diagnostic::{At, Diagnostic, Errors};
use crate::parse::synthetic;
use crate::pattern::Keep;
use proc_macro2::{TokenStream, TokenTree};

/// Whether the text is a nest: it begins with a name and a colon.
pub(crate) fn is_nest(stream: &TokenStream) -> bool {
    let mut trees = stream.clone().into_iter();
    matches!(
        (trees.next(), trees.next()),
        (Some(TokenTree::Ident(_)), Some(TokenTree::Punct(punct))) if punct.as_char() == ':'
    )
}

struct Level {
    name: Name,
    axis: char,
    len: usize,
    len_at: At,
    keep: Option<(usize, At)>,
}

/// The primitives of a nest over a weight of n x k.
pub(crate) fn parse(stream: TokenStream, n: usize, k: usize, errors: &mut Errors) -> Option<Vec<Primitive>> {
    let end = stream.clone().into_iter().last().map_or(At::nowhere(), |tree| tree.span().into());
    let mut cursor = Cursor::new(stream, end);
    let mut levels: Vec<Level> = Vec::new();
    while !cursor.is_empty() {
        let level = level(&mut cursor);
        let level = errors.take(level)?;
        if levels.iter().any(|other| other.name.text == level.name.text) {
            let error = Diagnostic::new(format!("loop `{}` is given twice", level.name.text));
            errors.push(error.help("number the loops of an axis from the outside: n0, n1, …").at(level.name.at));
        }
        levels.push(level);
    }
    let mut primitives = Vec::new();
    for (axis, size) in [('n', n), ('k', k)] {
        let loops: Vec<&Level> = levels.iter().filter(|level| level.axis == axis).collect();
        let split = splits(axis, size, &loops);
        primitives.extend(errors.take(split)?);
    }
    if !errors.is_empty() {
        return None;
    }
    let primitive = |op, at| Primitive { op, at };
    let first = levels.first()?.name.at;
    primitives.push(primitive(Op::Reorder { loops: levels.iter().map(|level| level.name.clone()).collect() }, first));
    for level in levels {
        if let Some((count, keep_at)) = level.keep {
            let at = level.name.at;
            let skip = Op::Skip { axis: level.name, per: None, keep: Keep::Count(count), keep_at };
            primitives.push(primitive(skip, at));
        }
    }
    Some(primitives)
}

/// `k0:64^16`
fn level(cursor: &mut Cursor) -> Parse<Level> {
    let name = cursor.name("a loop of the nest")?;
    let mut letters = name.text.chars();
    let axis = letters.next().filter(|axis| matches!(axis, 'n' | 'k'));
    let numbered = letters.all(|c| c.is_ascii_digit());
    let Some(axis) = axis.filter(|_| numbered) else {
        return Err(Diagnostic::new(format!("`{}` is no loop of a nest", name.text))
            .expected("`n` or `k` and a level, as in `n0` or `k1`")
            .found(format!("`{}`", name.text))
            .at(name.at));
    };
    cursor.expect(":", "the loop has no length")?;
    let len = cursor.number("the length")?;
    if len.value == 0 {
        return Err(Diagnostic::new("a loop has length 0").expected("at least 1").found("0").at(len.at));
    }
    let mut keep = None;
    if cursor.eat("^") {
        let count = cursor.number("the number kept")?;
        keep = Some((count.value, count.at));
    }
    Ok(Level { name, axis, len: len.value, len_at: len.at, keep })
}

/// Splits an axis into its loops, outermost first; the last split's outer loop is the rest of the axis.
fn splits(axis: char, size: usize, loops: &[&Level]) -> Parse<Vec<Primitive>> {
    let Some((outermost, inner)) = loops.split_first() else {
        return Err(Diagnostic::new(format!("the nest has no loop of {axis}"))
            .expected(format!("a loop of each axis, such as `{axis}:{size}`"))
            .at(At::nowhere()));
    };
    let mut unit = inner.iter().try_fold(1usize, |product, level| product.checked_mul(level.len));
    let rest = unit.map(|unit| size.div_ceil(unit));
    if rest != Some(outermost.len) {
        let found = unit.and_then(|unit| unit.checked_mul(outermost.len));
        return Err(Diagnostic::new(format!("the lengths of {axis} do not multiply to its size"))
            .expected(match rest {
                Some(rest) if rest > 1 || inner.is_empty() => {
                    format!("`{}:{rest}` for {axis} = {size}", outermost.name.text)
                }
                _ => format!("a product of {size}"),
            })
            .found(found.map_or("an overflow".to_owned(), |product| format!("a product of {product}")))
            .at(outermost.len_at));
    }
    let mut primitives = Vec::new();
    let mut rest = Name { text: axis.to_string(), at: outermost.name.at };
    for pair in loops.windows(2) {
        let [outer, next] = pair else { continue };
        let is_last = std::ptr::eq(*next, loops[loops.len() - 1]);
        let inner = if is_last { next.name.clone() } else { synthetic(&format!("{}_rest", outer.name.text)) };
        let value = unit.unwrap_or(1);
        let factor = crate::ast::Number { value, at: outer.len_at };
        let at = outer.name.at;
        let split = Op::Split { axis: rest, factor, outer: outer.name.clone(), inner: inner.clone() };
        primitives.push(Primitive { op: split, at });
        unit = unit.map(|unit| unit / next.len);
        rest = inner;
    }
    if loops.len() == 1 && outermost.name.text != axis.to_string() {
        return Err(Diagnostic::new(format!("`{}` is the only loop of {axis}", outermost.name.text))
            .expected(format!("`{axis}`"))
            .found(format!("`{}`", outermost.name.text))
            .at(outermost.name.at));
    }
    Ok(primitives)
}
