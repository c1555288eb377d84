//! Epilogue expressions: sums of products of names, accesses, numbers and calls.

use crate::ast::{Expr, Name};
use crate::cursor::{Cursor, Parse, decimal};
use crate::diagnostic::{At, Diagnostic};
use proc_macro2::{Delimiter, TokenTree};

pub(super) fn expression(cursor: &mut Cursor) -> Parse<Expr> {
    let value = sum(cursor)?;
    cursor.finish("the expression goes on", "`+`, `*` or the end of the expression")?;
    Ok(value)
}

fn sum(cursor: &mut Cursor) -> Parse<Expr> {
    let mut left = product(cursor)?;
    loop {
        if cursor.is_punct(0, '-') {
            return Err(cursor
                .error("an epilogue has no subtraction", "`+`")
                .help("add a negated bias, or multiply by a negative constant"));
        }
        if !cursor.eat("+") {
            return Ok(left);
        }
        let right = product(cursor)?;
        let at = left.at().to(right.at());
        left = Expr::Add(Box::new(left), Box::new(right), at);
    }
}

fn product(cursor: &mut Cursor) -> Parse<Expr> {
    let mut left = atom(cursor)?;
    loop {
        if cursor.is_punct(0, '/') {
            return Err(cursor.error("an epilogue has no division", "`*`").help("multiply by the reciprocal"));
        }
        if !cursor.eat("*") {
            return Ok(left);
        }
        let right = atom(cursor)?;
        let at = left.at().to(right.at());
        left = Expr::Mul(Box::new(left), Box::new(right), at);
    }
}

fn atom(cursor: &mut Cursor) -> Parse<Expr> {
    let at = cursor.here();
    if cursor.is_group(0, Delimiter::Parenthesis) {
        let (mut inner, _) = cursor.group(Delimiter::Parenthesis, "")?;
        return expression(&mut inner);
    }
    if cursor.is_punct(0, '-') || matches!(cursor.peek(0), Some(TokenTree::Literal(_))) {
        return constant(cursor, at);
    }
    if !cursor.is_ident(0) {
        return Err(cursor.error("a value is missing", "the result, `name[…]`, a number or a call"));
    }
    if cursor.is_group(1, Delimiter::Parenthesis) {
        let name = cursor.name("a function")?;
        let (mut inner, close) = cursor.group(Delimiter::Parenthesis, "")?;
        let value = expression(&mut inner)?;
        return Ok(Expr::Call(name, Box::new(value), at.to(close)));
    }
    let name: Name = cursor.name("a value")?;
    if cursor.is_group(0, Delimiter::Bracket) {
        return super::access(cursor, name).map(Expr::Access);
    }
    Ok(Expr::Name(name))
}

fn constant(cursor: &mut Cursor, at: At) -> Parse<Expr> {
    let negative = cursor.eat("-");
    let value = match cursor.peek(0) {
        Some(TokenTree::Literal(literal)) => decimal(&literal.to_string()),
        _ => None,
    };
    let Some(value) = value else {
        return Err(cursor.error("a constant is malformed", "a number such as `0.125`"));
    };
    let found = cursor.found();
    cursor.advance();
    let value = if negative { -value as f32 } else { value as f32 };
    if !value.is_finite() {
        return Err(Diagnostic::new("a constant does not fit f32").expected("a finite number").found(found).at(at));
    }
    Ok(Expr::Const(value, at.to(cursor.last())))
}
