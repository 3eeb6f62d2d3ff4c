"""Time and size that each graph pass saves: the exported search without one pass, and with all.

    python benchmarks/bench_passes.py build FOLDER           # graphs; needs TensorFlow
    python benchmarks/bench_passes.py run FOLDER [CASE...]   # their times

The model has 256 units and V = 8,000, and no hypothesis ends before the last of 30 steps. Cases:
`beam` (5 beams, sources of 16 tokens), `greedy`, `long` (5 beams, sources of 256 tokens) and `int8`
(the graphs of `beam` in int8). For each pass the two graphs are timed in turn, in one process.
"""

import functools
import json
import os
import time
from pathlib import Path

import numpy as np
from benchmark_model import BEAM, STEPS, VOCABULARY, make_endless_model
from timing import benchmark_parser, interleaved_seconds, median_and_best

from keras_bahdanau_runtime.signature import OPTIONS

LENGTHS = {"beam": 16, "greedy": 16, "long": 256, "int8": 16}
BATCHES = (1, 32)
ROUNDS, ALL = 15, "all"


def build(folder):
    """Write the graphs of all cases as `CASE/PASS.onnx`, and their nodes as `CASE/nodes.json`."""
    import shutil

    import onnx_ir

    from keras_bahdanau import BeamSearch, GreedySearch
    from keras_bahdanau_export.graph import writer
    from keras_bahdanau_export.graph.canonical import save_model
    from keras_bahdanau_export.graph.passes.optimizer import PASSES, optimize
    from keras_bahdanau_export.graph.precision import reduce_precision
    from keras_bahdanau_export.trace import search_defaults, search_function

    model = make_endless_model()
    subsets = {ALL: PASSES}
    for left_out in PASSES:
        subsets[left_out.__name__] = [rewrite for rewrite in PASSES if rewrite is not left_out]
    for case, search in (("beam", BeamSearch(BEAM)), ("greedy", GreedySearch())):
        (folder / case).mkdir(parents=True)
        function, signature = search_function(model, search, STEPS, options_are_inputs=True)
        converted = writer._convert_to_ir(function, signature, model.variables)
        nodes = {}
        for name, passes in subsets.items():
            graph = converted.clone()
            optimize(graph, passes)
            writer._set_defaults(graph, search_defaults(search, STEPS))
            save_model(graph, folder / case / f"{name}.onnx")
            inner = sum(len(part) for part in graph.graph.subgraphs())
            nodes[name] = len(graph.graph), inner
        (folder / case / "nodes.json").write_text(json.dumps(nodes))
    shutil.copytree(folder / "beam", folder / "long")
    shutil.copytree(folder / "beam", folder / "int8")
    for path in (folder / "int8").glob("*.onnx"):
        reduce_precision(path, "int8")
        graph = onnx_ir.load(path).graph
        nodes[path.stem] = len(graph), sum(len(part) for part in graph.subgraphs())
    (folder / "int8" / "nodes.json").write_text(json.dumps(nodes))


def search_of(path, length, batch, threads, **options):
    """Return a function that runs a graph on random sources, with options of its search."""
    from keras_bahdanau_runtime.session import open_session

    session = open_session(path.read_bytes(), path, "CPUExecutionProvider", threads)
    source = np.random.default_rng(0).integers(4, VOCABULARY, (batch, length)).astype("int32")
    inputs = {name: np.array(value, OPTIONS[name].dtype) for name, value in options.items()}
    return functools.partial(session.run, ["tokens", "scores"], {"source": source, **inputs})


def run(folder, case, names, rounds, batches, is_busy):
    """Print a table row for each pass that changes the graph."""
    nodes = json.loads((folder / case / "nodes.json").read_text())
    full = folder / case / f"{ALL}.onnx"
    print(f"{case}: all passes: {nodes[ALL]} nodes, {full.stat().st_size} bytes")
    print("| left out | nodes, inner nodes | bytes | time without / with: median, best |")
    print("|---|---|---|---|")
    for name in names or nodes:
        path = folder / case / f"{name}.onnx"
        if name == ALL or path.read_bytes() == full.read_bytes():
            continue
        more = [x - y for x, y in zip(nodes[name], nodes[ALL], strict=True)]
        size = path.stat().st_size - full.stat().st_size
        ratios = []
        for batch in batches:
            length, threads = LENGTHS[case], 1 if is_busy else None
            calls = {each.stem: search_of(each, length, batch, threads) for each in (path, full)}
            clock = time.process_time if is_busy else time.perf_counter
            seconds = interleaved_seconds(calls, rounds, warmup=2, clock=clock)
            without, with_pass = (median_and_best(seconds[each.stem]) for each in (path, full))
            ratios += [f"{x / y:.3f}" for x, y in zip(without, with_pass, strict=True)]
        print(
            f"| `{name}` | {more[0]:+}, {more[1]:+} | {size:+} | {' '.join(ratios)} |", flush=True
        )


def main():
    parser = benchmark_parser(__doc__, ROUNDS)
    parser.add_argument("action", choices=("build", "run"))
    parser.add_argument("folder", type=Path, help="written by `build`, read by `run`")
    parser.add_argument("cases", nargs="*", default=list(LENGTHS), help="of `run`; all by default")
    parser.add_argument("--batch", type=int, action="append", help="1 and 32 by default")
    parser.add_argument("--left-out", action="append", help="a pass; all of them by default")
    parser.add_argument(
        "--busy", action="store_true", help="compare the processor time of one thread instead"
    )
    arguments = parser.parse_args()
    if arguments.action == "build":
        build(arguments.folder)
        return
    print(f"{os.cpu_count()} cores, {arguments.rounds} rounds")
    for case in arguments.cases:
        names, batches = arguments.left_out, arguments.batch or BATCHES
        run(arguments.folder, case, names, arguments.rounds, batches, arguments.busy)


if __name__ == "__main__":
    main()
