"""A search split at its loop for CUDA graphs gives the results of the whole graph."""

import json
import os
import shutil
import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnx_ir
import pytest
from graphs import assert_fixed_dimensions_change_nothing, graph_of, results
from small_artifact import write_artifact

from keras_bahdanau import BeamSearch, RNNSearch, Sampling
from keras_bahdanau.models import Shortlist
from keras_bahdanau_export import parity
from keras_bahdanau_export.cuda.graphs import split_at_loop
from keras_bahdanau_export.cuda.placement import find_fallbacks, summarize
from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.cuda import graphs as cuda_graphs
from keras_bahdanau_runtime.cuda.graphs import CudaGraphSearch
from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    LimitError,
    ParityError,
    UnsupportedArtifactError,
)
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.signature import CUDA_GRAPH_FILES

RNG = np.random.default_rng(0)
CPU = "CPUExecutionProvider"


@pytest.fixture(scope="module")
def model():
    sizes = {"units": 6, "embedding_dim": 5, "attention_units": 4, "maxout_units": 3}
    model = RNNSearch(30, 40, **sizes, reset_after=True)
    model.build()
    # With the paper's initial weights, all tokens have nearly equal probabilities.
    model.set_weights([RNG.normal(0, 1, weights.shape) for weights in model.get_weights()])
    return model


def changed_manifest(folder, copy, change):
    """A copy of an artifact whose manifest `change` has edited."""
    shutil.copytree(folder, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def both_searches(folder):
    """Translators that run the whole graph, and that run step by step."""
    return [Translator(folder, CPU, cuda_graphs=enabled) for enabled in (False, True)]


@pytest.fixture(scope="module")
def beam(model, tmp_path_factory):
    """A beam with a shortlist."""
    table = np.tile(np.arange(4, 40), (30, 1))[:, RNG.permutation(36)[:3]]
    table = (table + np.arange(30)[:, None]) % 36 + 4
    few = Shortlist(table, np.full(table.shape, 0.3), counts=np.arange(40), size=12)
    search = BeamSearch(3, coverage_penalty=0.2, no_repeat_ngram=2, min_length=2)
    folder = tmp_path_factory.mktemp("cuda_graphs") / "beam"
    return write_artifact(model, folder, search, 9, few, cuda_graphs=True)


@pytest.fixture(scope="module")
def sampling(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda_graphs") / "sampling"
    return write_artifact(model, folder, Sampling(2, seed=1), 9, cuda_graphs=True)


def source(rows, length):
    ids = RNG.integers(4, 30, (rows, length), dtype="int32")
    ids[:, -1] = 3
    for i in range(1, rows):  # the first source is the longest; the others are padded
        end = RNG.integers(1, length + 1)
        ids[i, end - 1], ids[i, end:] = 3, 0
    return ids


def test_every_part_runs_on_cuda_alone(beam, sampling):
    for path in [*beam.glob("*.onnx"), *sampling.glob("*.onnx")]:
        assert summarize(find_fallbacks(onnx_ir.load(path))) == [], path


@pytest.mark.parametrize("rows, length", [(1, 1), (1, 16), (3, 5), (5, 17), (33, 2)])
def test_a_search_in_steps_gives_the_results_of_the_whole_graph(beam, sampling, rows, length):
    ids = source(rows, length)
    for folder in (beam, sampling):
        expected, outputs = (translator.translate_ids(ids) for translator in both_searches(folder))
        assert expected.keys() == outputs.keys()
        for name, output in outputs.items():
            assert expected[name].shape == output.shape
            np.testing.assert_allclose(expected[name], output, rtol=1e-5, atol=1e-5)


def test_rows_that_fill_a_batch_add_no_ids_to_a_shortlist(beam):
    """A batch is filled with copies of a row up to one of few numbers of rows."""
    translators = both_searches(beam)
    for last in range(4, 30):
        ids = np.array([[4, 9, 3], [5, 11, 3], [last, 3, 0]], "int32")
        expected, outputs = (translator.translate_ids(ids) for translator in translators)
        np.testing.assert_array_equal(expected["tokens"], outputs["tokens"])
        np.testing.assert_allclose(expected["scores"], outputs["scores"], rtol=1e-5, atol=1e-5)


def test_buffers_are_used_again_for_the_same_shape(beam):
    whole, steps = both_searches(beam)
    for rows in (2, 1, 2, 2):
        ids = source(rows, 6)
        expected, tokens = (each.translate_ids(ids)["tokens"] for each in (whole, steps))
        np.testing.assert_array_equal(expected, tokens)
    assert sorted(steps._graph._buffers) == [(1, 16), (2, 16)]


def test_the_time_limit_does_not_count_the_wait_for_other_searches(beam, monkeypatch):
    clock = [0.0]

    class Busy(ThreadPoolExecutor):
        """Another search runs first, for a thousand seconds."""

        def submit(self, *arguments):
            super().submit(lambda: clock.append(clock.pop() + 1000))
            return super().submit(*arguments)

    steps = Translator(beam, CPU, cuda_graphs=True, timeout=60)
    monkeypatch.setattr(cuda_graphs, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(steps._graph, "_thread", Busy(1))
    assert steps.translate_ids([[4, 3]])["tokens"].shape[0] == 1


def test_buffers_of_more_shapes_than_the_limit_are_dropped(beam, monkeypatch, caplog):
    monkeypatch.setattr(cuda_graphs, "_MAX_SHAPES", 2)
    caplog.set_level("INFO", "keras_bahdanau_runtime")
    steps = Translator(beam, CPU, cuda_graphs=True)
    for rows in (1, 2, 4):
        steps.translate_ids(np.full((rows, 3), 3 + rows, "int32"))
    assert list(steps._graph._buffers) == [(4, 16)]
    assert "Dropped the CUDA graphs of 2 source shapes." in caplog.messages


def test_the_cpu_runs_the_whole_graph_by_default(beam):
    assert Translator(beam, CPU).session.get_inputs()[0].name == "source"


def test_a_search_in_steps_has_a_time_limit(beam):
    steps = Translator(beam, CPU, timeout=1e-9, cuda_graphs=True)
    with pytest.raises(LimitError, match="1e-09 s"):
        steps.translate_ids([[5, 3]])


def test_the_error_names_the_time_limit_of_the_search(beam, monkeypatch):
    clock, steps = [0.0], Translator(beam, CPU, cuda_graphs=True, timeout=2)
    monkeypatch.setattr(cuda_graphs, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))

    def late(*arguments, timeout, **options):
        clock[0] += 1.5
        if clock[0] > 2:
            raise LimitError(f"A run of the graph took longer than {timeout} s.")
        return run(*arguments, timeout=timeout, **options)

    run = cuda_graphs.run
    monkeypatch.setattr(cuda_graphs, "run", late)
    with pytest.raises(LimitError, match=r"longer than 2 s\."):
        steps.translate_ids([[5, 3]])


def test_a_deep_residual_encoder_is_split_in_linear_time():
    doubled = "\n".join(f"  x{i + 1} = Add(x{i}, x{i})" for i in range(2000))  # 2**2000 paths to x
    model = graph_of(
        f"""
agraph (float[n,2] x) => (float[n,2] y) {{
  x0 = Identity(x)
{doubled}
  y = Loop <body = search (int64 t, bool go, float[n,2] h) => (bool more, float[n,2] new) {{
      more = Identity(yes)
      new = Add(h, x2000)
  }}> (ten, yes, x)
}}
""",
        ten=10,
        yes=True,
    )
    start, step, end = split_at_loop(onnx_ir.serde.deserialize_model(model))
    assert len(start.graph) > 2000 > 10 > len(step.graph) > len(end.graph)


def test_fixed_dimensions_change_no_part_of_a_search(beam, sampling):
    for folder in (beam, sampling):
        start, step, end = (onnx.load(folder / name) for name in CUDA_GRAPH_FILES)
        noise = RNG.random((3, 2, 9), dtype="float32")
        values = {"source": source(3, 5), **({"noise": noise} if folder is sampling else {})}
        for part in (start, step, end):
            feeds = {value.name: values[value.name] for value in part.graph.input}
            outputs = assert_fixed_dimensions_change_nothing(part, feeds)
            values |= {name.removeprefix("next_"): output for name, output in outputs.items()}


TWO_LOOPS = """
agraph (float[n,2] x, bool more) => (float[n,2] y) {
  double = Add(x, x)
  encoded = Loop <body = encode (int64 t, bool go, float[n,2] h)
    => (bool still, float[n,2] new) { still = Identity(go) new = Add(h, %s) }> (two, yes, %s)
  found, count = Loop <body = search (int64 t, bool go, float[n,2] h, float[1] c)
    => (bool still, float[n,2] new, float[1] next) {
      new = Mul(h, encoded)
      next = Add(c, one)
      below = Less(next, three)
      still = Squeeze(below)
  }> (ten, yes, x, zero)
  y = %s
}
"""
BRANCHES = """If (more) <
  then_branch = add () => (float[n,2] sum) { sum = Add(found, double) },
  else_branch = same () => (float[n,2] same) { same = Identity(found) }>"""


@pytest.mark.parametrize(
    "added, first, last, more",
    [
        ("h", "x", "Identity(found)", 0),
        ("double", "empty", "Identity(found)", 0),  # the body reads a value from around the loop
        ("h", "x", BRANCHES, 2),  # and so do branches after the search
    ],
)
def test_a_graph_with_two_loops_is_cut_at_the_last(added, first, last, more):
    zero, one, three = (np.array([number], "float32") for number in (0, 1, 3))
    numbers = {"zero": zero, "one": one, "three": three, "two": 2, "ten": 10, "yes": True}
    model = graph_of(TWO_LOOPS % (added, first, last), empty=np.zeros((2, 2), "float32"), **numbers)
    start, step, end = (
        onnx_ir.serde.serialize_model(part)
        for part in split_at_loop(onnx_ir.serde.deserialize_model(model))
    )

    def run_part(part, values):
        names = [value.name for value in part.graph.input]
        outputs = results(part, {name: values[name] for name in names})
        return dict(zip([value.name for value in part.graph.output], outputs, strict=True))

    x = np.array([[1, 2], [3, 4]], "float32")
    values = run_part(start, {"x": x, "more": True})
    steps, goes_on = 0, True
    while goes_on:
        outputs = run_part(step, values)
        values |= {name.removeprefix("next_"): output for name, output in outputs.items()}
        steps, goes_on = steps + 1, outputs["go_on"]
    assert steps == 3
    # The first loop gives 4 x, and each of three steps of the second multiplies x by it.
    expected = np.array([[64, 1024], [5184, 16384]]) + more * x
    np.testing.assert_array_equal(run_part(end, values)["y"], expected)


def test_another_thread_count_keeps_cuda_graphs(beam):
    translator = Translator(beam, CPU, cuda_graphs=True)
    for each in (translator, translator.with_threads(1)):
        assert each.session.get_outputs()[0].name == "go_on"


FORKED = """
import os, signal, sys
from keras_bahdanau_runtime import Translator
steps = Translator(sys.argv[1], "CPUExecutionProvider", cuda_graphs=True)
steps.translate_ids([[4, 3]])
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
signal.alarm(60)  # the child must not wait for ever for a thread that only its parent has
try:
    steps.translate_ids([[4, 3]])
except Exception as error:
    print(type(error).__name__, error, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_cuda_graphs_refuse_to_run_in_a_fork(beam):
    command = [sys.executable, "-c", FORKED, beam]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.startswith("RunError CUDA graphs run only in the process that opened them")


def test_one_thread_drives_all_searches(beam, monkeypatch):
    """A CUDA graph must be replayed in the thread that recorded it."""
    threads, run = set(), cuda_graphs.run

    def watched(*arguments, **options):
        threads.add(threading.get_ident())
        return run(*arguments, **options)

    monkeypatch.setattr(cuda_graphs, "run", watched)
    search = CudaGraphSearch(read_manifest(beam), CPU, None)
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(search.run, [{"source": source(2, 5)} for _ in range(4)]):
            pass
    assert len(threads) == 1


def test_an_invalid_setting_and_missing_graphs_are_refused(beam, tmp_path):
    with pytest.raises(
        ValueError, match=r"`cuda_graphs` must be a bool or None\. Received: 'auto'"
    ):
        Translator(beam, CPU, cuda_graphs="auto")

    def remove_parts(manifest):
        for name in CUDA_GRAPH_FILES:
            del manifest["files"][name]

    without = changed_manifest(beam, tmp_path / "without", remove_parts)
    with pytest.raises(UnsupportedArtifactError, match=r"no beam_start\.onnx.*cuda_graphs=True"):
        Translator(without, CPU, cuda_graphs=True)


def test_parts_of_another_search_are_refused(beam, sampling, tmp_path):
    def replace_step(manifest):
        other = json.loads((sampling / "manifest.json").read_text())
        manifest["files"][CUDA_GRAPH_FILES[1]] = other["files"][CUDA_GRAPH_FILES[1]]

    mixed = changed_manifest(beam, tmp_path / "mixed", replace_step)
    shutil.copy(sampling / CUDA_GRAPH_FILES[1], mixed)
    with pytest.raises(CorruptArtifactError, match="to be the graphs of one search"):
        Translator(mixed, CPU, cuda_graphs=True)


def test_verify_compares_the_steps_with_the_model(model, sampling, monkeypatch):
    def wrong(*arguments, **options):
        outputs = run(*arguments, **options)
        return outputs | {"scores": outputs["scores"] + 1}

    assert parity.verify(model, sampling, count=3).sentences == 3
    run = CudaGraphSearch.run
    monkeypatch.setattr(CudaGraphSearch, "run", wrong)
    with pytest.raises(ParityError, match="differences of a score by 1,"):
        parity.verify(model, sampling, count=3)
