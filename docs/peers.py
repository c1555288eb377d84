#!/usr/bin/env python3
"""What PyTorch offers for pruned layers on an NVIDIA GPU, as rows of JSON beside those of the example bench.

    python3 docs/peers.py --json peers.json                        # under a minute
    python3 docs/peers.py --json peers.json --shape 4096,1024,8192 --dtype f16,bf16

Y[n, m] = W[n, k] X[k, m]: dense torch.matmul; block-sparse (BSR) with blocks of 64 and 128 at 75 %; 2:4 through
torch.sparse.to_sparse_semi_structured with CUTLASS and with cuSPARSELt at 50 %. Random data; each result is checked against
the same product in f32 on the device. Times are medians over rounds in which all take turns, as replays of CUDA graphs over
several copies of X and Y (with few tokens also of W), or with events where a call cannot be captured; `host_us` is the time
of a call as a user makes it, without waiting for the GPU. What does not run is a row with its error.
"""
import argparse
import datetime
import json
import os
import statistics
import sys
import time
import warnings

PAPER = [
    (1024, 1024, 1024), (4096, 1024, 1024), (1024, 4096, 1024), (768, 768, 512), (3072, 768, 512), (768, 3072, 512),
    (128, 576, 784), (64, 576, 3136), (256, 1152, 3136), (4096, 4096, 4096), (16384, 4096, 4096), (4096, 16384, 4096),
]
MID = [(4096, 1024, 8192), (1024, 4096, 8192), (3072, 768, 4096)]
DECODE = [(n, k, m) for n, k in [(11008, 4096), (4096, 14336)] for m in (1, 4, 8, 16, 32)]
# Up to so many tokens the time is that of reading W, which in a model comes from memory.
FEW_TOKENS = 64
LIMITS = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.2e-2}


def shape(text):
    sizes = tuple(int(part) for part in text.split(","))
    if len(sizes) != 3 or min(sizes) < 1:
        raise argparse.ArgumentTypeError("expected three whole numbers n,k,m of at least 1")
    return sizes


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", required=True, metavar="FILE", help="where the rows go, after each shape")
    parser.add_argument("--shape", type=shape, action="append", metavar="N,K,M", help="default: paper, mid and decode layers")
    parser.add_argument("--dtype", default="f16", help="of f32, f16 and bf16, with commas [default: f16]")
    parser.add_argument("--seconds", type=float, default=50.0, help="no further layer begins after this time [default: 50]")
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


def told(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


class Call:
    """One way to compute a layer: `make(w)` -> a weight that `@` takes; its copies take turns."""

    def __init__(self, torch, name, sparsity, w, make, xs, copies):
        self.torch, self.name, self.sparsity, self.xs = torch, name, sparsity, xs
        self.masked = w
        self.weights = [make(w) for _ in range(copies)]
        self.times, self.graph, self.outputs = [], None, []

    def one(self, at):
        return self.torch.matmul(self.weights[at % len(self.weights)], self.xs[at % len(self.xs)])

    def check(self, limit):
        """The greatest error over the greatest magnitude, on every element."""
        expected = self.torch.matmul(self.masked.float(), self.xs[0].float())
        found = self.one(0).float()
        if found.shape != expected.shape:
            raise RuntimeError(f"wrong result: shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
        error = ((found - expected).abs().max() / expected.abs().max()).item()
        if not error <= limit:
            raise RuntimeError(f"wrong result: error {error:.2e}, limit {limit:.0e}")
        return error

    def capture(self, turns):
        torch = self.torch
        self.turns = turns
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for at in range(3):
                self.one(at)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                # Outputs that are kept lie in different places.
                self.outputs = [self.one(at) for at in range(turns)]
            self.graph = graph
            self.timed = "graph"
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.graph, self.timed = None, f"events, since a capture failed: {told(error)}"

    def run(self):
        if self.graph is not None:
            self.graph.replay()
        else:
            for at in range(self.turns):
                self.one(at)

    def measure(self, repeats):
        torch = self.torch
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            self.run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / (repeats * self.turns)

    def host(self):
        best = float("inf")
        for _ in range(3):
            self.torch.cuda.synchronize()
            start = time.perf_counter()
            for at in range(20):
                self.one(at)
            best = min(best, (time.perf_counter() - start) / 20 * 1e6)
        self.torch.cuda.synchronize()
        return best


def blocks(torch, w, side):
    """W with three quarters of its blocks, chosen at random, set to zero."""
    n, k = w.shape
    if n % side or k % side:
        raise RuntimeError(f"{n}x{k} is no multiple of {side}x{side}")
    count = (n // side) * (k // side)
    keep = torch.zeros(count, dtype=torch.bool, device=w.device)
    keep[torch.randperm(count, device=w.device)[: max(1, count // 4)]] = True
    grid = keep.view(n // side, 1, k // side, 1).expand(n // side, side, k // side, side)
    return (w.view(n // side, side, k // side, side) * grid).reshape(n, k)


def two_of_four(torch, w):
    """W with the two lesser of each four weights of a row set to zero."""
    groups = w.view(w.shape[0], -1, 4)
    keep = torch.zeros_like(groups, dtype=torch.bool).scatter_(2, groups.abs().topk(2, dim=2).indices, True)
    return (groups * keep).view_as(w)


def semi_structured(torch, cutlass):
    def make(w):
        torch.sparse.SparseSemiStructuredTensor._FORCE_CUTLASS = cutlass
        return torch.sparse.to_sparse_semi_structured(w)

    return make


def peers(torch):
    """(name, sparsity, how W is pruned, how it is stored)"""

    def bsr(side):
        return f"bsr:{side}", 0.75, lambda w: blocks(torch, w, side), lambda w: w.to_sparse_bsr((side, side))

    def half(backend):
        store = semi_structured(torch, backend == "cutlass")
        return f"2:4 {backend}", 0.5, lambda w: two_of_four(torch, w), store

    dense = ("dense", 0.0, lambda w: w, lambda w: w.clone())
    return [dense, bsr(64), bsr(128), half("cutlass"), half("cusparselt")]


def layer(torch, shape_, dtype, rounds):
    n, k, m = shape_
    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    generator = torch.Generator(device="cuda").manual_seed(0x5EED)

    def random(rows, columns):
        values = torch.rand(rows, columns, generator=generator, device="cuda") * 2 - 1
        return values.to(types[dtype])

    element = types[dtype].itemsize
    cache = 2 * torch.cuda.get_device_properties(0).L2_cache_size
    copies = min(32, max(1, -(-cache // ((n + k) * m * element))))
    w, xs = random(n, k), [random(k, m) for _ in range(copies)]
    rows, calls = [], []
    for name, sparsity, prune, store in peers(torch):
        row = {"n": n, "k": k, "m": m, "dtype": dtype, "pattern": name, "sparsity": sparsity}
        rows.append(row)
        try:
            pruned = prune(w)
            # A compressed weight takes about what it keeps.
            size = n * k * element * (1 - sparsity)
            weights = min(8, max(1, int(-(-cache // size)))) if m <= FEW_TOKENS else 1
            call = Call(torch, name, sparsity, pruned, store, xs, weights)
            row["rel_err"] = call.check(LIMITS[dtype])
            call.capture(max(8, copies, weights))
            row["timed"] = call.timed
            calls.append((row, call))
        except Exception as error:  # whatever a library throws is a result here
            torch.cuda.synchronize()
            row["error"] = told(error)
    repeats = []
    for _, call in calls:
        call.run()
        repeats.append(max(1, round(2000 / max(1.0, call.measure(1) * call.turns))))
    for _ in range(rounds):
        for (_, call), count in zip(calls, repeats):
            call.times.append(call.measure(count))
    for row, call in calls:
        row["time_us"] = statistics.median(call.times)
        row["host_us"] = call.host()
    dense = next((row["time_us"] for row in rows if row["pattern"] == "dense" and "time_us" in row), None)
    for row in rows:
        if dense and "time_us" in row:
            row["dense_us"], row["speedup"] = dense, dense / row["time_us"]
    return rows


def machine(torch):
    driver = None
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
        driver = next((word for word in words if "." in word and word[0].isdigit()), None)
    except OSError:
        pass
    cusparselt = getattr(torch.backends, "cusparselt", None)
    return {
        "machine": torch.cuda.get_device_name(0),
        "driver": driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "cusparselt": cusparselt.version() if cusparselt and cusparselt.is_available() else None,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    }


def line(row):
    if "error" in row:
        return row["error"]
    speedup = f'{row["speedup"]:5.2f}x' if "speedup" in row else "no dense"
    return f'{row["time_us"]:9.1f} us  {speedup}  host {row["host_us"]:7.1f} us  {row["rel_err"]:.1e}  {row["timed"]}'


def write(path, rows):
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(rows, file, indent=1)
        file.write("\n")
    os.replace(temporary, path)


def main():
    start = time.monotonic()
    options = arguments()
    dtypes = list(dict.fromkeys(options.dtype.split(",")))
    if unknown := [dtype for dtype in dtypes if dtype not in LIMITS]:
        sys.exit(f"error: `{unknown[0]}`: expected f32, f16 or bf16")
    if options.rounds < 1:
        sys.exit(f"error: --rounds: expected at least 1, found {options.rounds}")
    folder = os.path.dirname(os.path.abspath(options.json))
    if os.path.isdir(options.json) or not os.access(folder, os.W_OK):
        sys.exit(f"error: --json: expected a file in a folder that can be written, found {options.json}")
    try:
        import torch
    except ImportError as error:
        sys.exit(f"error: {error}; run this with a Python that has PyTorch")
    if not torch.cuda.is_available():
        sys.exit("error: PyTorch finds no GPU")
    warnings.filterwarnings("ignore")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0x5EED)
    about = machine(torch)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    rows = []
    with torch.inference_mode():
        for dtype in dtypes:
            # The large ones last: what is left out for time is the slow end.
            for shape_ in options.shape or MID + DECODE + PAPER:
                if time.monotonic() - start > options.seconds:
                    rows.append(dict(zip("nkm", shape_), dtype=dtype, error="left out: the time is up") | about)
                    continue
                for row in layer(torch, shape_, dtype, options.rounds):
                    rows.append(row | about)
                    n, k, m = shape_
                    print(f'{n}/{k}/{m:<6} {dtype:5} {row["pattern"]:15} {line(row)}', flush=True)
                write(options.json, rows)
                torch.cuda.empty_cache()
    write(options.json, rows)
    print(f"{time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
