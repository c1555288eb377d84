//! Masks of layers -> an SVG picture: a panel a layer, dark where weights are kept, as in papers on pruning.

use std::fmt::Write;

use fractal::Pruned;

/// Points a side of a panel at most.
const SIDE: usize = 96;
/// Between panels, for their names.
const GAP: usize = 26;
const COLUMNS: usize = 6;

/// Of the layers in order, with their names.
pub fn draw(layers: &[(&str, &Pruned)]) -> String {
    let rows = layers.len().div_ceil(COLUMNS);
    let (width, height) = (COLUMNS * (SIDE + GAP) + GAP, rows * (SIDE + GAP) + GAP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"7\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (at, (name, pruned)) in layers.iter().enumerate() {
        let (x, y) = (GAP + at % COLUMNS * (SIDE + GAP), GAP + at / COLUMNS * (SIDE + GAP));
        panel(&mut svg, x, y, name, pruned);
    }
    svg + "</svg>\n"
}

fn panel(svg: &mut String, x: usize, y: usize, name: &str, pruned: &Pruned) {
    let (n, k) = (pruned.pattern().n(), pruned.pattern().k());
    let (rows, columns) = (n.min(SIDE), k.min(SIDE));
    let dense = pruned.dense().to_f32();
    // A point stands for a block of weights: as dark as the part of them that is kept.
    let mut kept = vec![0u32; rows * columns];
    let mut all = vec![0u32; rows * columns];
    for row in 0..n {
        for column in 0..k {
            let point = row * rows / n * columns + column * columns / k;
            all[point] += 1;
            kept[point] += u32::from(dense[row * k + column] != 0.0);
        }
    }
    // Writing to a string does not fail.
    let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
    let _ = writeln!(svg, "<rect width=\"{SIDE}\" height=\"{SIDE}\" fill=\"#eef1f6\"/>");
    let (wide, high) = (SIDE as f64 / columns as f64, SIDE as f64 / rows as f64);
    for row in 0..rows {
        let shade = |column: usize| {
            (f64::from(kept[row * columns + column]) * 8.0 / f64::from(all[row * columns + column])).round() as u32
        };
        let mut column = 0;
        while column < columns {
            let dark = shade(column);
            let run = (column..columns).take_while(|&c| shade(c) == dark).count();
            if dark > 0 {
                let (left, top, length) = (column as f64 * wide, row as f64 * high, run as f64 * wide);
                let opacity = f64::from(dark) / 8.0;
                let _ = writeln!(
                    svg,
                    "<rect x=\"{left:.2}\" y=\"{top:.2}\" width=\"{length:.2}\" height=\"{high:.2}\" fill=\"#1d3557\" fill-opacity=\"{opacity:.3}\"/>"
                );
            }
            column += run;
        }
    }
    let label = name.replace("encoder.layer.", "").replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text y=\"-3\">{label}</text>");
    let sparsity = pruned.sparsity() * 100.0;
    let _ = writeln!(svg, "<text y=\"{}\">{n} x {k}, {sparsity:.0} % dropped</text></g>", SIDE + 8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use fractal::pattern::Named;
    use fractal::{DType, Magnitude, Tensor, prune};

    #[test]
    fn kept_weights_are_dark() {
        let pattern = "bw:8x8".parse::<Named>().unwrap().pattern(16, 16, 0.5).unwrap();
        let weights: Vec<f32> = (0..256).map(|at| if at % 16 < 8 { 2.0 } else { 1.0 }).collect();
        let pruned = prune(&pattern, &Tensor::from_f32(DType::F32, 16, 16, &weights).unwrap(), &Magnitude).unwrap();
        let svg = draw(&[("a<b", &pruned)]);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("a&lt;b"), "{svg}");
        // Each of 16 rows of points is one run over the left half.
        let runs = svg.matches("width=\"48.00\" height=\"6.00\" fill=\"#1d3557\" fill-opacity=\"1.000\"").count();
        assert_eq!(runs, 16, "{svg}");
        assert!(svg.contains("16 x 16, 50 % dropped"));
    }
}
