//! Every example of docs/language.md is what it says it is.

use fractal_dsl::{DType, Program};

#[test]
fn the_examples_of_the_language_page_are_programs() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/language.md");
    let page = std::fs::read_to_string(path).unwrap();
    let mut seen = 0;
    for block in page.split("\n```").skip(1).step_by(2) {
        let (kind, text) = block.split_once('\n').unwrap();
        let parsed = match kind {
            "fractal" => Program::parse(text),
            "schedule" | "nest" => Program::for_pattern_text(text, 1024, 1024, DType::BF16),
            other => panic!("a block of `{other}`"),
        };
        let program = parsed.unwrap_or_else(|e| panic!("{text}\n{e}"));
        let n = if kind == "fractal" { 4096 } else { 1024 };
        program.pattern(n, 1024).unwrap_or_else(|e| panic!("{text}\n{e}"));
        seen += 1;
    }
    assert_eq!(seen, 4);
}
