//! What `sparse_gemm!` expands to: types and values that equal the program read from text.

use fractal::dsl::Dimension;
use fractal::{Program, SparseGemm, sparse_gemm};

const HIDDEN: usize = 1024;

mod config {
    pub const WIDTH: u32 = 64;
    pub const fn twice(n: usize) -> usize {
        2 * n
    }
}

sparse_gemm! {
    /// Up-projection of a "BERT-large" FFN.
    ///
    /// Half of the columns of each tile, then 2 of 4.
    pub gemm FfnUp<M, N = { 4 * HIDDEN }, K = config::twice(512)> {
        weight w: bf16[N, K];
        input  x: bf16[K, M];
        output y: bf16[N, M];
        y[n, m] += w[n, k] * x[k, m];
        y = gelu(y + bias[n]);
        schedule {
            let (no, ni) = split(n, 128);
            skip(k, per = no, keep = 50%);
            let (ko, ki) = split(k, 4);
            skip(ki, per = (n, ko), keep = 2 of 4);
            tensorize(ni, m, k, wgmma_sp);
        }
    }
}

#[allow(non_camel_case_types)]
mod raw {
    use super::{config, sparse_gemm};

    sparse_gemm! {
        pub(crate) gemm r#final<M, N, K = config::WIDTH> {
            weight w: f32[N, K];
            input  x: f32[M, K];
            output y: f32[M, N];
            y[t, o] += x[t, i] * w[o, i];
            schedule { let (r#in, out) = split(i, 8); skip(r#in, per = (o), keep = 6.25%); skip(out, per = o, keep = 1); }
        }
    }
}

#[test]
fn the_item_form_is_a_type() {
    fn program_of<G: SparseGemm>() -> &'static Program {
        G::program()
    }
    let program = FfnUp::program();
    assert_eq!(program_of::<FfnUp>(), program);
    assert_eq!(program.name(), Some("FfnUp"));
    assert_eq!(program.docs()[0], "Up-projection of a \"BERT-large\" FFN.");
    assert_eq!(program.dim(Dimension::N).fixed(), Some(4096));
    assert_eq!(program.dim(Dimension::K).fixed(), Some(1024));
    let read = Program::parse_with(FfnUp::TEXT, &[("HIDDEN", 1024), ("K", 1024)]);
    assert_eq!(read.as_ref(), Ok(program));
}

#[test]
fn a_name_may_be_a_raw_keyword() {
    use raw::r#final;
    assert_eq!(r#final::program().name(), Some("r#final"));
    assert_eq!(Program::parse(&r#final::program().to_string()).as_ref(), Ok(r#final::program()));
}

#[test]
fn the_expression_form_is_a_value() {
    let inferred = sparse_gemm! { <M, N = HIDDEN, K = 2 * 32>
        weight w: f16[N, K];
        input x: f16[K, M];
        output y: f16[N, M];
        y[n, m] += w[n, k] * x[k, m];
        schedule { skip(k, per = n, keep = 25%); }
    };
    let braced = sparse_gemm! {
        <M, N = 1024, K = 64> {
            weight w: f16[N, K];
            input x: f16[K, M];
            output y: f16[N, M];
            y[n, m] += w[n, k] * x[k, m];
            schedule { skip(k, per = n, keep = 25%); }
        }
    };
    assert_eq!(inferred, braced);
    assert_eq!(inferred.pattern(1024, 64).unwrap().format().slots, Some(1024 * 16));
}

macro_rules! layers {
    ($($name:ident: $n:expr, $keep:literal;)*) => {
        $(sparse_gemm! {
            gemm $name<M, N = $n, K = 64> {
                weight w: f16[N, K];
                input x: f16[K, M];
                output y: f16[N, M];
                y[n, m] += w[n, k] * x[k, m];
                schedule { skip(k, per = n, keep = $keep); }
            }
        })*
    };
}

layers! {
    Small: 64, 8;
    Large: HIDDEN * 4, 16;
}

#[test]
fn other_macros_may_write_it() {
    assert_eq!(Small::program().dim(Dimension::N).fixed(), Some(64));
    assert_eq!(Large::program().dim(Dimension::N).fixed(), Some(4096));
}

#[test]
fn what_a_schedule_asks_of_constants_is_checked_by_the_compiler() {
    // Each count is the largest that compiles; `tests/compile_fail/header/constants_of_schedule.rs` has one more.
    let program = sparse_gemm! { <M, N = HIDDEN, K = config::WIDTH>
        weight w: f16[N, K];
        input x: f16[K, M];
        output y: f16[N, M];
        y[n, m] += w[n, k] * x[k, m];
        schedule {
            let (no, ni) = split(n, 100);
            skip(no, per = (), keep = 11);
            skip(k, per = no, keep = 50%);
            let (ko, ki) = split(k, 5);
            skip(ko, per = no, keep = 7);
            skip(ki, per = (n, ko), keep = 2 of 5);
        }
    };
    assert!(program.pattern(HIDDEN, 64).is_ok());
}
