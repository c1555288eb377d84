//! A cursor over tokens whose errors say what was expected and found.

use crate::ast::{Name, Number};
use crate::diagnostic::{At, Diagnostic, Report};
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// What a parse function gives back.
pub(crate) type Parse<T> = Result<T, Report>;

/// How deep groups may nest: no program needs more, and a deeper one would overflow the stack.
pub(crate) const MAX_DEPTH: usize = 64;

/// Words that Rust keeps for itself (strict and reserved, edition 2024).
const KEYWORDS: [&str; 52] = [
    "Self", "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro",
    "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static", "struct", "super",
    "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

/// Whether Rust reads this word as a keyword.
pub(crate) fn is_keyword(word: &str) -> bool {
    KEYWORDS.binary_search(&word).is_ok()
}

pub(crate) struct Cursor {
    trees: Vec<TokenTree>,
    next: usize,
    end: At,
}

impl Cursor {
    /// A cursor over `stream`; errors at its end point at `end`.
    pub fn new(stream: TokenStream, end: At) -> Cursor {
        let mut trees = Vec::new();
        flatten(stream, &mut trees);
        Cursor { trees, next: 0, end }
    }

    pub fn from_trees(trees: Vec<TokenTree>, end: At) -> Cursor {
        Cursor { trees, next: 0, end }
    }

    pub fn is_empty(&self) -> bool {
        self.next == self.trees.len()
    }

    pub fn peek(&self, ahead: usize) -> Option<&TokenTree> {
        self.trees.get(self.next + ahead)
    }

    /// The place of the next token, or the end.
    pub fn here(&self) -> At {
        self.peek(0).map_or(self.end, tree_at)
    }

    /// The place of the token before the next one.
    pub fn last(&self) -> At {
        self.next.checked_sub(1).map_or(self.end, |i| tree_at(&self.trees[i]))
    }

    /// The next token in words.
    pub fn found(&self) -> String {
        match self.peek(0) {
            None => "the end".to_owned(),
            Some(TokenTree::Group(group)) => {
                let (open, close) = delimiters(group.delimiter());
                format!("`{open}…{close}`")
            }
            Some(TokenTree::Ident(ident)) if is_keyword(&ident.to_string()) => format!("the Rust keyword `{ident}`"),
            Some(tree) => format!("`{tree}`"),
        }
    }

    /// An error at the next token.
    pub fn error(&self, message: impl Into<String>, expected: impl Into<String>) -> Report {
        Diagnostic::new(message).expected(expected).found(self.found()).at(self.here())
    }

    pub fn advance(&mut self) -> Option<TokenTree> {
        let tree = self.trees.get(self.next).cloned();
        self.next += usize::from(tree.is_some());
        tree
    }

    pub fn is_punct(&self, ahead: usize, sign: char) -> bool {
        matches!(self.peek(ahead), Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
    }

    /// Takes these adjacent signs if they come next.
    pub fn eat(&mut self, signs: &str) -> bool {
        let count = signs.chars().count();
        let here = signs.chars().enumerate().all(|(i, sign)| {
            self.is_punct(i, sign)
                && (i + 1 == count
                    || matches!(self.peek(i), Some(TokenTree::Punct(p)) if p.spacing() == Spacing::Joint))
        });
        if here {
            self.next += count;
        }
        here
    }

    pub fn expect(&mut self, signs: &str, context: &str) -> Parse<()> {
        if self.eat(signs) {
            return Ok(());
        }
        Err(self.error(context, format!("`{signs}`")))
    }

    /// Takes this word if it comes next.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let here = self.is_word(0, word);
        self.next += usize::from(here);
        here
    }

    pub fn is_word(&self, ahead: usize, word: &str) -> bool {
        matches!(self.peek(ahead), Some(TokenTree::Ident(ident)) if ident == word)
    }

    pub fn is_ident(&self, ahead: usize) -> bool {
        matches!(self.peek(ahead), Some(TokenTree::Ident(_)))
    }

    pub fn is_group(&self, ahead: usize, delimiter: Delimiter) -> bool {
        matches!(self.peek(ahead), Some(TokenTree::Group(group)) if group.delimiter() == delimiter)
    }

    /// A name: an identifier that is no keyword. `what` says whose.
    pub fn name(&mut self, what: &str) -> Parse<Name> {
        let at = self.here();
        let Some(TokenTree::Ident(ident)) = self.peek(0) else {
            return Err(self.error(format!("{what} is missing"), "a name"));
        };
        let written = ident.to_string();
        let bare = written.strip_prefix("r#").unwrap_or(&written).to_owned();
        if written == "_" {
            return Err(Diagnostic::new(format!("{what} is `_`"))
                .expected("a name")
                .found("`_`")
                .help("every loop and operand needs a name of its own")
                .at(at));
        }
        if is_keyword(&written) {
            let raw = !matches!(written.as_str(), "self" | "Self" | "super" | "crate");
            let other = if raw { format!("write `r#{written}` or another name") } else { "use another name".into() };
            return Err(Diagnostic::new(format!("`{written}` cannot be {what}"))
                .expected("a name")
                .found(format!("the Rust keyword `{written}`"))
                .help(other)
                .at(at));
        }
        self.next += 1;
        let text = if is_keyword(&bare) { written } else { bare };
        Ok(Name { text, at })
    }

    /// A whole number without sign or suffix.
    pub fn number(&mut self, what: &str) -> Parse<Number> {
        let at = self.here();
        let error = self.error(format!("{what} is missing or malformed"), "a whole number such as `128`");
        match self.peek(0) {
            Some(TokenTree::Literal(literal)) => match whole(&literal.to_string()) {
                Some(Ok(value)) => {
                    self.next += 1;
                    Ok(Number { value, at })
                }
                Some(Err(())) => Err(Diagnostic::new(format!("{what} does not fit 64 bits"))
                    .expected(format!("at most {}", usize::MAX))
                    .found(format!("`{literal}`"))
                    .at(at)),
                None => Err(error),
            },
            _ => Err(error),
        }
    }

    /// The contents of a bracketed group and where the group is.
    pub fn group(&mut self, delimiter: Delimiter, context: &str) -> Parse<(Cursor, At)> {
        let at = self.here();
        match self.peek(0) {
            Some(TokenTree::Group(group)) if group.delimiter() == delimiter => {
                let inner = Cursor::new(group.stream(), group.span_close().into());
                self.next += 1;
                Ok((inner, at))
            }
            _ => Err(self.error(context, format!("`{}`", delimiters(delimiter).0))),
        }
    }

    /// Items between commas up to the end; a trailing comma is allowed.
    pub fn list<T>(&mut self, context: &str, mut item: impl FnMut(&mut Cursor) -> Parse<T>) -> Parse<Vec<T>> {
        let mut items = Vec::new();
        while !self.is_empty() {
            items.push(item(self)?);
            if !self.is_empty() {
                self.expect(",", context)?;
            }
        }
        Ok(items)
    }

    /// Refuses expressions so long that their tree could not be walked by recursion.
    pub fn limit_operators(&self, most: usize) -> Parse<()> {
        let count = operators(&self.trees[self.next..]);
        if count <= most {
            return Ok(());
        }
        let error = Diagnostic::new("the expression is too long").expected(format!("at most {most} operators"));
        Err(error.found(count.to_string()).at(self.here()))
    }

    pub fn finish(&self, context: &str, expected: &str) -> Parse<()> {
        if self.is_empty() { Ok(()) } else { Err(self.error(context, expected)) }
    }
}

/// The value of a literal that is a whole number; `Some(Err)` where it is too large.
pub(crate) fn whole(literal: &str) -> Option<Result<usize, ()>> {
    let digits = literal.replace('_', "");
    let (radix, digits) = match digits.get(..2) {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        _ => (10, digits.as_str()),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    Some(usize::from_str_radix(digits, radix).map_err(|_| ()))
}

/// The value of a literal that is a number with or without a fraction; infinite where it is too large.
pub(crate) fn decimal(literal: &str) -> Option<f64> {
    let digits = literal.replace('_', "");
    let plain = digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'));
    if plain { digits.parse().ok() } else { None }
}

pub(crate) fn tree_at(tree: &TokenTree) -> At {
    match tree {
        TokenTree::Group(group) => At { start: group.span_open(), end: group.span_close() },
        other => other.span().into(),
    }
}

fn operators(trees: &[TokenTree]) -> usize {
    let count = |tree: &TokenTree| match tree {
        TokenTree::Punct(punct) => usize::from(matches!(punct.as_char(), '+' | '*')),
        TokenTree::Group(group) => operators(&group.stream().into_iter().collect::<Vec<_>>()),
        _ => 0,
    };
    trees.iter().map(count).sum()
}

fn delimiters(delimiter: Delimiter) -> (&'static str, &'static str) {
    match delimiter {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    }
}

/// Invisible groups, which `macro_rules!` puts around what it passes on, say nothing here.
fn flatten(stream: TokenStream, out: &mut Vec<TokenTree>) {
    for tree in stream {
        match tree {
            TokenTree::Group(group) if group.delimiter() == Delimiter::None => flatten(group.stream(), out),
            other => out.push(other),
        }
    }
}

/// The place of the first group that nests too deep, found without recursion.
pub(crate) fn too_deep(stream: &TokenStream) -> Option<At> {
    let mut levels = vec![stream.clone().into_iter()];
    while let Some(level) = levels.last_mut() {
        match level.next() {
            None => {
                levels.pop();
            }
            Some(TokenTree::Group(group)) => {
                if levels.len() > MAX_DEPTH {
                    return Some(group.span_open().into());
                }
                levels.push(group.stream().into_iter());
            }
            Some(_) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_are_sorted() {
        assert!(KEYWORDS.is_sorted());
    }

    #[test]
    fn literals() {
        assert_eq!(whole("1_024"), Some(Ok(1024)));
        assert_eq!(whole("0x10"), Some(Ok(16)));
        assert_eq!(whole("340282366920938463463374607431768211456"), Some(Err(())));
        assert_eq!(whole("4u32"), None);
        assert_eq!(whole("é"), None);
        assert_eq!(decimal("6.25"), Some(6.25));
        assert_eq!(decimal("1e400"), Some(f64::INFINITY));
        assert_eq!(decimal("0x10"), None);
        assert_eq!(decimal("1f32"), None);
    }
}
