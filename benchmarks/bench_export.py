"""Cost of the exported graphs, against the backends, plain tf2onnx and the bare matrix products.

One model and one search (256 units, V = 8,000, beam 5, all 30 steps, sources of 16 tokens) is
measured at batch 1, 8 and 32. Every case runs in its own process; rounds are interleaved and
medians printed. The script also prints a bidirectional GRU of a Keras model as an operator and as
loops, the start-up time of a translator, and the size of the artifacts; `bench_passes.py` prints
what each pass saves.
"""

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmark_model import (
    BEAM,
    LENGTH,
    STEPS,
    UNITS,
    VOCABULARY,
    make_endless_model,
    make_tokenizer,
    random_source,
)
from timing import (
    benchmark_parser,
    interleaved_seconds,
    measure_in_processes,
    median_seconds,
    medians,
    process_clock,
    run_as_case,
)

BATCHES = (1, 8, 32)
ROUNDS, CALLS = 5, 9
# Scale of the weights for the end of a sentence, and its bias. With these the search of half of
# 32 rows ends within 5 of the 30 steps, and that of a few rows does not end before the last.
END_SCALE, END_BIAS = 20, -4.7
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
    """Seconds of an export, or median seconds of a search for each batch size."""
    if case == "export":
        return {"seconds": export_seconds(folder)}
    make_search = {"keras": keras_search, "xla": xla_search, "products": weight_products}.get(case)
    if make_search is None:
        search = graph_search(Path(folder) / case / "model.onnx")
    else:
        search = make_search(folder)
    return {
        f"batch {batch}": median_seconds(functools.partial(search, batch), CALLS)
        for batch in BATCHES
    }


def export_seconds(folder):
    """Return the seconds of `export` of the Keras model, with its parity check."""
    import keras

    from keras_bahdanau import BeamSearch
    from keras_bahdanau_export import export

    model = keras.saving.load_model(Path(folder) / "model.keras", compile=False)
    clock = process_clock()
    with tempfile.TemporaryDirectory() as temporary:
        began = clock()
        export(model, Path(temporary) / "artifact", search=BeamSearch(BEAM), max_length=STEPS)
        return clock() - began


def keras_search(folder):
    """Return a function of the batch size that runs `generate` of the Keras model."""
    import keras

    from keras_bahdanau import BeamSearch

    model = keras.saving.load_model(Path(folder) / "model.keras", compile=False)
    return lambda batch: model.generate(random_source(batch), BeamSearch(BEAM), max_length=STEPS)


def xla_search(folder):
    """Return a function of the batch size that runs the search compiled by TensorFlow's XLA."""
    import keras
    import tensorflow as tf

    from keras_bahdanau import BeamSearch

    model = keras.saving.load_model(Path(folder) / "model.keras", compile=False)
    search = tf.function(
        lambda source: model.search(source, BeamSearch(BEAM), STEPS),
        jit_compile=True,
        autograph=False,
    )
    return lambda batch: search(tf.constant(random_source(batch))).tokens.numpy()


def graph_search(path):
    """Return a function of the batch size that runs an exported graph."""
    from keras_bahdanau_runtime.session import open_session

    session = open_session(path.read_bytes(), path, "CPUExecutionProvider", None)
    return lambda batch: session.run(["tokens", "scores"], {"source": random_source(batch)})


def weight_products(folder):
    """Return a function of the batch size that runs only the graph's products with weights."""
    step = product_graph(
        [(UNITS, UNITS), (UNITS, 2 * UNITS), (UNITS, 3 * UNITS), (UNITS, VOCABULARY)]
    )
    encoder_inputs = [(UNITS, 3 * UNITS), (UNITS, 3 * UNITS)]
    memory = [(2 * UNITS, UNITS), (2 * UNITS, 2 * UNITS), (2 * UNITS, 3 * UNITS)]
    source_products = product_graph(encoder_inputs + memory)
    recurrence = product_graph([(UNITS, 3 * UNITS), (UNITS, 3 * UNITS)])

    def run(batch):
        source_products(batch * LENGTH)
        for _ in range(LENGTH):
            recurrence(batch)
        for _ in range(STEPS):
            step(batch * BEAM)

    return run


def product_graph(shapes):
    """Return a function of a number of rows that multiplies rows by a matrix of each shape."""
    import numpy as np
    import onnx
    import onnxruntime

    nodes, inputs, outputs = [], [], []
    initializers = [
        onnx.numpy_helper.from_array(np.array([number, number]), name)
        for name, number in (("start", 0), ("end", 1))
    ]
    rng, dtype = np.random.default_rng(0), onnx.TensorProto.FLOAT
    for i, (rows, columns) in enumerate(shapes):
        nodes.append(onnx.helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"product{i}"]))
        # Return a single element, so that copying the outputs costs no time.
        nodes.append(onnx.helper.make_node("Slice", [f"product{i}", "start", "end"], [f"y{i}"]))
        matrix = rng.random((rows, columns), "float32")
        initializers.append(onnx.numpy_helper.from_array(matrix, f"w{i}"))
        inputs.append(onnx.helper.make_tensor_value_info(f"x{i}", dtype, ["n", rows]))
        outputs.append(onnx.helper.make_tensor_value_info(f"y{i}", dtype, [1, 1]))
    graph = onnx.helper.make_graph(nodes, "products", inputs, outputs, initializers)
    opsets = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )

    @functools.cache
    def feeds(count):
        return {f"x{i}": rng.random((count, rows), "float32") for i, (rows, _) in enumerate(shapes)}

    return lambda count: session.run(None, feeds(count))


def make_spread_model():
    """Return the endless model with logits as far apart as those of a trained one."""
    from keras import ops

    model = make_endless_model()
    model.tokenizer = make_tokenizer()
    model.output_layer.kernel.assign(10 * ops.convert_to_numpy(model.output_layer.kernel))
    return model


def convert_with_tf2onnx(function):
    """Convert a traced function with tf2onnx alone, with all its optimizers."""
    import tf2onnx

    from keras_bahdanau_export.graph.writer import OPSET, numpy_object

    with numpy_object():
        return tf2onnx.convert.from_function(function, function.input_signature, OPSET)[0]


def export_model(folder):
    """Save the model and its artifacts."""
    from keras_bahdanau import BeamSearch
    from keras_bahdanau_export import export

    folder = Path(folder)
    model = make_spread_model()
    model.save(folder / "model.keras")
    for precision in ("float32", "int8"):
        began = time.perf_counter()
        export(
            model,
            folder / precision,
            search=BeamSearch(BEAM),
            max_length=STEPS,
            precision=precision,
        )
        seconds = time.perf_counter() - began
        size = (folder / precision / "model.onnx").stat().st_size / 1e6
        print(f"export {precision}: {seconds:.0f} s with its parity check, {size:.1f} MB")


def write_ended_graphs(folder):
    """Write two graphs of a search whose rows end at different steps.

    `ended/all.onnx` computes logits for all rows, `ended/skipped.onnx` for those that have not
    ended.
    """
    import numpy as np

    from keras_bahdanau import BeamSearch
    from keras_bahdanau_export.graph.writer import write_onnx
    from keras_bahdanau_export.trace import search_defaults, search_function
    from keras_bahdanau_runtime.ids import EOS

    folder = Path(folder) / "ended"
    folder.mkdir()
    model, search = make_spread_model(), BeamSearch(BEAM, length_penalty=1.0)
    is_end = np.arange(VOCABULARY) == EOS
    layer = model.output_layer
    layer.kernel.assign(layer.kernel * np.where(is_end, END_SCALE, 1.0).astype("float32"))
    layer.bias.assign(np.where(is_end, END_BIAS, 0.0))
    function, signature = search_function(model, search, STEPS, options_are_inputs=True)
    for name, skip_ended in (("all", False), ("skipped", True)):
        write_onnx(
            function,
            signature,
            folder / f"{name}.onnx",
            model.variables,
            defaults=search_defaults(search, STEPS),
            skip_ended=skip_ended,
        )


def convert_without_passes(folder):
    """Save the graph of tf2onnx alone."""
    import keras

    from keras_bahdanau import BeamSearch
    from keras_bahdanau_export.trace import search_function

    folder = Path(folder)
    model = keras.saving.load_model(folder / "model.keras", compile=False)
    function, _ = search_function(model, BeamSearch(BEAM), STEPS)
    (folder / "tf2onnx").mkdir()
    graph = convert_with_tf2onnx(function).SerializeToString()
    (folder / "tf2onnx" / "model.onnx").write_bytes(graph)


def compare_recurrent_operators(folder):
    """Print the time of a Keras model's bidirectional GRU as an operator and as tf2onnx's loops."""
    import keras
    import numpy as np

    from keras_bahdanau_export.graph.writer import write_onnx
    from keras_bahdanau_export.trace import forward_function, forward_signature
    from keras_bahdanau_runtime.session import open_session

    x = keras.Input((None, UNITS), name="x")
    layer = keras.layers.Bidirectional(keras.layers.GRU(UNITS, return_sequences=True), name="y")
    model = keras.Model(x, layer(x))
    function, signature = forward_function(model, forward_signature(model))
    loops_path, operator_path = Path(folder) / "loops.onnx", Path(folder) / "operator.onnx"
    loops_path.write_bytes(convert_with_tf2onnx(function).SerializeToString())
    write_onnx(function, signature, operator_path)
    feeds = {"x": np.random.default_rng(0).random((1, 2 * LENGTH, UNITS), "float32")}
    calls = {}
    for path in (loops_path, operator_path):
        session = open_session(path.read_bytes(), path, "CPUExecutionProvider", None)
        calls[path.stem] = functools.partial(session.run, ["y"], feeds)
    seconds = interleaved_seconds(calls, rounds=55, warmup=5)
    loops, operator = (statistics.median(seconds[name]) * 1e3 for name in ("loops", "operator"))
    print(
        f"bidirectional GRU, batch 1, 32 steps: {loops:.2f} ms as loops, {operator:.2f} ms as one "
        f"operator, {loops / operator:.1f}x"
    )


START_UP = """
import resource, sys, time
# Wall time from here, and all processor time of the process.
began = time.perf_counter()
from keras_bahdanau_runtime import Translator
translator = Translator(sys.argv[1])
translator.translate_ids([[5, 6, 7, 3]])
seconds, usage = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
print(seconds, usage.ru_maxrss / 1e3, time.process_time())
"""


def measure_start_up(artifact, rounds):
    """Return the medians of a new process up to its first translation.

    These are its seconds without the start of Python, its MB and its seconds of processor time.
    """
    runs = [
        subprocess.run(
            [sys.executable, "-c", START_UP, artifact], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(rounds)
    ]
    return [statistics.median(float(run[i]) for run in runs) for i in (0, 1, 2)]


PARTS = {
    "export": export_model,
    "ended": write_ended_graphs,
    "tf2onnx": convert_without_passes,
    "recurrent": compare_recurrent_operators,
}


def main():
    arguments = benchmark_parser(__doc__, ROUNDS).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for part in ("export", "tf2onnx", "recurrent"):
            process = subprocess.run(
                [sys.executable, __file__, part, folder],
                env={**os.environ, "KERAS_BACKEND": "tensorflow"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            print(process.stdout, end="", flush=True)
        seconds, megabytes, _ = measure_start_up(Path(folder) / "float32", arguments.rounds)
        print(f"import, load, first sentence: {seconds:.2f} s, at most {megabytes:.0f} MB")
        cases = [(*case, folder) for case in CASES]
        print(
            f"{os.cpu_count()} cores, {UNITS} units, V={VOCABULARY}, beam {BEAM}, {STEPS} steps: ms"
        )
        figures = medians(measure_in_processes(__file__, cases, arguments.rounds))
        for (backend, case, _), batches in figures.items():
            name = f"{backend} {case}" if case in ("keras", "xla") else case
            columns = "   ".join(f"{key}: {value * 1e3:6.1f}" for key, value in batches.items())
            print(f"{name:18} {columns}")


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in PARTS:
        PARTS[sys.argv[1]](sys.argv[2])
    elif not run_as_case(measure):
        main()
