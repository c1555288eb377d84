//! Every misuse and the exact text of its diagnostics.
//!
//! `tests/misuse/*.txt` holds cases: `=== title`, the text, `---`, what is reported. `@prelude` stands for the
//! statements of a whole bf16 gemm. `FRACTAL_RENEW_GOLDENS=1 cargo test -p fractal-dsl --test misuse` writes what is reported
//! now; read the difference before it is committed.

use fractal_dsl::{DType, Program};
use std::fmt::Write;
use std::path::Path;

/// Ends its line, so that what follows keeps its columns.
const PRELUDE: &str =
    "weight w: bf16[N, K]; input x: bf16[K, M]; output y: bf16[N, M]; y[n, m] += w[n, k] * x[k, m];\n";

/// The cases of a file as (title, text).
fn cases(file: &str) -> Vec<(&str, &str)> {
    let blocks = file.split("=== ").skip(1);
    blocks
        .map(|block| {
            let (title, rest) = block.split_once('\n').expect("a title ends its line");
            let text = rest.split_once("---\n").map_or(rest, |(text, _)| text);
            (title, text.strip_suffix('\n').unwrap_or(text))
        })
        .collect()
}

fn check(name: &str, read: impl Fn(&str) -> Result<Program, fractal_dsl::Diagnostics>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/misuse").join(name);
    let expected = std::fs::read_to_string(&path).expect("the cases are beside the test");
    let mut found = String::new();
    for (title, text) in cases(&expected) {
        let errors = read(&text.replace("@prelude", PRELUDE)).expect_err(title);
        assert!(!errors.as_slice().is_empty(), "{title}");
        let report = errors.to_string().replace(PRELUDE.trim_end(), "@prelude");
        writeln!(found, "=== {title}\n{text}\n---\n{report}").expect("writing to a string");
    }
    if std::env::var_os("FRACTAL_RENEW_GOLDENS").is_some() {
        std::fs::write(&path, found).expect("the golden file can be written");
    } else {
        assert!(found == expected, "{name} differs; found:\n{found}");
    }
}

macro_rules! programs {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(concat!(stringify!($name), ".txt"), Program::parse); })*
    };
}

programs! { header operands contraction epilogue loops skip tensorize choices }

#[test]
fn nest() {
    check("nest.txt", |text| Program::for_pattern_text(text, 16, 16, DType::BF16));
}
