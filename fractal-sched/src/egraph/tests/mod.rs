//! The e-graph against oracles that share no code with it: all masks of small patterns, and a naive masked product.

#[path = "../../../../fractal-dsl/tests/common/mod.rs"]
mod common;
mod masks;
mod product;
mod sample;
mod schedules;
mod search;
mod soundness;

use super::{Saturated, Search, Target};
use fractal_dsl::DType;
use fractal_dsl::pattern::{Named, Pattern};

/// How many times more cases property tests run than usual: `FRACTAL_MORE_CASES`.
fn more() -> u32 {
    std::env::var("FRACTAL_MORE_CASES").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// A named pattern.
fn named(name: &str, n: usize, k: usize, keep: f64) -> Pattern {
    let named: Named = name.parse().unwrap();
    named.pattern(n, k, named.fixed_keep().unwrap_or(keep)).unwrap()
}

/// A search with the rules of these names, on a target without kernels: patterns alone.
fn saturate(pattern: &Pattern, only: Option<&[&'static str]>) -> Saturated {
    let search = Search::new(pattern, DType::F16, &[], Target { intrinsics: Vec::new(), ..Target::h200() });
    match only {
        Some(names) => search.only(names).run(),
        None => search.run(),
    }
}
