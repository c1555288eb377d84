#!/usr/bin/env python3
"""Makes every table and chart of docs/performance.md from the rows of the example bench (and of peers.py):

    cargo run --release --example bench -- --shapes paper --pattern all --sparsity 0.5,0.75 --json docs/data/rows.json
    python3 docs/charts.py             # all of docs/*.md
    python3 docs/charts.py --check     # fails where a table or a chart is not that of its data

In the Markdown, what stands between two comments is replaced:

    <!-- speedups: data/rows.json dtype=f16 sparsity=0.75 patterns=tw:128,bw:128x64 -->
    <!-- end -->

`speedups` is a table with a column for each pattern, `bounds` one of the parts of their bounds that they reach, `times` one of
microseconds; the last row of `speedups` is their geometric mean. `chart` makes a picture and a link to it: `file=NAME.svg` says
where, `title=…` what the link says (with `_` for blanks). `retrieval` is the table of rows of `prune study`, `trade` a picture of their best
recall@1 over the speed of the same patterns in rows of bench, of layers 12 times as wide. Several files are read one after the other; of rows of the same
layer, pattern and sparsity the last one counts. Left out, a filter lets everything pass; `epilogue` is none if it is left out.
"""
import json
import math
import re
import statistics
import sys
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent
MARKED = re.compile(r"<!-- (speedups|bounds|times|chart|retrieval|trade): (.*?) -->\n.*?<!-- end -->", re.DOTALL)
PANEL_WIDTH, ROW_HEIGHT, BAR_HEIGHT = 360, 16, 11
LEFT, TOP, GAP = 150, 64, 24
COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000"]


def unique(values):
    return list(dict.fromkeys(values))


def shape_of(row):
    return f'{row["n"]}/{row["k"]}/{row["m"]}'


# Rows.


def read(file):
    """The rows of a file of bench; anything else is told with the file's name."""
    try:
        rows = json.loads((DOCS / file).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{file}: expected a list of rows")
    for number, row in enumerate(rows):
        if "speedup" not in row:
            continue
        if missing := [key for key in ("n", "k", "m", "dtype", "pattern", "sparsity", "dense_us") if key not in row]:
            raise ValueError(f"{file}: row {number} has no `{missing[0]}`")
        for key in ("speedup", "sparsity", "dense_us", "time_us"):
            found = row.get(key, 1)
            if not isinstance(found, (int, float)) or not 0 <= found < 1e6 or key != "sparsity" and found == 0:
                raise ValueError(f"{file}: row {number}: `{key}` is {found}, expected a number from 0 to 1e6")
    return rows


def rows_of(files, options):
    """The rows of the files that pass the filters, each layer, pattern and sparsity once."""
    rows = {}
    for file in files:
        for row in read(file):
            if "speedup" in row and passes(row, options):
                rows[(shape_of(row), row["dtype"], row["pattern"], row["sparsity"])] = row
    rows = list(rows.values())
    if "patterns" in options:
        order = options["patterns"].split(",")
        # Stable: the shapes stay in the order of the files.
        rows.sort(key=lambda row: order.index(row["pattern"]))
    if not rows:
        raise ValueError(f"no row of {', '.join(files)} passes {options}")
    return rows


def passes(row, options):
    sparsities = [float(text) for text in options.get("sparsity", "").split(",") if text]
    return (
        ("dtype" not in options or row["dtype"] == options["dtype"])
        and (not sparsities or any(abs(row["sparsity"] - sparsity) < 1e-6 for sparsity in sparsities))
        and ("patterns" not in options or row["pattern"] in options["patterns"].split(","))
        and ("shapes" not in options or shape_of(row) in options["shapes"].split(","))
        and row.get("epilogue", "none") == options.get("epilogue", "none")
    )


# Tables.


def value(kind, row):
    if row is None:
        return "-"
    if kind == "bounds":
        profile = row.get("profile")
        return f'{profile["bound_reached"] * 100:.0f} %' if profile else "-"
    return f'{row["speedup"]:.2f}' if kind == "speedups" else f'{row["time_us"]:.1f}'


def table(kind, files, options):
    rows = rows_of(files, options)
    # The rows of peers.py have the sparsity that each library offers.
    sparsities = unique(row["sparsity"] for row in rows if "torch" not in row)
    if len(unique(row["dtype"] for row in rows)) > 1 or len(sparsities) > 1:
        raise ValueError(f"rows of several types or sparsities in one table: {options}")
    names = [name for name in unique(row["pattern"] for row in rows) if name != "dense"]
    cells_of = {(shape_of(row), row["pattern"]): row for row in rows}
    shapes = unique(map(shape_of, rows))
    lines = [f'| n/k/m | dense us | {" | ".join(names)} |', "|---" * (len(names) + 2) + "|"]
    for shape in shapes:
        cells = [cells_of.get((shape, name)) for name in names]
        dense = statistics.median(row["dense_us"] for row in rows if shape_of(row) == shape)
        lines.append(f'| {shape} | {dense:.1f} | {" | ".join(value(kind, row) for row in cells)} |')
    if kind == "speedups" and len(shapes) > 1:
        lines.append(f'| geometric mean | | {" | ".join(mean(cells_of, shapes, name) for name in names)} |')
    return "\n".join(lines)


def mean(cells_of, shapes, name):
    """Over the shapes that were measured, with their number where that is not all."""
    logs = [math.log(cells_of[(shape, name)]["speedup"]) for shape in shapes if (shape, name) in cells_of]
    text = f"{math.exp(sum(logs) / len(logs)):.2f}"
    return text if len(logs) == len(shapes) else f"{text} of {len(logs)}"


# Charts.


def text(x, y, words, anchor="start", size=11, weight="normal"):
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def line(x, y0, y1, colour, dash=""):
    dash = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y0}" y2="{y1}" stroke="{colour}"{dash}/>'


def panel(rows, names, shapes, left, height, scale):
    """The bars of one sparsity, the shapes of a pattern below each other; `scale` is pixels for a speedup of 1."""
    parts = []
    times = {(row["pattern"], shape_of(row)): row["speedup"] for row in rows}
    group = len(shapes) * BAR_HEIGHT + GAP / 2
    # Lines at whole speedups, no more than can be told apart.
    every = max(1, round(12 / scale))
    for step in range(0, int(PANEL_WIDTH / scale) + 1, every):
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
    dtypes, machines, dates = ([*unique(row[key] for row in rows)] for key in ("dtype", "machine", "date"))
    baselines = unique(row.get("baseline", "PyTorch") for row in rows)
    heading = f'{", ".join(dtypes)} on {"; ".join(machines)}, against {", ".join(baselines)}, {", ".join(dates)}'
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


# Pruned models on the task.


# What a row of a pruned model has.
PRUNED = ("recall", "loss", "loss_half_width", "mrr", "cosine", "sparsity", "prune_seconds")


def study(files):
    """The dense row and the others of a study."""
    rows = [row for file in files for row in read(file) if "recall" in row or "mrr" in row]
    dense = [row for row in rows if row.get("pattern") == "dense"]
    if len(dense) != 1 or len(rows) < 2:
        raise ValueError(f"{', '.join(files)}: expected one dense row and others")
    others = [row for row in rows if row is not dense[0]]
    for row, key in [(row, key) for row in others for key in PRUNED] + [(dense[0], key) for key in ("recall", "mrr")]:
        if not isinstance(row.get(key), (int, float)) or not math.isfinite(row[key]):
            raise ValueError(f'{", ".join(files)}: {row.get("pattern")}: `{key}` is {row.get(key)}, expected a number')
    return dense[0], others


def retrieval(files):
    dense, rows = study(files)
    lines = [
        "| pattern | sparsity | method | recall@1 | loss, points | MRR | cosine | retained | s to prune (threads) | CPU | GPU us (dense) |",
        "|---" * 11 + "|",
        f'| dense | | | {dense["recall"] * 100:.2f} | | {dense["mrr"]:.4f} | 1 | | | 1.00 | |',
    ]
    for row in rows:
        retained = f'{row["retained"] * 100:.1f} %' if "retained" in row else "-"
        threads = f' ({row["threads"]})' if "threads" in row else ""
        cpu = f'{row["cpu_speedup"]:.2f}' if "cpu_speedup" in row else "-"
        gpu = f'{row["gpu_us"]:.0f} ({row["gpu_dense_us"]:.0f})' if "gpu_us" in row else "-"
        lines.append(
            f'| {row["pattern"]} | {row["sparsity"] * 100:.0f} % | {row["method"]} | {row["recall"] * 100:.2f} '
            f'| {row["loss"] * 100:.2f} ± {row["loss_half_width"] * 100:.2f} | {row["mrr"]:.4f} | {row["cosine"]:.3f} '
            f'| {retained} | {row["prune_seconds"]:.0f}{threads} | {cpu} | {gpu} |'
        )
    return "\n".join(lines)


# Linear layers of a block of MiniLM: (n, k), how many.
BLOCK = {(384, 384): 4, (1536, 384): 1, (384, 1536): 1}
# The picture's speeds are of layers so many times as wide.
WIDER = 12


def speed(row, times, dense):
    """Dense time over pruned time of all linear layers; None where a time is missing."""
    layers = row.get("layers") or [[n, k, row["pattern"], row["sparsity"], count] for (n, k), count in BLOCK.items()]
    whole = pruned = 0.0
    for n, k, pattern, sparsity, count in layers:
        shape = (n * WIDER, k * WIDER)
        time = dense[shape] if pattern == "dense" else times.get((*shape, pattern, sparsity))
        if time is None:
            return None
        whole, pruned = whole + count * dense[shape], pruned + count * time
    return whole / pruned


def beside(x, y, words, taken):
    """Words next to a point, at the first place that is free."""
    wide = 5.8 * len(words)
    places = [(dx, dy, anchor) for dy in (-5, 13, 4, -17, 25, -29, 37) for dx, anchor in ((7, "start"), (-7, "end"))]
    for dx, dy, anchor in places:
        left = x + dx if anchor == "start" else x + dx - wide
        box = (left, y + dy - 9, left + wide, y + dy + 2)
        if not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
            break
    taken.append(box)
    return text(x + dx, y + dy, words, anchor=anchor, size=10)


def trade(files):
    """Best recall@1 of each pattern, and of choices by layer, over the speed of the linear layers."""
    dense, rows = study([file for file in files if "pruning_final" in file])
    timed = [row for file in files for row in read(file) if "speedup" in row]
    if not timed:
        raise ValueError(f"{', '.join(files)}: expected rows of bench beside those of prune study, found none")
    times = {(row["n"], row["k"], row["pattern"], row["sparsity"]): row["time_us"] for row in timed}
    shapes = {(row["n"], row["k"]) for row in timed}
    whole = {shape: statistics.median(row["dense_us"] for row in timed if (row["n"], row["k"]) == shape) for shape in shapes}
    best = {}
    for row in rows:
        key = (row["pattern"], row["sparsity"])
        if speed(row, times, whole) and row["recall"] > best.get(key, {"recall": 0})["recall"]:
            best[key] = row
    width, height, left, top = 760, 420, 60, 40
    low, high, fastest = 0.66, 0.86, 3.5
    at = lambda x, y: (left + (x - 0.8) / (fastest - 0.8) * (width - left - 20), top + (high - y) / (high - low) * (height - top - 50))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        text(left, 20, f"recall@1 of pruned MiniLM, and speed of the same patterns on layers {WIDER} times as wide", size=12, weight="bold"),
        text(width - 20, height - 12, "all linear layers, times as fast as cuBLASLt's fastest dense kernels, f16, 4096 tokens", anchor="end"),
    ]
    for tick in (70, 75, 80, 85):
        _, y = at(1, tick / 100)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{width - 20}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(text(left - 6, y + 4, f"{tick} %", anchor="end"))
    for tick in (1, 1.5, 2, 2.5, 3, 3.5):
        x, _ = at(tick, low)
        parts.append(text(x, height - 32, f"{tick:g}", anchor="middle"))
    points = [(1.0, dense["recall"], "dense", "#000000")]
    for (pattern, sparsity), row in best.items():
        colour = COLOURS[2] if "layers" in row else COLOURS[0] if abs(sparsity - 0.5) < 1e-6 else COLOURS[1]
        points.append((speed(row, times, whole), row["recall"], f"{pattern}, {sparsity * 100:.0f} %", colour))
    # Left, top, right and bottom of what words must not cover.
    taken = [(px - 5, py - 5, px + 5, py + 5) for px, py in (at(p[0], p[1]) for p in points)]
    for x, y, name, colour in points:
        px, py = at(x, y)
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="{colour}"/>')
        parts.append(beside(px, py, name, taken))
    # What nothing beats in both.
    front = [p for p in points if not any(q[0] >= p[0] and q[1] >= p[1] and q != p for q in points)]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (at(p[0], p[1]) for p in sorted(front)))
    parts.append(f'<polyline points="{path}" fill="none" stroke="#888888" stroke-dasharray="4 3"/>')
    return "\n".join(parts + ["</svg>", ""])


# Files.


def made(page):
    """The files that a page asks for, itself first: path -> text."""
    files = {}

    def replacement(match):
        kind, words = match.group(1), match.group(2).split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        sources = [word for word in words if "=" not in word]
        unknown = options.keys() - {"dtype", "sparsity", "patterns", "shapes", "epilogue", "file", "title"}
        if unknown or not sources:
            raise ValueError(f"`{match.group(2)}`: {'unknown ' + ', '.join(unknown) if unknown else 'no file'}")
        if kind == "chart":
            rows = rows_of(sources, options)
            files[page.parent / options["file"]] = chart(rows)
            body = f'[{options.get("title", options["file"]).replace("_", " ")}]({options["file"]})'
        elif kind == "trade":
            files[page.parent / options["file"]] = trade(sources)
            body = f'![{options.get("title", options["file"]).replace("_", " ")}]({options["file"]})'
        elif kind == "retrieval":
            body = retrieval(sources)
        else:
            body = table(kind, sources, options)
        return f"<!-- {kind}: {match.group(2)} -->\n{body}\n<!-- end -->"

    whole = MARKED.sub(replacement, page.read_text(encoding="utf-8"))
    return {page: whole} | files


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit("usage: charts.py [--check]")
    stale = []
    for page in sorted(DOCS.glob("*.md")):
        marks = page.read_text(encoding="utf-8")
        opened, closed = len(re.findall(r"<!-- \w+: ", marks)), marks.count("<!-- end -->")
        if not opened == closed == len(MARKED.findall(marks)):
            sys.exit(f"{page.name}: {opened} comments of tables or charts, {closed} ends, {len(MARKED.findall(marks))} that fit")
        try:
            files = made(page)
        except (ValueError, KeyError, OSError) as error:
            sys.exit(f"{page.name}: {error}")
        for path, content in files.items():
            if path.is_file() and path.read_text(encoding="utf-8") == content:
                continue
            stale.append(path)
            if not sys.argv[1:]:
                path.write_text(content, encoding="utf-8")
                print(path)
    if sys.argv[1:] and stale:
        sys.exit(f"not of their data: {', '.join(path.name for path in stale)}; run docs/charts.py")


if __name__ == "__main__":
    main()
