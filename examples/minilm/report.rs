//! Measurements -> the tables on the terminal and the JSON file.

use std::collections::BTreeMap;
use std::time::Duration;

use fractal::DType;
use fractal_runtime::model::{DenseWeight, Profile};
use serde_json::{Value, json};

use crate::prune::LayerReport;

/// Everything that a run measured.
pub struct Report<'a> {
    sentences: &'a [String],
    tokens: usize,
    dense_time: Duration,
    profile: Profile,
    /// On a GPU, rows hold the time of the linear layers alone, in this type.
    pub timed_on_gpu: Option<DType>,
    pairs: Vec<Pair>,
    /// (pattern, sparsity, outcome) in the order of the runs.
    pub rows: Vec<(String, f64, Outcome)>,
}

/// One pattern at one sparsity.
pub enum Outcome {
    Measured(Row),
    /// Why the pattern cannot be had at this sparsity.
    NotRun(String),
}

/// The pruned model beside the dense one.
#[derive(Default)]
pub struct Row {
    kept_magnitude: f64,
    magnitude: f64,
    packed_bytes: usize,
    dense_bytes: usize,
    kernels: BTreeMap<String, usize>,
    mean_cosine: f64,
    min_cosine: f64,
    pub time: Duration,
    pub dense_time: Duration,
}

impl Row {
    pub fn add_layer(&mut self, layer: &LayerReport, weight: DenseWeight<'_>) {
        let magnitude = weight.data.iter().map(|w| f64::from(w.abs())).sum::<f64>();
        self.magnitude += magnitude;
        self.kept_magnitude += layer.retained * magnitude;
        self.packed_bytes += layer.packed_bytes;
        self.dense_bytes += layer.dense_bytes;
        *self.kernels.entry(layer.kernel.clone()).or_default() += 1;
    }

    /// The kernels that are timed, where they are others than those that make the embeddings.
    pub fn set_kernels(&mut self, kernels: impl Iterator<Item = String>) {
        self.kernels.clear();
        for kernel in kernels {
            *self.kernels.entry(kernel).or_default() += 1;
        }
    }

    pub fn compare(&mut self, dense: &[Vec<f32>], pruned: &[Vec<f32>]) {
        let cosines: Vec<f64> = dense.iter().zip(pruned).map(|(a, b)| cosine(a, b)).collect();
        self.mean_cosine = cosines.iter().sum::<f64>() / cosines.len() as f64;
        self.min_cosine = cosines.iter().copied().fold(f64::INFINITY, f64::min);
    }

    fn retained(&self) -> f64 {
        self.kept_magnitude / self.magnitude
    }

    fn speed(&self) -> f64 {
        self.dense_time.as_secs_f64() / self.time.as_secs_f64()
    }

    fn kernel_list(&self) -> String {
        let counted = |(kernel, count): (&String, &usize)| format!("{kernel} x{count}");
        self.kernels.iter().map(counted).collect::<Vec<_>>().join(", ")
    }
}

/// Two sentences and the cosine of their embeddings.
struct Pair {
    a: usize,
    b: usize,
    cosine: f64,
}

/// How many of the most similar pairs are shown.
const PAIRS_SHOWN: usize = 10;

impl<'a> Report<'a> {
    pub fn new(
        sentences: &'a [String],
        tokens: &[Vec<u32>],
        embeddings: &[Vec<f32>],
        dense_time: Duration,
        profile: Profile,
    ) -> Self {
        let mut pairs = Vec::new();
        for b in 0..embeddings.len() {
            for a in 0..b {
                let cosine = cosine(&embeddings[a], &embeddings[b]);
                pairs.push(Pair { a, b, cosine });
            }
        }
        pairs.sort_by(|x, y| y.cosine.total_cmp(&x.cosine));
        pairs.truncate(PAIRS_SHOWN);
        let tokens = tokens.iter().map(Vec::len).sum();
        Self { sentences, tokens, dense_time, profile, timed_on_gpu: None, pairs, rows: Vec::new() }
    }

    pub fn print_dense(&self) {
        println!(
            "{} sentences, {} tokens; dense: {:.1} ms (linear layers {:.1}, attention {:.1}, other {:.1}){}",
            self.sentences.len(),
            self.tokens,
            milliseconds(self.dense_time),
            milliseconds(self.profile.linear),
            milliseconds(self.profile.attention),
            milliseconds(self.profile.other),
            if self.timed_on_gpu.is_some() { ", of which each linear layer copies from and to the GPU" } else { "" },
        );
        println!("\nmost similar pairs, dense:");
        for pair in &self.pairs {
            println!("  {:.3}  {}", pair.cosine, self.sentences[pair.a]);
            println!("         {}", self.sentences[pair.b]);
        }
    }

    pub fn print_pruned(&self) {
        let name = |(pattern, _, _): &(String, f64, Outcome)| pattern.chars().count();
        let width = self.rows.iter().map(name).max().unwrap_or(0).max("pattern".len());
        println!("\ntime: {}", self.what_is_timed());
        println!(
            "{:width$}  sparsity  retained  cosine mean    min  packed MB  of dense  time ms   speed  kernels",
            "pattern"
        );
        for (pattern, sparsity, outcome) in &self.rows {
            let run = format!("{pattern:width$}  {:7.2}%  ", sparsity * 100.0);
            match outcome {
                Outcome::Measured(row) => println!(
                    "{run}{:7.2}%  {:11.4} {:6.4}  {:9.2}  {:7.1}%  {:7.1}  {:5.2}x  {}",
                    row.retained() * 100.0,
                    row.mean_cosine,
                    row.min_cosine,
                    row.packed_bytes as f64 / 1e6,
                    row.packed_bytes as f64 / row.dense_bytes as f64 * 100.0,
                    milliseconds(row.time),
                    row.speed(),
                    row.kernel_list(),
                ),
                Outcome::NotRun(reason) => println!("{run}not run: {reason}"),
            }
        }
        println!(
            "\nsparsity: as asked, of dense: what is stored, which tells how coarse patterns round; retained: share of the sum of |w| kept; cosine: to the dense embedding of the same sentence; \
             speed: dense time over pruned time, in turns"
        );
    }

    fn what_is_timed(&self) -> String {
        match self.timed_on_gpu {
            None => "whole forward passes of all sentences".into(),
            Some(dtype) => format!(
                "GPU time of all linear layers for all tokens at once, filled up to a multiple of 8, in {dtype}, activations \
                 on the GPU; the dense\nones are cuBLASLt's fastest without bias, nonlinearity and residual, the pruned ones have them"
            ),
        }
    }

    pub fn to_json(&self) -> Value {
        let pairs: Vec<_> = self
            .pairs
            .iter()
            .map(|pair| {
                json!({
                    "a": self.sentences[pair.a],
                    "b": self.sentences[pair.b],
                    "cosine": pair.cosine,
                })
            })
            .collect();
        let rows: Vec<_> = self.rows.iter().map(row_json).collect();
        json!({
            "sentences": self.sentences.len(),
            "tokens": self.tokens,
            "timed": self.what_is_timed(),
            "dense": {
                "ms": milliseconds(self.dense_time),
                "linear_ms": milliseconds(self.profile.linear),
                "attention_ms": milliseconds(self.profile.attention),
                "other_ms": milliseconds(self.profile.other),
            },
            "most_similar": pairs,
            "pruned": rows,
        })
    }
}

fn row_json((pattern, sparsity, outcome): &(String, f64, Outcome)) -> Value {
    match outcome {
        Outcome::Measured(row) => json!({
            "pattern": pattern,
            "sparsity": sparsity,
            "retained": row.retained(),
            "mean_cosine": row.mean_cosine,
            "min_cosine": row.min_cosine,
            "packed_bytes": row.packed_bytes,
            "dense_bytes": row.dense_bytes,
            "ms": milliseconds(row.time),
            "dense_ms": milliseconds(row.dense_time),
            "speed": row.speed(),
            "kernels": row.kernels,
        }),
        Outcome::NotRun(reason) => json!({
            "pattern": pattern,
            "sparsity": sparsity,
            "not_run": reason,
        }),
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Of unit vectors.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}
