//! Losses of a batch of embeddings and their gradients, for [`BertModel::gradients`](crate::model::BertModel::gradients).

use rayon::prelude::*;

use super::random::Random;
use crate::model::ModelError;

/// The temperature with which sentence embedders are usually trained.
pub const TEMPERATURE: f32 = 0.05;

/// A loss of a batch and its gradient by each embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// The loss.
    pub value: f64,
    /// As many vectors, of as many values, as there are embeddings.
    pub gradient: Vec<Vec<f32>>,
}

impl Loss {
    /// The sum of this loss and `weight` times another one of the same embeddings.
    ///
    /// # Errors
    /// [`ModelError::LossLength`] where the other one has other embeddings.
    pub fn plus(mut self, weight: f32, other: &Loss) -> Result<Loss, ModelError> {
        check_alike(&self.gradient, &other.gradient)?;
        self.value += f64::from(weight) * other.value;
        for (a, b) in self.gradient.iter_mut().flatten().zip(other.gradient.iter().flatten()) {
            *a += weight * b;
        }
        Ok(self)
    }
}

/// In-batch contrastive loss (InfoNCE: van den Oord et al., Representation Learning with Contrastive Predictive Coding,
/// 2018, eq. 4), in both directions, as all-MiniLM-L6-v2 was trained with.
///
/// The first half of the unit vectors are queries q, the second half their documents d in the same order. With
/// s_ij = q_i . d_j / temperature, it is the mean over i of -log softmax_j(s_ij) at j = i and of -log softmax_j(s_ji) at
/// j = i, halved.
///
/// # Errors
/// [`ModelError`] for an odd number of embeddings, some of other lengths, or a temperature that is not positive.
pub fn contrastive(embeddings: &[Vec<f32>], temperature: f32) -> Result<Loss, ModelError> {
    check_temperature(temperature)?;
    let pairs = embeddings.len() / 2;
    let (queries, documents) = embeddings.split_at(pairs);
    if queries.len() != documents.len() {
        let what = "documents, one for each query";
        return Err(ModelError::LossLength { what, expected: queries.len(), got: documents.len() });
    }
    check_alike(queries, documents)?;
    let scores = products(queries, documents, temperature);
    let (rows, columns) = (softmax(&scores), softmax(&transposed(&scores)));
    let share = 0.5 / pairs as f64;
    let value = (0..pairs).map(|i| -share * (rows[i].log(i) + columns[i].log(i))).sum();
    let by_score = |i: usize, j: usize| {
        let own = if i == j { 2.0 } else { 0.0 };
        share / f64::from(temperature) * (rows[i].weights[j] + columns[j].weights[i] - own)
    };
    let mut gradient = combine(documents, pairs, &by_score);
    gradient.extend(combine(queries, pairs, &|j, i| by_score(i, j)));
    Ok(Loss { value, gradient })
}

/// The mean over sentences of 1 - cosine between embedding and target, both unit vectors: 1 - e . t.
///
/// # Errors
/// [`ModelError::LossLength`] where embeddings and targets are not as many of the same lengths.
pub fn cosine(embeddings: &[Vec<f32>], targets: &[Vec<f32>]) -> Result<Loss, ModelError> {
    check_alike(embeddings, targets)?;
    let share = 1.0 / embeddings.len() as f64;
    let value = embeddings.iter().zip(targets).map(|(e, t)| share * (1.0 - product(e, t))).sum();
    let gradient = targets.iter().map(|t| t.iter().map(|t| -(share as f32) * t).collect()).collect();
    Ok(Loss { value, gradient })
}

/// How far the embeddings' similarities to each other are from those of the targets: the mean over sentences i of the
/// divergence sum_j p_ij log(p_ij / q_ij), where q_i is the softmax over all other sentences j of e_i . e_j / temperature
/// and p_i the same of the targets. Soft targets are those of Hinton et al., Distilling the Knowledge in a Neural Network,
/// 2015, with the batch's other sentences for classes. It is 0 for fewer than three sentences.
///
/// # Errors
/// [`ModelError`] where embeddings and targets do not go together, or the temperature is not positive.
pub fn relation(embeddings: &[Vec<f32>], targets: &[Vec<f32>], temperature: f32) -> Result<Loss, ModelError> {
    check_temperature(temperature)?;
    check_alike(embeddings, targets)?;
    let len = embeddings.len();
    let others = |vectors: &[Vec<f32>]| {
        let mut scores = products(vectors, vectors, temperature);
        (0..len).for_each(|i| scores[i][i] = f64::NEG_INFINITY);
        softmax(&scores)
    };
    if len < 3 {
        return Ok(Loss { value: 0.0, gradient: embeddings.iter().map(|e| vec![0.0; e.len()]).collect() });
    }
    let (student, teacher) = (others(embeddings), others(targets));
    let share = 1.0 / len as f64;
    let pairs = (0..len).flat_map(|i| (0..len).filter(move |&j| j != i).map(move |j| (i, j)));
    let value = pairs.map(|(i, j)| share * teacher[i].weights[j] * (teacher[i].log(j) - student[i].log(j))).sum();
    let by_score = |i: usize, j: usize| student[i].weights[j] - teacher[i].weights[j];
    // A product e_i . e_j is in row i and in row j.
    let scale = share / f64::from(temperature);
    let gradient = combine(embeddings, len, &|i, j| scale * (by_score(i, j) + by_score(j, i)));
    Ok(Loss { value, gradient })
}

/// A random signed sum of all components of all embeddings, each sign from `seed` and as likely as the other.
///
/// It is no loss to make less, but tells what moves the embeddings: the squares of its gradient by a weight, in the mean
/// over seeds, are the sum over all components e of (de/dw)^2 (Hutchinson, A Stochastic Estimator of the Trace of the
/// Influence Matrix, 1990). That is the diagonal of the Gauss-Newton matrix of half the squared distance to the model's own
/// embeddings, hence of [`cosine`] to them, whose own gradient vanishes there.
pub fn probe(embeddings: &[Vec<f32>], seed: u64) -> Loss {
    let mut random = Random::new(seed);
    let mut signs = |len: usize| (0..len).map(|_| if random.next() >> 63 == 0 { 1.0 } else { -1.0 }).collect();
    let gradient: Vec<Vec<f32>> = embeddings.iter().map(|e| signs(e.len())).collect();
    let value = embeddings.iter().zip(&gradient).map(|(e, signs)| product(e, signs)).sum();
    Loss { value, gradient }
}

fn check_temperature(temperature: f32) -> Result<(), ModelError> {
    if temperature.is_finite() && temperature > 0.0 {
        return Ok(());
    }
    Err(ModelError::Setting { name: "temperature", expected: "a positive number", got: temperature.to_string() })
}

/// That there are as many vectors on both sides, all of one length.
fn check_alike(embeddings: &[Vec<f32>], targets: &[Vec<f32>]) -> Result<(), ModelError> {
    if embeddings.len() != targets.len() {
        let (what, expected, got) = ("targets, one for each embedding", embeddings.len(), targets.len());
        return Err(ModelError::LossLength { what, expected, got });
    }
    let expected = embeddings.first().map_or(0, Vec::len);
    match embeddings.iter().chain(targets).find(|vector| vector.len() != expected) {
        Some(wrong) => Err(ModelError::LossLength { what: "values of an embedding", expected, got: wrong.len() }),
        None => Ok(()),
    }
}

fn product(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// a_i . b_j / temperature.
fn products(a: &[Vec<f32>], b: &[Vec<f32>], temperature: f32) -> Vec<Vec<f64>> {
    let row = |a: &Vec<f32>| b.iter().map(|b| product(a, b) / f64::from(temperature)).collect();
    a.par_iter().map(row).collect()
}

fn transposed(matrix: &[Vec<f64>]) -> Vec<Vec<f64>> {
    (0..matrix.len()).map(|i| matrix.iter().map(|row| row[i]).collect()).collect()
}

/// For each of `rows` i: the sum over j of weight(i, j) v_j.
fn combine(vectors: &[Vec<f32>], rows: usize, weight: &(dyn Fn(usize, usize) -> f64 + Sync)) -> Vec<Vec<f32>> {
    let features = vectors.first().map_or(0, Vec::len);
    let row = |i| {
        let mut sum = vec![0.0; features];
        for (j, vector) in vectors.iter().enumerate() {
            let weight = weight(i, j);
            sum.iter_mut().zip(vector).for_each(|(sum, v)| *sum += weight * f64::from(*v));
        }
        sum.into_iter().map(|v| v as f32).collect()
    };
    (0..rows).into_par_iter().map(row).collect()
}

/// The softmax of a row of scores.
struct Softmax {
    weights: Vec<f64>,
    /// Score minus the logarithm of the sum, so that a vanishing weight has a logarithm.
    logarithms: Vec<f64>,
}

impl Softmax {
    fn log(&self, at: usize) -> f64 {
        self.logarithms[at]
    }
}

fn softmax(scores: &[Vec<f64>]) -> Vec<Softmax> {
    let row = |scores: &Vec<f64>| {
        let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - greatest).exp()).sum();
        let logarithms: Vec<f64> = scores.iter().map(|s| s - greatest - sum.ln()).collect();
        Softmax { weights: logarithms.iter().map(|l| l.exp()).collect(), logarithms }
    };
    scores.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn vectors(count: usize, seed: u64) -> Vec<Vec<f32>> {
        let mut rng = StdRng::seed_from_u64(seed);
        (0..count).map(|_| (0..5).map(|_| rng.random_range(-1.0..1.0)).collect()).collect()
    }

    /// Every gradient against a difference of the loss.
    fn check_differences(embeddings: &[Vec<f32>], loss: impl Fn(&[Vec<f32>]) -> Loss) {
        let gradient = loss(embeddings).gradient;
        for (i, row) in gradient.iter().enumerate() {
            for (f, found) in row.iter().enumerate() {
                let moved = |by: f32| {
                    let mut moved = embeddings.to_vec();
                    moved[i][f] += by;
                    (loss(&moved).value, f64::from(moved[i][f]))
                };
                let (before, behind) = (moved(-1e-3), moved(1e-3));
                let expected = (behind.0 - before.0) / (behind.1 - before.1);
                let error = (f64::from(*found) - expected).abs();
                assert!(error < 1e-4 * expected.abs().max(0.1), "[{i}][{f}]: found {found}, expected {expected}");
            }
        }
    }

    #[test]
    fn gradients_are_those_of_differences() {
        let (embeddings, targets) = (vectors(6, 1), vectors(6, 2));
        check_differences(&embeddings, |e| contrastive(e, 0.5).unwrap());
        check_differences(&embeddings, |e| cosine(e, &targets).unwrap());
        check_differences(&embeddings, |e| relation(e, &targets, 0.5).unwrap());
        let sum =
            |e: &[Vec<f32>]| cosine(e, &targets).unwrap().plus(0.3, &relation(e, &targets, 0.7).unwrap()).unwrap();
        check_differences(&embeddings, sum);
    }

    #[test]
    fn known_values() {
        let unit = |at: usize| (0..4).map(|f| if f == at { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
        // Three queries equal to their documents and orthogonal to the others.
        let pairs: Vec<_> = (0..6).map(|i| unit(i % 3)).collect();
        let expected = (1.0 + 2.0 * (-2f64).exp()).ln();
        assert!((contrastive(&pairs, 0.5).unwrap().value - expected).abs() < 1e-12);
        let same = cosine(&pairs, &pairs).unwrap();
        assert_eq!(same.value, 0.0);
        let same = relation(&pairs, &pairs, TEMPERATURE).unwrap();
        assert_eq!((same.value, same.gradient.iter().flatten().all(|&g| g == 0.0)), (0.0, true));
        assert_eq!(cosine(&[unit(0)], &[unit(1)]).unwrap().value, 1.0);
        for len in 0..3 {
            assert_eq!(relation(&pairs[..len], &pairs[..len], 0.1).unwrap().value, 0.0);
        }
        assert!(contrastive(&[], 0.1).unwrap().gradient.is_empty() && cosine(&[], &[]).unwrap().value == 0.0);
    }

    #[test]
    fn probes_square_to_the_sum_of_squares() {
        let embeddings = vectors(4, 1);
        check_differences(&embeddings, |e| probe(e, 7));
        assert_eq!(probe(&embeddings, 7), probe(&embeddings, 7));
        // A function whose derivative by a weight is each embedding itself.
        let expected: f64 = embeddings.iter().map(|e| product(e, e)).sum();
        let seeds = 4000;
        let mean = (0..seeds).map(|seed| probe(&embeddings, seed).value.powi(2)).sum::<f64>() / seeds as f64;
        assert!((mean / expected - 1.0).abs() < 0.1, "{mean} instead of {expected}");
    }

    #[test]
    fn embeddings_that_do_not_go_together_are_errors() {
        let five = vectors(5, 1);
        let text = |result: Result<Loss, ModelError>| result.unwrap_err().to_string();
        assert_eq!(text(contrastive(&five, 0.1)), "loss: expected 2 documents, one for each query, found 3");
        assert_eq!(text(cosine(&five, &five[1..])), "loss: expected 5 targets, one for each embedding, found 4");
        let mut short = five.clone();
        short[3].pop();
        assert_eq!(text(relation(&five, &short, 0.1)), "loss: expected 5 values of an embedding, found 4");
        let expected = "setting `temperature`: expected a positive number, found 0";
        assert_eq!(text(relation(&five, &five, 0.0)), expected);
        assert!(contrastive(&five[1..], f32::NAN).is_err());
        assert!(cosine(&five, &five).unwrap().plus(1.0, &cosine(&five[1..], &five[1..]).unwrap()).is_err());
    }
}
