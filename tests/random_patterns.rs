//! Patterns that nobody has named: random nests of up to three levels, sizes, sparsities and types, against the oracle.

#[path = "../fractal-dsl/tests/common/mod.rs"]
mod common;
#[allow(dead_code, reason = "the conformance suite uses the rest")]
mod support;

use common::pattern_from_codes;
use fractal::{DType, Device};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rayon::prelude::*;
use support::{check_pattern, cuda_or_skip};

/// Runs `cases` random patterns that are legal on GPUs, and as many that come by whatever their legality.
fn random_cases(device: &Device, cases: usize) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    (0..2 * cases).into_par_iter().for_each(|case| {
        let mut rng = StdRng::seed_from_u64(seed ^ case as u64);
        let pattern = loop {
            let (n, k) = (rng.random_range(1..300), rng.random_range(1..300));
            let codes: Vec<(u8, u8, u8, u8)> = (0..rng.random_range(0..8)).map(|_| rng.random()).collect();
            let pattern = pattern_from_codes(n, k, &codes);
            if case % 2 == 1 || pattern.gpu_violations().is_empty() {
                break pattern;
            }
        };
        let dtype = DType::ALL[case / 2 % 3];
        let m = [1, 3, 8, 17, 64, 130, 200][rng.random_range(0..7)];
        // Printed by the failure: the seed and the case lead back to the pattern.
        let label = format!("seed {seed} case {case}: {:?}", pattern.steps());
        check_pattern(device, &label, &pattern, dtype, m, case);
    });
}

#[test]
fn on_the_cpu() {
    random_cases(&Device::cpu(), 250);
}

#[test]
fn on_cuda() {
    let Some(device) = cuda_or_skip() else { return };
    random_cases(&device, 500);
}
