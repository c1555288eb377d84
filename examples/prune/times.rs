//! Files of `bench --json` -> what each option of a layer costs.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Display;
use std::path::PathBuf;

use fractal::DType;
use fractal::pattern::{Named, Pattern};
use fractal::sched::egraph::Facts;
use serde::Deserialize;

use crate::recipe::pattern_named;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What is used of a row.
#[derive(Clone, Debug, Deserialize)]
struct Row {
    n: usize,
    k: usize,
    m: usize,
    pattern: String,
    sparsity: f64,
    dtype: String,
    /// Where the file tells it.
    epilogue: Option<String>,
    time_us: f64,
    dense_us: f64,
    machine: String,
    date: String,
}

/// The rows of all files.
pub struct Times(Vec<Row>);

/// What all times that are used have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub machine: String,
    pub dtype: String,
    /// Tokens.
    pub m: usize,
    /// In order.
    pub dates: Vec<String>,
}

/// A pattern and a ratio that a layer may have.
#[derive(Clone, Debug)]
pub struct Choice {
    pub named: Named,
    pub sparsity: f64,
    /// For the layer's own shape.
    pub pattern: Pattern,
    /// Microseconds.
    pub time: f64,
}

impl Choice {
    /// `tw:64@0.5`.
    pub fn name(&self) -> String {
        format!("{}@{}", self.named, self.sparsity)
    }
}

/// By a layer's own shape (n, k): its choices, dense first.
pub type Choices = BTreeMap<(usize, usize), Vec<Choice>>;

impl Times {
    /// From files.
    ///
    /// # Errors
    /// The first file that holds no such rows.
    pub fn read(paths: &[PathBuf]) -> Result<Times> {
        let mut all = Vec::new();
        for path in paths {
            let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            let wrong = |what: String| format!("{}: expected rows of `bench --json`: {what}", path.display());
            let rows: Vec<Row> = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
            for (number, row) in rows.iter().enumerate() {
                if let Some(bad) = [row.time_us, row.dense_us].into_iter().find(|us| !(*us > 0.0 && *us < 1e12)) {
                    return Err(wrong(format!("row {number} has a time of {bad} us")).into());
                }
                if !(0.0..1.0).contains(&row.sparsity) {
                    return Err(wrong(format!("row {number} has a sparsity of {}", row.sparsity)).into());
                }
            }
            all.extend(rows);
        }
        Ok(Times(all))
    }

    /// The choices of layers of these shapes by the times of layers `wider` times as wide; `note` hears what is left out.
    ///
    /// # Errors
    /// Shapes without rows; rows that were not measured alike.
    pub fn choices(
        &self,
        shapes: &BTreeSet<(usize, usize)>,
        wider: usize,
        mut note: impl FnMut(String),
    ) -> Result<(Choices, Measured)> {
        let of = |&(n, k): &(usize, usize)| -> Vec<&Row> {
            let fits = |row: &&Row| Some(row.n) == n.checked_mul(wider) && Some(row.k) == k.checked_mul(wider);
            self.0.iter().filter(fits).collect()
        };
        let missing: Vec<_> = shapes.iter().filter(|shape| of(shape).is_empty()).collect();
        if !missing.is_empty() {
            return Err(self.missing(&missing, wider).into());
        }
        let used: Vec<&Row> = shapes.iter().flat_map(of).collect();
        let measured = Measured {
            machine: one("machine", &used, |row| row.machine.clone())?,
            dtype: one("dtype", &used, |row| row.dtype.clone())?,
            m: one("m", &used, |row| row.m)?,
            dates: used.iter().map(|row| row.date.clone()).collect::<BTreeSet<_>>().into_iter().collect(),
        };
        let mut choices = Choices::new();
        for shape in shapes {
            let rows = of(shape);
            one("epilogue", &rows, |row| row.epilogue.clone().unwrap_or_else(|| "none".into()))?;
            choices.insert(*shape, of_shape(*shape, &rows, &mut note)?);
        }
        Ok((choices, measured))
    }

    /// What is missing, and how to come by it.
    fn missing(&self, shapes: &[&(usize, usize)], wider: usize) -> String {
        let list = |of: fn(&Row) -> Option<String>| -> Option<String> {
            let all: BTreeSet<String> = self.0.iter().filter_map(of).collect();
            (!all.is_empty()).then(|| all.into_iter().collect::<Vec<_>>().join(","))
        };
        let dtype = |row: &Row| DType::from_name(&row.dtype).map_or("f16", DType::name);
        let (m, dtype) = self.0.first().map_or((4096, "f16"), |row| (row.m, dtype(row)));
        let wide: Vec<(usize, usize)> =
            shapes.iter().map(|(n, k)| (n.saturating_mul(wider), k.saturating_mul(wider))).collect();
        let told: Vec<String> = wide.iter().map(|(n, k)| format!("{n} x {k}")).collect();
        let asked: Vec<String> = wide.iter().map(|(n, k)| format!("--shape {n},{k},{m}")).collect();
        let patterns = list(|row| row.pattern.parse::<Named>().ok().map(|named| named.to_string()))
            .unwrap_or("tw:64,tw:128,tvw:64".into());
        let sparsities = list(|row| Some(row.sparsity.to_string())).unwrap_or("0.5,0.75".into());
        format!(
            "--times: expected rows of every layer's shape, found none of {}; make them by `cargo run --release --example bench -- {} \
             --dtype {dtype} --pattern {patterns} --sparsity {sparsities} --json FILE` and pass that file, too",
            told.join(", "),
            asked.join(" ")
        )
    }
}

/// What all rows have in common.
fn one<T: PartialEq + Display>(field: &str, rows: &[&Row], of: impl Fn(&Row) -> T) -> Result<T> {
    let first = of(rows.first().ok_or("no rows")?);
    match rows.iter().map(|row| (row, of(row))).find(|(_, other)| *other != first) {
        None => Ok(first),
        Some((row, other)) => Err(format!(
            "--times: expected rows of one {field}, found {} and, of {} x {}, {}; pass files that were measured alike",
            one_line(&first.to_string()),
            row.n,
            row.k,
            one_line(&other.to_string())
        )
        .into()),
    }
}

/// Dense by the median of its times, then each pattern and ratio by the median of its own.
fn of_shape((n, k): (usize, usize), rows: &[&Row], note: &mut impl FnMut(String)) -> Result<Vec<Choice>> {
    let dense = median(rows.iter().map(|row| row.dense_us).collect());
    let mut choices =
        vec![Choice { named: Named::Dense, sparsity: 0.0, pattern: Named::Dense.pattern(n, k, 1.0)?, time: dense }];
    let mut by_name: BTreeMap<(&str, u64), Vec<f64>> = BTreeMap::new();
    for row in rows {
        // Bits of numbers from 0 on are in their order.
        by_name.entry((row.pattern.trim(), row.sparsity.abs().to_bits())).or_default().push(row.time_us);
    }
    for ((name, bits), times) in by_name {
        let sparsity = f64::from_bits(bits);
        let mut left_out =
            |why: &dyn Display| note(one_line(&format!("{name} at {sparsity} of {n} x {k} is left out: {why}")));
        let named = match pattern_named(name) {
            Ok(Named::Dense) => {
                left_out(&"dense is an option as it is");
                continue;
            }
            Ok(named) => named,
            Err(_) => {
                left_out(&"it is no named pattern, or one with a residue");
                continue;
            }
        };
        let time = median(times);
        match named.pattern(n, k, 1.0 - sparsity) {
            Err(error) => left_out(&error),
            Ok(_) if time >= dense => left_out(&format!("{time:.1} us are no less than dense's {dense:.1}")),
            Ok(pattern) => match kept(&pattern) {
                // Blocks that a small layer does not hold often enough are kept whole.
                kept if kept > 1.1 * (1.0 - sparsity) => left_out(&format!(
                    "it keeps {:.1} % of this layer, and not {:.1}",
                    100.0 * kept,
                    100.0 * (1.0 - sparsity)
                )),
                _ => choices.push(Choice { named, sparsity, pattern, time }),
            },
        }
    }
    Ok(choices)
}

/// What another program wrote, without what would end a line.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The part of the weights that a pattern keeps, on average.
fn kept(pattern: &Pattern) -> f64 {
    Facts::of(pattern).kept / (pattern.n() * pattern.k()) as f64
}

/// Of one number or more.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let middle = times.len() / 2;
    if times.len() % 2 == 1 { times[middle] } else { (times[middle - 1] + times[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn row(pattern: &str, sparsity: f64, time: f64, dense: f64) -> Value {
        json!({
            "n": 64, "k": 64, "m": 16, "pattern": pattern, "sparsity": sparsity, "dtype": "f16", "time_us": time,
            "dense_us": dense, "machine": "a", "date": "2026-01-01", "rel_err": 0.0,
        })
    }

    fn times(rows: Vec<Value>) -> Times {
        Times(serde_json::from_value(rows.into()).expect("rows"))
    }

    #[test]
    fn choices_are_medians_and_what_cannot_be_is_told() {
        let rows = vec![
            row("tw:16", 0.5, 4.0, 10.0),
            row("tw:16", 0.5, 6.0, 11.0),
            row("tw:16", 0.75, 3.0, 12.0),
            row("tvw:16", 0.25, 2.0, 10.0),
            row("2:4", 0.5, 99.0, 10.0),
            row("cusparselt", 0.5, 1.0, 20.0),
        ];
        let mut notes = Vec::new();
        let shapes = BTreeSet::from([(32, 32)]);
        let (choices, measured) = times(rows).choices(&shapes, 2, |note| notes.push(note)).expect("choices");
        let found: Vec<_> = choices[&(32, 32)].iter().map(|choice| (choice.name(), choice.time)).collect();
        assert_eq!(found, [("dense@0".into(), 10.5), ("tw:16@0.5".into(), 5.0), ("tw:16@0.75".into(), 3.0)]);
        assert_eq!(choices[&(32, 32)][1].pattern.n(), 32);
        assert_eq!((measured.m, measured.dates.len()), (16, 1));
        for (note, expected) in notes.iter().zip(["no less than dense's 10.5", "it is no named pattern", "at most 0.5"])
        {
            assert!(note.contains(expected), "{notes:?}");
        }
        assert_eq!(notes.len(), 3, "{notes:?}");
    }

    #[test]
    fn times_that_do_not_fit_are_told() {
        let error = |rows: Vec<Value>, wider: usize| {
            let shapes = BTreeSet::from([(32, 32)]);
            times(rows).choices(&shapes, wider, |_| ()).map(|_| ()).expect_err("an error").to_string()
        };
        let mut other = row("tw:16", 0.5, 4.0, 10.0);
        for (field, value) in
            [("m", json!(32)), ("dtype", json!("f32")), ("machine", json!("b")), ("epilogue", json!("c"))]
        {
            let old = std::mem::replace(&mut other[field], value);
            let told = error(vec![row("tw:16", 0.5, 4.0, 10.0), other.clone()], 2);
            assert!(told.contains(&format!("expected rows of one {field}, found")), "{told}");
            other[field] = old;
        }
        let told = error(vec![row("tw:16", 0.5, 4.0, 10.0)], 3);
        assert!(told.contains("found none of 96 x 96") && told.contains("--shape 96,96,16 --dtype f16"), "{told}");
        assert!(error(vec![], 1).contains("found none of 32 x 32"));
    }
}
