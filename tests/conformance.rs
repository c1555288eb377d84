//! One suite for every backend: all patterns, types and odd shapes against the oracle, on poisoned results and fresh data.
//!
//! A backend joins with one line at the end of this file.

mod support;

use fractal::sched::Form;
use fractal::{DType, Device};
use rayon::prelude::*;
use support::{FEW_TOKENS, LARGE, PATTERNS, SHAPES, check, check_unkept_activations, cuda_or_skip};

/// Runs all cases whose multiply-adds stay below `most`; a slow backend takes fewer of the large ones.
fn all_cases(device: &Device, dtype: DType, most: usize) {
    let mut ran = 0;
    for (p, text) in PATTERNS.iter().enumerate() {
        for (s, &(n, k, m)) in SHAPES.iter().enumerate() {
            if n * k * m <= most {
                check(device, text, dtype, (n, k, m), p + s);
                ran += 1;
            }
        }
    }
    assert!(ran >= PATTERNS.len() * 8, "only {ran} cases ran");
}

macro_rules! conformance {
    ($backend:ident, $device:expr, $most:expr) => {
        mod $backend {
            use super::*;

            #[test]
            fn f32() {
                let Some(device) = $device else { return };
                all_cases(&device, DType::F32, $most);
            }

            #[test]
            fn f16() {
                let Some(device) = $device else { return };
                all_cases(&device, DType::F16, $most);
            }

            #[test]
            fn bf16() {
                let Some(device) = $device else { return };
                all_cases(&device, DType::BF16, $most);
            }

            #[test]
            fn unkept_activations_do_not_leak() {
                let Some(device) = $device else { return };
                PATTERNS.par_iter().for_each(|text| {
                    for dtype in DType::ALL {
                        for m in [33, 5] {
                            check_unkept_activations(&device, text, dtype, (70, 90, m));
                        }
                    }
                });
            }

            #[test]
            fn few_tokens() {
                let Some(device) = $device else { return };
                // At once: nearly every case compiles a kernel of its own.
                let patterns = ["tw:128", "bw:32x16", "dense", "vw:16", "tw:64"];
                (0..patterns.len() * FEW_TOKENS.len()).into_par_iter().for_each(|case| {
                    let (p, s) = (case % patterns.len(), case / patterns.len());
                    let (n, k, m) = FEW_TOKENS[s];
                    if n * k * m <= $most {
                        check(&device, patterns[p], DType::ALL[1 + (p + s) % 2], (n, k, m), p + s);
                    }
                });
            }

            #[test]
            fn large() {
                let Some(device) = $device else { return };
                for (p, text) in PATTERNS.iter().enumerate() {
                    for (s, &(n, k, m)) in LARGE.iter().enumerate().filter(|(_, (n, k, m))| n * k * m <= $most) {
                        check(&device, text, DType::ALL[(p + s) % 3], (n, k, m), p + s);
                        check(&device, text, DType::ALL[1 + (p + s) % 2], (n, k, m), p + s + 1);
                        check_unkept_activations(&device, text, DType::ALL[1 + (p + s) % 2], (n, 90, m));
                    }
                }
            }
        }
    };
}

conformance!(interpreter, Some(Device::interpreter(Form::Condensed)), 400_000);
conformance!(interpreter_scalar, Some(Device::interpreter(Form::Scalar)), 400_000);
conformance!(cpu, Some(Device::cpu()), usize::MAX);
conformance!(cuda, cuda_or_skip(), usize::MAX);
