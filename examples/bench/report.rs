//! Rows -> the table on the terminal, and the JSON file.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fractal::DType;
use serde_json::{Value, json};

use crate::Result;
use crate::args::{Case, Ending, Shape};
use crate::device::Bench;
use crate::json_file;
use crate::measure::Row;
use crate::profile::Profile;

/// What the times depend on besides the rows.
pub struct Machine {
    device: &'static str,
    model: String,
    cores: usize,
    threads: usize,
    date: String,
}

/// Of the dependency that is the baseline, as it was resolved.
const LOCK: &str = include_str!("../../Cargo.lock");

impl Machine {
    pub fn of(bench: &dyn Bench, cores: usize, threads: usize) -> Machine {
        let device = bench.name();
        if let Some(model) = bench.machine() {
            return Machine { device, model, cores, threads, date: today() };
        }
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let line = info.lines().find(|line| line.starts_with("model name"));
        let model =
            line.and_then(|line| line.split_once(':')).map_or(std::env::consts::ARCH, |(_, model)| model.trim());
        Machine { device, model: model.into(), cores, threads, date: today() }
    }

    pub fn print(&self) {
        let version = env!("CARGO_PKG_VERSION");
        if self.device == "cpu" {
            println!("{}, {} cores, {} threads, {}", self.model, self.cores, self.threads, self.date);
            println!("fractal {version}, dense baseline: gemm {}\n", locked_version("gemm"));
        } else {
            println!("{}, {}", self.model, self.date);
            println!("fractal {version}, dense baseline: cuBLASLt's fastest over its heuristics; CUDA-graph replays\n");
        }
    }
}

/// The version of a package in the lock file.
fn locked_version(package: &str) -> &'static str {
    let mut lines = LOCK.lines();
    let name = format!("name = \"{package}\"");
    let version = lines.find(|line| *line == name).and_then(|_| lines.next());
    version.and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"')).unwrap_or("of unknown version")
}

/// The UTC date as year-month-day.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    date(seconds / 86_400)
}

/// The Gregorian date of a day since 1970-01-01.
fn date(day: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, day);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for days in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < days {
            break;
        }
        left -= days;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", left + 1)
}

/// The rows so far.
pub struct Report {
    machine: Machine,
    ending: Ending,
    width: usize,
    rows: Vec<Measured>,
}

struct Measured {
    shape: Shape,
    dtype: DType,
    case: Case,
    row: Row,
}

impl Report {
    /// `width`: characters of the longest pattern.
    pub fn new(machine: Machine, ending: Ending, width: usize) -> Report {
        Report { machine, ending, width: width.clamp("pattern".len(), MOST_WIDTH), rows: Vec::new() }
    }

    pub fn heading(&self) -> String {
        format!(
            "{:17}  dtype  {:width$}  sparsity    dense us     time us  speedup  rel_err  packed  kernel",
            "n/k/m",
            "pattern",
            width = self.width
        )
    }

    /// The line of a pattern that was measured; with `profile`, those of what bounds it too.
    pub fn add(&mut self, shape: Shape, dtype: DType, case: &Case, row: Row, profile: bool) -> String {
        let mut line = format!(
            "{}  {:7.3}%  {:10.1}  {:10.1}  {:6.2}x  {:7.1e}  {:5.1}%  {}",
            self.start(shape, dtype, case),
            row.sparsity * 100.0,
            microseconds(row.dense),
            microseconds(row.time),
            speedup(&row),
            row.rel_err,
            row.packed_bytes as f64 / row.dense_bytes as f64 * 100.0,
            row.kernel,
        );
        let sides = [("pruned", &row.profile), ("dense", &row.dense_profile)];
        for (side, profile) in sides.into_iter().filter_map(|(side, p)| Some((side, p.as_ref()?))).filter(|_| profile) {
            profile.lines(side).iter().for_each(|below| line += &format!("\n{below}"));
        }
        self.rows.push(Measured { shape, dtype, case: case.clone(), row });
        line
    }

    /// The line of a pattern that cannot be had.
    pub fn not_run(&self, shape: Shape, dtype: DType, case: &Case, reason: &str) -> String {
        let asked = case.asked.unwrap_or_default() * 100.0;
        format!("{}  {asked:7.3}%  not run: {reason}", self.start(shape, dtype, case))
    }

    fn start(&self, shape: Shape, dtype: DType, case: &Case) -> String {
        let Shape { n, k, m } = shape;
        let width = self.width;
        format!("{:17}  {:5}  {:width$}", format!("{n}/{k}/{m}"), dtype.name(), shortened(&case.name))
    }

    /// The geometric mean of the speedups of each pattern, over its shapes.
    pub fn print_means(&self) {
        let key = |m: &Measured| (m.case.name.clone(), m.case.asked, m.dtype);
        let mut keys = Vec::new();
        for row in &self.rows {
            if !keys.contains(&key(row)) {
                keys.push(key(row));
            }
        }
        println!("\ngeometric means of the speedups, by the sparsity asked for");
        for wanted in keys {
            let logs: Vec<f64> =
                self.rows.iter().filter(|row| key(row) == wanted).map(|row| speedup(&row.row).ln()).collect();
            let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
            let (name, asked, dtype) = wanted;
            let asked = asked.map_or("      own".into(), |asked| format!("{:8.3}%", asked * 100.0));
            let (width, name, count) = (self.width, shortened(&name), logs.len());
            println!("  {:5}  {name:width$}  {asked}  {mean:5.2}x  over {count} shapes", dtype.name());
        }
        println!(
            "\nspeedup: dense time over pruned time, medians of rounds in which both take turns; rel_err: greatest error \
             over\ngreatest magnitude, against f64 on sampled rows; packed: bytes with indices, of the dense weight's"
        );
    }

    /// Writes the rows so far.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        json_file::write(path, &self.rows.iter().map(|row| self.row_json(row)).collect())
    }

    fn row_json(&self, Measured { shape, dtype, case, row }: &Measured) -> Value {
        json!({
            "n": shape.n,
            "k": shape.k,
            "m": shape.m,
            "dtype": dtype.name(),
            "epilogue": self.ending.name(),
            "pattern": case.name,
            "sparsity": case.asked.unwrap_or(row.sparsity),
            "actual_sparsity": row.sparsity,
            "retained": row.retained,
            "device": self.machine.device,
            "time_us": microseconds(row.time),
            "dense_us": microseconds(row.dense),
            "speedup": speedup(row),
            "rounds": row.rounds,
            "rel_err": row.rel_err,
            "kernel": row.kernel,
            "waste": row.waste,
            "config": row.config,
            "registers": row.profile.as_ref().and_then(|p| p.launches.kernels.first()).map(|kernel| kernel.registers),
            "dense_kernel": row.dense_kernel,
            "profile": row.profile.as_ref().map(Profile::json),
            "dense_profile": row.dense_profile.as_ref().map(Profile::json),
            "packed_bytes": row.packed_bytes,
            "dense_bytes": row.dense_bytes,
            "prepare_us": microseconds(row.prepare),
            "machine": self.machine.model,
            "cores": self.machine.cores,
            "threads": self.machine.threads,
            "fractal": env!("CARGO_PKG_VERSION"),
            "baseline": if self.machine.device == "cpu" { format!("gemm {}", locked_version("gemm")) } else { "cuBLASLt".into() },
            "date": self.machine.date,
        })
    }
}

/// Characters of a pattern that the table shows.
const MOST_WIDTH: usize = 40;

fn shortened(name: &str) -> String {
    if name.chars().count() <= MOST_WIDTH {
        return name.into();
    }
    name.chars().take(MOST_WIDTH - 1).chain(['…']).collect()
}

fn speedup(row: &Row) -> f64 {
    row.dense.as_secs_f64() / row.time.as_secs_f64()
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(59), "1970-03-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(20_453), "2025-12-31");
    }

    #[test]
    fn the_baseline_has_a_version() {
        assert!(locked_version("gemm").starts_with("0."), "{}", locked_version("gemm"));
        assert_eq!(locked_version("no-such-package"), "of unknown version");
    }
}
