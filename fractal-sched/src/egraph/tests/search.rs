//! Searches as users run them.

use super::{named, saturate};
use crate::egraph::{CostModel, Family, Limits, Pair, Roofline, Search, Stop, Target, rules};
use crate::{EpilogueStep, KernelRequest};
use fractal_dsl::pattern::{AxisId, Keep, PatternBuilder};
use fractal_dsl::{DType, Intrinsic, Layout};
use std::time::{Duration, Instant};

#[test]
fn timing() {
    for (name, n, k) in [("dense", 512, 512), ("tw:128", 4096, 1024), ("tvw:128", 4096, 1024), ("hybrid:64x64/8x8", 4096, 1024), ("vnm:64:2:8", 4096, 1024),
       ("bw:128x64", 4096,1024), ("ew", 512, 512), ("shfl-bw:64x64", 4096, 1024), ("tw2:128", 4096, 1024), ("2:4", 4096, 1024), ("bw-global:64x64", 1024, 1024), ("tw-global:128", 1024, 1024)] {
        let pattern = named(name, n, k, 0.25);
        let begin = Instant::now();
        let mut s = Search::new(&pattern, DType::F16, &[], Target::h200()).run();
        let t1 = begin.elapsed();
        let c = s.candidates(&Roofline::h200(DType::F16), 4096, 5);
        let np = s.patterns().len(); println!("{name}: {:?} {} nodes {} classes {} it, {:?}; candidates {:?}; patterns {}", s.stop, s.nodes, s.classes, s.iterations, t1, begin.elapsed() - t1, np);
        println!("   {:?}", s.applied);
        for c in &c { println!("   {:.0} {:?} {:?} steps {}", c.cost, c.request, c.rules, c.pattern.steps().len()); }
    }
}
