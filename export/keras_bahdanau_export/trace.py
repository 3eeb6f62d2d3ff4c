"""What goes into the graphs: TensorFlow functions with the names, dtypes and axes of a signature.

Each function here returns a `tf.function` and its `Signature`, which the writers of SavedModel and
ONNX take from there.
"""

import keras
import tensorflow as tf
from keras import ops, tree

from keras_bahdanau.search.candidates import stable_top_k
from keras_bahdanau_export.call import tensor_of
from keras_bahdanau_runtime.signature import SAMPLE, TRANSLATE, Signature, Tensor


def search_function(model, search, max_length, shortlist=None):
    """The whole search: source ids in; tokens, scores, lengths and alignments out.

    Args:
        model: A `Seq2Seq` or an `Ensemble` on the TensorFlow backend.
        search: The search that goes into the graph.
        max_length: Number of tokens after which hypotheses are cut, an int.
        shortlist: A `Shortlist` of the ids that it chooses from, or `None`.

    Returns:
        `(function, signature)`: `TRANSLATE`, or `SAMPLE` for a search that draws.
    """
    signature = search_signature(search)

    def translate(source, noise=None):
        extra = {} if noise is None else {"noise": noise}
        found = model.search(source, search, max_length, shortlist, **extra)._asdict()
        return [found[tensor.name] for tensor in signature.outputs]

    return _traced(translate, signature), signature


def search_signature(search):
    """`TRANSLATE`, or `SAMPLE` for a search that draws."""
    return TRANSLATE if search.noise(1, 1) is None else SAMPLE


def encode_function(model):
    """The encoder: source ids in; the memory and the first state of the decoder out.

    The outputs `memory_0`, ... and `state_0`, ... are inputs of `step_function`, each with the
    batch as its first axis.

    Args:
        model: A `Seq2Seq` or an `Ensemble` on the TensorFlow backend.

    Returns:
        `(function, signature)`.
    """
    source = TRANSLATE.inputs[0]
    memory, state = _start_specs(model)

    def encode(source):
        found, first, _ = model.start(source)
        return [*_tensors(found), *_tensors(first)]

    outputs = (*_named("memory", _tensors(memory)), *_named("state", _tensors(state)))
    signature = Signature(inputs=(source,), outputs=outputs)
    return _traced(encode, signature), signature


def step_function(model):
    """One step of the decoder: the last tokens, memory and state in; the next token's odds out.

    Its outputs are `log_probs` `(batch, vocabulary)`, `best` `(batch,)`, the likeliest token,
    `alignment` `(batch, source_length)` and `next_state_0`, ..., which the next step reads as
    `state_0`, ...

    Args:
        model: A `Seq2Seq` or an `Ensemble` on the TensorFlow backend.

    Returns:
        `(function, signature)`.
    """
    memory, state = _start_specs(model)
    inputs = (
        Tensor("tokens", "int32", ("batch",)),
        *_named("memory", _tensors(memory)),
        *_named("state", _tensors(state)),
    )
    outputs = (
        Tensor("log_probs", "float32", ("batch", model.target_vocabulary_size)),
        Tensor("best", "int32", ("batch",)),
        Tensor("alignment", "float32", ("batch", "source_length")),
        *_named("next_state", _tensors(state)),
    )

    def step(tokens, *parts):
        count = len(_tensors(memory))
        logits, after, weights = model.step(
            tokens, _filled(state, parts[count:]), _filled(memory, parts[:count])
        )
        log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
        _, best = stable_top_k(log_probs, 1)
        return [log_probs, best[:, 0], ops.cast(weights, "float32"), *_tensors(after)]

    signature = Signature(inputs=inputs, outputs=outputs)
    return _traced(step, signature), signature


def forward_function(model, signature):
    """The call of any Keras model.

    Args:
        model: A functional model on the TensorFlow backend.
        signature: Its `call_signature`.

    Returns:
        `(function, signature)`.
    """

    def forward(*inputs):
        return tree.flatten(model(tree.pack_sequence_as(model.input, inputs), training=False))

    return _traced(forward, signature), signature


def _traced(function, signature):
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            "Argument `model` must be on the TensorFlow backend to be traced. "
            f"Received: one on {keras.config.backend()}"
        )
    specs = [
        tf.TensorSpec([axis if isinstance(axis, int) else None for axis in t.axes], t.dtype, t.name)
        for t in signature.inputs
    ]

    def named(*inputs):
        found = function(*inputs)
        # An identity gives each output the name that the graph's users will see.
        return {
            tensor.name: tf.identity(value, name=tensor.name)
            for tensor, value in zip(signature.outputs, found, strict=True)
        }

    return tf.function(named, input_signature=specs, autograph=False)


def _start_specs(model):
    """Memory and state as nests of shapes and dtypes, `None` where there is no tensor."""
    source = tf.TensorSpec((None, None), "int32")
    found = tf.function(lambda source: model.start(source)[:2], autograph=False)
    return found.get_concrete_function(source).structured_outputs


def _tensors(nest):
    return [part for part in tree.flatten(nest) if part is not None]


def _filled(nest, tensors):
    tensors = iter(tensors)
    return tree.map_structure(lambda part: None if part is None else next(tensors), nest)


def _named(name, parts):
    return tuple(tensor_of(f"{name}_{i}", part, "source_length") for i, part in enumerate(parts))
