"""What the exported graphs cost, against the backends, tf2onnx as it comes and the bare products.

One model and one search (256 units, V = 8,000, beam 5, 30 steps, all of which are run; sources of
16 tokens) is measured at batch 1, 8 and 32: every case in a process of its own, rounds interleaved,
medians. Then: what each pass does, a bidirectional GRU of any Keras model against its loop form,
the start of a service, and the sizes of the artifacts.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import in_turns, result

UNITS, VOCABULARY, BEAM, STEPS, LENGTH = 256, 8000, 5, 30, 16
BATCHES = (1, 8, 32)
ROUNDS, CALLS = 5, 9
CASES = (
    ("tensorflow", "keras"),
    ("tensorflow", "xla"),
    ("jax", "keras"),
    ("torch", "keras"),
    ("tensorflow", "tf2onnx"),
    ("tensorflow", "float32"),
    ("tensorflow", "int8"),
    ("tensorflow", "products"),
)


def measure(case, folder):
    """Median seconds of one case for each batch size."""
    run = {"keras": _keras, "xla": _xla, "products": _products}.get(case)
    call = run(folder) if run else _graph(Path(folder) / case / "model.onnx")
    return {f"batch {batch}": median_seconds(call, batch) for batch in BATCHES}


def median_seconds(call, *arguments):
    """Median seconds of a call, the first one left out."""
    seconds = []
    for _ in range(CALLS + 1):
        began = time.perf_counter()
        call(*arguments)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def source(batch):
    """Random sources, `(batch, LENGTH)` int32."""
    import numpy as np

    return np.random.default_rng(0).integers(4, VOCABULARY, (batch, LENGTH)).astype("int32")


def _keras(folder):
    import keras

    from keras_bahdanau import BeamSearch

    model = keras.saving.load_model(Path(folder) / "model.keras", compile=False)
    return lambda batch: model.generate(source(batch), BeamSearch(BEAM), max_length=STEPS)


def _xla(folder):
    import keras
    import tensorflow as tf

    from keras_bahdanau import BeamSearch

    model = keras.saving.load_model(Path(folder) / "model.keras", compile=False)
    search = tf.function(
        lambda source: model.search(source, BeamSearch(BEAM), STEPS),
        jit_compile=True,
        autograph=False,
    )
    return lambda batch: search(tf.constant(source(batch))).tokens.numpy()


def _graph(path):
    from keras_bahdanau_runtime.session import open_session

    session = open_session(path.read_bytes(), path, "CPUExecutionProvider", None)
    return lambda batch: session.run(["tokens", "scores"], {"source": source(batch)})


def _products(folder):
    """Every product with weights that the graph computes, by onnxruntime and no more."""
    step = [(UNITS, UNITS), (UNITS, 2 * UNITS), (UNITS, 3 * UNITS), (UNITS, VOCABULARY)]
    step = _product_graph(step)
    places = [(UNITS, 3 * UNITS), (UNITS, 3 * UNITS)]  # the encoder's
    places += [(2 * UNITS, UNITS), (2 * UNITS, 2 * UNITS), (2 * UNITS, 3 * UNITS)]  # the memory's
    places = _product_graph(places)
    recurrence = _product_graph([(UNITS, 3 * UNITS), (UNITS, 3 * UNITS)])

    def call(batch):
        places(batch * LENGTH)
        for _ in range(LENGTH):
            recurrence(batch)
        for _ in range(STEPS):
            step(batch * BEAM)

    return call


def _product_graph(shapes):
    """A function of a number of rows that multiplies so many rows with a matrix of each shape."""
    import numpy as np
    import onnx
    import onnxruntime

    nodes, inputs, outputs = [], [], []
    weights = [
        onnx.numpy_helper.from_array(np.array([number, number]), name)
        for name, number in (("start", 0), ("end", 1))
    ]
    rng, kind = np.random.default_rng(0), onnx.TensorProto.FLOAT
    for i, (inner, columns) in enumerate(shapes):
        nodes.append(onnx.helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"product{i}"]))
        # One number, so that no time goes into handing out the others.
        nodes.append(onnx.helper.make_node("Slice", [f"product{i}", "start", "end"], [f"y{i}"]))
        matrix = rng.random((inner, columns), "float32")
        weights.append(onnx.numpy_helper.from_array(matrix, f"w{i}"))
        inputs.append(onnx.helper.make_tensor_value_info(f"x{i}", kind, ["n", inner]))
        outputs.append(onnx.helper.make_tensor_value_info(f"y{i}", kind, [1, 1]))
    graph = onnx.helper.make_graph(nodes, "products", inputs, outputs, weights)
    opsets = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    given = {}

    def call(rows):
        if rows not in given:
            given[rows] = {
                f"x{i}": rng.random((rows, inner), "float32") for i, (inner, _) in enumerate(shapes)
            }
        session.run(None, given[rows])

    return call


def benchmark_model():
    """The model, with no end before the last step and odds as far apart as in a trained one."""
    import keras
    import numpy as np

    from keras_bahdanau import RNNSearch
    from keras_bahdanau_runtime.ids import EOS

    keras.utils.set_random_seed(0)
    model = RNNSearch(
        VOCABULARY,
        VOCABULARY,
        units=UNITS,
        embedding_dim=UNITS,
        attention_units=UNITS,
        maxout_units=UNITS,
        reset_after=True,
        initializer=None,
    )
    model.build()
    model.output_layer.bias.assign(np.where(np.arange(VOCABULARY) == EOS, -1e4, 0.0))
    model.output_layer.kernel.assign(10 * keras.ops.convert_to_numpy(model.output_layer.kernel))
    return model


def _as_it_comes(function):
    """A traced function as `tf2onnx` alone converts it, with every optimizer that it has."""
    import tf2onnx

    from keras_bahdanau_export.graph.writer import OPSET, numpy_object

    with numpy_object():
        return tf2onnx.convert.from_function(function, function.input_signature, OPSET)[0]


def prepare(folder):
    """Writes the model and its graphs, and prints what each pass does."""
    import onnx_ir

    from keras_bahdanau import BeamSearch
    from keras_bahdanau_export import export
    from keras_bahdanau_export.graph.passes.optimizer import PASSES, optimize
    from keras_bahdanau_export.graph.recurrent_operators import recurrent_operators
    from keras_bahdanau_export.graph.writer import convert
    from keras_bahdanau_export.trace import search_function

    folder = Path(folder)
    model = benchmark_model()
    model.save(folder / "model.keras")
    for precision in ("float32", "int8"):
        began = time.perf_counter()
        export(model, folder / precision, search=BeamSearch(BEAM), max_length=STEPS,
               precision=precision)  # fmt: skip
        seconds = time.perf_counter() - began
        size = (folder / precision / "model.onnx").stat().st_size / 1e6
        print(f"export {precision}: {seconds:.0f} s with its parity check, {size:.1f} MB")

    function, _ = search_function(model, BeamSearch(BEAM), STEPS)
    stages = [("tf2onnx", _as_it_comes(function))]
    with recurrent_operators():
        function, _ = search_function(model, BeamSearch(BEAM), STEPS)
        stages.append(("recurrent operators", convert(function)))
    for count, one in enumerate(PASSES, start=1):
        lean = onnx_ir.serde.deserialize_model(stages[1][1])
        optimize(lean, PASSES[:count])
        stages.append((one.__name__, onnx_ir.serde.serialize_model(lean)))
    (folder / "tf2onnx").mkdir()
    (folder / "tf2onnx" / "model.onnx").write_bytes(stages[0][1].SerializeToString())
    calls = []
    for i, (name, graph) in enumerate(stages):
        path = folder / f"{i}.onnx"
        path.write_bytes(graph.SerializeToString())
        loops = [node.attribute[0].g for node in graph.graph.node if node.op_type == "Loop"]
        sizes = (len(graph.graph.node), max(len(loop.node) for loop in loops))
        calls.append((name, sizes, _graph(path), ([], [])))
    for _ in range(CALLS):  # in turns
        for *_, call, taken in calls:
            for batch, seconds in zip((1, 32), taken, strict=True):
                began = time.perf_counter()
                call(batch)
                seconds.append(time.perf_counter() - began)
    print("after the pass                  graph  loop   ms at batch 1, 32")
    for name, (outside, inside), _, taken in calls:
        first, last = (statistics.median(seconds[1:]) * 1e3 for seconds in taken)
        print(f"{name:30} {outside:6} {inside:5} {first:8.1f} {last:8.1f}")


def recurrent(folder):
    """A bidirectional GRU of any Keras model, as an operator and as tf2onnx leaves it."""
    import keras
    import numpy as np

    from keras_bahdanau_export.graph.writer import write_onnx
    from keras_bahdanau_export.trace import forward_function, forward_signature
    from keras_bahdanau_runtime.session import open_session

    x = keras.Input((None, UNITS), name="x")
    layer = keras.layers.Bidirectional(keras.layers.GRU(UNITS, return_sequences=True), name="y")
    model = keras.Model(x, layer(x))
    function, signature = forward_function(model, forward_signature(model))
    (Path(folder) / "loop.onnx").write_bytes(_as_it_comes(function).SerializeToString())
    write_onnx(function, signature, Path(folder) / "operator.onnx")
    given = {"x": np.random.default_rng(0).random((1, 2 * LENGTH, UNITS), "float32")}
    sessions = {
        path.stem: open_session(path.read_bytes(), path, "CPUExecutionProvider", None)
        for path in (Path(folder) / "loop.onnx", Path(folder) / "operator.onnx")
    }
    seconds = {name: [] for name in sessions}
    for _ in range(60):
        for name, session in sessions.items():
            began = time.perf_counter()
            session.run(["y"], given)
            seconds[name].append(time.perf_counter() - began)
    loop, operator = (statistics.median(seconds[name][5:]) * 1e3 for name in sessions)
    print(f"bidirectional GRU, batch 1, 32 steps: {loop:.2f} ms as loops, {operator:.2f} as one "
          f"operator, {loop / operator:.1f}x")  # fmt: skip


START = """
import resource, sys, time
began = time.perf_counter()
from keras_bahdanau_runtime import Translator
translator = Translator(sys.argv[1])
translator.translate_ids([[5, 6, 7, 3]])
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
"""


def start(artifact):
    """Median seconds and MB of a fresh process up to its first translation."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", START, artifact], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(ROUNDS)
    ]
    return [statistics.median(float(run[i]) for run in runs) for i in (0, 1)]


def main():
    """Runs everything in turn and prints the tables."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("prepare", "recurrent"):
            environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
            run = subprocess.run(
                [sys.executable, __file__, part, folder],
                env=environment, stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            print(run.stdout, end="", flush=True)
        seconds, megabytes = start(Path(folder) / "float32")
        print(f"import, load, first sentence: {seconds:.2f} s, at most {megabytes:.0f} MB")
        cases = [(*case, folder) for case in CASES]
        print(
            f"{os.cpu_count()} cores, {UNITS} units, V={VOCABULARY}, beam {BEAM}, {STEPS} steps: ms"
        )
        for (backend, case, _), found in in_turns(__file__, cases, ROUNDS).items():
            name = f"{backend} {case}" if case in ("keras", "xla") else case
            figures = "   ".join(f"{key}: {value * 1e3:6.1f}" for key, value in found.items())
            print(f"{name:18} {figures}")


if __name__ == "__main__":
    parts = {"prepare": prepare, "recurrent": recurrent}
    if sys.argv[1:2] and sys.argv[1] in parts:
        parts[sys.argv[1]](sys.argv[2])
    elif not result(measure):
        main()
