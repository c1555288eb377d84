//! What is wrong with a text: every error at its token, with what was expected, what was found and how to mend it.

use proc_macro2::Span;
use std::fmt;

/// A range of source text, kept as the compiler's own spans so that a macro can point at it.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The first token's span.
    pub start: Span,
    /// The last token's span.
    pub end: Span,
}

impl At {
    /// No place in any text.
    pub fn nowhere() -> At {
        At::from(Span::call_site())
    }

    /// From the start of `self` to the end of `last`.
    pub fn to(self, last: At) -> At {
        At { start: self.start, end: last.end }
    }

    /// Line and column, where the text is not that of a macro call.
    fn place(self) -> Option<Place> {
        let (start, end) = (self.start.start(), self.end.end());
        let empty = (start.line, start.column) == (end.line, end.column);
        (!empty).then_some(Place {
            line: start.line,
            column: start.column + 1,
            end_line: end.line,
            end_column: end.column + 1,
        })
    }
}

impl From<Span> for At {
    fn from(span: Span) -> At {
        At { start: span, end: span }
    }
}

/// A range in a text. Lines and columns count from 1, columns in characters; the end column is exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Line of the first character.
    pub line: usize,
    /// Column of the first character.
    pub column: usize,
    /// Line of the last character.
    pub end_line: usize,
    /// Column after the last character.
    pub end_column: usize,
}

/// One error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// What is wrong, without a full stop.
    pub message: String,
    /// What would have been right there; empty where the message says it all.
    pub expected: String,
    /// What is there; empty where the message says it all.
    pub found: String,
    /// How to mend it.
    pub help: Option<String>,
    /// Where it is; `None` for values that were built without text.
    pub place: Option<Place>,
}

impl Diagnostic {
    /// An error that has only a message yet.
    pub fn new(message: impl Into<String>) -> Diagnostic {
        Diagnostic { message: message.into(), expected: String::new(), found: String::new(), help: None, place: None }
    }

    /// Adds what would have been right.
    pub fn expected(mut self, expected: impl Into<String>) -> Diagnostic {
        self.expected = expected.into();
        self
    }

    /// Adds what is there.
    pub fn found(mut self, found: impl Into<String>) -> Diagnostic {
        self.found = found.into();
        self
    }

    /// Adds the mend.
    pub fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }

    /// Adds the mend where there is one.
    pub(crate) fn maybe_help(mut self, help: Option<String>) -> Diagnostic {
        self.help = help.or(self.help);
        self
    }

    /// The same error at a place.
    pub(crate) fn at(self, at: At) -> Report {
        Report { at, diagnostic: Box::new(self) }
    }

    /// Message, expected and found in one line, without the help.
    pub fn headline(&self) -> String {
        let mut line = self.message.clone();
        for (label, text) in [("expected", &self.expected), ("found", &self.found)] {
            if !text.is_empty() {
                line += if line.len() == self.message.len() { ": " } else { ", " };
                line += label;
                line.push(' ');
                line += text;
            }
        }
        line
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline())?;
        match &self.help {
            Some(help) => write!(f, "\nhelp: {help}"),
            None => Ok(()),
        }
    }
}

/// An error and the tokens it is about.
#[derive(Clone, Debug)]
pub struct Report {
    /// The tokens.
    pub at: At,
    /// The error; its place is not set yet.
    pub diagnostic: Box<Diagnostic>,
}

impl Report {
    /// Adds the mend.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Report {
        self.diagnostic.help = Some(help.into());
        self
    }
}

/// All errors of one text, collected while the stages run on.
#[derive(Debug, Default)]
pub struct Errors(Vec<Report>);

impl Errors {
    /// No error yet.
    pub fn new() -> Errors {
        Errors::default()
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes note of one more error.
    pub fn push(&mut self, report: Report) {
        self.0.push(report);
    }

    /// The value, or `None` after taking note of its error.
    pub(crate) fn take<T>(&mut self, result: Result<T, Report>) -> Option<T> {
        result.map_err(|report| self.push(report)).ok()
    }

    /// The errors in the order of the text.
    pub fn into_reports(mut self) -> Vec<Report> {
        let place = |report: &Report| report.at.start.start();
        self.0.sort_by_key(|report| (place(report).line, place(report).column));
        self.0
    }

    /// The errors of `source` in its own order, each with line and column.
    pub fn into_diagnostics(self, source: &str) -> Diagnostics {
        let mut list: Vec<Diagnostic> = self
            .0
            .into_iter()
            .map(|report| Diagnostic { place: report.at.place().or(report.diagnostic.place), ..*report.diagnostic })
            .collect();
        list.sort_by_key(|diagnostic| diagnostic.place);
        Diagnostics { source: source.to_owned(), list }
    }
}

/// All errors of one text. `Display` renders each under its source line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    source: String,
    list: Vec<Diagnostic>,
}

impl Diagnostics {
    /// One error that belongs to no text.
    pub(crate) fn lone(diagnostic: Diagnostic) -> Diagnostics {
        Diagnostics { source: String::new(), list: vec![diagnostic] }
    }

    /// The errors in the order of the text; never empty.
    pub fn as_slice(&self) -> &[Diagnostic] {
        &self.list
    }

    /// The text.
    pub fn source(&self) -> &str {
        &self.source
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, diagnostic) in self.list.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            writeln!(f, "error: {}", diagnostic.headline())?;
            if let Some(place) = diagnostic.place {
                write_snippet(f, &self.source, place)?;
            }
            if let Some(help) = &diagnostic.help {
                writeln!(f, "  = help: {help}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// The source line of a place and carets under it; a range of several lines is marked to the end of its first.
fn write_snippet(f: &mut fmt::Formatter<'_>, source: &str, place: Place) -> fmt::Result {
    let line = source.lines().nth(place.line - 1).unwrap_or("");
    let number = place.line.to_string();
    let margin = " ".repeat(number.len());
    let indent: String = line.chars().take(place.column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    let end = if place.end_line == place.line { place.end_column } else { line.chars().count() + 1 };
    let carets = "^".repeat(end.saturating_sub(place.column).max(1));
    writeln!(f, "{margin}--> {number}:{}", place.column)?;
    writeln!(f, "{margin} |")?;
    writeln!(f, "{number} | {line}")?;
    writeln!(f, "{margin} | {indent}{carets}")
}

/// "did you mean …" where one candidate is close to `found`.
pub(crate) fn did_you_mean<'a>(found: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let reach = if found.chars().count() < 3 { 1 } else { 2 };
    candidates
        .into_iter()
        .map(|candidate| (distance(found, candidate), candidate))
        .filter(|&(far, candidate)| far <= reach && far < candidate.chars().count())
        .min_by_key(|&(far, _)| far)
        .map(|(_, candidate)| format!("did you mean `{candidate}`?"))
}

/// Edits (insert, delete, replace) from one word to another, upper and lower case alike.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.to_lowercase().chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &b) in to.iter().enumerate() {
            let replace = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

/// `a`, `b` and `c` in code quotes, for expected lists.
pub(crate) fn quoted<'a>(names: impl IntoIterator<Item = &'a str>, last: &str) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match names.split_last() {
        None => "nothing".to_owned(),
        Some((only, [])) => only.clone(),
        Some((end, rest)) => format!("{} {last} {end}", rest.join(", ")),
    }
}
