//! Tiles of a weight and a number of tokens -> how `ffma` kernels divide them over the GPU: the least expected time.

use super::DeviceInfo;
use fractal_sched::codegen::{FFMA_BLOCKS, FfmaBlock, KernelConfig};

/// The first choice for tables of `rows` rows with blocks of at most that many tokens, where no GPU is known.
pub fn default_choice(rows: usize, tokens: usize) -> FfmaBlock {
    let mut fitting = FFMA_BLOCKS.iter().filter(|c| rows.is_multiple_of(c.division.rows));
    let last = fitting.clone().next_back().unwrap_or(&FFMA_BLOCKS[0]);
    *fitting.find(|c| c.tokens <= tokens).unwrap_or(last)
}

/// The GPU, as far as the choice depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Multiprocessors.
    pub sms: usize,
    /// Bytes of shared memory a block.
    pub shared_per_block: usize,
    /// Bytes of shared memory a multiprocessor.
    pub shared_per_sm: usize,
}

impl Gpu {
    /// An H200.
    pub const H200: Gpu = Gpu { sms: 132, shared_per_block: 232_448, shared_per_sm: 233_472 };
}

impl From<&DeviceInfo> for Gpu {
    fn from(info: &DeviceInfo) -> Gpu {
        Gpu {
            sms: info.sm_count as usize,
            shared_per_block: info.shared_per_block as usize,
            shared_per_sm: info.shared_per_sm as usize,
        }
    }
}

/// Of these kernels, the one with the least expected time for m tokens, if any runs on the GPU; the tables' `tiles` have
/// `columns` kept columns all together.
pub fn least_time(
    gpu: Gpu,
    kernels: Vec<KernelConfig>,
    (tiles, columns): (usize, usize),
    m: usize,
) -> Option<KernelConfig> {
    let fitting = kernels.into_iter().filter(|kernel| kernel.shared_bytes() <= gpu.shared_per_block);
    fitting.map(|c| (expected_cycles(gpu, &c, (tiles, columns), m), c)).min_by(|a, b| a.0.total_cmp(&b.0)).map(|c| c.1)
}

/// Cycles of the multiprocessor with the most blocks. The constants are fitted to 52 times of kernels on the paper's shapes
/// (H200, 75 %), which they meet within 12 % (root mean square).
pub(crate) fn expected_cycles(gpu: Gpu, config: &KernelConfig, (tiles, columns): (usize, usize), m: usize) -> f64 {
    let Some(division) = config.division else { return f64::INFINITY };
    let tiles = tiles.max(1);
    // The driver keeps 1 KiB of shared memory for each block.
    let resident = (gpu.shared_per_sm / (config.shared_bytes() + 1024)).clamp(1, config.blocks_per_sm());
    let results = (division.rows * config.tokens) as f64;
    let each = columns.div_ceil(tiles).next_multiple_of(division.columns) as f64 * results / 128.0;
    // The part of FFMA's rate that 21 warps reach, by results a thread: what it loads for each.
    let rate = match division.warp.0 * division.warp.1 / 32 {
        96.. => 0.92,
        64.. => 0.8,
        48.. => 0.61,
        _ => 0.52,
    };
    let sums = 27.0 * results * division.groups as f64 / 128.0;
    let round = |blocks: usize| {
        let warps = (blocks * config.threads() / 32) as f64;
        blocks as f64 * (each / (rate * (warps / 21.0).clamp(0.01, 1.0).sqrt()) + sums)
    };
    let busiest = (tiles * config.slabs() * m.div_ceil(config.tokens)).div_ceil(gpu.sms);
    (busiest / resident) as f64 * round(resident) + round(busiest % resident)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fractal_dsl::pattern::Named;
    use fractal_dsl::{DType, Layout};

    const H200: Gpu = Gpu { sms: 132, shared_per_block: 232_448, shared_per_sm: 233_472 };

    fn kernels(rows: usize) -> Vec<KernelConfig> {
        let pattern = "tw:128".parse::<Named>().unwrap().pattern(256, 256, 0.25).unwrap();
        let plan = crate::cuda::KernelPlan::new(&crate::Gemm::new(pattern, DType::F32), 90).unwrap();
        plan.ffma_configs(rows, false, 4)
    }

    #[test]
    fn few_results_have_small_blocks_and_many_groups() {
        // The fastest as measured, at 75 %.
        for ((n, k, m), (rows, tokens)) in [
            ((1024, 1024, 1024), (64, 64)),
            ((4096, 1024, 1024), (128, 128)),
            ((1024, 4096, 1024), (64, 64)),
            ((3072, 768, 512), (64, 64)),
            ((768, 3072, 512), (64, 48)),
            ((128, 576, 784), (32, 32)),
            ((64, 576, 3136), (32, 48)),
            ((256, 1152, 3136), (64, 32)),
            ((4096, 4096, 4096), (128, 128)),
            ((16384, 4096, 4096), (128, 128)),
            ((4096, 16384, 4096), (128, 128)),
        ] {
            let height = n.min(128);
            let chosen = least_time(H200, kernels(height), (n / height, n / height * k / 4), m).unwrap();
            let found = (chosen.division.unwrap().rows, chosen.tokens);
            assert_eq!(found, (rows, tokens), "{n}/{k}/{m}: {chosen}");
        }
    }

    #[test]
    fn tables_of_every_height_have_a_kernel_that_fits_the_gpu() {
        let small = Gpu { sms: 40, shared_per_block: 65_536, shared_per_sm: 65_536 };
        for rows in [16, 32, 64, 128] {
            for m in [1, 17, 100, 5000] {
                for (tiles, columns) in [(1, 0), (1, 16), (300, 300 * 64)] {
                    assert!(least_time(H200, kernels(rows), (tiles, columns), m).is_some());
                    assert!(least_time(small, kernels(rows), (tiles, columns), m).is_some());
                }
            }
            for tokens in [16, 64, 128] {
                let choice = default_choice(rows, tokens);
                assert!(
                    kernels(rows)
                        .iter()
                        .any(|k| k.division == Some(choice.division) && k.output == Layout::FeatureMajor)
                );
            }
        }
    }
}
