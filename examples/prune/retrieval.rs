//! The task: among many packages, a package's short description must find its own long one.

use std::error::Error;
use std::path::Path;

use fractal_runtime::model::BertModel;
use rayon::prelude::*;
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::tokens;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Short and long descriptions, token ids; those of one package at the same place.
pub struct Task {
    pub short: Vec<Vec<u32>>,
    pub long: Vec<Vec<u32>>,
}

impl Task {
    /// A part of the packages that examples/fetch_packages.py has fetched.
    ///
    /// # Errors
    /// Where it is not there, or no such file.
    pub fn read(folder: &Path, part: &str, tokenizer: &Tokenizer, most: usize) -> Result<Task> {
        let path = folder.join(part).with_extension("jsonl");
        let text = std::fs::read_to_string(&path).map_err(|e| {
            format!("cannot read {}: {e}; run `python3 examples/fetch_packages.py`, or pass --packages", path.display())
        })?;
        let (mut short, mut long) = (Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate().take(most) {
            let wrong = |what: &str| format!("{}, line {}: {what}; fetch it again", path.display(), number + 1);
            let package: Value = serde_json::from_str(line).map_err(|e| wrong(&e.to_string()))?;
            let field = |name: &str| {
                let text = package[name].as_str().filter(|text| !text.trim().is_empty());
                text.map(str::to_owned).ok_or_else(|| wrong(&format!("expected a text `{name}`")))
            };
            short.push(field("short")?);
            long.push(field("long")?);
        }
        if short.is_empty() {
            return Err(format!("{} is empty; fetch it again", path.display()).into());
        }
        Ok(Task { short: tokens::encode(tokenizer, &short)?, long: tokens::encode(tokenizer, &long)? })
    }

    /// All texts, as calibration takes them.
    pub fn sentences(&self) -> Vec<Vec<u32>> {
        self.short.iter().zip(&self.long).flat_map(|(short, long)| [short.clone(), long.clone()]).collect()
    }

    /// Packages.
    pub fn len(&self) -> usize {
        self.short.len()
    }

    /// What a model makes of it.
    ///
    /// # Errors
    /// Where the model cannot run.
    pub fn run(&self, model: &BertModel) -> Result<Embeddings> {
        let embeddings = Embeddings { short: model.embed(&self.short)?, long: model.embed(&self.long)? };
        if !embeddings.short.iter().chain(&embeddings.long).flatten().all(|v| v.is_finite()) {
            return Err("the embeddings are not finite".into());
        }
        Ok(embeddings)
    }
}

/// Unit vectors.
pub struct Embeddings {
    short: Vec<Vec<f32>>,
    long: Vec<Vec<f32>>,
}

/// How well a model finds.
#[derive(Clone, Debug)]
pub struct Found {
    /// Of each query, the rank of its own document, from 1.
    pub ranks: Vec<usize>,
    /// Mean cosine to the dense model's embeddings of the same texts.
    pub cosine: f64,
}

impl Embeddings {
    /// Ranks, and the likeness to what the dense model made.
    pub fn find(&self, dense: &Embeddings) -> Found {
        let likeness = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let rank = |(query, own): (usize, &Vec<f32>)| {
            let to_own = likeness(own, &self.long[query]);
            // A document as near as one's own counts against it.
            let nearer = |(at, long): (usize, &Vec<f32>)| at != query && likeness(own, long) >= to_own;
            1 + self.long.iter().enumerate().filter(|&found| nearer(found)).count()
        };
        let ranks = self.short.par_iter().enumerate().map(rank).collect();
        let pairs = self.short.iter().zip(&dense.short).chain(self.long.iter().zip(&dense.long));
        let cosine = pairs.map(|(a, b)| f64::from(likeness(a, b))).sum::<f64>() / (2 * self.short.len()) as f64;
        Found { ranks, cosine }
    }
}

impl Found {
    /// Share of queries whose own document comes first.
    pub fn recall(&self) -> f64 {
        self.ranks.iter().filter(|&&rank| rank == 1).count() as f64 / self.ranks.len() as f64
    }

    /// Mean reciprocal rank.
    pub fn mrr(&self) -> f64 {
        self.ranks.iter().map(|&rank| 1.0 / rank as f64).sum::<f64>() / self.ranks.len() as f64
    }

    /// The loss of recall against another model on the same queries, and half of its 95 % interval: of the difference of paired
    /// proportions (as in McNemar's test, normal approximation).
    pub fn loss(&self, dense: &Found) -> (f64, f64) {
        let n = self.ranks.len() as f64;
        let (mut lost, mut won) = (0.0, 0.0);
        for (own, dense) in self.ranks.iter().zip(&dense.ranks) {
            match (*own == 1, *dense == 1) {
                (false, true) => lost += 1.0,
                (true, false) => won += 1.0,
                _ => {}
            }
        }
        let difference = (lost - won) / n;
        let variance = (lost + won - (lost - won) * (lost - won) / n) / (n * n);
        (difference, 1.96 * f64::max(variance, 0.0).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ranks: &[usize]) -> Found {
        Found { ranks: ranks.to_vec(), cosine: 1.0 }
    }

    #[test]
    fn own_documents_are_found_by_likeness() {
        let unit = |x: f32, y: f32| vec![x, y];
        let dense =
            Embeddings { short: vec![unit(1.0, 0.0), unit(0.0, 1.0)], long: vec![unit(1.0, 0.0), unit(0.0, 1.0)] };
        let same = dense.find(&dense);
        assert_eq!((same.ranks.clone(), same.cosine), (vec![1, 1], 1.0));
        // Of two documents as near, one's own is not the first.
        let alike =
            Embeddings { short: vec![unit(1.0, 0.0), unit(0.0, 1.0)], long: vec![unit(1.0, 0.0), unit(1.0, 0.0)] };
        let found = alike.find(&dense);
        assert_eq!((found.ranks.clone(), found.cosine), (vec![2, 2], 0.75));
    }

    #[test]
    fn figures_are_of_ranks() {
        let (dense, own) = (found(&[1, 1, 1, 2]), found(&[1, 4, 2, 1]));
        assert_eq!((dense.recall(), own.recall()), (0.75, 0.5));
        assert_eq!(own.mrr(), (1.0 + 0.25 + 0.5 + 1.0) / 4.0);
        let (loss, half) = own.loss(&dense);
        // Two lost, one won: 1/4, variance (3 - 1/4) / 16.
        assert_eq!(loss, 0.25);
        assert!((half - 1.96 * (2.75f64 / 16.0).sqrt()).abs() < 1e-12);
        assert_eq!(dense.loss(&dense), (0.0, 0.0));
    }
}
