//! The values of dimensions: arithmetic on whole numbers and named constants.

use crate::cursor::{Cursor, is_keyword, whole};
use crate::diagnostic::At;
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// What is known of a constant expression.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Its value.
    Known(usize),
    /// It has names without a value.
    Unbound(Vec<String>),
    /// Only the compiler can evaluate it.
    Opaque,
    /// It has no value: overflow, division by zero, less than zero.
    Wrong(&'static str),
}

/// Evaluates `tokens` where every name has a value in `lookup`.
pub(crate) fn evaluate(tokens: &TokenStream, lookup: &dyn Fn(&str) -> Option<usize>) -> Value {
    let mut evaluator = Evaluator { lookup, unbound: Vec::new() };
    let mut cursor = Cursor::new(tokens.clone(), At::nowhere());
    let value = evaluator.binary(&mut cursor, 0);
    match value {
        Err(Stop::Wrong(why)) => Value::Wrong(why),
        Ok(Some(value)) if cursor.is_empty() => Value::Known(value),
        _ if syn::parse2::<syn::Expr>(tokens.clone()).is_err() => Value::Wrong("is no expression"),
        Err(Stop::Opaque) => Value::Opaque,
        Ok(_) if !cursor.is_empty() => Value::Opaque,
        Ok(_) => Value::Unbound(evaluator.unbound),
    }
}

/// Types that a whole number may name.
const SUFFIXES: [&str; 12] = ["usize", "isize", "u8", "u16", "u32", "u64", "u128", "i8", "i16", "i32", "i64", "i128"];

enum Stop {
    Opaque,
    Wrong(&'static str),
}

struct Evaluator<'a> {
    lookup: &'a dyn Fn(&str) -> Option<usize>,
    unbound: Vec<String>,
}

impl Evaluator<'_> {
    /// Precedence climbing: 0 shifts, 1 sums, 2 products, as in Rust. `None` stands for an unbound name's value.
    fn binary(&mut self, cursor: &mut Cursor, level: usize) -> Result<Option<usize>, Stop> {
        const LEVELS: [&[&str]; 3] = [&["<<", ">>"], &["+", "-"], &["*", "/", "%"]];
        if level == LEVELS.len() {
            return self.atom(cursor);
        }
        let mut left = self.binary(cursor, level + 1)?;
        while let Some(sign) = LEVELS[level].iter().find(|sign| cursor.eat(sign)) {
            let right = self.binary(cursor, level + 1)?;
            left = match (left, right) {
                (Some(a), Some(b)) => Some(apply(a, sign, b)?),
                _ => None,
            };
        }
        Ok(left)
    }

    fn atom(&mut self, cursor: &mut Cursor) -> Result<Option<usize>, Stop> {
        for delimiter in [Delimiter::Parenthesis, Delimiter::Brace] {
            if let Ok((mut inner, _)) = cursor.group(delimiter, "") {
                let value = self.binary(&mut inner, 0)?;
                return if inner.is_empty() { Ok(value) } else { Err(Stop::Opaque) };
            }
        }
        match cursor.advance() {
            Some(TokenTree::Literal(literal)) => {
                let text = literal.to_string();
                let suffix = SUFFIXES.iter().find_map(|suffix| text.strip_suffix(suffix));
                match whole(suffix.unwrap_or(&text)) {
                    Some(Ok(value)) => Ok(Some(value)),
                    Some(Err(())) => Err(Stop::Wrong("does not fit 64 bits")),
                    None => Err(Stop::Wrong("is no whole number")),
                }
            }
            Some(TokenTree::Ident(ident)) => {
                let mut path = ident.to_string();
                while cursor.eat("::") {
                    match cursor.advance() {
                        Some(TokenTree::Ident(segment)) => path += &format!("::{segment}"),
                        _ => return Err(Stop::Opaque),
                    }
                }
                let called = [Delimiter::Parenthesis, Delimiter::Brace, Delimiter::Bracket]
                    .iter()
                    .any(|&delimiter| cursor.is_group(0, delimiter));
                if called || cursor.is_punct(0, '!') || (is_keyword(&path) && !path.contains("::")) {
                    return Err(Stop::Opaque);
                }
                let value = (self.lookup)(&path);
                if value.is_none() && !self.unbound.contains(&path) {
                    self.unbound.push(path);
                }
                Ok(value)
            }
            _ => Err(Stop::Opaque),
        }
    }
}

fn apply(a: usize, sign: &str, b: usize) -> Result<usize, Stop> {
    let (value, why) = match sign {
        "+" => (a.checked_add(b), "does not fit 64 bits"),
        "-" => (a.checked_sub(b), "is less than 0"),
        "*" => (a.checked_mul(b), "does not fit 64 bits"),
        "/" => (a.checked_div(b), "divides by 0"),
        "%" => (a.checked_rem(b), "divides by 0"),
        "<<" => (u32::try_from(b).ok().and_then(|b| a.checked_shl(b).filter(|v| v >> b == a)), "does not fit 64 bits"),
        _ => (Some(u32::try_from(b).ok().and_then(|b| a.checked_shr(b)).unwrap_or(0)), ""),
    };
    value.ok_or(Stop::Wrong(why))
}

/// Tokens as text that does not depend on how they were spaced.
pub(crate) fn text(tokens: &TokenStream) -> String {
    let mut out = String::new();
    write(tokens.clone(), &mut out);
    out
}

fn write(tokens: TokenStream, out: &mut String) {
    // No space before the first token, after a sign that belongs to the next one, and around `::`.
    let mut glued = true;
    for tree in tokens {
        let path =
            matches!(&tree, TokenTree::Punct(punct) if punct.as_char() == ':' && punct.spacing() == Spacing::Joint);
        if !glued && !path {
            out.push(' ');
        }
        glued = false;
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                out.push_str(open);
                write(group.stream(), out);
                out.push_str(close);
            }
            TokenTree::Punct(punct) => {
                out.push(punct.as_char());
                glued = punct.spacing() == Spacing::Joint || out.ends_with("::");
            }
            other => out.push_str(&other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(source: &str) -> Value {
        let lookup = |name: &str| (name == "HIDDEN" || name == "model::HIDDEN").then_some(1024);
        evaluate(&source.parse().unwrap(), &lookup)
    }

    #[test]
    fn arithmetic_is_that_of_rust() {
        assert_eq!(value("1 + 2 * 3 - 4 / 2"), Value::Known(5));
        assert_eq!(value("1 << 2 + 3"), Value::Known(32));
        assert_eq!(value("{ 4 * (HIDDEN + 1usize) }"), Value::Known(4100));
        assert_eq!(value("model::HIDDEN % 1000"), Value::Known(24));
        assert_eq!(value("64 >> 70"), Value::Known(0));
    }

    #[test]
    fn what_has_no_value() {
        assert_eq!(value("HEADS * DIM * HEADS"), Value::Unbound(vec!["HEADS".into(), "DIM".into()]));
        assert_eq!(value("width(3)"), Value::Opaque);
        assert_eq!(value("4 as usize"), Value::Opaque);
        assert_eq!(value("4.5"), Value::Wrong("is no whole number"));
        assert_eq!(value("1 - 2"), Value::Wrong("is less than 0"));
        assert_eq!(value("1 / 0"), Value::Wrong("divides by 0"));
        assert_eq!(value("1 << 64"), Value::Wrong("does not fit 64 bits"));
        assert_eq!(value("18446744073709551616"), Value::Wrong("does not fit 64 bits"));
        assert_eq!(value("18446744073709551615 * 2"), Value::Wrong("does not fit 64 bits"));
    }

    #[test]
    fn canonical_text_does_not_depend_on_spaces() {
        let parse = |source: &str| text(&source.parse().unwrap());
        assert_eq!(parse("a::b  +f( 3,x )"), "a::b + f (3 , x)");
        for source in ["a :: b+f(3,x)", "HIDDEN*4", "x<<2", "-1", "f::<3>()", "'a'", "&'a x", "a..=b", "x as usize"] {
            assert_eq!(parse(&parse(source)), parse(source), "{source}");
        }
    }
}
