#!/usr/bin/env python3
"""Rows of the example bench as a chart: the speedup of each pattern over dense, one panel a sparsity, one bar a shape.

    cargo run --release --example bench -- --shapes paper --pattern all --sparsity 0.5,0.75,0.9375 --json rows.json
    python3 docs/charts.py rows.json chart.svg
"""
import json
import sys
from html import escape

PANEL_WIDTH, ROW_HEIGHT, BAR_HEIGHT = 360, 16, 11
LEFT, TOP, GAP = 150, 64, 24
COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000"]


def text(x, y, words, anchor="start", size=11, weight="normal"):
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def line(x, y0, y1, colour, dash=""):
    dash = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y0}" y2="{y1}" stroke="{colour}"{dash}/>'


def unique(values):
    return list(dict.fromkeys(values))


def panel(rows, names, shapes, left, height, scale):
    """The bars of one sparsity, the shapes of a pattern below each other; `scale` is pixels for a speedup of 1."""
    parts = []
    times = {(row["pattern"], shape_of(row)): row["speedup"] for row in rows}
    group = len(shapes) * BAR_HEIGHT + GAP / 2
    for step in range(int(PANEL_WIDTH / scale) + 1):
        colour, dash = ("#000000", "4 3") if step == 1 else ("#dddddd", "")
        parts.append(line(left + step * scale, TOP, TOP + height, colour, dash))
        parts.append(text(left + step * scale, TOP - 4, f"{step}x", "middle", 9))
    for at, name in enumerate(names):
        for number, shape in enumerate(shapes):
            speedup = times.get((name, shape))
            if speedup is None:
                continue
            y = TOP + at * group + number * BAR_HEIGHT
            title = f"<title>{escape(name)}, n/k/m {shape}: {speedup:.2f}x</title>"
            colour = COLOURS[number % len(COLOURS)]
            size = f'width="{speedup * scale:.1f}" height="{BAR_HEIGHT - 2}"'
            parts.append(f'<rect x="{left}" y="{y:.1f}" {size} fill="{colour}">{title}</rect>')
            parts.append(text(left + speedup * scale + 3, y + BAR_HEIGHT - 3, f"{speedup:.2f}", size=8))
    return parts


def shape_of(row):
    return f'{row["n"]}/{row["k"]}/{row["m"]}'


def chart(rows):
    names, shapes = unique(row["pattern"] for row in rows), unique(map(shape_of, rows))
    sparsities = sorted({row["sparsity"] for row in rows})
    group = len(shapes) * BAR_HEIGHT + GAP / 2
    height = round(len(names) * group)
    most = max(1.0, max(row["speedup"] for row in rows))
    # Room for the number after the longest bar.
    scale = (PANEL_WIDTH - 30) / most
    width = LEFT + len(sparsities) * (PANEL_WIDTH + GAP)
    legend = TOP + height + GAP
    total = legend + len(shapes) * ROW_HEIGHT + GAP
    first = rows[0]
    heading = f'{first["dtype"]} on {first["machine"]}, against {first["baseline"]}, {first["date"]}'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{total}" font-family="sans-serif">',
        f'<rect width="{width}" height="{total}" fill="white"/>',
        text(12, 20, f"Speedup of pruned layers over dense ones: {heading}", size=13, weight="bold"),
    ]
    for at, name in enumerate(names):
        parts.append(text(LEFT - 8, TOP + at * group + group / 2, name, "end"))
    for at, sparsity in enumerate(sparsities):
        left = LEFT + at * (PANEL_WIDTH + GAP)
        parts.append(text(left, 42, f"{sparsity * 100:g} % of the weights removed", weight="bold"))
        chosen = [row for row in rows if row["sparsity"] == sparsity]
        parts.extend(panel(chosen, names, shapes, left, height, scale))
    for number, shape in enumerate(shapes):
        y = legend + number * ROW_HEIGHT
        parts.append(f'<rect x="{LEFT}" y="{y}" width="10" height="10" fill="{COLOURS[number % len(COLOURS)]}"/>')
        parts.append(text(LEFT + 16, y + 9, f"n/k/m {shape}"))
    return "\n".join(parts + ["</svg>", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: charts.py ROWS.json CHART.svg")
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = json.load(file)
    if not rows:
        sys.exit(f"{sys.argv[1]} has no rows")
    dtypes = unique(row["dtype"] for row in rows)
    for dtype in dtypes:
        # One chart a type: times of different types are not compared with one baseline.
        stem, dot, ending = sys.argv[2].rpartition(".")
        path = sys.argv[2] if len(dtypes) == 1 else f"{stem}-{dtype}{dot}{ending}"
        with open(path, "w", encoding="utf-8") as file:
            file.write(chart([row for row in rows if row["dtype"] == dtype]))
        print(path)


if __name__ == "__main__":
    main()
