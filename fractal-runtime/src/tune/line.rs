//! One line of the database: record -> bytes; bytes -> record, or the reason why they are none.

use super::record::{Outcome, Record};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, BufRead, ErrorKind, Read};

/// The form of a line that this version writes and reads.
const FORMAT: u64 = 1;

/// Bytes of the longest line, without its newline: far more than a record with a compiler's log needs.
pub(super) const LONGEST: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<R> {
    format: u64,
    record: R,
}

/// The line of a record, with its newline.
///
/// # Errors
/// A record that [`decode`] would not give back, and why: expected, found.
pub(super) fn encode(record: &Record) -> Result<Vec<u8>, String> {
    check_numbers(record)?;
    let mut bytes = serde_json::to_vec(&Line { format: FORMAT, record }).map_err(|error| error.to_string())?;
    check_length(bytes.len() as u64)?;
    decode(&bytes)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// The record of a line; none of a blank one.
///
/// # Errors
/// What was expected, and what was found.
pub(super) fn decode(line: &[u8]) -> Result<Option<Record>, String> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    let text = std::str::from_utf8(line)
        .map_err(|error| format!("expected UTF-8, found another byte after {} of the line", error.valid_up_to()))?;
    // Serde reads a struct from an array too.
    if !text.starts_with('{') {
        return Err(format!("expected a JSON object, found `{}`", excerpt(text)));
    }
    match serde_json::from_str::<Line<Record>>(text) {
        Ok(Line { format: FORMAT, record }) => check_numbers(&record).map(|()| Some(record)),
        Ok(Line { format, .. }) => Err(other_format(&format.into())),
        Err(error) if error.is_eof() => {
            Err(format!("expected a whole record, found one that is cut off after {} bytes", line.len()))
        }
        Err(error) => Err(match serde_json::from_str::<Value>(text) {
            Ok(value) => match value.get("format") {
                Some(format) if format.as_u64() != Some(FORMAT) => other_format(format),
                Some(_) => format!("expected a record of format {FORMAT}, found: {error}"),
                None => format!("expected a field `format`, found `{}`", excerpt(text)),
            },
            Err(error) => format!("expected a JSON object, found: {error}"),
        }),
    }
}

fn other_format(found: &Value) -> String {
    format!("expected format {FORMAT}, found {}: written by another version of Fractal", excerpt(&found.to_string()))
}

/// The beginning, in characters that print.
fn excerpt(text: &str) -> String {
    const SHOWN: usize = 40;
    let start: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() { start + "…" } else { start }
}

fn check_length(bytes: u64) -> Result<(), String> {
    if bytes > LONGEST as u64 {
        return Err(format!("expected a line of at most {LONGEST} bytes, found one of {bytes}"));
    }
    Ok(())
}

fn check_numbers(record: &Record) -> Result<(), String> {
    let mut numbers = vec![("retained", record.retained), ("density", record.density), ("expected", record.expected)];
    if let Outcome::Timed { microseconds, error, .. } = &record.outcome {
        numbers.extend([("microseconds", *microseconds), ("error", *error)]);
    }
    match numbers.into_iter().find(|(_, number)| !number.is_finite() || *number < 0.0) {
        Some((field, number)) => Err(format!("expected a finite `{field}` of at least 0, found {number}")),
        // With room for the rounding of sums.
        None if record.retained > 1.001 || record.density > 1.001 => {
            Err(format!("expected parts of 1, found retained {} and density {}", record.retained, record.density))
        }
        None => Ok(()),
    }
}

/// What stands from one newline to the next, or to the end of the file.
pub(super) struct RawLine {
    /// No more than the longest line, even if more are there.
    bytes: Vec<u8>,
    /// Bytes in the file, with the newline.
    pub(super) length: u64,
    /// Whether there is a newline.
    pub(super) ended: bool,
}

impl RawLine {
    /// The next line, without holding more of it than a record may have.
    pub(super) fn read(reader: &mut impl BufRead) -> io::Result<Option<RawLine>> {
        let mut bytes = Vec::new();
        let mut length = reader.by_ref().take(LONGEST as u64 + 1).read_until(b'\n', &mut bytes)? as u64;
        let mut ended = bytes.last() == Some(&b'\n');
        while !ended && length > LONGEST as u64 {
            let buffer = match reader.fill_buf() {
                Ok([]) => break,
                Ok(buffer) => buffer,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let newline = buffer.iter().position(|&byte| byte == b'\n');
            let taken = newline.map_or(buffer.len(), |at| at + 1);
            reader.consume(taken);
            length += taken as u64;
            ended = newline.is_some();
        }
        Ok((length > 0).then_some(RawLine { bytes, length, ended }))
    }

    /// As [`decode`].
    pub(super) fn decode(&self) -> Result<Option<Record>, String> {
        check_length(self.length - u64::from(self.ended))?;
        decode(&self.bytes)
    }
}
