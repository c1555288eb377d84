//! Statistics and damping -> the least-squares problem of a layer, and its solutions on masks.
//!
//! The error of weights W is the mean over tokens of |W x + b - t|^2, plus damping times |W - W0|^2 where W0 are the weights before
//! pruning; with the best bias b it is tr(W H W' - 2 W B') + a constant, H = cov(x) + damping, B = cov(t, x) + damping W0.

use super::factor::Factor;
use super::statistics::LayerStatistics;
use faer::Par;
use rayon::prelude::*;
use std::collections::HashMap;

/// Rows that keep the same columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub rows: Vec<usize>,
    /// Ascending.
    pub support: Vec<usize>,
}

/// The error as a function of the weights \[n, k\].
pub(super) struct Problem {
    pub n: usize,
    pub k: usize,
    /// H, \[k, k\], its lower triangle.
    pub hessian: Vec<f64>,
    /// B, \[n, k\].
    pub linear: Vec<f64>,
    /// What is added to H's diagonal.
    damping: f64,
    /// The error of no weights at all, without damping.
    pub spread: f64,
    /// Mean of t over tokens, where a bias is fitted.
    targets: Option<Vec<f64>>,
    /// Mean of x over tokens.
    inputs: Vec<f64>,
}

impl Problem {
    /// Of a layer with weights \[n, k\]; `damping` is a part of the mean of H's diagonal.
    pub(super) fn new(statistics: LayerStatistics, weights: &[f32], damping: f64, bias: bool) -> Problem {
        let LayerStatistics { n, k, tokens, inputs, mut hessian, targets, cross: mut linear, energies } = statistics;
        let per_token = if tokens > 0.0 { 1.0 / tokens } else { 0.0 };
        let mean = |sums: Vec<f64>| -> Vec<f64> { sums.into_iter().map(|v| v * per_token).collect() };
        let (inputs, targets) = (mean(inputs), mean(targets));
        let centre = if bias { 1.0 } else { 0.0 };
        hessian.par_chunks_mut(k).enumerate().for_each(|(i, row)| {
            let mean = inputs[i] * centre;
            row[..=i].iter_mut().zip(&inputs).for_each(|(h, x)| *h = *h * per_token - mean * x);
            // Rounding may leave an input that never changes a little below zero.
            row[i] = row[i].max(0.0);
        });
        let diagonal = (0..k).map(|j| hessian[j * k + j]).sum::<f64>() / k as f64;
        // Without any input, all weights matter by their size alone.
        let damping = if diagonal > 0.0 { damping * diagonal } else { 1.0 };
        (0..k).for_each(|j| hessian[j * k + j] += damping);
        linear.par_chunks_mut(k).enumerate().for_each(|(i, row)| {
            let mean = targets[i] * centre;
            for ((b, x), &w) in row.iter_mut().zip(&inputs).zip(&weights[i * k..][..k]) {
                *b = *b * per_token - mean * x + damping * f64::from(w);
            }
        });
        let spread = energies.iter().sum::<f64>() * per_token - centre * targets.iter().map(|t| t * t).sum::<f64>();
        Problem { n, k, hessian, linear, damping, spread, targets: bias.then_some(targets), inputs }
    }

    /// The bias that is best for these weights.
    pub(super) fn bias(&self, weights: &[f32]) -> Option<Vec<f32>> {
        let targets = self.targets.as_ref()?;
        let of = |(target, row): (&f64, &[f32])| {
            (target - row.iter().zip(&self.inputs).map(|(&w, x)| f64::from(w) * x).sum::<f64>()) as f32
        };
        Some(targets.iter().zip(weights.chunks_exact(self.k)).map(of).collect())
    }

    /// The error of weights over that of none, without damping: 0 is perfect, 1 is as bad as nothing. `old` are the weights W0.
    pub(super) fn error(&self, weights: &[f32], old: &[f32]) -> f64 {
        let (n, k) = (self.n, self.k);
        let mut hessian = self.hessian.iter().map(|&v| v as f32).collect::<Vec<f32>>();
        mirror(&mut hessian, k);
        let mut product = vec![0.0f32; n * k];
        multiply(&mut product, weights, &hessian, n, k);
        let all = weights.par_iter().zip(&product).zip(&self.linear).zip(old);
        // H holds damping, and B damping times the old weights.
        let change = all.map(|(((&w, &p), b), &old)| {
            let (w, p, old) = (f64::from(w), f64::from(p), f64::from(old));
            w * (p - 2.0 * b) - self.damping * w * (w - 2.0 * old)
        });
        let error = self.spread + change.sum::<f64>();
        if self.spread > 0.0 { (error / self.spread).max(0.0) } else { 0.0 }
    }

    /// The rows of a mask by what they keep; `kept` lists the columns of a row, ascending.
    pub(super) fn groups(&self, kept: impl Fn(usize) -> Vec<usize>) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut known: HashMap<Vec<usize>, usize> = HashMap::new();
        for row in 0..self.n {
            let support = kept(row);
            match known.get(&support) {
                Some(&at) => groups[at].rows.push(row),
                None => {
                    known.insert(support.clone(), groups.len());
                    groups.push(Group { rows: vec![row], support });
                }
            }
        }
        groups
    }

    /// All rows with all columns.
    pub(super) fn dense(&self) -> Vec<Group> {
        vec![Group { rows: (0..self.n).collect(), support: (0..self.k).collect() }]
    }

    /// Solves on each group, writes its rows of `weights` \[n, k\], zero elsewhere, and hands each group with its factor to `look`,
    /// whose result is for the group's rows.
    pub(super) fn solve<T: Send>(
        &self,
        groups: &[Group],
        weights: &mut [f32],
        look: impl Fn(&Group, &Factor, &[f32]) -> T + Sync,
    ) -> Vec<T> {
        let k = self.k;
        // Many small ones run side by side, few large ones each on all cores.
        let par = if groups.len() >= 2 * rayon::current_num_threads() { Par::Seq } else { Par::rayon(0) };
        let one = |group: &Group| {
            let factor = Factor::of(&self.hessian, k, &group.support, par);
            let row = |&n: &usize| group.support.iter().map(move |&j| self.linear[n * k + j]);
            let mut sides: Vec<f64> = group.rows.iter().flat_map(row).collect();
            factor.solve(&mut sides);
            let solution: Vec<f32> = sides.iter().map(|&v| v as f32).collect();
            let looked = look(group, &factor, &solution);
            (solution, looked)
        };
        let solved: Vec<(Vec<f32>, T)> = match par {
            Par::Seq => groups.par_iter().map(one).collect(),
            _ => groups.iter().map(one).collect(),
        };
        weights.fill(0.0);
        let mut all = Vec::with_capacity(solved.len());
        for (group, (solution, looked)) in groups.iter().zip(solved) {
            for (row, values) in group.rows.iter().zip(solution.chunks_exact(group.support.len().max(1))) {
                group.support.iter().zip(values).for_each(|(&j, &v)| weights[row * k + j] = v);
            }
            all.push(looked);
        }
        all
    }

    /// Improves weights on a mask by conjugate gradients with H's diagonal as preconditioner, all rows at once: for masks whose rows
    /// are too many and too long to be solved one by one. What is zero in `keep` stays zero.
    pub(super) fn descend(&self, keep: &[bool], weights: &mut [f32], rounds: usize) {
        let (n, k) = (self.n, self.k);
        let mut hessian = self.hessian.iter().map(|&v| v as f32).collect::<Vec<f32>>();
        mirror(&mut hessian, k);
        let inverse: Vec<f32> = (0..k).map(|j| 1.0 / hessian[j * k + j]).collect();
        let mut product = vec![0.0f32; n * k];
        multiply(&mut product, weights, &hessian, n, k);
        // The residual B - W H on the mask.
        let mut rest: Vec<f32> =
            self.linear.par_iter().zip(&product).map(|(&b, &p)| (b - f64::from(p)) as f32).collect();
        rest.par_iter_mut().zip(keep).for_each(|(r, &keep)| *r = if keep { *r } else { 0.0 });
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let precondition = |r: &[f32]| -> Vec<f32> { r.iter().zip(&inverse).map(|(r, i)| r * i).collect() };
        let mut direction = vec![0.0f32; n * k];
        let mut rows: Vec<f64> = direction
            .par_chunks_mut(k)
            .zip(rest.par_chunks(k))
            .map(|(d, r)| {
                d.copy_from_slice(&precondition(r));
                dot(d, r)
            })
            .collect();
        let first: f64 = rows.iter().sum();
        for _ in 0..rounds {
            multiply(&mut product, &direction, &hessian, n, k);
            rows.par_iter_mut()
                .zip(weights.par_chunks_mut(k))
                .zip(rest.par_chunks_mut(k))
                .zip(direction.par_chunks_mut(k))
                .zip(product.par_chunks(k))
                .zip(keep.par_chunks(k))
                .for_each(|(((((before, w), r), d), p), keep)| {
                    let curvature = dot(d, p);
                    if *before <= 0.0 || curvature <= 0.0 {
                        return;
                    }
                    let step = (*before / curvature) as f32;
                    for j in 0..k {
                        w[j] += step * d[j];
                        r[j] = if keep[j] { r[j] - step * p[j] } else { 0.0 };
                    }
                    let z = precondition(r);
                    let now = dot(&z, r);
                    let beta = (now / *before) as f32;
                    d.iter_mut().zip(&z).for_each(|(d, z)| *d = z + beta * *d);
                    *before = now;
                });
            if rows.iter().sum::<f64>() <= first * 1e-6 {
                break;
            }
        }
    }
}

/// Copies the lower triangle to the upper one.
fn mirror(a: &mut [f32], k: usize) {
    for i in 0..k {
        for j in 0..i {
            a[j * k + i] = a[i * k + j];
        }
    }
}

/// out\[n, k\] = a\[n, k\] b\[k, k\].
fn multiply(out: &mut [f32], a: &[f32], b: &[f32], n: usize, k: usize) {
    assert!(out.len() == n * k && a.len() == n * k && b.len() == k * k);
    // SAFETY: the buffers hold n*k, n*k and k*k values, row-major, and `out` is borrowed mutably.
    unsafe {
        gemm::gemm(
            n,
            k,
            k,
            out.as_mut_ptr(),
            1,
            k as isize,
            false,
            a.as_ptr(),
            1,
            k as isize,
            b.as_ptr(),
            1,
            k as isize,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::Rayon(0),
        );
    }
}
