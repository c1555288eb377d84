//! A recipe -> a picture: a row for each block of the model, a field for each of its layers, coloured by the kind of pattern.

use std::fmt::Write;

use fractal::runtime::tune::Recipe;

const WIDTH: usize = 168;
const HEIGHT: usize = 46;

/// The kind of a tiling, and its colour.
fn kind(tiling: &str) -> (&'static str, &'static str) {
    let starts = |names: &[&str]| names.iter().any(|name| tiling.starts_with(name));
    if tiling.contains("+2:4") || starts(&["tvw", "vnm", "2:4"]) {
        ("2 of 4 inside", "#8e6bbf")
    } else if starts(&["shfl"]) {
        ("rows in a found order", "#c9a227")
    } else if starts(&["tw"]) || !tiling.contains('/') && tiling.contains("x1^") {
        ("tile-wise", "#3f8f6b")
    } else if tiling.contains('/') {
        ("blocks inside blocks", "#c0603f")
    } else {
        ("block-wise", "#4a7fb5")
    }
}

/// `encoder.layer.3.attention.self.query` -> (`layer 3`, `attention.self.query`).
fn place(name: &str) -> (String, String) {
    let parts: Vec<&str> = name.split('.').collect();
    match parts.iter().position(|part| part.chars().all(|c| c.is_ascii_digit())) {
        Some(at) => (format!("layer {}", parts[at]), parts[at + 1..].join(".")),
        None => ("model".into(), name.into()),
    }
}

pub fn svg(recipe: &Recipe) -> String {
    let mut rows: Vec<String> = Vec::new();
    let mut columns: Vec<String> = Vec::new();
    let mut fields = Vec::new();
    for (name, layer) in &recipe.layers {
        let (row, column) = place(name);
        for (list, entry) in [(&mut rows, &row), (&mut columns, &column)] {
            if !list.contains(entry) {
                list.push(entry.clone());
            }
        }
        fields.push((row, column, layer));
    }
    let at = |list: &[String], entry: &String| list.iter().position(|e| e == entry).unwrap_or(0);
    let (width, height) = (80 + columns.len() * WIDTH, 60 + rows.len() * HEIGHT);
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let mut text = |x: usize, y: usize, fill: &str, text: &str| {
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"{fill}\">{}</text>", escape(text));
    };
    for (number, column) in columns.iter().enumerate() {
        text(80 + number * WIDTH, 14, "#333333", column);
    }
    for (number, row) in rows.iter().enumerate() {
        text(6, 44 + number * HEIGHT, "#333333", row);
    }
    let mut kinds: Vec<(&str, &str)> = Vec::new();
    for (row, column, layer) in &fields {
        let (x, y) = (80 + at(&columns, column) * WIDTH, 20 + at(&rows, row) * HEIGHT);
        let (name, colour) = kind(&layer.tiling);
        if !kinds.contains(&(name, colour)) {
            kinds.push((name, colour));
        }
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"3\" fill=\"{colour}\"/>\n\
             <text x=\"{}\" y=\"{}\" fill=\"#ffffff\">{}</text>\n\
             <text x=\"{}\" y=\"{}\" fill=\"#ffffff\">{:.0} % kept, {:.0} % retained</text>",
            WIDTH - 6,
            HEIGHT - 6,
            x + 6,
            y + 16,
            escape(&layer.tiling),
            x + 6,
            y + 32,
            layer.density * 100.0,
            layer.retained * 100.0
        );
    }
    let y = 40 + rows.len() * HEIGHT;
    for (number, (name, colour)) in kinds.iter().enumerate() {
        let x = 80 + number * 160;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{}\" y=\"{y}\" fill=\"#333333\">{name}</text>",
            y - 9,
            x + 14
        );
    }
    svg + "</svg>\n"
}
