//! Tokens -> [`Ast`]. Each statement that does not parse is one error, and parsing goes on behind it.
//!
//! | file | what it parses |
//! |---|---|
//! | `mod` | header, operands, contraction |
//! | `epilogue` | epilogue statements and expressions |
//! | `schedule` | primitives and `keep` |

mod epilogue;
mod schedule;

use crate::ast::{Access, Ast, Contraction, DimDecl, DimValue, Epilogue, Name, OperandDecl, Role, Statement};
use crate::cursor::{Cursor, MAX_DEPTH, Parse, too_deep, tree_at};
use crate::diagnostic::{At, Diagnostic, Errors, Place, did_you_mean};
use crate::directive::PRIMITIVES;
use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use std::str::FromStr;

const HEADER: &str = "`<M, N = 4096, K = 1024>` (each dimension a number, a const expression or run-time)";

/// Reads text as tokens.
pub(crate) fn tokens(source: &str, errors: &mut Errors) -> Option<TokenStream> {
    match TokenStream::from_str(source) {
        Ok(stream) => Some(stream),
        Err(error) => {
            let diagnostic = Diagnostic::new("the text cannot be read as tokens")
                .expected("balanced brackets, closed strings and Rust tokens")
                .help("look for a bracket that is not closed or a stray character from here on");
            let place = unbalanced(source);
            errors.push(Diagnostic { place, ..diagnostic }.at(error.span().into()));
            None
        }
    }
}

/// The first bracket that closes nothing, or the last one that is never closed, comments and strings aside.
fn unbalanced(source: &str) -> Option<Place> {
    let mut open: Vec<(char, Place)> = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let mut in_string = false;
        let mut before = ' ';
        for (column, c) in line.chars().enumerate() {
            let (line, column) = (number + 1, column + 1);
            let place = Place { line, column, end_line: line, end_column: column + 1 };
            match c {
                '"' if before != '\\' => in_string = !in_string,
                _ if in_string => {}
                '/' if before == '/' => break,
                '(' => open.push((')', place)),
                '[' => open.push((']', place)),
                '{' => open.push(('}', place)),
                ')' | ']' | '}' if open.pop().is_none_or(|(close, _)| close != c) => return Some(place),
                _ => {}
            }
            before = c;
        }
    }
    open.pop().map(|(_, place)| place)
}

/// Parses a whole `gemm`, in item form or expression form. What is missing or malformed is noted in `errors`; `None`
/// only where there is nothing to go on with.
pub fn parse(stream: TokenStream, errors: &mut Errors) -> Option<Ast> {
    let stream = shallow(stream, errors)?;
    let end = stream.clone().into_iter().last().map_or(At::nowhere(), |tree| match tree {
        TokenTree::Group(group) => group.span_close().into(),
        other => tree_at(&other),
    });
    let mut cursor = Cursor::new(stream, end);
    if cursor.is_empty() {
        let nothing = cursor.error("there is no program", format!("`gemm Name` or {HEADER}"));
        errors.push(nothing);
        return None;
    }
    let head = head(&mut cursor, errors);
    let (docs, vis, name, (dims, header)) = errors.take(head)?;
    let mut ast = Ast { docs, vis, name, dims, header, statements: Vec::new(), end, lost: Vec::new() };
    if cursor.is_group(0, Delimiter::Brace) {
        let body = cursor.group(Delimiter::Brace, "the body is missing");
        let (mut body, at) = errors.take(body)?;
        ast.end = At { start: at.end, end: at.end };
        if !cursor.is_empty() {
            let extra = cursor.error("the program ends with its body", "one `gemm` a macro call or text");
            errors.push(extra);
        }
        statements(&mut body, &mut ast, errors);
    } else if ast.name.is_some() {
        let missing = cursor.error("the body is missing", "`{`");
        errors.push(missing);
        return None;
    } else {
        statements(&mut cursor, &mut ast, errors);
    }
    Some(ast)
}

/// Parses a bare list of schedule statements, the last of which needs no `;`.
pub(crate) fn parse_schedule(
    stream: TokenStream,
    errors: &mut Errors,
) -> Option<(Vec<crate::ast::Primitive>, Vec<String>)> {
    let stream = shallow(stream, errors)?;
    let mut lost = Vec::new();
    let mut cursor = Cursor::new(stream, At::nowhere());
    let primitives = schedule::primitives(&mut cursor, true, &mut lost, errors);
    Some((primitives, lost))
}

fn shallow(stream: TokenStream, errors: &mut Errors) -> Option<TokenStream> {
    let Some(at) = too_deep(&stream) else { return Some(stream) };
    errors.push(Diagnostic::new(format!("brackets nest deeper than {MAX_DEPTH} levels")).at(at));
    None
}

type Head = (Vec<String>, TokenStream, Option<Name>, (Vec<DimDecl>, At));

/// Docs, visibility, `gemm Name` and the header.
fn head(cursor: &mut Cursor, errors: &mut Errors) -> Parse<Head> {
    let docs = docs(cursor)?;
    let mut vis = TokenStream::new();
    if cursor.is_word(0, "pub") {
        vis.extend(cursor.advance());
        if cursor.is_group(0, Delimiter::Parenthesis) {
            vis.extend(cursor.advance());
        }
    }
    let item = cursor.eat_word("gemm");
    if !item && (!vis.is_empty() || !cursor.is_punct(0, '<')) {
        let help = match cursor.peek(0) {
            Some(TokenTree::Ident(ident)) => did_you_mean(&ident.to_string(), ["gemm"]),
            _ => None,
        };
        let mut report = cursor.error("the program has no header", format!("`gemm Name` or {HEADER}"));
        report.diagnostic = Box::new(report.diagnostic.maybe_help(help));
        return Err(report);
    }
    let name = if item { Some(cursor.name("the name of the gemm")?) } else { None };
    let header = header(cursor, errors)?;
    Ok((docs, vis, name, header))
}

/// Doc comments, one string a line.
fn docs(cursor: &mut Cursor) -> Parse<Vec<String>> {
    let mut lines = Vec::new();
    while cursor.is_punct(0, '#') {
        let at = cursor.here();
        cursor.advance();
        let (mut inner, _) = cursor.group(Delimiter::Bracket, "an attribute has no brackets")?;
        let text = match (inner.eat_word("doc"), inner.eat("="), inner.advance()) {
            (true, true, Some(tree)) => syn::parse2::<syn::LitStr>(tree.into()).ok(),
            _ => None,
        };
        let Some(text) = text else {
            return Err(Diagnostic::new("only doc comments may stand before a gemm")
                .expected("`///`")
                .found("another attribute")
                .help("put attributes on the module or the statement around the macro call")
                .at(at));
        };
        lines.extend(doc_lines(&text.value()));
    }
    Ok(lines)
}

/// The lines of a doc comment, each without the space that follows `///`.
pub(crate) fn doc_lines(text: &str) -> Vec<String> {
    text.split('\n').map(|line| line.strip_prefix(' ').unwrap_or(line).replace('\r', " ")).collect()
}

/// `<M, N = 4096, K = { 4 * HIDDEN }>`
fn header(cursor: &mut Cursor, errors: &mut Errors) -> Parse<(Vec<DimDecl>, At)> {
    let open = cursor.here();
    if !cursor.eat("<") {
        return Err(cursor.error("the header is missing", HEADER));
    }
    let mut dims = Vec::new();
    loop {
        if cursor.eat(">") {
            return Ok((dims, open.to(cursor.last())));
        }
        if cursor.is_empty() || cursor.is_group(0, Delimiter::Brace) {
            return Err(cursor.error("the header is not closed", "`>`"));
        }
        let name = cursor.name("a dimension")?;
        let mut value = None;
        if cursor.eat("=") {
            value = dim_value(cursor, &name, errors);
        }
        dims.push(DimDecl { name, value });
        if cursor.is_empty() || cursor.is_group(0, Delimiter::Brace) {
            return Err(cursor.error("the header is not closed", "`>`"));
        }
        if !cursor.is_punct(0, '>') && !cursor.eat(",") {
            return Err(cursor.error("the header has no comma here", "`,`, `>` or `= <value>`"));
        }
    }
}

/// The tokens up to the next `,` or `>`; an expression that has these itself stands in braces, as in generics.
fn dim_value(cursor: &mut Cursor, name: &Name, errors: &mut Errors) -> Option<DimValue> {
    let start = cursor.here();
    let braced = cursor.is_group(0, Delimiter::Brace) && (cursor.is_punct(1, ',') || cursor.is_punct(1, '>'));
    let mut tokens = TokenStream::new();
    if braced {
        if let Some(TokenTree::Group(group)) = cursor.advance() {
            tokens = group.stream();
        }
    } else {
        while !cursor.is_empty() && !cursor.is_punct(0, ',') && !cursor.is_punct(0, '>') {
            tokens.extend(cursor.advance());
        }
    }
    if tokens.is_empty() {
        let missing = Diagnostic::new(format!("dimension `{}` has no value after `=`", name.text))
            .expected("a number or a const expression")
            .help(format!("a run-time dimension is written without `=`: `{}`", name.text));
        errors.push(missing.at(start));
        return None;
    }
    Some(DimValue { tokens, at: start.to(cursor.last()) })
}

/// The statements of a body into `ast`.
fn statements(cursor: &mut Cursor, ast: &mut Ast, errors: &mut Errors) {
    while !cursor.is_empty() {
        if cursor.eat(";") {
            continue;
        }
        if cursor.is_word(0, "schedule") && cursor.is_group(1, Delimiter::Brace) {
            cursor.advance();
            if let Ok((mut inner, _)) = cursor.group(Delimiter::Brace, "the schedule has no body") {
                let primitives = schedule::primitives(&mut inner, false, &mut ast.lost, errors);
                ast.statements.push(Statement::Schedule(primitives));
            }
            continue;
        }
        if let Some(parsed) = one(cursor, false, &mut ast.lost, errors, statement) {
            ast.statements.push(parsed);
        }
    }
}

/// Cuts the tokens up to the next `;` and parses them as one statement. After an error the names in it are `lost`, so
/// that their uses are not reported as unknown.
fn one<T>(
    cursor: &mut Cursor,
    open_end: bool,
    lost: &mut Vec<String>,
    errors: &mut Errors,
    parse: impl FnOnce(&mut Cursor) -> Parse<T>,
) -> Option<T> {
    let mut trees = Vec::new();
    while !cursor.is_empty() && !cursor.is_punct(0, ';') {
        trees.extend(cursor.advance());
    }
    let end = cursor.here();
    let closed = cursor.eat(";");
    let mut inner = Cursor::from_trees(trees.clone(), end);
    let parsed = parse(&mut inner).and_then(|parsed| {
        inner.finish("the statement goes on", "`;`")?;
        Ok(parsed)
    });
    if parsed.is_ok() && !closed && !open_end {
        errors.push(Diagnostic::new("the last statement is not closed").expected("`;`").at(inner.last()));
    }
    if parsed.is_err() {
        idents(trees, lost);
    }
    errors.take(parsed)
}

fn idents(trees: impl IntoIterator<Item = TokenTree>, out: &mut Vec<String>) {
    for tree in trees {
        match tree {
            TokenTree::Ident(ident) => out.push(ident.to_string()),
            TokenTree::Group(group) => idents(group.stream(), out),
            _ => {}
        }
    }
}

fn statement(cursor: &mut Cursor) -> Parse<Statement> {
    for (word, role) in [("weight", Role::Weight), ("input", Role::Input), ("output", Role::Output)] {
        if cursor.is_word(0, word) && cursor.is_ident(1) {
            cursor.advance();
            return operand(cursor, role).map(Statement::Operand);
        }
    }
    if cursor.is_ident(0) && (cursor.is_group(1, Delimiter::Bracket) || cursor.is_punct(1, '=')) {
        return assignment(cursor);
    }
    let expected = "`weight`, `input`, `output`, `y[n, m] += …`, `y = …` or `schedule { … }`";
    let mut report = cursor.error("this is no statement of a gemm", expected);
    if let Some(TokenTree::Ident(ident)) = cursor.peek(0) {
        let word = ident.to_string();
        let primitive = word == "let" || PRIMITIVES.contains(&word.as_str());
        let help = if primitive {
            Some("schedule primitives stand inside `schedule { … }`".to_owned())
        } else {
            did_you_mean(&word, ["weight", "input", "output", "schedule"])
        };
        report.diagnostic = Box::new(report.diagnostic.maybe_help(help));
    }
    Err(report)
}

/// `w: bf16[N, K]`
fn operand(cursor: &mut Cursor, role: Role) -> Parse<OperandDecl> {
    let name = cursor.name("the name of an operand")?;
    cursor.expect(":", "the operand has no type")?;
    if !cursor.is_ident(0) {
        return Err(cursor.error("the element type is missing", "`f32`, `f16` or `bf16`"));
    }
    let dtype = word(cursor);
    let (mut inner, shape_at) = cursor.group(Delimiter::Bracket, "the shape is missing")?;
    let shape = inner.list("the shape has no comma here", |c| c.name("a dimension"))?;
    Ok(OperandDecl { role, name, dtype, shape, shape_at })
}

/// An identifier of any kind, keyword or not; only after [`Cursor::is_ident`].
fn word(cursor: &mut Cursor) -> Name {
    let at = cursor.here();
    let text = cursor.advance().map(|tree| tree.to_string()).unwrap_or_default();
    Name { text, at }
}

/// `y[n, m] += …` or `y = …`
fn assignment(cursor: &mut Cursor) -> Parse<Statement> {
    cursor.limit_operators(4 * MAX_DEPTH)?;
    let name = cursor.name("the name of the result")?;
    if cursor.is_punct(0, '=') {
        cursor.advance();
        let value = epilogue::expression(cursor)?;
        return Ok(Statement::Epilogue(Epilogue { target: name, target_index: None, value }));
    }
    let target = access(cursor, name)?;
    if cursor.eat("+=") {
        let context = "the contraction is not a product of two operands";
        let first = factor(cursor)?;
        cursor.expect("*", context)?;
        let second = factor(cursor)?;
        return Ok(Statement::Contraction(Contraction { target, factors: [first, second] }));
    }
    if !cursor.eat("=") {
        return Err(cursor.error("an assignment is missing", "`+=` (the contraction) or `=` (the epilogue)"));
    }
    let at = cursor.last();
    let value = epilogue::expression(cursor)?;
    if let crate::ast::Expr::Mul(a, b, _) = &value
        && let (crate::ast::Expr::Access(_), crate::ast::Expr::Access(_)) = (&**a, &**b)
    {
        return Err(Diagnostic::new("the contraction sums over an index")
            .expected("`+=`")
            .found("`=`")
            .help(format!("write `{}[…] += …`", target.name.text))
            .at(at));
    }
    Ok(Statement::Epilogue(Epilogue { target: target.name.clone(), target_index: Some(target), value }))
}

fn factor(cursor: &mut Cursor) -> Parse<Access> {
    let name = cursor.name("an operand of the contraction")?;
    access(cursor, name)
}

/// The brackets of `name[i, j]`.
fn access(cursor: &mut Cursor, name: Name) -> Parse<Access> {
    let (mut inner, at) = cursor.group(Delimiter::Bracket, &format!("`{}` has no indices", name.text))?;
    let index = inner.list("the indices have no comma here", |c| c.name("an index"))?;
    Ok(Access { at: name.at.to(at), name, index })
}

/// A name that no text holds.
pub(crate) fn synthetic(text: &str) -> Name {
    Name { text: text.to_owned(), at: At::from(Span::call_site()) }
}
