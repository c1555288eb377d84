//! How the host lays out what a kernel reads. Kernel and packing must agree on every formula here.

use super::KernelConfig;
use fractal_dsl::Intrinsic;

/// The entry of a column list, or of a row list, that stands for nothing.
pub const NOTHING: i32 = -1;

/// Rows of a tile whose restored elements lie side by side: those of a fragment.
pub const RESIDUE_ROWS: usize = 8;

/// Places of such rows come in multiples of this.
pub const RESIDUE_BATCH: usize = 4;

/// Where the weight of a tile's `row` and stored `column` lies in a step's image of rows x stored columns.
pub fn weight_place(config: &KernelConfig, row: usize, column: usize) -> usize {
    match config.intrinsic {
        // Columns outermost: a thread reads its rows of one column at once.
        Intrinsic::Ffma => column * config.rows + row,
        _ => swizzled(config.stored_step(), config.dtype.bytes(), row, column),
    }
}

/// As `fractal::swizzled` of memory.cuh.
fn swizzled(columns: usize, size: usize, row: usize, column: usize) -> usize {
    let per_chunk = 16 / size;
    let chunks = columns / per_chunk;
    let (rows_per_line, mask) = if chunks >= 8 { (1, 7) } else { (8 / chunks, chunks - 1) };
    let chunk = (column / per_chunk) ^ ((row / rows_per_line) & mask);
    row * columns + chunk * per_chunk + column % per_chunk
}

/// Words of positions a step: for each 16 rows, one for each lane.
pub fn position_words(config: &KernelConfig) -> usize {
    config.rows / 16 * 32
}

/// Where the positions of group `group` (four logical columns) of `row` lie: the word within the step, and its lowest bit.
///
/// A lane's word holds 16 bits of row `lane / 4` and 16 of the row eight below, both for the 16 columns from
/// `16 * (lane % 4)` on: two bits for each of the two kept, the first lowest (PTX ISA, metadata of m16n8k32 f16).
pub fn position_place(row: usize, group: usize) -> (usize, usize) {
    let (quarter, within) = (group / 4, group % 4);
    let lane = row % 8 * 4 + quarter;
    let word = row / 16 * 32 + lane;
    (word, (row % 16) / 8 * 16 + within * 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fractal_dsl::{DType, Layout};

    #[test]
    fn images_and_positions_are_bijections() {
        for (intrinsic, step) in
            [(Intrinsic::Ffma, 16), (Intrinsic::MmaSync, 32), (Intrinsic::MmaSync, 64), (Intrinsic::MmaSp, 64)]
        {
            for rows in [16, 32, 64, 128] {
                let config = KernelConfig {
                    intrinsic,
                    dtype: DType::F16,
                    rows,
                    tokens: 128,
                    step,
                    stages: 3,
                    split: 1,
                    share: 1,
                    resident: 0,
                    vector: 8,
                    decode: None,
                    division: None,
                    output: Layout::FeatureMajor,
                    runs: false,
                    column_run: 0,
                    stored_zeros: false,
                    residue: false,
                    epilogue: vec![],
                };
                let stored = config.stored_step();
                let mut seen = vec![false; rows * stored];
                for row in 0..rows {
                    for column in 0..stored {
                        let place = weight_place(&config, row, column);
                        assert!(!std::mem::replace(&mut seen[place], true));
                    }
                }
                let mut bits = vec![0u32; position_words(&config)];
                for row in 0..rows {
                    for group in 0..16 {
                        let (word, bit) = position_place(row, group);
                        assert_eq!(bits[word] >> bit & 15, 0);
                        bits[word] |= 15 << bit;
                    }
                }
                assert!(bits.iter().all(|&b| b == u32::MAX));
            }
        }
    }
}
