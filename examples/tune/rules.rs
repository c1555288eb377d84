//! `tune rules`: which rewrite rules take part in what is cheapest, over the paper's shapes; needs no GPU.

use std::collections::BTreeMap;

use fractal::cuda::Gpu;
use fractal::dsl::Layout;
use fractal::runtime::tune::{Calibration, Model, space};
use fractal::sched::egraph;
use fractal::{DType, Gemm};
use rayon::prelude::*;

use crate::Result;
use crate::args::Rules;
use crate::output::line;
use crate::shapes::shape_list;

pub fn run(args: &Rules) -> Result<()> {
    let model = Model { calibration: Calibration::of_device("NVIDIA H200")?, gpu: Gpu::H200, sm: 90 };
    let mut jobs = Vec::new();
    for shape in shape_list("paper")?.0 {
        for sparsity in [0.5, 0.75, 0.9375] {
            for tiling in space::tilings(shape.n, shape.k, 1.0 - sparsity) {
                // Token-major operands once in a while.
                let layout = if jobs.len() % 5 == 4 { Layout::TokenMajor } else { Layout::FeatureMajor };
                let dtype = if jobs.len() % 7 == 6 { DType::F32 } else { DType::F16 };
                jobs.push((shape, tiling, layout, dtype));
            }
        }
    }
    let searches = jobs.len();
    let count = |(shape, tiling, layout, dtype): &(crate::shapes::Shape, space::Tiling, Layout, DType)| {
        let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
        let Ok(pattern) = tiling.pattern(shape.n, shape.k) else { return counts };
        let gemm = Gemm::new(pattern, *dtype).with_layouts(*layout, *layout);
        for plan in model.plans(&gemm, shape.m, args.winners as usize) {
            plan.rules.iter().for_each(|rule| *counts.entry(rule).or_default() += 1);
        }
        counts
    };
    let counts = jobs.par_iter().map(count).reduce(BTreeMap::new, |mut all, some| {
        some.into_iter().for_each(|(rule, times)| *all.entry(rule).or_default() += times);
        all
    });
    line(format_args!("{searches} searches, the {} cheapest pairs of each", args.winners));
    for rule in egraph::rules() {
        let times = counts.get(rule.name).copied().unwrap_or(0);
        line(format_args!("{times:>8}  {:28} {}", rule.name, rule.reason));
    }
    Ok(())
}
