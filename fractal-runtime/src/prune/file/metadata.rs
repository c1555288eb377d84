//! What a file says about its layers: the JSON behind the key `fractal`.

use super::error::LayerFault;
use fractal_dsl::pattern::Pattern;
use fractal_dsl::{DType, Program};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The format that is written and read.
pub(super) const FORMAT: u64 = 1;

/// The key.
pub(super) const KEY: &str = "fractal";

/// More statements, or longer ones, than any pattern has; a forged text should not keep the parser busy.
const MOST_STATEMENTS: usize = 256;
const LONGEST_TEXT: usize = 1 << 14;

/// All layers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Metadata {
    pub format: u64,
    pub layers: BTreeMap<String, Entry>,
}

/// How a layer is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Packed,
    Dense,
    Mask,
}

/// One layer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub kind: Kind,
    pub n: usize,
    pub k: usize,
    pub pattern: Vec<String>,
    /// These are of weights alone, not of masks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained: Option<f64>,
}

impl Entry {
    /// Of a pattern.
    ///
    /// # Errors
    /// Where the text does not give the pattern back.
    pub fn new(kind: Kind, pattern: &Pattern) -> Result<Entry, String> {
        let program = Program::for_pattern(pattern, DType::F32).map_err(|errors| errors.to_string())?;
        let statements = program.directives().iter().map(|directive| format!("{directive};")).collect();
        let (n, k) = (pattern.n(), pattern.k());
        let entry = Entry { kind, n, k, pattern: statements, dtype: None, kept: None, retained: None };
        match entry.pattern() {
            Ok(again) if again == *pattern => Ok(entry),
            Ok(again) => Err(format!("expected {:?}, found {:?}", pattern.steps(), again.steps())),
            Err(fault) => Err(fault.to_string()),
        }
    }

    /// The pattern that the statements make.
    pub fn pattern(&self) -> Result<Pattern, LayerFault> {
        let length: usize = self.pattern.iter().map(String::len).sum();
        if self.pattern.len() > MOST_STATEMENTS || length > LONGEST_TEXT {
            return Err(LayerFault::Field {
                field: "pattern",
                expected: format!("at most {MOST_STATEMENTS} statements of {LONGEST_TEXT} bytes together"),
                found: format!("{} of {length}", self.pattern.len()),
            });
        }
        let wrong = |reason: String| LayerFault::Text { reason };
        let program = Program::for_pattern_text(&self.pattern.join(" "), self.n, self.k, DType::F32);
        let program = program.map_err(|errors| wrong(errors.to_string()))?;
        if let Some(other) = program.directives().iter().find(|directive| !directive.is_pattern()) {
            return Err(wrong(format!("`{other}`, which is none that makes a pattern")));
        }
        program.pattern(self.n, self.k).map_err(|error| wrong(error.to_string()))
    }

    /// A field that has to be there.
    pub fn field<T>(field: &'static str, value: Option<T>) -> Result<T, LayerFault> {
        value.ok_or_else(|| LayerFault::Field { field, expected: "a value".into(), found: "none".into() })
    }
}
