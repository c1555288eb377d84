//! Files of pruned weights: what is written comes back, and whatever becomes of the bytes, reading them gives an error or a
//! weight that every backend runs right. `FRACTAL_MORE_CASES=10` runs ten times as many cases.

#[path = "../../fractal-dsl/tests/common/mod.rs"]
mod common;
mod forged;
mod messages;
mod parts;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the conformance suite uses the rest")]
mod support;

use common::pattern_and_scores;
use forged::{runs, survives};
use fractal::cuda::KernelPlan;
use fractal::pattern::{Level, Mask, NAMED_PATTERNS, Pattern};
use fractal::runtime::{PrunedFileError, RawType};
use fractal::{
    DType, Gemm, Given, Magnitude, Pruned, PrunedFile, PrunedMask, RawTensor, ReadLimits, StoredWeight, Tensor,
    pack_masked, prune, prune_with_residue,
};
use parts::{Parts, two_of_four, with_header};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use support::{PATTERNS, RESIDUES, pattern};

/// Small enough that a forged size shows as an error rather than as a slow test.
const LIMITS: ReadLimits = ReadLimits { entries: Some(1 << 21) };

fn more_cases() -> u32 {
    std::env::var("FRACTAL_MORE_CASES").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases: cases * more_cases(), failure_persistence: None, ..ProptestConfig::default() }
}

fn read(bytes: &[u8]) -> Result<PrunedFile, PrunedFileError> {
    PrunedFile::from_bytes(bytes, Path::new("m.safetensors"), &LIMITS)
}

fn pruned(pattern: &Pattern, dtype: DType, seed: u64) -> Pruned {
    let mut rng = StdRng::seed_from_u64(seed);
    let weights: Vec<f32> = (0..pattern.n() * pattern.k()).map(|_| rng.random_range(-1.0f32..1.0)).collect();
    let weight = Tensor::from_f32(dtype, pattern.n(), pattern.k(), &weights).unwrap();
    prune(pattern, &weight, &Magnitude).unwrap()
}

/// The same with a residue of so many of all elements, where there are dropped ones.
fn restored(pattern: &Pattern, dtype: DType, seed: u64, share: f64) -> Pruned {
    let mut rng = StdRng::seed_from_u64(seed);
    let weights: Vec<f32> = (0..pattern.n() * pattern.k()).map(|_| rng.random_range(-1.0f32..1.0)).collect();
    let weight = Tensor::from_f32(dtype, pattern.n(), pattern.k(), &weights).unwrap();
    prune_with_residue(pattern, &weight, &Magnitude, share).unwrap()
}

fn kinds(pruned: &Pruned) -> [StoredWeight; 3] {
    [
        StoredWeight::Packed(pruned.clone()),
        StoredWeight::Dense(pruned.clone()),
        StoredWeight::Mask(PrunedMask::from(pruned)),
    ]
}

fn file_of(weight: StoredWeight) -> PrunedFile {
    PrunedFile { layers: BTreeMap::from([("up".into(), weight)]), ..PrunedFile::default() }
}

/// Every kind comes back equal.
fn comes_back(pruned: &Pruned, at: &str) {
    for weight in kinds(pruned) {
        let file = file_of(weight);
        let bytes = file.to_bytes().unwrap_or_else(|e| panic!("{at}: {e}"));
        let again = read(&bytes).unwrap_or_else(|e| panic!("{at}: {e}"));
        assert!(again == file, "{at}: another weight came back");
        assert!(again.to_bytes().unwrap() == bytes, "{at}: equal files of other bytes");
    }
}

#[test]
fn every_pattern_comes_back() {
    for (case, text) in PATTERNS.iter().enumerate() {
        for (n, k) in [(64, 128), (67, 131), (1, 1), (130, 17), (17, 130), (3, 200)] {
            for dtype in DType::ALL {
                let pruned = pruned(&pattern(text, n, k, 0.25, dtype), dtype, case as u64);
                comes_back(&pruned, &format!("{text} {dtype} {n}x{k}"));
            }
        }
    }
    // The list above holds every named form.
    for (form, _) in NAMED_PATTERNS {
        let family = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
        // `N:M` stands for numbers.
        let there = |text: &&str| family(text) == family(form) || form.replace("N:M", "2:4") == **text;
        assert!(PATTERNS.iter().any(there), "{form}");
    }
}

#[test]
fn every_residue_comes_back() {
    for (case, text) in RESIDUES.iter().chain(PATTERNS).enumerate() {
        for (n, k) in [(64, 128), (67, 131), (1, 9), (130, 17), (3, 300)] {
            for (dtype, share) in DType::ALL.into_iter().zip([0.03, 0.2, 0.9]) {
                let pruned = restored(&pattern(text, n, k, 0.25, dtype), dtype, case as u64, share);
                assert!(pruned.residue().is_some() || n == 1 || pruned.sparsity() < 0.5, "{text} {n}x{k}");
                comes_back(&pruned, &format!("{text} {dtype} {n}x{k}"));
                let mask = PrunedMask::from(&pruned);
                assert!(mask.mask() == pruned.mask() && mask.restored().count() <= pruned.kept());
                let again = mask.prune(&pruned.dense()).unwrap();
                assert_eq!((again.dense(), again.residue()), (pruned.dense(), pruned.residue()));
                assert_eq!((again.kept(), again.retained()), (pruned.kept(), 1.0));
                runs(&pruned, case as u64);
            }
        }
    }
}

/// A mask with a residue takes the same elements of another weight.
#[test]
fn a_mask_restores_elements_of_other_weights() {
    let pattern = pattern("tw:8", 24, 40, 0.25, DType::F16);
    let (first, other) = (restored(&pattern, DType::F16, 1, 0.05), pruned(&pattern, DType::F32, 2));
    let mut rng = StdRng::seed_from_u64(3);
    let weights: Vec<f32> = (0..24 * 40).map(|_| rng.random_range(-1.0f32..1.0)).collect();
    let weight = Tensor::from_f32(other.dtype(), 24, 40, &weights).unwrap();
    let file = read(&file_of(StoredWeight::Mask(PrunedMask::from(&first))).to_bytes().unwrap()).unwrap();
    let StoredWeight::Mask(mask) = &file.layers["up"] else { panic!("a mask") };
    let again = mask.prune(&weight).unwrap();
    let kept = first.mask().apply(&weights).unwrap();
    assert_eq!(again.dense().to_f32(), kept);
    let sum = |values: &[f32]| values.iter().map(|v| f64::from(v.abs())).sum::<f64>();
    assert!((again.retained() - sum(&kept) / sum(&weights)).abs() < 1e-12);
    assert_eq!(again.kept(), first.kept());
    // Zeros retain all that there is.
    assert_eq!(mask.prune(&Tensor::zeros(DType::F32, 24, 40)).unwrap().retained(), 1.0);
}

#[test]
fn a_packed_file_is_about_as_long_as_the_packed_weight() {
    for text in PATTERNS {
        let pruned = pruned(&pattern(text, 256, 512, 0.25, DType::F16), DType::F16, 1);
        let bytes = file_of(StoredWeight::Packed(pruned.clone())).to_bytes().unwrap().len();
        assert!(bytes <= pruned.packed_bytes() + 1024, "{text}: {bytes} of {}", pruned.packed_bytes());
    }
    for text in RESIDUES {
        let pruned = restored(&pattern(text, 256, 512, 0.25, DType::F16), DType::F16, 1, 0.01);
        let bytes = file_of(StoredWeight::Packed(pruned.clone())).to_bytes().unwrap().len();
        assert!(bytes <= pruned.packed_bytes() + 1024, "{text}: {bytes} of {}", pruned.packed_bytes());
    }
}

proptest! {
    #![proptest_config(config(150))]

    #[test]
    fn random_patterns_come_back((pattern, scores) in pattern_and_scores(), dtype in 0usize..3, seed: u64) {
        let dtype = DType::ALL[dtype];
        let mut rng = StdRng::seed_from_u64(seed);
        // Zeros and -0 among them.
        let weights: Vec<f32> = scores.iter().map(|_| rng.random_range(-1.0f32..1.0) * f32::from(rng.random_range(0..4u8).min(1))).collect();
        let weight = Tensor::from_f32(dtype, pattern.n(), pattern.k(), &weights).unwrap();
        let pruned = prune(&pattern, &weight, &Given(scores.clone())).unwrap();
        comes_back(&pruned, &format!("{:?}", pattern.steps()));
        // Single elements on top, zeros among them.
        let share = rng.random_range(0.0..1.0);
        let restored = prune_with_residue(&pattern, &weight, &Given(scores), share).unwrap();
        comes_back(&restored, &format!("{:?} and {share}", pattern.steps()));
        prop_assert_eq!(PrunedMask::from(&restored).prune(&weight).unwrap().dense(), restored.dense());
        // A mask that needs less than the pattern keeps.
        let mask = pattern.mask(pruned.selection()).unwrap();
        let some = Mask::from_fn(pattern.n(), pattern.k(), |n, k| mask.contains(n, k) && rng.random());
        if let Ok(pruned) = pack_masked(&pattern, &weight, &some) {
            comes_back(&pruned, &format!("{:?}", pattern.steps()));
        }
        let again = PrunedMask::from(&pruned).prune(&weight).unwrap();
        prop_assert_eq!(again.packed(), pruned.packed());
    }

    /// Kept iterations in any order within their regions.
    #[test]
    fn orders_within_regions_come_back((pattern, scores) in pattern_and_scores(), seed: u64) {
        let mut selection = pattern.project(&scores).unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        let unlike = |a: &[u32]| a.len() > 1;
        // The last level: positions of the ones above mean something to those below.
        if let Some(Level::Kept(kept)) = selection.levels.last_mut() {
            for region in 0..kept.regions() {
                let (from, to) = (kept.offsets[region] as usize, kept.offsets[region + 1] as usize);
                if unlike(&kept.kept[from..to]) && rng.random() {
                    kept.kept[from..to].reverse();
                }
            }
        }
        let mask = PrunedMask::new(pattern.clone(), selection).unwrap();
        let weight = Tensor::from_f32(DType::F32, pattern.n(), pattern.k(), &scores).unwrap();
        let pruned = mask.prune(&weight).unwrap();
        comes_back(&pruned, &format!("{:?}", pattern.steps()));
        runs(&pruned, seed);
    }
}

/// Positions of 2 of 4 that fall within their groups are put in the order of tensor cores.
#[test]
fn two_of_four_runs_in_any_order() {
    for text in ["2:4", "tvw:16", "vnm:16"] {
        let pattern = pattern(text, 64, 96, if text == "2:4" { 0.5 } else { 0.25 }, DType::F16);
        let first = pruned(&pattern, DType::F16, 1);
        let mut selection = first.selection().clone();
        if let Some(Level::Kept(kept)) = selection.levels.last_mut() {
            kept.kept.chunks_mut(2).for_each(|pair| pair.reverse());
        }
        let pruned = PrunedMask::new(pattern, selection).unwrap().prune(&first.dense()).unwrap();
        assert_eq!(pruned.dense(), first.dense());
        let plan = KernelPlan::new(&Gemm::new(pruned.pattern().clone(), DType::F16), 80).unwrap();
        assert!(plan.lay_out(&pruned).unwrap().0.intrinsic.is_sparse(), "{text}");
        let file = file_of(StoredWeight::Packed(pruned));
        assert!(survives(&file.to_bytes().unwrap(), 1));
    }
}

#[test]
fn a_large_layer_is_read_in_time() {
    // Small here; larger by hand: `FRACTAL_MORE_CASES=8` reads 4096x4096.
    let size = 512 * more_cases().min(8) as usize;
    for text in ["ew", "2:4", "tw:128", "bw:32x32"] {
        let pruned = pruned(&pattern(text, size, size, 0.25, DType::F16), DType::F16, 1);
        for weight in kinds(&pruned) {
            let bytes = file_of(weight).to_bytes().unwrap();
            let start = std::time::Instant::now();
            PrunedFile::from_bytes(&bytes, Path::new("m"), &ReadLimits::default()).unwrap();
            println!("{text} {size}: {} bytes of {}, {:?}", bytes.len(), pruned.packed_bytes(), start.elapsed());
        }
    }
}
