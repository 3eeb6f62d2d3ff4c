import json

import keras
import numpy as np
import pytest
from gradients import differentiate
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_checks import array, assert_close
from reference import alignment_losses, token_losses

from keras_bahdanau import Perplexity, TokenAccuracy, TokenCrossentropy
from keras_bahdanau.losses import AlignmentCrossentropy
from keras_bahdanau_runtime.ids import PAD

MEANS = ["sum_over_batch_size", "mean", "mean_with_sample_weight"]


def batch(rng, padding=((0, 3), (2, 1), (2, 2), (2, 3))):
    labels = rng.integers(1, 7, size=(3, 4))
    for place in padding:
        labels[place] = PAD
    return labels, rng.normal(size=(3, 4, 7)).astype("float32") * 3


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    padding=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=11),
    smoothing=st.floats(0, 0.9),
)
def test_the_loss_is_the_mean_over_real_tokens(seed, padding, smoothing):
    labels, logits = batch(np.random.default_rng(seed), padding)
    expected = token_losses(labels, logits, smoothing).sum() / (labels != PAD).sum()
    loss = TokenCrossentropy(label_smoothing=smoothing)(labels, logits)
    np.testing.assert_allclose(float(loss), expected, rtol=1e-5)


def test_label_smoothing_equals_a_hand_computed_value():
    # p = (1/4, 1/4, 1/2): -0.7 log 1/2 - 0.1 (log 1/4 + log 1/4 + log 1/2) = 1.2 log 2
    logits = np.log([[[0.25, 0.25, 0.5]]]).astype("float32")
    loss = TokenCrossentropy(label_smoothing=0.3)(np.array([[2]]), logits)
    np.testing.assert_allclose(float(loss), 1.2 * np.log(2), rtol=1e-6)


@pytest.mark.parametrize("shape", [None, (3,), (3, 1), (3, 4)])
@pytest.mark.parametrize("reduction", [*MEANS, "sum", "none", None])
def test_every_reduction_with_and_without_sample_weight(rng, shape, reduction):
    labels, logits = batch(rng)
    weight = None if shape is None else rng.uniform(size=shape).astype("float32")
    row_weights = np.ones((3, 1)) if weight is None else weight.reshape(3, -1)
    real = labels != PAD
    weighted = token_losses(labels, logits, 0.1) * row_weights
    expected = {
        "sum_over_batch_size": weighted.sum() / real.sum(),
        "mean": weighted.sum() / real.sum(),
        "mean_with_sample_weight": weighted.sum() / (real * row_weights).sum(),
        "sum": weighted.sum(),
    }.get(reduction, weighted)
    loss = TokenCrossentropy(0.1, reduction=reduction)(labels, logits, sample_weight=weight)
    assert_close(loss, expected)


@pytest.mark.parametrize("axes", [(), (1,)], ids=["ids", "ids with a last axis"])
def test_class_weights_are_factors_of_the_losses_of_their_tokens(rng, axes):
    labels, logits = batch(rng)
    labels[0, :3] = [6, 2, 5]
    losses = token_losses(labels, logits, 0.1)
    factors = np.select([labels == 2, labels == 5], [5.0, 0.0], 1.0)
    real, each = labels != PAD, rng.uniform(size=labels.shape).astype("float32")
    expected = {
        "sum_over_batch_size": (losses * factors * each).sum() / real.sum(),
        "mean_with_sample_weight": (losses * factors * each).sum() / (factors * each * real).sum(),
        "none": losses * factors * each,
    }
    for reduction, value in expected.items():
        loss = TokenCrossentropy(0.1, reduction, class_weight={2: 5.0, 5: np.float32(0)})
        assert_close(loss(labels.reshape(*labels.shape, *axes), logits, sample_weight=each), value)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 5.0], r"`class_weight` must be a dict from ids .* Received: \[1.0, 5.0\]"),
        ({}, r"`class_weight` must be a dict from ids .* Received: {}"),
        ({"3": 5.0}, "`class_weight` must be an int of at least 0. Received: '3'"),
        ({-1: 5.0}, "`class_weight` must be an int of at least 0. Received: -1"),
        ({3: -5.0}, r"`class_weight\[3\]` must be a number of at least 0. Received: -5.0"),
    ],
    ids=str,
)
def test_class_weights_must_be_numbers_by_id(weights, message):
    with pytest.raises(ValueError, match=message):
        TokenCrossentropy(class_weight=weights)


@pytest.mark.parametrize("unknown", [7, -1])
def test_an_id_outside_of_the_vocabulary_makes_the_loss_nan(rng, unknown):
    labels, logits = batch(rng)
    labels[0, 0] = unknown
    assert np.isnan(float(TokenCrossentropy()(labels, logits)))


@pytest.mark.parametrize("shape", [(4,), (3, 4, 1), (4, 3), (1,), (1, 4)])
def test_sample_weights_of_other_shapes_are_refused(rng, shape):
    labels, logits = batch(rng)
    message = r"`sample_weight` must be .* words of shape \(3, 4\). Received: shape \("
    for measure in (TokenCrossentropy(), TokenAccuracy()):
        with pytest.raises(ValueError, match=message):
            measure(labels, logits, sample_weight=np.ones(shape, "float32"))


@pytest.mark.parametrize("reduction", [*MEANS, "sum", "none"])
def test_padding_logits_may_be_minus_infinity(rng, reduction):
    labels, logits = batch(rng)
    real = labels != PAD
    normalizers = np.logaddexp.reduce(logits[..., 1:].astype("float64"), axis=-1)
    losses = normalizers - np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    losses = losses * real
    mean = losses.sum() / real.sum()
    logits[..., PAD] = -np.inf
    loss = TokenCrossentropy(reduction=reduction)(labels, logits)
    assert_close(loss, {"none": losses, "sum": losses.sum()}.get(reduction, mean), 1e-5)
    metric = Perplexity()
    metric.update_state(labels, logits)
    assert_close(metric.result(), np.exp(mean), 1e-4)


def test_an_implicit_mask_does_not_count_padding_twice(rng):
    labels = rng.integers(1, 5, size=(3, 4))
    labels[:, 2:] = PAD
    model = keras.Sequential([keras.layers.Embedding(5, 4, mask_zero=True), keras.layers.Dense(6)])
    logits = keras.ops.convert_to_numpy(model(labels))
    model.compile(loss=TokenCrossentropy())
    expected = token_losses(labels, logits, 0.0).sum() / 6
    np.testing.assert_allclose(model.evaluate(labels, labels, verbose=0), expected, rtol=1e-5)


def test_ids_are_not_rounded_if_floatx_is_float16(rng):
    logits = array(rng, 1, 1, 2100)
    labels = np.array([[2099]])  # float16 rounds it to 2100
    before = keras.config.floatx()
    keras.config.set_floatx("float16")
    try:
        loss = float(TokenCrossentropy()(labels, logits))
    finally:
        keras.config.set_floatx(before)
    np.testing.assert_allclose(loss, token_losses(labels, logits, 0.0)[0, 0], rtol=1e-5)


def test_large_logits_stay_finite():
    logits = np.array([[[3e4, -3e4, 0.0], [-3e4, 3e4, 0.0]]], "float16")
    labels = np.array([[1, 1]])
    loss = TokenCrossentropy()(labels, logits)
    np.testing.assert_allclose(float(loss), 6e4 / 2, rtol=1e-3)


def test_a_batch_of_padding_has_no_loss_and_no_gradient(rng):
    model = keras.Sequential([keras.layers.Embedding(5, 4), keras.layers.Dense(6)])
    model.compile(keras.optimizers.SGD(1.0), loss=TokenCrossentropy(label_smoothing=0.1))
    inputs = rng.integers(0, 5, size=(2, 3))
    model.build((2, 3))
    before = model.get_weights()
    assert float(model.train_on_batch(inputs, np.zeros((2, 3), "int32"))) == 0.0
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="a function of TensorFlow")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_loss_works_in_a_tf_function(rng, jit_compile):
    import tensorflow as tf

    labels, logits = batch(rng)
    loss = tf.function(TokenCrossentropy(), jit_compile=jit_compile)(
        tf.constant(labels), tf.constant(logits)
    )
    expected = token_losses(labels, logits, 0.0).sum() / (labels != PAD).sum()
    np.testing.assert_allclose(float(loss), expected, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 2])
def test_label_smoothing_must_be_in_its_range(smoothing):
    with pytest.raises(ValueError, match="`label_smoothing` must be a number of at least 0"):
        TokenCrossentropy(label_smoothing=smoothing)


@pytest.mark.parametrize("shape", [(3, 4, 2), (3, 3, 1), (3,), (3, 3), (1, 4)])
def test_labels_must_fit_the_logits(shape):
    with pytest.raises(ValueError, match=r"`y_pred` must be logits .*Received: y_true of shape"):
        TokenCrossentropy()(np.ones(shape, "int32"), np.zeros((3, 4, 7)))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (TokenCrossentropy, {"label_smoothing": 0.2, "name": "nats", "reduction": "sum"}),
        (TokenCrossentropy, {"class_weight": {3: 5.0, 12: 0.5}}),
        (AlignmentCrossentropy, {"name": "guide", "reduction": "sum"}),
    ],
)
def test_config_round_trip(make, options):
    loss = make(**options)
    config = json.loads(json.dumps(keras.losses.serialize(loss)))  # as in a file
    again = keras.losses.deserialize(config)
    assert type(again) is make and again.get_config() == loss.get_config()
    assert {name: getattr(again, name) for name in options} == options


# --- Guided alignment -----------------------------------------------------------------------------


def random_links(rng):
    """Link counts with unaligned tokens, and weights that are zero at some unlinked positions."""
    links = rng.integers(0, 3, size=(3, 4, 5)) * rng.integers(0, 2, size=(3, 4, 5))
    links[0, 1] = links[2] = 0
    weights = rng.dirichlet(np.ones(5), size=(3, 4))
    weights[:, :, 3:] = np.where(links[:, :, 3:] == 0, 0.0, weights[:, :, 3:])
    return links, weights.astype("float32")


def test_the_alignment_loss_is_the_mean_over_aligned_tokens(rng):
    links, weights = random_links(rng)
    losses, aligned = alignment_losses(links, weights), links.any(axis=-1)
    assert 3 < aligned.sum() < 12 and (weights == 0.0).any()
    for reduction in MEANS:
        loss = AlignmentCrossentropy(reduction=reduction)
        assert_close(loss(links, weights), losses.sum() / aligned.sum())
    for reduction, expected in {"sum": losses.sum(), "none": losses, None: losses}.items():
        assert_close(AlignmentCrossentropy(reduction=reduction)(links, weights), expected)
    each = rng.uniform(size=(3, 4)).astype("float32")
    expected = (losses * each).sum() / aligned.sum()
    assert_close(AlignmentCrossentropy()(links, weights, sample_weight=each), expected)


class Guided(keras.layers.Layer):
    """The alignment loss as a function of attention scores."""

    def __init__(self, links):
        super().__init__()
        self.links = links

    def call(self, scores):
        return AlignmentCrossentropy()(self.links, keras.ops.softmax(scores))


def test_a_link_with_zero_weight_has_a_large_but_finite_loss():
    # exp(-200) is 0 in float32, so the linked position has no weight.
    layer = Guided(np.array([[[1.0, 0.0]]]))
    layer.build((1, 1, 2))
    loss, (gradient,) = differentiate(layer)(np.array([[[0.0, 200.0]]], "float32"))
    assert 50.0 < float(loss) < 100.0
    assert np.isfinite(gradient).all()


def test_a_link_with_a_small_weight_still_has_a_gradient():
    # The gradient is softmax minus links, times twice the loss because `differentiate` squares it.
    layer = Guided(np.array([[[1.0, 0.0]]]))
    layer.build((1, 1, 2))
    loss, (gradient,) = differentiate(layer)(np.array([[[0.0, 40.0]]], "float32"))
    np.testing.assert_allclose(float(loss), 40.0, rtol=1e-5)
    assert_close(gradient, [[[-80.0, 80.0]]], 1e-2)


def test_the_loss_without_any_link_is_zero(rng):
    _, weights = random_links(rng)
    assert float(AlignmentCrossentropy()(np.zeros((3, 4, 5)), weights)) == 0.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_inputs_give_a_float32_loss(rng, dtype):
    labels, logits = batch(rng)
    links, weights = random_links(rng)
    rounded = [keras.ops.cast(part, dtype) for part in (logits, weights)]
    logits, weights = (
        keras.ops.convert_to_numpy(keras.ops.cast(part, "float32")) for part in rounded
    )
    token_loss = TokenCrossentropy(label_smoothing=0.1)(labels, rounded[0])
    alignment_loss = AlignmentCrossentropy()(links, rounded[1])
    expected = (
        token_losses(labels, logits, 0.1).sum() / (labels != PAD).sum(),
        alignment_losses(links, weights).sum() / links.any(axis=-1).sum(),
    )
    for loss, value in zip((token_loss, alignment_loss), expected, strict=True):
        assert keras.backend.standardize_dtype(loss.dtype) == "float32"
        np.testing.assert_allclose(float(loss), value, rtol=1e-5)


@pytest.mark.parametrize("shape", [(3, 4), (3, 5, 4)])
def test_links_and_weights_must_have_the_same_shape(rng, shape):
    _, weights = random_links(rng)
    with pytest.raises(ValueError, match=r"`alignment` must be .*, like the attention weights"):
        AlignmentCrossentropy()(np.ones(shape), weights)


def test_a_config_of_earlier_versions_names_the_chunk_size_chunk():
    config = TokenCrossentropy(chunk_size=4).get_config()
    config["chunk"] = config.pop("chunk_size")
    assert TokenCrossentropy.from_config(config).chunk_size == 4
