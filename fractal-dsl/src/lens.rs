//! Lengths of loops over constant dimensions, for the compiler to evaluate: what the checker cannot know of
//! `N = HIDDEN`, the macro's expansion asserts.

use crate::ast::{Ast, Name, Op, Statement};
use crate::diagnostic::At;
use crate::pattern::Keep;
use crate::program::{Dim, Dimension, Program};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use std::collections::BTreeMap;

/// Iterations of the outer loop of a split.
pub const fn outer(len: usize, factor: usize) -> usize {
    len.div_ceil(inner(len, factor))
}

/// Iterations of the inner loop of a split: the factor, or less where the loop is shorter.
pub const fn inner(len: usize, factor: usize) -> usize {
    if factor < len { factor } else { len }
}

/// Iterations that a ratio in parts per million keeps, as [`crate::pattern::Ratio::of`].
pub const fn ratio(len: usize, millionths: usize) -> usize {
    let kept = (len as u128 * millionths as u128 + 500_000) / 1_000_000;
    if kept == 0 { 1 } else { kept as usize }
}

/// Something that must hold for the values of the constants.
#[derive(Debug)]
pub struct Obligation {
    /// The tokens that ask for it.
    pub at: At,
    /// A constant expression over [`dimension_name`]s and the functions of this module (`lens::…`).
    pub condition: TokenStream,
    /// What is wrong where it does not hold.
    pub message: String,
}

/// The name by which conditions call a dimension.
pub fn dimension_name(dimension: Dimension) -> proc_macro2::Ident {
    format_ident!("SPARSE_GEMM_{}", dimension.name())
}

/// What the schedule of a checked program asks of its constant dimensions.
pub fn obligations(ast: &Ast, program: &Program) -> Vec<Obligation> {
    let size = |dimension: Dimension| match program.dim(dimension) {
        Dim::Runtime => None,
        Dim::Fixed(size) => Some(quote!(#size)),
        Dim::Const(_) => {
            let name = dimension_name(dimension);
            Some(quote!(#name))
        }
    };
    let axes = program.axes();
    let mut lengths = Lengths::new();
    for (name, dimension) in [(&axes.n, Dimension::N), (&axes.k, Dimension::K)] {
        if let Some(size) = size(dimension) {
            lengths.insert(name.clone(), size);
        }
    }
    let mut found = Vec::new();
    for statement in &ast.statements {
        let Statement::Schedule(primitives) = statement else { continue };
        primitives.iter().for_each(|primitive| step(&primitive.op, &mut lengths, &mut found));
    }
    found
}

/// Loops whose length the compiler can know.
type Lengths = BTreeMap<String, TokenStream>;

fn step(op: &Op, lengths: &mut Lengths, found: &mut Vec<Obligation>) {
    match op {
        Op::Split { axis, factor, outer, inner } => {
            let factor = factor.value;
            if let Some(len) = lengths.remove(&axis.text) {
                lengths.insert(outer.text.clone(), quote!(lens::outer(#len, #factor)));
                lengths.insert(inner.text.clone(), quote!(lens::inner(#len, #factor)));
            }
        }
        Op::Join { a, b, out } => {
            if let (Some(a), Some(b)) = (lengths.remove(&a.text), lengths.remove(&b.text)) {
                lengths.insert(out.text.clone(), quote!((#a * #b)));
            }
        }
        Op::Skip { axis, keep, keep_at, .. } => skip(axis, *keep, *keep_at, lengths, found),
        _ => {}
    }
}

fn skip(axis: &Name, keep: Keep, at: At, lengths: &mut Lengths, found: &mut Vec<Obligation>) {
    let Some(len) = lengths.get(&axis.text).cloned() else { return };
    let name = &axis.text;
    let kept = match keep {
        Keep::Count(count) => {
            let message = format!("keep is out of range: expected at most the iterations of `{name}`, found {count}");
            found.push(Obligation { at, condition: quote!(#count <= #len), message });
            quote!(#count)
        }
        Keep::Of { kept, of } => {
            let message = format!("`{name}` does not have {of} iterations, as `{kept} of {of}` expects");
            found.push(Obligation { at, condition: quote!(#of == #len), message });
            quote!(#kept)
        }
        Keep::Ratio(ratio) => {
            let millionths = (ratio.fraction() * 1e6).round() as usize;
            quote!(lens::ratio(#len, #millionths))
        }
        // A ragged loop has no one length, and a second skip of it is an error already.
        Keep::Ragged(_) | Keep::RaggedCount(_) => len,
    };
    lengths.insert(name.clone(), kept);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::{AxisId, PatternBuilder, Ratio};

    #[test]
    fn lengths_are_those_of_pattern_ir() {
        for len in 1..70 {
            for by in [1, 2, 3, 4, 7, 16, 64, 100] {
                let mut builder = PatternBuilder::new(len, 4).unwrap();
                let (o, i) = builder.split(AxisId::N, by).unwrap();
                assert_eq!(builder.axis(o).unwrap().len, outer(len, by), "{len} by {by}");
                assert_eq!(builder.axis(i).unwrap().len, inner(len, by), "{len} by {by}");
                assert_eq!(Ratio::new(by as f64 / 100.0).unwrap().of(len), ratio(len, by * 10_000));
            }
        }
    }
}
