"""The search cut at its loop: the runtime that drives it finds what the whole graph does."""

import json
import os
import shutil
import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx_ir
import pytest

from keras_bahdanau import BeamSearch, RNNSearch, Sampling, Shortlist
from keras_bahdanau_export import captured as cut
from keras_bahdanau_export import parity
from keras_bahdanau_export.cuda import on_host, summary
from keras_bahdanau_export.exporter import export
from keras_bahdanau_runtime import Translator, captured
from keras_bahdanau_runtime.captured import CapturedSearch
from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    LimitError,
    ParityError,
    UnsupportedArtifactError,
)
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.signature import BEAM_FILES

RNG = np.random.default_rng(0)
CPU = "CPUExecutionProvider"


def exported(folder, search, shortlist=None, **options):
    sizes = {"units": 6, "embedding_dim": 5, "attention_units": 4, "maxout_units": 3}
    model = RNNSearch(30, 40, **sizes, reset_after=True)
    model.build()
    # As the paper begins, all tokens are near ties.
    model.set_weights([RNG.normal(0, 1, weights.shape) for weights in model.get_weights()])
    export(model, folder, search=search, max_length=9, shortlist=shortlist, **options)
    return folder


def copied(folder, to):
    shutil.copytree(folder, to)
    return to


@pytest.fixture(scope="module")
def beam(tmp_path_factory):
    search = BeamSearch(3, coverage_penalty=0.2, no_repeat_ngram=2, min_length=2)
    return exported(tmp_path_factory.mktemp("captured") / "beam", search, captured=True)


@pytest.fixture(scope="module")
def sampling(tmp_path_factory):
    return exported(
        tmp_path_factory.mktemp("captured") / "sampling", Sampling(2, seed=1), captured=True
    )


def source(rows, length):
    ids = RNG.integers(4, 30, (rows, length), dtype="int32")
    ids[:, -1] = 3
    for i in range(rows):  # lengths of their own, padded at the right
        end = RNG.integers(1, length + 1)
        ids[i, end - 1], ids[i, end:] = 3, 0
    ids[0, -1] = 3
    return ids


def test_no_part_leaves_anything_to_the_host_of_a_gpu(beam, sampling):
    for path in [*beam.glob("*.onnx"), *sampling.glob("*.onnx")]:
        assert summary(on_host(onnx_ir.load(path))) == [], path


@pytest.mark.parametrize("rows, length", [(1, 1), (1, 16), (3, 5), (5, 17), (33, 2)])
def test_a_search_in_steps_finds_what_the_whole_graph_does(beam, sampling, rows, length):
    ids = source(rows, length)
    ids[0] = np.where(ids[0] == 0, 4, ids[0])
    for folder in (beam, sampling):
        whole, steps = (Translator(folder, CPU, loop=loop) for loop in ("graph", "captured"))
        for expected, found in zip(
            *(sorted(one.translate_ids(ids).items()) for one in (whole, steps)), strict=True
        ):
            assert expected[0] == found[0] and expected[1].shape == found[1].shape
            np.testing.assert_allclose(expected[1], found[1], rtol=1e-5, atol=1e-5)


def test_rows_choose_the_ids_of_a_shortlist_once(tmp_path):
    """A batch is filled up to a recorded number of rows, none of which may count again."""
    table = np.tile(np.arange(4, 40), (30, 1))[:, RNG.permutation(36)[:3]]
    table = (table + np.arange(30)[:, None]) % 36 + 4
    few = Shortlist(table, np.full(table.shape, 0.3), counts=np.arange(40), size=12)
    folder = exported(tmp_path / "few", BeamSearch(2), shortlist=few, captured=True)
    whole, steps = (Translator(folder, CPU, loop=loop) for loop in ("graph", "captured"))
    for last in range(4, 30):
        ids = np.array([[4, 9, 3], [5, 11, 3], [last, 3, 0]], "int32")
        expected, found = (one.translate_ids(ids) for one in (whole, steps))
        np.testing.assert_array_equal(expected["tokens"], found["tokens"])
        np.testing.assert_allclose(expected["scores"], found["scores"], rtol=1e-5, atol=1e-5)


def test_the_same_translator_searches_again_for_the_same_shape_and_others(beam):
    whole, steps = (Translator(beam, CPU, loop=loop) for loop in ("graph", "captured"))
    for rows in (2, 1, 2, 2):
        ids = source(rows, 6)
        ids[0] = np.where(ids[0] == 0, 4, ids[0])
        expected, found = (one.translate_ids(ids)["tokens"] for one in (whole, steps))
        np.testing.assert_array_equal(expected, found)
    assert sorted(steps._graph._buffers) == [(1, 16), (2, 16)]


def test_a_search_has_its_time_from_where_it_begins(beam, monkeypatch):
    clock = [0.0]

    class Busy(ThreadPoolExecutor):
        """Others search first, for a thousand seconds."""

        def submit(self, *given):
            super().submit(lambda: clock.append(clock.pop() + 1000))
            return super().submit(*given)

    steps = Translator(beam, CPU, loop="captured", seconds=60)
    monkeypatch.setattr(captured, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(steps._graph, "_thread", Busy(1))
    assert steps.translate_ids([[4, 3]])["tokens"].shape[0] == 1


def test_no_more_shapes_are_kept_than_told(beam, monkeypatch, caplog):
    monkeypatch.setattr(captured, "MOST_SHAPES", 2)
    caplog.set_level("INFO")
    steps = Translator(beam, CPU, loop="captured")
    for rows in (1, 2, 4):
        steps.translate_ids(np.full((rows, 3), 3 + rows, "int32"))
    assert list(steps._graph._buffers) == [(4, 16)]
    assert "Steps for sources of 2 shapes are recorded; begun anew." in caplog.messages


def test_on_the_cpu_the_loop_is_the_graphs_own_unless_asked_for(beam):
    assert Translator(beam, CPU).session.get_inputs()[0].name == "source"
    assert Translator(beam, CPU, loop="captured").session.get_inputs()[0].name == "memory_0"


def test_a_search_in_steps_has_a_limit_of_time(beam):
    steps = Translator(beam, CPU, seconds=1e-9, loop="captured")
    with pytest.raises(LimitError, match="1e-09 s"):
        steps.translate_ids([[5, 3]])


def test_the_limit_that_is_named_is_that_of_the_search(beam, monkeypatch):
    clock, steps = [0.0], Translator(beam, CPU, loop="captured", seconds=2)
    monkeypatch.setattr(captured, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))

    def late(*given, seconds, **options):
        clock[0] += 1.5
        if clock[0] > 2:
            raise LimitError(f"A run of the graph took longer than {seconds} s.")
        return run(*given, seconds=seconds, **options)

    run = captured.run
    monkeypatch.setattr(captured, "run", late)
    with pytest.raises(LimitError, match=r"longer than 2 s\."):
        steps.translate_ids([[5, 3]])


def test_a_deep_encoder_that_adds_what_it_read_is_cut_in_time():
    values = [onnx_ir.Value(name="x")]
    for depth in range(2000):  # 2**2000 ways to the input
        node = onnx_ir.node("Add", [values[-1], values[-1]])
        node.outputs[0].name = f"y{depth}"
        values.append(node.outputs[0])
    assert cut._of_sizes(values[-1], {}) is None


def test_another_thread_count_keeps_the_loop(beam):
    other = Translator(beam, CPU, loop="captured").with_threads(1)
    assert other.session.get_inputs()[0].name == "memory_0"


FORKED = """
import os, signal, sys
from keras_bahdanau_runtime import Translator
steps = Translator(sys.argv[1], "CPUExecutionProvider", loop="captured")
steps.translate_ids([[4, 3]])
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
signal.alarm(60)  # lest a child waits for ever for a thread that only its parent has
try:
    steps.translate_ids([[4, 3]])
except Exception as error:
    print(type(error).__name__, error, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_is_told_to_open_its_own(beam):
    command = [sys.executable, "-c", FORKED, beam]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("RunError A captured search runs in the process that opened it")


def test_one_thread_drives_all_searches(beam):
    """A CUDA graph is replayed in the thread that recorded it alone."""
    seen = set()

    class Watched(CapturedSearch):
        def _advance(self, *given):
            seen.add(threading.get_ident())
            return super()._advance(*given)

    search = Watched(read_manifest(beam), CPU, None)
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(search.run, [{"source": source(2, 5)} for _ in range(4)]):
            pass
    assert len(seen) == 1


def test_a_search_without_a_seed_is_compared_with_the_same_numbers(sampling, tmp_path):
    free = copied(sampling, tmp_path / "free")
    manifest = json.loads((free / "manifest.json").read_text())
    manifest["search"]["seed"] = None
    (free / "manifest.json").write_text(json.dumps(manifest))
    parity.compare_loops(Translator(free, CPU), [[5, 3], [6, 7, 3], [8, 9, 4, 3]])


def test_a_translator_names_what_is_wrong_with_its_loop(beam, tmp_path):
    with pytest.raises(ValueError, match=r"`loop` must be one of .*'captured'.*Received: 'cuda'"):
        Translator(beam, CPU, loop="cuda")
    without = copied(beam, tmp_path / "without")
    manifest = json.loads((without / "manifest.json").read_text())
    manifest["files"] = {
        name: record for name, record in manifest["files"].items() if name not in BEAM_FILES
    }
    (without / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UnsupportedArtifactError, match=r"no beam_start\.onnx.*captured=True"):
        Translator(without, CPU, loop="captured")


def test_parts_of_another_search_are_refused(beam, sampling, tmp_path):
    mixed = copied(beam, tmp_path / "mixed")
    (mixed / BEAM_FILES[1]).write_bytes((sampling / BEAM_FILES[1]).read_bytes())
    ours, theirs = (
        json.loads((folder / "manifest.json").read_text()) for folder in (beam, sampling)
    )
    ours["files"][BEAM_FILES[1]] = theirs["files"][BEAM_FILES[1]]
    (mixed / "manifest.json").write_text(json.dumps(ours))
    with pytest.raises(CorruptArtifactError, match="parts of one search"):
        Translator(mixed, CPU, loop="captured")


def test_an_export_whose_steps_find_other_tokens_is_refused(beam, sampling):
    whole = Translator(beam, CPU)
    parity.compare_loops(whole, [[5, 3], [6, 7, 3]])
    whole.search = lambda batch, noise: {
        **Translator(beam, CPU).search(batch), "tokens": np.zeros((2, 3, 9), "int32")
    }  # fmt: skip
    with pytest.raises(ParityError, match="other tokens for sources 0 to 1"):
        parity.compare_loops(whole, [[5, 3], [6, 7, 3]])
