"""Numbers, gradients and masks of every layer, against the NumPy reference.

One compiled function per case gives outputs and gradients, so that a backend compiles it once.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import decoders
import encoders
import keras
import mechanisms
import numpy as np
import pytest
import reference
from gradients import assert_slopes, differentiate
from layer_checks import (
    POLICIES,
    array,
    assert_close,
    assert_run_ignores_garbage,
    compiled_alone,
    dtype_policy,
    numpy,
    randomize,
    right_mask,
)

from keras_bahdanau import AttentiveDecoder, BahdanauAttention, DeepOutput
from keras_bahdanau.layers import (
    AttentionPooling,
    ClosedLoop,
    PointerGenerator,
    WindowNormalization,
)


class Case(NamedTuple):
    """A built layer, its positional arguments, and what it should return."""

    layer: keras.layers.Layer
    arrays: list[np.ndarray]
    arguments: dict
    expected: Callable  # (arrays, trainable weights), all float64 -> a tuple of outputs
    masks: dict[int, np.ndarray]  # bool over the first axes of the array with this index


# Attention cases that also get a mask of positions for each query.
MASKED_BY_QUERY = ("bahdanau_chunks", "bahdanau_heads_normalized")


def attention_case(name, rng):
    attention = mechanisms.random_attention(name, rng)
    mask = mechanisms.MASK
    names = list(reference.weights_by_name(attention))
    arguments = dict(value_mask=mask, return_attention_scores=True)
    by_query = name in MASKED_BY_QUERY
    if by_query:
        arguments["attention_mask"] = mechanisms.MASK_BY_QUERY

    def expected(arrays, weights):
        by_name = dict(zip(names, weights, strict=True))
        if by_query:
            masks = mask[:, None] & mechanisms.MASK_BY_QUERY
            return mechanisms.expected_by_query(name, by_name, *arrays, masks)
        return mechanisms.expected_call(name, by_name, *arrays, mask)

    return Case(attention, list(mechanisms.random_inputs(rng)), arguments, expected, {1: mask})


def decoder_case(form, rng):
    decoder = decoders.random_decoder(rng, **form)
    inputs, annotations, states = decoders.random_inputs(rng, decoder)
    mask, inputs_mask = decoders.MASK, decoders.INPUTS_MASK

    def expected(arrays, weights):
        inputs, annotations = arrays
        return decoders.reference_of_kept_steps(
            decoder, inputs, inputs_mask, annotations, mask, states, weights
        )

    arguments = dict(
        annotations_mask=mask,
        initial_state=states,
        inputs_mask=inputs_mask,
        return_attention_scores=True,
    )
    masks = {0: inputs_mask, 1: mask}
    return Case(decoder, [inputs, annotations], arguments, expected, masks)


def closed_loop_case(rng):
    decoder = decoders.random_decoder(rng, attention="location", input_feeding=True)
    steps, mask, width = decoders.TY, decoders.MASK, decoders.M - 1
    known = array(rng, decoders.B, steps, 1)
    loop = ClosedLoop(decoder, steps, keras.layers.Dense(width))
    loop.build((decoders.B, width), (decoders.B, decoders.TX, decoders.D), known.shape)
    randomize(loop.next_input, rng)
    inputs, annotations, states = decoders.random_inputs(rng, decoder)
    count = len(decoder.trainable_variables)

    def expected(arrays, weights):
        first, annotations = arrays
        parts = weights[count:], weights[:count]
        return decoders.reference_closed_loop(
            decoder, first, annotations, mask, states, *parts, known
        )

    arguments = dict(annotations_mask=mask, initial_state=states, known_inputs=known)
    return Case(loop, [inputs[:, 0, :width], annotations], arguments, expected, {1: mask})


def encoder_case(form, rng):
    encoder = encoders.random_encoder(form, rng)
    inputs, mask = array(rng, encoders.B, encoders.TX, encoders.M), encoders.ANY_MASK

    def expected(arrays, weights):
        return (encoders.reference_of_kept(encoder, arrays[0], mask, weights),)

    return Case(encoder, [inputs], dict(mask=mask), expected, {0: mask})


def readout_case(activation, rng):
    readout = DeepOutput(3, activation=activation)
    readout.build((2, 3), (2, 5), (2, 6))
    randomize(readout, rng)
    function = None if activation == "maxout" else np.tanh

    def expected(arrays, weights):
        rows = zip(*arrays, strict=True)
        return (np.array([reference.deep_output(*row, weights, function) for row in rows]),)

    return Case(readout, [array(rng, 2, width) for width in (3, 5, 6)], {}, expected, {})


def pooling_case(rng):
    widths = mechanisms
    pooling = AttentionPooling(widths.U, queries=2)
    pooling.build((None, None, widths.D))
    randomize(pooling, rng)
    values, mask = array(rng, widths.B, widths.TX, widths.D), widths.MASK

    def expected(arrays, weights):
        keys, learned, score = weights
        projections = [np.eye(widths.U), keys, score]  # a learned query needs no projection W_a
        pairs = [
            [reference.additive_attention(query, row, keep, projections) for query in learned]
            for row, keep in zip(arrays[0], mask, strict=True)
        ]
        return tuple(np.array([[pair[k] for pair in row] for row in pairs]) for k in (0, 1))

    arguments = dict(mask=mask, return_attention_scores=True)
    return Case(pooling, [values], arguments, expected, {0: mask})


def normalization_case(rng):
    layer, lengths = WindowNormalization("last"), [5, 3]
    arrays = [array(rng, 2, 3, 4), array(rng, 2, 5, 4)]
    layer.build(*[part.shape for part in arrays])

    def expected(arrays, weights):
        rows = []
        for series, window, length in zip(*arrays, lengths, strict=True):
            kept = window[:length]
            rows.append((series - kept[-1]) / np.sqrt(kept.var(axis=0) + layer.epsilon))
        return (np.array(rows),)

    mask = right_mask(lengths, 5)
    return Case(layer, arrays, dict(window_mask=mask), expected, {1: mask})


class MixedLogProbs(keras.layers.Layer):
    """The log-probabilities that a `PointerGenerator` gives, which its logits determine."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.built = True

    def call(self, logits, features, weights, source):
        return keras.ops.log_softmax(self.layer(logits, features, weights, source))


# Source tokens: a repeated id, two ids for one target id, ids without one, specials and padding.
COPIED_SOURCE = np.array([[5, 7, 5, 6, 3], [4, 8, 1, 0, 0]], "int32")
COPIED_IDS = np.array([0, 0, 0, 0, 6, 5, 4, 5, 0])
# The ids 7 and 8 of 9 target ids are the first two different words of a source that the target
# vocabulary lacks: 8 and 10 of the first source, and 9 and 11 of the second one.
WORD_SOURCE = np.array([[8, 5, 10, 8, 9, 3], [9, 11, 4, 11, 1, 0]], "int32")
WORD_IDS = np.array([0, 0, 0, 0, 6, 5, 4, 5, 1, 1, 1, 1])
TARGETS_OF_WORDS = np.array([[7, 5, 8, 7, 0, 0], [7, 8, 6, 8, 0, 0]])


def copying_case(source, targets, copied_words, table, rng):
    """A case of a `PointerGenerator`; `targets` are the target ids of the source tokens."""
    layer = PointerGenerator(table, copied_words=copied_words)
    size = targets.max() + 1
    arrays = [array(rng, 2, 3, size), array(rng, 2, 3, 4)]
    weights = rng.dirichlet(np.ones(source.shape[1]), (2, 3)) * (source != 0)[:, None]
    layer.build(arrays[0].shape, arrays[1].shape)
    randomize(layer, rng)

    def expected(arrays, gate):
        rows = zip(*arrays, targets, strict=True)
        return (np.array([reference.pointer_generator(*row, *gate) for row in rows]),)

    arrays.append(weights.astype("float32"))
    return Case(MixedLogProbs(layer), arrays, {"source": source}, expected, {})


CASES = {
    **{f"attention-{name}": partial(attention_case, name) for name in mechanisms.MECHANISMS},
    **{
        f"decoder-{name}": partial(decoder_case, decoders.FORMS[name])
        for name in (
            "input_feeding",
            "input_feeding_location",
            "conditional_lstm",
            "conditional_coverage",
            "residual_input_feeding",
        )
    },
    "decoder-current-state": partial(
        decoder_case, dict(cell="gru_on_lstm", query_state="current", readout_state="previous")
    ),
    "closed-loop": closed_loop_case,
    **{f"encoder-{name}": partial(encoder_case, name) for name in encoders.FORMS},
    **{f"readout-{name}": partial(readout_case, name) for name in ("maxout", "tanh")},
    "pooling": pooling_case,
    "normalization": normalization_case,
    "copying": partial(copying_case, COPIED_SOURCE, COPIED_IDS[COPIED_SOURCE], 0, COPIED_IDS),
    "copying-words": partial(copying_case, WORD_SOURCE, TARGETS_OF_WORDS, 2, WORD_IDS),
}


def as_tuple(outputs):
    return tuple(outputs) if isinstance(outputs, (list, tuple)) else (outputs,)


@pytest.mark.parametrize("name", CASES)
def test_numbers_gradients_and_masks_are_those_of_the_reference(name, rng):
    case = CASES[name](rng)
    weights = [numpy(variable.value) for variable in case.layer.trainable_variables]
    points = reference.float64([*case.arrays, *weights])
    count = len(case.arrays)

    def split(points):
        return case.expected(points[:count], points[count:])

    run = differentiate(case.layer, **case.arguments)
    outputs, gradients = run(*case.arrays)
    assert_close(as_tuple(outputs), split(points))
    assert_slopes(
        lambda points: sum((part**2).sum() for part in split(points)), points, gradients, rng
    )
    for at, mask in case.masks.items():
        assert_run_ignores_garbage(run, case.arrays, at, mask)


# --- Models with unknown batch and lengths --------------------------------------------------------


def attention_model(name):
    attention = mechanisms.MECHANISMS[name].make()
    query, values = keras.Input((None, mechanisms.N)), keras.Input((None, mechanisms.D))
    mask = keras.Input((None,), dtype="bool")
    outputs = attention(query, values, value_mask=mask, return_attention_scores=True)

    def expected(q, v, keep):
        return mechanisms.expected_call(name, reference.weights_by_name(attention), q, v, keep)

    return keras.Model([query, values, mask], list(outputs)), attention, expected


def decoder_model(name):
    decoder = decoders.unbuilt(**decoders.FORMS[name])
    inputs, annotations = keras.Input((None, decoders.M)), keras.Input((None, decoders.D))
    mask = keras.Input((None,), dtype="bool")
    outputs = decoder(inputs, annotations, mask, return_attention_scores=True)

    def expected(x, values, keep):
        states = [np.zeros((len(x), size)) for size in decoder.state_sizes]
        return decoders.reference_decoder(decoder, x, values, keep, states)

    return keras.Model([inputs, annotations, mask], list(outputs)), decoder, expected


def step_model(attention):
    """One step of a decoder as a functional model, and a function of its expected outputs."""
    decoder = decoders.build(decoders.unbuilt(attention=attention))
    inputs, annotations = keras.Input((decoders.M,)), keras.Input((None, decoders.D))
    mask = keras.Input((None,), dtype="bool")
    states = [keras.Input((size,)) for size in decoder.state_sizes]
    memory = decoder.memory(annotations, mask)
    outputs, _, weights = decoder.step(inputs, decoder.initial_state(memory, states), memory)
    model = keras.Model([inputs, annotations, mask, *states], [outputs, weights])

    def expected(x, values, keep, *states):
        sequences = decoders.reference_decoder(decoder, x[:, None], values, keep, states)
        return [part[:, 0] for part in sequences]

    return model, decoder, expected


def test_one_row_with_one_unit_has_a_score_for_every_query_and_position(rng):
    # Keras's `ops.add` on TensorFlow takes such projected keys, (1, 1, 2, 1), for a bias of axis 1.
    attention = BahdanauAttention(1)
    attention.build((1, None, 3), (1, None, 4))
    weights = reference.weights_by_name(randomize(attention, rng))
    query, values, mask = array(rng, 1, 2, 3), array(rng, 1, 2, 4), np.ones(2, bool)
    _, actual = attention(query, values, return_attention_scores=True)
    rows = [reference.bahdanau(weights, row[None], values[0], mask)[1] for row in query[0]]
    assert_close(actual, np.reshape(rows, (1, 2, 2)), 1e-5)


def test_a_decoder_step_is_a_functional_model_that_is_saved(rng, tmp_path):
    model, decoder, expected = step_model("coverage_fertility")
    randomize(decoder, rng)
    assert len(model.trainable_variables) == len(decoder.trainable_variables)

    def arrays(rows, places):
        return [
            array(rng, rows, decoders.M),
            array(rng, rows, places, decoders.D),
            right_mask([places - 1] * rows, places),
            *[array(rng, rows, size) for size in decoder.state_sizes],
        ]

    x = arrays(2, 3)
    assert_close(model.predict(x, verbose=0), expected(*x))
    model.save(tmp_path / "model.keras")
    loaded, x = keras.saving.load_model(tmp_path / "model.keras"), arrays(1, 5)
    assert_close(loaded(x), expected(*x))


# Mechanisms of which a weight may have no gradient, or which have no weights.
UNTRAINED = {
    "bahdanau_sparsemax": partial(attention_model, "bahdanau_sparsemax"),
    "location_heads": partial(attention_model, "location_heads"),
    "monotonic_hard": partial(attention_model, "monotonic_hard"),
    "fixed_narrow": partial(attention_model, "fixed_narrow"),
}
MODELS = {
    "bahdanau_heads": partial(attention_model, "bahdanau_heads"),
    "luong_concat": partial(attention_model, "luong_concat"),
    "location": partial(attention_model, "location"),
    "coverage_fertility": partial(attention_model, "coverage_fertility"),
    "monotonic": partial(attention_model, "monotonic"),
    "input_feeding": partial(decoder_model, "input_feeding"),
    "conditional_coverage": partial(decoder_model, "conditional_coverage"),
}


def lengths_of(rng, model, rows, queries, places):
    """Random inputs of a model above; the last place of each row is masked."""
    widths = [part.shape[-1] for part in model.inputs[:2]]
    mask = right_mask([places - 1] * rows, places)
    return [array(rng, rows, queries, widths[0]), array(rng, rows, places, widths[1]), mask]


@pytest.mark.parametrize("name", MODELS | UNTRAINED)
def test_a_compiled_model_of_any_lengths_gives_the_numbers_and_is_saved(name, rng, tmp_path):
    model, layer, expected = (MODELS | UNTRAINED)[name]()
    randomize(layer, rng)
    for sizes in ((2, 1, 3), (1, 4, 6)):
        x = lengths_of(rng, model, *sizes)
        assert_close(model.predict(x, verbose=0), expected(*x))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(numpy(loaded(x)), expected(*x))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_of_mixed_precision_keeps_its_weights_in_float32(name, policy, rng):
    with dtype_policy(policy):
        model, layer, expected = MODELS[name]()
    randomize(layer, rng)
    assert {variable.dtype for variable in layer.trainable_variables} == {"float32"}
    outputs, weights = model.outputs
    assert keras.backend.standardize_dtype(outputs.dtype) == policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    x = lengths_of(rng, model, 2, 3, 5)
    actual = [part.astype("float32") for part in model.predict(x, verbose=0)]
    assert_close(actual, expected(*x), 0.06)


FLOAT32_PARTS = {
    "cell": lambda: (keras.layers.GRUCell(4, dtype="float32"), BahdanauAttention(3)),
    "attention": lambda: (keras.layers.GRUCell(4), BahdanauAttention(3, dtype="float32")),
    "readout": lambda: (
        keras.layers.GRUCell(4),
        BahdanauAttention(3),
        keras.layers.Dense(4, dtype="float32"),
    ),
}


@pytest.mark.parametrize("input_feeding", [False, True])
@pytest.mark.parametrize("part", FLOAT32_PARTS)
def test_a_part_of_a_decoder_may_have_its_own_dtype_policy(part, input_feeding, rng):
    with dtype_policy("mixed_bfloat16"):
        decoder = AttentiveDecoder(*FLOAT32_PARTS[part](), input_feeding=input_feeding)
    x, values = keras.Input((3, 4)), keras.Input((5, 6))
    outputs = decoder(x, values)
    model = keras.Model([x, values], outputs)
    result = model.predict([array(rng, 2, 3, 4), array(rng, 2, 5, 6)], verbose=0)
    assert outputs.dtype == "bfloat16" == keras.backend.standardize_dtype(result.dtype)
    assert np.isfinite(result.astype("float32")).all()


@compiled_alone
@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_training_step_equals_an_eager_one(name, rng):
    model, layer, _ = MODELS[name]()
    randomize(layer, rng)
    start, after = layer.get_weights(), []
    x = lengths_of(rng, model, 3, 2, 5)
    targets = [array(rng, *part.shape) for part in numpy(model(x))]
    for options in ({"run_eagerly": True}, {"jit_compile": True}):
        layer.set_weights(start)
        model.compile("sgd", ["mse", "mse"], **options)
        model.train_on_batch(x, targets)
        after.append(layer.get_weights())
    assert_close(after[1], after[0], 1e-6)
    assert not any(np.array_equal(new, old) for new, old in zip(after[0], start, strict=True))
