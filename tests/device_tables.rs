//! What CUDA kernels read, taken apart again on the host: every pattern's tables hold exactly the pruned weight.

#[allow(dead_code, reason = "the conformance suite uses the rest")]
mod support;

use fractal::cuda::KernelPlan;
use fractal::sched::codegen::tables::{RESIDUE_BATCH, RESIDUE_ROWS, position_place, position_words, weight_place};
use fractal::{DType, Gemm, Residue, Tensor};
use rand::Rng;
use support::{LARGE, PATTERNS, RESIDUES, SHAPES, pattern, pruned};

/// Blocks whose columns come in an order that many tiles share.
const RUNS: &[&str] = &["bw:32x32", "bw:64x64", "bw:128x64", "bw-global:64x32"];

#[test]
fn many_blocks_read_the_same_columns_at_the_same_time() {
    let (n, k) = (1024, 2048);
    let mut rng = rand::rng();
    let weights: Vec<f32> = (0..n * k).map(|_| rng.random_range(-1.0f32..1.0)).collect();
    let weight = Tensor::from_f32(DType::F16, n, k, &weights).unwrap();
    let pattern = pattern("bw:64x64", n, k, 0.25, DType::F16);
    let plan = KernelPlan::new(&Gemm::new(pattern.clone(), DType::F16), 90).unwrap();
    let (config, tables) = plan.lay_out(&pruned("bw:64x64", &pattern, &weight)).unwrap();
    // As boxes of 64 columns still; 16 tiles that keep 8 of 32 blocks, of which in rising order about 10 are read at a time.
    assert_eq!((config.step, tables.column_run(k)), (64, 64));
    let firsts: Vec<i32> = tables.columns.chunks(64).map(|step| step[0]).collect();
    let different: usize = (0..8)
        .map(|slot| (0..16).map(|tile| firsts[tile * 8 + slot]).collect::<std::collections::BTreeSet<_>>().len())
        .sum();
    assert!(different <= 8 * 8, "{different} different blocks in 8 steps");
}

#[test]
fn tables_hold_the_pruned_weight() {
    let mut rng = rand::rng();
    for text in PATTERNS.iter().chain(RESIDUES).chain(RUNS) {
        for &(n, k, _) in SHAPES.iter().chain(LARGE) {
            for (dtype, sm) in [(DType::F32, 90), (DType::F16, 80), (DType::BF16, 90)] {
                let at = format!("{text} {dtype} n {n} k {k}");
                let weights: Vec<f32> = (0..n * k).map(|_| rng.random_range(-1.0f32..1.0)).collect();
                let weight = Tensor::from_f32(dtype, n, k, &weights).unwrap();
                let pattern = pattern(text, n, k, 0.25, dtype);
                let pruned = pruned(text, &pattern, &weight);
                let plan = KernelPlan::new(&Gemm::new(pattern, dtype), sm).unwrap();
                let (config, tables) = plan.lay_out(&pruned).unwrap_or_else(|e| panic!("{at}: {e}"));
                let mut dense = vec![0.0f32; n * k];
                let mut stored = vec![false; n];
                let (image, words) = (config.rows * config.stored_step(), position_words(&config));
                for block in 0..tables.blocks() {
                    for row in 0..config.rows {
                        let n_row = tables.rows[block * config.rows + row];
                        if n_row < 0 {
                            continue;
                        }
                        let n_row = n_row as usize;
                        assert!(!std::mem::replace(&mut stored[n_row], true), "{at}: row {n_row} twice");
                        for step in tables.begin[block] as usize..tables.begin[block + 1] as usize {
                            for place in 0..config.stored_step() {
                                let value = tables.values[step * image + weight_place(&config, row, place)];
                                let column = if config.intrinsic.is_sparse() {
                                    let (word, bit) = position_place(row, place / 2);
                                    let pair = tables.positions[step * words + word] >> bit & 15;
                                    assert!(pair & 3 < pair >> 2, "{at}: positions rise within a group");
                                    place / 2 * 4 + (pair >> (place % 2 * 2) & 3) as usize
                                } else {
                                    place
                                };
                                let k_column = tables.columns[step * config.step + column];
                                if k_column >= 0 {
                                    dense[n_row * k + k_column as usize] += value;
                                } else {
                                    assert_eq!(value, 0.0, "{at}: a weight in a place without a column");
                                }
                            }
                        }
                    }
                }
                let residue = tables.residue.clone().unwrap_or_default();
                assert_eq!(tables.residue.is_some(), config.residue, "{at}");
                let mut restored = 0;
                for (slice, places) in residue.begin.windows(2).enumerate() {
                    let of_row = |i: usize| tables.rows[slice * RESIDUE_ROWS + i];
                    assert!(
                        ((places[1] - places[0]) as usize).is_multiple_of(RESIDUE_BATCH),
                        "{at}: batches are whole"
                    );
                    for i in 0..RESIDUE_ROWS {
                        let places = places[0] as usize..places[1] as usize;
                        let elements: Vec<(i32, f32)> =
                            places.map(|place| residue.elements[place * RESIDUE_ROWS + i]).collect();
                        let there = elements.iter().take_while(|e| e.0 >= 0).count();
                        assert!(elements[there..].iter().all(|&e| e == (-1, 0.0)), "{at}: nothing follows a row's end");
                        for &(column, value) in &elements[..there] {
                            let place = &mut dense[of_row(i) as usize * k + column as usize];
                            assert_eq!(*place, 0.0, "{at}: an element that a tile holds too");
                            (*place, restored) = (value, restored + 1);
                        }
                    }
                }
                assert_eq!(restored, pruned.residue().map_or(0, Residue::len), "{at}");
                assert!(stored.iter().all(|&s| s), "{at}: a row that no block stores");
                assert!(dense == pruned.dense().to_f32(), "{at}: the tables hold another weight");
            }
        }
    }
}
