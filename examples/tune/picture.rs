//! A pattern and scores -> a corner of its mask, drawn: kept elements as few rectangles, with the edges of its tiles.

use fractal::pattern::{AxisId, Mask, Pattern, Step};
use std::fmt::Write;

/// Elements on a side of the corner, at most and at least.
const MOST: usize = 256;
const LEAST: usize = 64;
/// More rectangles than this make the corner smaller.
const RECTANGLES: usize = 3000;
/// Pixels on the longer side.
const SIDE: usize = 560;
/// Edges closer than this many pixels are left out.
const CLOSEST: usize = 10;

/// A figure with the mask that pruning by `scores` gives; or why there is none.
pub fn mask(pattern: &Pattern, scores: &[f32]) -> Result<String, String> {
    let selection = pattern.project(scores).map_err(|error| error.to_string())?;
    let mask = pattern.mask(&selection).map_err(|error| error.to_string())?;
    let (row_edges, column_edges) = edges(pattern);
    let mut most = MOST;
    let (rows, columns, rectangles) = loop {
        let (rows, columns) = (crop(mask.n(), &row_edges, most), crop(mask.k(), &column_edges, most));
        let rectangles = rectangles(&mask, rows, columns);
        if rectangles.len() <= RECTANGLES || most <= LEAST {
            break (rows, columns, rectangles);
        }
        most /= 2;
    };
    Ok(figure(&mask, (rows, columns), &rectangles, (&row_edges, &column_edges)))
}

fn figure(
    mask: &Mask,
    (rows, columns): (usize, usize),
    rectangles: &[Rectangle],
    (row_edges, column_edges): (&[usize], &[usize]),
) -> String {
    let scale = (SIDE / rows.max(columns)).max(1);
    let (width, height) = (columns * scale, rows * scale);
    let mut svg = format!(
        "<figure>\n<svg class=\"mask\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"kept elements\">\n\
         <rect class=\"dropped\" width=\"{width}\" height=\"{height}\"/>\n<path class=\"kept\" d=\""
    );
    for r in rectangles {
        let (x, y, width, height) = (r.column * scale, r.row * scale, r.columns * scale, r.rows * scale);
        let _ = write!(svg, "M{x} {y}h{width}v{height}h-{width}z");
    }
    svg.push_str("\"/>\n");
    let visible = |edges: &[usize]| edges.iter().copied().filter(|every| every * scale >= CLOSEST).collect::<Vec<_>>();
    let (of_rows, of_columns) = (visible(row_edges), visible(column_edges));
    for level in 0..of_rows.len().max(of_columns.len()) {
        let mut path = String::new();
        for row in of_rows.get(level).into_iter().flat_map(|&every| (every..rows).step_by(every)) {
            let _ = write!(path, "M0 {}h{width}", row * scale);
        }
        for column in of_columns.get(level).into_iter().flat_map(|&every| (every..columns).step_by(every)) {
            let _ = write!(path, "M{} 0v{height}", column * scale);
        }
        if !path.is_empty() {
            let class = if level == 0 { "edge" } else { "edge fine" };
            let _ = writeln!(svg, "<path class=\"{class}\" d=\"{path}\"/>");
        }
    }
    let _ = writeln!(
        svg,
        "</svg>\n<figcaption>The first {rows} x {columns} of {} x {} weights; kept ones are filled, {:.2}% of all. \
         {}</figcaption>\n</figure>",
        mask.n(),
        mask.k(),
        mask.density() * 100.0,
        told(&of_rows, &of_columns),
    );
    svg
}

/// What the lines are.
fn told(rows: &[usize], columns: &[usize]) -> String {
    let list = |edges: &[usize]| edges.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (rows.is_empty(), columns.is_empty()) {
        (true, true) => String::new(),
        (false, true) => format!("Lines are edges of tiles: every {} rows.", list(rows)),
        (true, false) => format!("Lines are edges of tiles: every {} columns.", list(columns)),
        (false, false) => {
            format!("Lines are edges of tiles: every {} rows, every {} columns.", list(rows), list(columns))
        }
    }
}

/// How many rows and columns apart the edges of tiles lie, the widest first: of loops that walk over W in even steps.
fn edges(pattern: &Pattern) -> (Vec<usize>, Vec<usize>) {
    // Of each axis: whether it is of rows, and how far apart its iterations lie in W.
    let mut strides: Vec<Option<(bool, usize)>> = vec![None; pattern.axes().len()];
    strides[AxisId::N.index()] = Some((true, 1));
    strides[AxisId::K.index()] = Some((false, 1));
    let (mut rows, mut columns) = (Vec::new(), Vec::new());
    for step in pattern.steps() {
        let Step::Split { axis, factor, outer, inner } = step else { continue };
        let Some((of_rows, stride)) = strides[axis.index()] else { continue };
        let every = stride * factor;
        strides[outer.index()] = Some((of_rows, every));
        strides[inner.index()] = Some((of_rows, stride));
        if every > 1 {
            if of_rows { &mut rows } else { &mut columns }.push(every);
        }
    }
    for edges in [&mut rows, &mut columns] {
        edges.sort_unstable_by(|a, b| b.cmp(a));
        edges.dedup();
    }
    (rows, columns)
}

/// How much of a side is shown: whole tiles, where they fit.
fn crop(side: usize, edges: &[usize], most: usize) -> usize {
    if side <= most {
        return side;
    }
    edges.iter().find(|&&every| every <= most).map_or(most, |every| most / every * every)
}

/// Kept elements, all of them.
#[derive(Clone, Copy)]
struct Rectangle {
    row: usize,
    column: usize,
    rows: usize,
    columns: usize,
}

/// The kept elements of the corner: runs of each row, those that go on in the next row as one.
fn rectangles(mask: &Mask, rows: usize, columns: usize) -> Vec<Rectangle> {
    let mut done = Vec::new();
    let mut open: Vec<Rectangle> = Vec::new();
    for row in 0..rows {
        let mut here = Vec::new();
        let mut column = 0;
        while column < columns {
            let length = (column..columns).take_while(|&c| mask.contains(row, c)).count();
            if length > 0 {
                let above = open.iter().position(|r| r.column == column && r.columns == length);
                let mut rectangle = match above {
                    Some(at) => open.swap_remove(at),
                    None => Rectangle { row, column, rows: 0, columns: length },
                };
                rectangle.rows += 1;
                here.push(rectangle);
            }
            column += length + 1;
        }
        done.append(&mut open);
        open = here;
    }
    done.append(&mut open);
    done
}
