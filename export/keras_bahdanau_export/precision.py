"""Smaller numbers in a written ONNX graph: float16 and dynamic int8.

    reduce_precision("model.onnx", "int8")         # the file is replaced

Only weights and the products with them change. Scores, softmax, log-softmax and the search stay
float32 in both.

- float16: products with weights are computed in half precision; embeddings and weights of whole
  recurrent layers are stored so, and computed with in float32.
- int8: products with weights are computed in int8, with a scale for each column of the weights and
  one for the inputs that is found as the graph runs, in loops, too; so are those with the columns
  that a shortlist chooses. Embeddings have a scale for each row. The shares of a shortlist are
  stored as float16. onnxruntime has no int8 GRU:
  weights of whole recurrent layers are stored as float16.
"""

import logging
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common
from onnxruntime.quantization import QuantType, quantize_dynamic

from keras_bahdanau_export.bleu_loss import enforce_bleu
from keras_bahdanau_export.graph.passes.graph import (
    constant,
    made_by,
    put,
    register,
    remove_unused,
    save,
    take_place,
)
from keras_bahdanau_export.graph.passes.loops import own_constants
from keras_bahdanau_runtime.search import checked_noise
from keras_bahdanau_runtime.signature import PRECISIONS, weights_file
from keras_bahdanau_runtime.text.batches import pad
from keras_bahdanau_runtime.text.scores import corpus_scores

# Smaller weights, such as the vector of an attention, are not worth the loss.
_SMALLEST = 4096
# Weights of seven bits: a CPU without VNNI adds two products of eight bits in sixteen, where they
# saturate, and an artifact must say the same on every CPU.
_LARGEST = 63
_LARGEST_HALF = float(np.finfo(np.float16).max)  # 65,504; weights with larger ones stay as they are
_BATCH = 32
_MOVED = ("Concat", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class PrecisionLoss:
    """What smaller numbers save and cost, against the float32 graph of the same model.

    Attributes:
        precision: "float16" or "int8".
        size: Bytes of the ONNX files, as a share of those in float32.
        time: Time of a search, as a share of that in float32, on the machine that exported.
        equal: Share of the compared sources that got the same best tokens.
        bleu: BLEU of the given texts' translations against the references, or `None`.
        bleu_loss: How much lower that is than in float32; or `None`.
    """

    precision: str
    size: float
    time: float
    equal: float
    bleu: float | None
    bleu_loss: float | None

    def enforce(self, max_bleu_loss):
        """Raises `PrecisionError` if more BLEU was lost than `max_bleu_loss`."""
        enforce_bleu(self.precision, self.bleu, self.bleu_loss, max_bleu_loss)

    def to_json(self):
        """The figures as a plain dict, for the manifest."""
        return asdict(self)


def measure(full, reduced, precision, size, sources, texts=(), references=(), rounds=5):
    """Searches the same sources with both artifacts.

    Args:
        full: A `Translator` in float32.
        reduced: A `Translator` in smaller numbers.
        precision: Their name.
        size: Share of the bytes left.
        sources: Lists of source ids.
        texts: Sentences to translate.
        references: A translation of each of them.
        rounds: How often both are timed, in turn; the medians count.

    Returns:
        A `PrecisionLoss`.
    """
    both = (full, reduced)
    batches = [pad(sources[i : i + _BATCH]) for i in range(0, len(sources), _BATCH)]
    equal = 0
    for batch in batches:
        noise = None
        if full.manifest.is_sampling():  # both draw the same
            noise = checked_noise(None, full.manifest.search, len(batch))
        ours, theirs = (one.search(batch, False, noise)["tokens"][:, 0] for one in both)
        equal += int((ours == theirs).all(axis=1).sum())
    times = ([], [])
    for _ in range(rounds):
        for translator, taken in zip(both, times, strict=True):
            start = time.perf_counter()
            translator.translate_ids(batches[0])
            taken.append(time.perf_counter() - start)
    bleu = loss = None
    if len(references):
        scores = [
            corpus_scores([t.text for t in translator.translate(texts)], references)["bleu"]
            for translator in both
        ]
        bleu, loss = scores[1], scores[0] - scores[1]
    return PrecisionLoss(
        precision=precision,
        size=size,
        time=float(np.median(times[1]) / np.median(times[0])),
        equal=equal / len(sources),
        bleu=bleu,
        bleu_loss=loss,
    )


def reduce_precision(path, precision):
    """Rewrites a float32 graph in place.

    Args:
        path: An ONNX file.
        precision: "float32" (nothing is done), "float16" or "int8".

    Raises:
        ValueError: If `precision` is unknown.
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"Argument `precision` must be one of {PRECISIONS}. Received: {precision!r}"
        )
    if precision == "float32":
        return
    model = ir.load(path)
    whole = [model.graph, *model.graph.subgraphs()]
    for graph in whole:  # first, as the choice of columns may look like an embedding
        for node in list(graph):
            if node.op_type == "MatMul":
                _shrink_chosen(graph, node, precision)
    for graph in whole:
        for node in list(graph):
            if node.op_type == "Gather":
                _shrink_table(graph, node, precision)
            elif node.op_type in ("GRU", "LSTM"):
                _shrink_recurrence(graph, node)
            elif node.op_type == "MatMul":
                _shrink_product(graph, node, precision)
    common.LiftSubgraphInitializersToMainGraphPass()(model)
    own_constants(model)
    remove_unused(model)  # and constants of which only copies are read
    common.NameFixPass()(model)  # names that new values got may stand in another loop, too
    path = Path(path)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        written = Path(scratch) / path.name
        external = save(model, written)
        if precision == "int8":
            quantized, smaller = (Path(scratch) / name / path.name for name in ("int8", "named"))
            quantized.parent.mkdir()
            smaller.parent.mkdir()
            _quantize_products(written, quantized, _unlike_matrices(model), external)
            save(ir.load(quantized), smaller)
            written = smaller
        path.with_name(weights_file(path.name)).unlink(missing_ok=True)
        for file in written.parent.glob(f"{path.name}*"):
            file.replace(path.with_name(file.name))


def _unlike_matrices(model):
    """Names of the products that int8 leaves as they are."""
    products = [node for node in model.graph.all_nodes() if node.op_type == "MatMul"]
    return [node.name for node in products if not _is_matrix(node.inputs[1])]


def _weights(value):
    """The numbers of a float32 weight that is worth shrinking, or `None`."""
    numbers = _numbers(value)
    if numbers is None or numbers.dtype != np.float32 or numbers.size < _SMALLEST:
        return None
    return numbers if np.abs(numbers).max() <= _LARGEST_HALF else None


def _is_matrix(value):
    """Whether a value is a weight that the products of int8 take."""
    numbers = _weights(value)
    return numbers is not None and numbers.ndim == 2


def _numbers(value):
    """A constant, or what is cut or turned out of one; `None` for what depends on the input."""
    numbers = constant(value)
    if numbers is not None:
        return numbers
    node = value.producer() if value is not None else None
    if node is None or node.op_type not in ("Transpose", "Slice"):
        return None
    whole, *bounds = [_numbers(side) for side in node.inputs]
    if whole is None or any(bound is None for bound in bounds):
        return None
    if node.op_type == "Transpose":  # an embedding tied to the output
        return whole.transpose(node.attributes["perm"].value if "perm" in node.attributes else None)
    if len(bounds) < 3:  # with the axes
        return None
    cut = [slice(None)] * whole.ndim  # a part of the gates
    starts, ends, axes, *steps = bounds
    for i, axis in enumerate(axes):
        cut[axis] = slice(int(starts[i]), int(ends[i]), int(steps[0][i]) if steps else 1)
    return whole[tuple(cut)]


def _shrink_table(graph, gather, precision):
    table = _weights(gather.inputs[0])
    rows = "axis" not in gather.attributes or gather.attributes["axis"].value == 0
    if table is None or table.ndim != 2 or not rows:
        return
    name, ids = gather.inputs[0].name, gather.inputs[1]
    # Of shares that a shortlist sums, with one scale for a row, the small ones would be nothing.
    precision = "float16" if _is_summed(gather.outputs[0]) else precision
    _replace(graph, gather, _put_small(graph, gather, precision, name, table, 1, ids))


def _is_summed(value):
    """Whether a value is added up by where it belongs, as the shares of a shortlist are."""
    return any(
        node.op_type.startswith("Scatter")
        or (node.op_type in _MOVED and any(map(_is_summed, node.outputs)))
        for node, _ in value.uses()
    )


def _put_small(graph, before, precision, name, numbers, axis, ids=None):
    """Weights, or their rows `ids`, in float32 out of smaller numbers.

    Those are float16, or int8 with a scale for all that stands along `axis`.
    """
    if precision == "float16":
        value = _stored(graph, name, numbers.astype(np.float16))
        if ids is not None:
            value = put(graph, before, "Gather", value, ids)
        return put(graph, before, "Cast", value, to=ir.DataType.FLOAT)
    scale = np.maximum(np.abs(numbers).max(axis=axis, keepdims=True), 1e-30) / 127
    whole = _stored(graph, name, np.round(numbers / scale).astype(np.int8))
    scale = _stored(graph, f"{name}_scale", scale.astype(np.float32))
    if ids is not None:
        whole, scale = (put(graph, before, "Gather", part, ids) for part in (whole, scale))
    return put(graph, before, "Mul", put(graph, before, "Cast", whole, to=ir.DataType.FLOAT), scale)


def _shrink_recurrence(graph, node):
    for i in (1, 2):
        weights = _weights(node.inputs[i])
        if weights is not None:
            name = node.inputs[i].name
            node.replace_input_with(i, _put_small(graph, node, "float16", name, weights, 0))


def _shrink_product(graph, product, precision):
    sides = [_weights(side) for side in product.inputs]
    if sides[1] is None or (precision == "int8" and sides[1].ndim != 2):
        return
    names = [side.name for side in product.inputs]
    if sides[0] is not None:  # onnxruntime does this product when it opens the graph, in float32
        for i, numbers in enumerate(sides):
            small = _put_small(graph, product, precision, names[i], numbers, 1 - i)
            product.replace_input_with(i, small)
        return
    weights = np.ascontiguousarray(sides[1])
    if precision == "int8":  # the rest is done by onnxruntime's quantizer, which wants constants
        product.replace_input_with(1, _stored(graph, names[1], weights))
        return
    weights = _stored(graph, names[1], weights.astype(np.float16))
    inputs = put(graph, product, "Cast", product.inputs[0], to=ir.DataType.FLOAT16)
    found = put(graph, product, "MatMul", inputs, weights)
    _replace(graph, product, put(graph, product, "Cast", found, to=ir.DataType.FLOAT))


def _shrink_chosen(graph, product, precision):
    """A product with some columns of weights, chosen as the graph runs: the small ones are."""
    where = made_by(product.inputs[1], "Where")
    columns = product.inputs[1] if where is None else where.inputs[2]
    transpose = made_by(columns, "Transpose")
    gather = made_by(columns if transpose is None else transpose.inputs[0], "Gather")
    numbers = None if gather is None else _weights(gather.inputs[0])
    if numbers is None or numbers.ndim != 2:
        return
    ids = gather.inputs[1]
    if ids.shape is None or len(ids.shape) != 1 or _order(transpose) != [1, 0]:
        return
    axis = gather.attributes["axis"].value if "axis" in gather.attributes else 0
    if axis != (1 if transpose is None else 0):
        return
    numbers = numbers.T if transpose is None else numbers  # a row for each that can be chosen
    if where is not None:
        place = _place_of_mean(where, gather, axis)
        if place is None:
            return
        numbers = numbers.copy()
        numbers[place] = numbers.mean(axis=0)
    home, name = gather.graph, gather.inputs[0].name

    def chosen(array, name):
        return put(home, gather, "Gather", _stored(home, name, np.ascontiguousarray(array)), ids)

    if precision == "float16":
        columns = chosen(numbers.astype(np.float16), f"{name}_rows")
        columns = put(home, gather, "Transpose", columns, perm=[1, 0])
        inputs = put(graph, product, "Cast", product.inputs[0], to=ir.DataType.FLOAT16)
        found = put(graph, product, "MatMul", inputs, columns)
        _replace(graph, product, put(graph, product, "Cast", found, to=ir.DataType.FLOAT))
        return
    scale = np.maximum(np.abs(numbers).max(axis=1), 1e-30) / _LARGEST
    columns = chosen(np.round(numbers / scale[:, None]).astype(np.int8), f"{name}_rows")
    columns = put(home, gather, "Transpose", columns, perm=[1, 0])
    scale = chosen(scale.astype(np.float32), f"{name}_rows_scale")
    inputs, of_inputs, zero = put(
        graph, product, "DynamicQuantizeLinear", product.inputs[0], outputs=3
    )
    found = put(graph, product, "MatMulInteger", inputs, columns, zero)
    found = put(graph, product, "Cast", found, to=ir.DataType.FLOAT)
    scale = put(graph, product, "Mul", of_inputs, scale)
    _replace(graph, product, put(graph, product, "Mul", found, scale))


def _place_of_mean(where, gather, axis):
    """The id whose column is the mean of all in a choice of columns, or `None` for another choice.

    That is what stands for all ids that are not chosen.
    """
    equal, mean = made_by(where.inputs[0], "Equal"), where.inputs[1]
    if (reshape := made_by(mean, "Reshape")) is not None:
        mean = reshape.inputs[0]
    mean = made_by(mean, "ReduceMean")
    if equal is None or mean is None or equal.inputs[0] is not gather.inputs[1]:
        return None
    axes, place = constant(mean.inputs[1]), constant(equal.inputs[1])
    if mean.inputs[0] is not gather.inputs[0] or axes is None or axes.tolist() != [axis]:
        return None
    return None if place is None else place.item()


def _order(transpose):
    """In which order the axes of a matrix stand after a node, or without one."""
    if transpose is None or "perm" not in transpose.attributes:
        return [1, 0]
    return list(transpose.attributes["perm"].value)


def _quantize_products(path, smaller, left_out, external):
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # onnxruntime recommends, at every call, what is done before here
    try:
        quantize_dynamic(
            path,
            smaller,
            op_types_to_quantize=["MatMul"],
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,  # to seven bits, see `_LARGEST`
            nodes_to_exclude=left_out,
            use_external_data_format=external,
            extra_options={"EnableSubgraph": True},
        )
    finally:
        root.setLevel(level)


def _stored(graph, name, array):
    return register(graph, f"{name}_{array.dtype}", array)


def _replace(graph, node, value):
    take_place(node.outputs[0], value)
    graph.remove(node, safe=True)
