"""TensorFlow functions of a model, traced with named inputs and outputs, and their files.

The `*_function` functions return a `tf.function` and its `Signature`: names, dtypes and axes. The
SavedModel and the ONNX files are written from these. TensorFlow is imported inside functions, as
`as_functional` and `forward_signature` also serve models on JAX and torch.
"""

import dataclasses
import errno
import os
import re
from collections import Counter
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops, tree

from keras_bahdanau.models.generation import GenerationMixin
from keras_bahdanau.search.candidates import stable_top_k
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import PAD
from keras_bahdanau_runtime.signature import (
    ENCODER_FILE,
    MODEL_FILE,
    OPTIONS,
    SAMPLE,
    SAVED_MODEL_FOLDER,
    SCORE,
    SCORE_FILE,
    SCORE_WITH_COPIES,
    STEP_FILE,
    TRANSLATE,
    Signature,
    Tensor,
)

_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)  # names that TensorFlow does not change
# Names of Keras that TensorFlow and tf2onnx accept.
_DEFAULT_NAMES = {
    "input_names": re.compile(r"[^:]+"),
    "output_names": re.compile(r"[A-Za-z0-9.][\w./>-]*", re.ASCII),
}


class TracedGraph(NamedTuple):
    """One function of a model, to be written as a graph.

    Attributes:
        function: A `tf.function` of the inputs and options of `signature`.
        signature: Its `Signature`.
        file: Name of its ONNX file; `None` if only the SavedModel contains it.
        description: A sentence on the graph for people who open the file.
        defaults: Arrays by name, the defaults of the options.
    """

    function: Any
    signature: Signature
    file: str | None
    description: str
    defaults: Any = None


def trace_graphs(model, options):
    """Trace the functions that go into an artifact.

    Args:
        model: A `Seq2Seq`, an `Ensemble` or a functional model, on the TensorFlow backend.
        options: `ExportOptions` with a search if the model generates.

    Returns:
        A dict from names of SavedModel signatures to `TracedGraph`s.
    """
    if not isinstance(model, GenerationMixin):
        model = as_functional(model)
        signature = forward_signature(model, options.input_names, options.output_names)
        description = f"Forward pass of the Keras model {model.name}"
        return {"call": TracedGraph(*forward_function(model, signature), MODEL_FILE, description)}
    kind = type(model).__name__
    search = options.search, options.max_length, options.shortlist
    description = f"{type(options.search).__name__} of a {kind}: source ids in, target ids out"
    fixed, signature = search_function(model, *search)
    graphs = {
        "translate": TracedGraph(fixed, signature, None, description),
        "translate_with_options": TracedGraph(
            *search_function(model, *search, options_are_inputs=True),
            MODEL_FILE,
            description,
            search_defaults(options.search, options.max_length),
        ),
        "score": TracedGraph(
            *score_function(model),
            SCORE_FILE,
            f"Forced decoding of a {kind}: source and target ids in, log-probabilities out",
        ),
    }
    if options.stepwise or "tf_saved_model" in options.formats:
        graphs["encode"] = TracedGraph(
            *encode_function(model),
            ENCODER_FILE if options.stepwise else None,
            f"Encoder of a {kind}: source ids in, memory and first state of the decoder out",
        )
        graphs["step"] = TracedGraph(
            *step_function(model),
            STEP_FILE if options.stepwise else None,
            f"Decoder step of a {kind}: last ids, memory and state in, log-probabilities of the "
            "next ids and next state out",
        )
    return graphs


def trace_and_write(model, options, folder):
    """Trace a model and write its SavedModel and ONNX files.

    Args:
        model: As for `trace_graphs`.
        options: As for `trace_graphs`.
        folder: The `Path` to write into.

    Returns:
        The signatures of the ONNX files as plain dicts, by file name.
    """
    from keras_bahdanau_export.graph.writer import write_cuda_graphs, write_onnx

    graphs = trace_graphs(model, options)
    if "tf_saved_model" in options.formats:
        functions = {name: graph.function for name, graph in graphs.items()}
        _write_saved_model(model, folder / SAVED_MODEL_FOLDER, functions)
    if "onnx" not in options.formats:
        return {}
    signatures = {}
    for graph in graphs.values():
        if graph.file is not None:
            signatures[graph.file] = graph.signature
            function, signature, file, *details = graph
            skip_ended = options.skip_ended and graph.file == MODEL_FILE
            write_onnx(
                function, signature, folder / file, model.variables, *details, skip_ended=skip_ended
            )
    if options.cuda_graphs:
        function, signature, _, description, _ = graphs["translate"]
        signatures |= write_cuda_graphs(function, signature, folder, model.variables, description)
    return {name: signature.to_json() for name, signature in signatures.items()}


def search_function(model, search, max_length, shortlist=None, options_are_inputs=False):
    """Return the whole search: source ids to tokens, scores, lengths and alignments.

    Args:
        model: A `Seq2Seq` or an `Ensemble` on the TensorFlow backend.
        search: The search in the graph.
        max_length: Maximum number of tokens of a hypothesis, an int.
        shortlist: A `Shortlist` of the ids to search, or `None`.
        options_are_inputs: Whether the settings of the search are inputs, after the others.

    Returns:
        `(function, signature)`. The signature is `SAMPLE` for a search that draws random numbers,
        else `TRANSLATE`, with the options.
    """
    signature = search_signature(search)
    if options_are_inputs:
        names = search_defaults(search, max_length)
        options = tuple(option for option in OPTIONS.values() if option.name in names)
        signature = dataclasses.replace(signature, options=options)
    names = [tensor.name for tensor in (*signature.inputs, *signature.options)]

    def translate(*tensors):
        inputs = dict(zip(names, tensors, strict=True))
        source, configured = inputs.pop("source"), search
        if options_are_inputs:
            configured, inputs = _configured_search(search, inputs, ops.shape(source)[0])
        result = model.search(source, configured, max_length, shortlist, **inputs)._asdict()
        return [result[tensor.name] for tensor in signature.outputs]

    return _traced(translate, signature), signature


def search_defaults(search, max_length):
    """Return the default of each option of an exported search, an array by name."""
    defaults = {"max_length": max_length, "prefix": [[PAD]], "suppressed": [[PAD]]}
    defaults["completions"] = [[[PAD, PAD]]]
    if search.accepts_required:
        defaults["required"] = [[[PAD]]]
    defaults |= search.options()
    return {name: np.asarray(value, OPTIONS[name].dtype) for name, value in defaults.items()}


def _configured_search(search, inputs, batch):
    """Return a search whose settings are the tensors in `inputs`, and the rest for its call."""
    settings = {name: inputs.pop(name) for name in search.options()}
    if "beam_size" in settings:
        # The limits also keep tools from computing all sizes with the default.
        size = ops.minimum(ops.maximum(settings["beam_size"], 1), search.beam_size)
        # The size of an axis, so that the passes can tell which sizes are multiples of it.
        settings["beam_size"] = ops.shape(ops.arange(size, dtype="int32"))[0]
    limits = ops.broadcast_to(inputs.pop("max_length"), (batch,))
    return search.with_settings(**settings), {**inputs, "limits": limits}


def search_signature(search):
    """Return `SAMPLE` for a search that draws random numbers, else `TRANSLATE`."""
    return TRANSLATE if search.noise(1, 1) is None else SAMPLE


def score_function(model):
    """Return forced decoding: source and target ids to log-probabilities, alignments and copies.

    Args:
        model: A `Seq2Seq` or an `Ensemble` on the TensorFlow backend.

    Returns:
        `(function, signature)`.
    """
    signature = SCORE_WITH_COPIES if model.scores_copies else SCORE

    def score(source, target):
        result = model.forced_scores(source, target)._asdict()
        return [result[tensor.name] for tensor in signature.outputs]

    return _traced(score, signature), signature


def encode_function(model):
    """Return the encoder: source ids to the memory and the first state of the decoder.

    The outputs `memory_0`, ... and `state_0`, ... are inputs of `step_function`. Their first axis
    is the batch.

    Args:
        model: A `Seq2Seq` or an `Ensemble` on the TensorFlow backend.

    Returns:
        `(function, signature)`.
    """
    source = TRANSLATE.inputs[0]
    memory, state = _start_specs(model)

    def encode(source):
        memory, state, _ = model.start(source)
        return [*_tensors(memory), *_tensors(state)]

    outputs = (*_numbered("memory", _tensors(memory)), *_numbered("state", _tensors(state)))
    signature = Signature(inputs=(source,), outputs=outputs)
    return _traced(encode, signature), signature


def step_function(model):
    """Return one decoder step: last tokens, memory and state to log-probabilities and next state.

    Its outputs are `log_probs` `(batch, vocabulary)`, `best` `(batch,)` with the most likely
    tokens, `alignment` `(batch, source_length)` and `next_state_0`, ..., which the next step reads
    as `state_0`, ...

    Args:
        model: A `Seq2Seq` or an `Ensemble` on the TensorFlow backend.

    Returns:
        `(function, signature)`.
    """
    memory, state = _start_specs(model)
    inputs = (
        Tensor("tokens", "int32", ("batch",)),
        *_numbered("memory", _tensors(memory)),
        *_numbered("state", _tensors(state)),
    )
    outputs = (
        Tensor("log_probs", "float32", ("batch", model.target_vocabulary_size)),
        Tensor("best", "int32", ("batch",)),
        Tensor("alignment", "float32", ("batch", "source_length")),
        *_numbered("next_state", _tensors(state)),
    )

    def step(tokens, *tensors):
        count = len(_tensors(memory))
        logits, next_state, weights = model.step(
            tokens, _packed(state, tensors[count:]), _packed(memory, tensors[:count])
        )
        log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
        _, best = stable_top_k(log_probs, 1)
        return [log_probs, best[:, 0], ops.cast(weights, "float32"), *_tensors(next_state)]

    signature = Signature(inputs=inputs, outputs=outputs)
    return _traced(step, signature), signature


def forward_function(model, signature):
    """Return the forward pass of any functional Keras model.

    Args:
        model: A functional model on the TensorFlow backend.
        signature: Its `forward_signature`.

    Returns:
        `(function, signature)`.
    """

    def forward(*inputs):
        return tree.flatten(model(tree.pack_sequence_as(model.input, inputs), training=False))

    return _traced(forward, signature), signature


def as_functional(model):
    """Return the model as a functional one, whose nested inputs and outputs are declared.

    Args:
        model: A functional or built `Sequential` model.

    Raises:
        ValueError: If it is neither.
    """
    if not getattr(model, "inputs", None):
        name = type(model).__name__
        raise argument_error(
            "model",
            "be a Seq2Seq, an Ensemble, or a built functional or Sequential model, which "
            "declare their inputs",
            received=(
                f'{name}. Make a functional model of it: x = keras.Input(shape, name="x"); '
                "export(keras.Model(x, model(x)), path)"
            ),
        )
    if isinstance(model, keras.Sequential):
        return keras.Model(model.inputs, model.outputs, name=model.name)
    return model


def forward_signature(model, input_names=None, output_names=None):
    """Return the `Signature` of a functional model's forward pass.

    Args:
        model: A functional model.
        input_names: A name for each input; the names of the `keras.Input`s if `None`.
        output_names: A name for each output. If `None`: the keys if the outputs are a dict, else
            the layer names, numbered where a layer has several outputs.

    Raises:
        ValueError: If the number of names is wrong, a name occurs twice, or TensorFlow would change
            a name or does not accept it.
    """
    arguments = {"input_names": input_names, "output_names": output_names}
    defaults = {
        "input_names": [tensor.name for tensor in model.inputs],
        "output_names": _default_output_names(model),
    }
    for argument, names in arguments.items():
        if names is not None:
            _check_names(argument, names, defaults[argument])
            continue
        for name in defaults[argument]:
            if not _DEFAULT_NAMES[argument].fullmatch(name):
                raise argument_error(
                    argument, "be passed, because TensorFlow does not accept a default name", name
                )
    inputs, outputs = (
        defaults[argument] if names is None else names for argument, names in arguments.items()
    )
    repeated = sorted(name for name, count in Counter([*inputs, *outputs]).items() if count > 1)
    if repeated:
        raise argument_error(
            ("input_names", "output_names"),
            "give every input and output a different name",
            received=str(repeated),
        )
    return Signature(
        inputs=tuple(map(tensor_of, inputs, model.inputs)),
        outputs=tuple(map(tensor_of, outputs, model.outputs)),
    )


def tensor_of(name, spec, dynamic_axis=None):
    """Return a signature's `Tensor` for a spec.

    The first axis is named `batch` if its size is unknown. Other axes of unknown size are named
    `dynamic_axis`, or by tensor and axis if that is `None`.
    """
    axes = [
        (("batch" if i == 0 else dynamic_axis or f"{name}_axis_{i}") if size is None else size)
        for i, size in enumerate(spec.shape)
    ]
    return Tensor(name, keras.backend.standardize_dtype(spec.dtype), tuple(axes))


def _default_output_names(model):
    paths = [path for path, _ in tree.flatten_with_path(model.output)]
    names = [
        path[-1] if path and isinstance(path[-1], str) else layer
        for path, layer in zip(paths, model.output_names, strict=True)
    ]
    totals, used = Counter(names), Counter()
    for i, name in enumerate(names):
        if totals[name] > 1:
            names[i] = f"{name}_{used[name]}"
            used[name] += 1
    return names


def _check_names(argument, names, defaults):
    if not isinstance(names, (list, tuple)) or len(names) != len(defaults):
        raise argument_error(
            argument, f"be a list of {len(defaults)} names, instead of {defaults}", names
        )
    invalid = [name for name in names if not isinstance(name, str) or not _NAME.fullmatch(name)]
    if invalid:
        raise argument_error(
            argument,
            "contain names of ASCII letters, digits and _ that begin with a letter",
            invalid[0],
        )


def _traced(function, signature):
    import tensorflow as tf

    if keras.config.backend() != "tensorflow":
        raise argument_error(
            "model",
            "be on the TensorFlow backend to be traced",
            received=f"one on {keras.config.backend()}",
        )
    specs = [
        tf.TensorSpec([axis if isinstance(axis, int) else None for axis in t.axes], t.dtype, t.name)
        for t in (*signature.inputs, *signature.options)
    ]

    def with_names(*inputs):
        results = function(*inputs)
        # An identity gives each output its name in the graph.
        return {
            tensor.name: tf.identity(result, name=tensor.name)
            for tensor, result in zip(signature.outputs, results, strict=True)
        }

    return tf.function(with_names, input_signature=specs, autograph=False)


def _start_specs(model):
    """Return memory and state as nests of `TensorSpec`s, with `None` where there is no tensor."""
    import tensorflow as tf

    source = tf.TensorSpec((None, None), "int32")
    start = tf.function(lambda source: model.start(source)[:2], autograph=False)
    return start.get_concrete_function(source).structured_outputs


def _tensors(nest):
    return [tensor for tensor in tree.flatten(nest) if tensor is not None]


def _packed(nest, tensors):
    tensors = iter(tensors)
    return tree.map_structure(lambda spec: None if spec is None else next(tensors), nest)


def _numbered(name, specs):
    return tuple(tensor_of(f"{name}_{i}", spec, "source_length") for i, spec in enumerate(specs))


def _write_saved_model(model, folder, functions):
    """Write a SavedModel that loads without this package.

    Args:
        model: The Keras model whose variables the functions use, on the TensorFlow backend.
        folder: The folder to write.
        functions: `tf.function`s by signature name; the first is the default signature.
    """
    import tensorflow as tf

    module = tf.Module()
    signatures = {name: function.get_concrete_function() for name, function in functions.items()}
    for name, function in functions.items():
        setattr(module, name, function)
    module.variables_ = [v.value for v in model.variables]  # a SavedModel needs them on the module
    default = {"serving_default": next(iter(signatures.values()))}
    try:
        tf.saved_model.save(module, str(folder), signatures={**signatures, **default})
    except tf.errors.ResourceExhaustedError as error:  # TensorFlow's error of a full disk
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
    (folder / "fingerprint.pb").unlink(missing_ok=True)  # optional, and contains a random number
