import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bahdanau import TokenCrossentropy
from keras_bahdanau.ids import PAD


def token_losses(labels, logits, smoothing):
    """`-(1 - s) log p(y_i) - s / V sum_v log p(v)`, zero where the label is padding."""
    logits = np.asarray(logits, "float64")
    log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    picked = np.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    losses = -(1 - smoothing) * picked - smoothing * log_probs.mean(axis=-1)
    return losses * (labels != PAD)


def batch(rng, padding=((0, 3), (2, 1), (2, 2), (2, 3))):
    labels = rng.integers(1, 7, size=(3, 4))
    for place in padding:
        labels[place] = PAD
    return labels, rng.normal(size=(3, 4, 7)).astype("float32") * 3


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    padding=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=11),
    smoothing=st.floats(0, 0.9),
)
def test_is_the_mean_over_real_tokens(seed, padding, smoothing):
    labels, logits = batch(np.random.default_rng(seed), padding)
    expected = token_losses(labels, logits, smoothing).sum() / (labels != PAD).sum()
    loss = TokenCrossentropy(label_smoothing=smoothing)(labels, logits)
    np.testing.assert_allclose(float(loss), expected, rtol=1e-5)


def test_more_padding_changes_nothing(rng):
    labels, logits = batch(rng)
    longer = np.pad(labels, ((0, 2), (0, 3)))
    padded = np.pad(logits, ((0, 2), (0, 3), (0, 0)), constant_values=50.0)
    loss = TokenCrossentropy(label_smoothing=0.1)
    np.testing.assert_allclose(float(loss(longer, padded)), float(loss(labels, logits)), rtol=1e-5)


def test_smoothing_by_hand():
    # p = (1/4, 1/4, 1/2): -0.7 log 1/2 - 0.1 (log 1/4 + log 1/4 + log 1/2) = 1.2 log 2
    logits = np.log([[[0.25, 0.25, 0.5]]]).astype("float32")
    loss = TokenCrossentropy(label_smoothing=0.3)(np.array([[2]]), logits)
    np.testing.assert_allclose(float(loss), 1.2 * np.log(2), rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 1), (3, 4)])
def test_sample_weight(rng, shape):
    labels, logits = batch(rng)
    weight = rng.uniform(size=shape).astype("float32")
    expected = (token_losses(labels, logits, 0.0) * weight).sum() / (labels != PAD).sum()
    loss = TokenCrossentropy()(labels, logits, sample_weight=weight)
    np.testing.assert_allclose(float(loss), expected, rtol=1e-5)


def test_other_reductions_are_of_token_losses(rng):
    labels, logits = batch(rng)
    expected = token_losses(labels, logits, 0.1)
    for reduction, value in {"none": expected, "sum": expected.sum()}.items():
        loss = TokenCrossentropy(label_smoothing=0.1, reduction=reduction)(labels, logits)
        loss = keras.ops.convert_to_numpy(loss)
        np.testing.assert_allclose(loss, value, rtol=1e-5, atol=1e-6)


def test_large_logits_and_half_precision_stay_finite():
    logits = np.array([[[3e4, -3e4, 0.0], [-3e4, 3e4, 0.0]]], "float16")
    labels = np.array([[1, 1]])
    loss = TokenCrossentropy()(labels, logits)
    np.testing.assert_allclose(float(loss), 6e4 / 2, rtol=1e-3)


def classifier():
    model = keras.Sequential([keras.layers.Embedding(5, 4), keras.layers.Dense(6)])
    model.compile(keras.optimizers.SGD(1.0), loss=TokenCrossentropy(label_smoothing=0.1))
    return model


def test_a_batch_of_padding_has_no_loss_and_no_gradient(rng):
    model = classifier()
    inputs = rng.integers(0, 5, size=(2, 3))
    model.build((2, 3))
    before = model.get_weights()
    assert float(model.train_on_batch(inputs, np.zeros((2, 3), "int32"))) == 0.0
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_learns_in_fit(rng):
    model = classifier()
    inputs = rng.integers(1, 5, size=(32, 3))
    inputs[::2, 2] = PAD
    history = model.fit(inputs, inputs, epochs=4, batch_size=8, verbose=0).history["loss"]
    assert history[-1] < history[0] < 2 * np.log(6)


def test_config_round_trip():
    loss = TokenCrossentropy(label_smoothing=0.2, name="nats", reduction="sum")
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(again) is TokenCrossentropy
    assert again.get_config() == loss.get_config()
    assert (again.label_smoothing, again.name, again.reduction) == (0.2, "nats", "sum")


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 2])
def test_refuses_smoothing_outside_its_range(smoothing):
    with pytest.raises(ValueError, match="`label_smoothing` must be in"):
        TokenCrossentropy(label_smoothing=smoothing)
