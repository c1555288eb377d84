//! The terms of the e-graph: axes, nests of loops, schedules, and the pairs that run one with the other.
//!
//! ```text
//! axis  = n | k | (outer axis f) | (inner axis f) | (joined axis axis) | (kept axis per keep) | (permuted axis)
//! per   = (per axis*)               the loops whose assignments are a skip's regions
//! nest  = (nest axis*)              the loops, outermost first; a pattern is its nest
//! sched = open | (choice sched)     choices closed one after the other
//! pair  = (run nest sched)
//! ```
//!
//! An axis denotes the value it has at an element of the weight; `kept` and `permuted` hold a choice that pruning makes,
//! and structurally equal ones share it. A nest denotes the set of masks that its choices lead to.

use super::schedule::Choice;
use egg::{Id, define_language};
use fractal_dsl::pattern::{Keep, Ratio};
use std::fmt;
use std::str::FromStr;

/// How many iterations a skip keeps, once the lengths are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum KeepTerm {
    /// This many in each region.
    Count(usize),
    /// One threshold over all regions: parts per million of all iterations.
    Ragged(u32),
    /// One threshold over all regions that keeps this many.
    RaggedCount(usize),
}

impl KeepTerm {
    /// As the pattern builder takes it, for an axis of `len` iterations.
    pub(super) fn keep(self, len: usize) -> Option<Keep> {
        Some(match self {
            KeepTerm::Count(kept) if len <= 16 => Keep::Of { kept, of: len },
            KeepTerm::Count(kept) => Keep::Count(kept),
            KeepTerm::Ragged(parts) => Keep::Ragged(Ratio::new(f64::from(parts) / 1e6).ok()?),
            KeepTerm::RaggedCount(count) => Keep::RaggedCount(count),
        })
    }

    /// The keep of a pattern's skip that leaves `kept` iterations in a region, if it is not ragged.
    pub(super) fn of(keep: Keep, kept: Option<usize>) -> KeepTerm {
        match (keep, kept) {
            (_, Some(kept)) => KeepTerm::Count(kept),
            (Keep::Ragged(ratio), _) => KeepTerm::Ragged((ratio.fraction() * 1e6).round() as u32),
            (Keep::RaggedCount(count), _) => KeepTerm::RaggedCount(count),
            // A skip by count always knows it.
            (Keep::Count(count) | Keep::Of { kept: count, .. }, None) => KeepTerm::Count(count),
            (Keep::Ratio(ratio), None) => KeepTerm::Ragged((ratio.fraction() * 1e6).round() as u32),
        }
    }
}

impl fmt::Display for KeepTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeepTerm::Count(count) => write!(f, "keep:{count}"),
            KeepTerm::Ragged(parts) => write!(f, "ragged-ppm:{parts}"),
            KeepTerm::RaggedCount(count) => write!(f, "ragged:{count}"),
        }
    }
}

impl FromStr for KeepTerm {
    type Err = ();

    fn from_str(text: &str) -> Result<KeepTerm, ()> {
        let (kind, number) = text.split_once(':').ok_or(())?;
        match kind {
            "keep" => number.parse().map(KeepTerm::Count).map_err(drop),
            "ragged-ppm" => number.parse().map(KeepTerm::Ragged).map_err(drop),
            "ragged" => number.parse().map(KeepTerm::RaggedCount).map_err(drop),
            _ => Err(()),
        }
    }
}

define_language! {
    /// One node of the e-graph.
    pub(super) enum Lang {
        "n" = N,
        "k" = K,
        Num(usize),
        Keep(KeepTerm),
        "outer" = Outer([Id; 2]),
        "inner" = Inner([Id; 2]),
        "joined" = Joined([Id; 2]),
        "kept" = Kept([Id; 3]),
        "permuted" = Permuted([Id; 1]),
        "per" = Per(Box<[Id]>),
        "nest" = Nest(Box<[Id]>),
        "run" = Run([Id; 2]),
        "open" = Open,
        Close(Choice, [Id; 1]),
    }
}
