//! Calibration tokens -> what second-order pruning knows of a layer: sums over tokens of x, x x', t and t x'.
//!
//! x\[k\] is a token's input of the layer, t\[n\] what the layer should make of it, its bias included: the dense layer's own result, or
//! what makes up for an error that came before. Tokens are added in any number of parts; nothing of them is kept.

use std::ops::Range;

use crate::prune::PruneError;

/// Rows of x x' that are summed up at once in f32, before they are added in f64.
const BAND: usize = 1024;

/// Activations at most: the sums of a part's products stay inside f32.
const GREATEST: f32 = 1e15;

/// Sums over calibration tokens. Memory: 8 k^2 + 8 n k bytes.
#[derive(Clone, Debug)]
pub struct LayerStatistics {
    pub(super) n: usize,
    pub(super) k: usize,
    /// Of all tokens.
    pub(super) tokens: f64,
    /// Sum of x, \[k\].
    pub(super) inputs: Vec<f64>,
    /// Sum of x x', \[k, k\]; only the lower triangle is kept up to date.
    pub(super) hessian: Vec<f64>,
    /// Sum of t, \[n\].
    pub(super) targets: Vec<f64>,
    /// Sum of t x', \[n, k\].
    pub(super) cross: Vec<f64>,
    /// Sum of the squares of each of t, \[n\].
    pub(super) energies: Vec<f64>,
}

impl LayerStatistics {
    /// Of no tokens yet, for a layer of n x k.
    pub fn new(n: usize, k: usize) -> LayerStatistics {
        let zeros = |len: usize| vec![0.0; len];
        LayerStatistics {
            n,
            k,
            tokens: 0.0,
            inputs: zeros(k),
            hessian: zeros(k * k),
            targets: zeros(n),
            cross: zeros(n * k),
            energies: zeros(n),
        }
    }

    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens as usize
    }

    /// The root of the sum of squares of each input feature, \[k\]: what activation-aware scores take.
    pub fn input_norms(&self) -> Vec<f32> {
        (0..self.k).map(|j| self.hessian[j * self.k + j].sqrt() as f32).collect()
    }

    /// The statistics of a layer that makes these of the results only: so layers that share their inputs are added up as
    /// one.
    ///
    /// # Errors
    /// [`PruneError::Calibration`] where there are no such results.
    pub fn of_results(&self, results: Range<usize>) -> Result<LayerStatistics, PruneError> {
        if results.start > results.end || results.end > self.n {
            let (expected, found) = (format!("results of 0..{}", self.n), format!("{results:?}"));
            return Err(PruneError::Calibration { expected, found });
        }
        Ok(LayerStatistics {
            n: results.len(),
            k: self.k,
            tokens: self.tokens,
            inputs: self.inputs.clone(),
            hessian: self.hessian.clone(),
            targets: self.targets[results.clone()].to_vec(),
            cross: self.cross[results.start * self.k..results.end * self.k].to_vec(),
            energies: self.energies[results].to_vec(),
        })
    }

    /// Adds m tokens: inputs x\[k, m\] and wanted results t\[n, m\], feature-major.
    ///
    /// # Errors
    /// [`PruneError::Calibration`] where the lengths do not fit or a value is not finite; then nothing is added.
    pub fn add(&mut self, x: &[f32], t: &[f32]) -> Result<(), PruneError> {
        let (n, k) = (self.n, self.k);
        let m = x.len() / k;
        if x.len() != k * m || t.len() != n * m {
            let expected = format!("k*m and n*m values for k = {k}, n = {n}");
            return Err(PruneError::Calibration { expected, found: format!("{} and {}", x.len(), t.len()) });
        }
        for (what, values) in [("input", x), ("wanted result", t)] {
            if let Some(at) = values.iter().position(|v| v.is_nan() || v.abs() > GREATEST) {
                let (feature, token) = (at / m, at % m);
                return Err(PruneError::Calibration {
                    expected: format!("activations up to {GREATEST:e}"),
                    found: format!("{what} {feature} of token {token} is {}", values[at]),
                });
            }
        }
        let mut band = vec![0.0f32; BAND.min(k.max(n)) * k];
        for begin in (0..k).step_by(BAND) {
            let rows = BAND.min(k - begin);
            // The lower triangle: columns up to the last of these rows.
            let columns = begin + rows;
            outer(&mut band, columns, &x[begin * m..][..rows * m], &x[..columns * m], m);
            for (row, sums) in band.chunks_exact(columns).take(rows).enumerate() {
                let to = &mut self.hessian[(begin + row) * k..][..columns];
                to.iter_mut().zip(sums).for_each(|(to, &sum)| *to += f64::from(sum));
            }
        }
        for begin in (0..n).step_by(BAND) {
            let rows = BAND.min(n - begin);
            outer(&mut band, k, &t[begin * m..][..rows * m], x, m);
            let to = &mut self.cross[begin * k..][..rows * k];
            to.iter_mut().zip(&band).for_each(|(to, &sum)| *to += f64::from(sum));
        }
        let sums = |to: &mut [f64], of: &[f32], each: fn(f64) -> f64| {
            for (to, row) in to.iter_mut().zip(of.chunks_exact(m.max(1))) {
                *to += row.iter().map(|&v| each(f64::from(v))).sum::<f64>();
            }
        };
        sums(&mut self.inputs, x, |v| v);
        sums(&mut self.targets, t, |v| v);
        sums(&mut self.energies, t, |v| v * v);
        self.tokens += m as f64;
        Ok(())
    }
}

/// out\[rows, columns\] = a\[rows, m\] b\[columns, m\]'.
fn outer(out: &mut [f32], columns: usize, a: &[f32], b: &[f32], m: usize) {
    let rows = a.len().checked_div(m).unwrap_or(0);
    if rows == 0 {
        return out.fill(0.0);
    }
    assert!(out.len() >= rows * columns && b.len() == columns * m);
    // SAFETY: the three buffers hold rows*columns, rows*m and columns*m values with these strides, and `out` is borrowed mutably.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            m,
            out.as_mut_ptr(),
            1,
            columns as isize,
            false,
            a.as_ptr(),
            1,
            m as isize,
            b.as_ptr(),
            m as isize,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::Rayon(0),
        );
    }
}
