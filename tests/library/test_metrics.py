import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_checks import POLICIES, dtype_policy

from keras_bahdanau import Perplexity, TokenAccuracy, TokenCrossentropy
from keras_bahdanau_runtime.ids import PAD

METRICS = [Perplexity, TokenAccuracy]


def expected_of(metric, batches):
    """The metric over all real tokens of `(labels, logits, weight)` batches, in float64."""
    total = count = 0.0
    for labels, logits, weight in batches:
        logits = np.asarray(logits, "float64")
        for at in zip(*np.nonzero(labels != PAD), strict=True):
            row, label = logits[at], labels[at]
            value = row.argmax() == label
            if metric is Perplexity:
                value = np.log(np.exp(row).sum()) - row[label]
            total += value * weight[at]
            count += weight[at]
    mean = total / count if count else 0.0
    return np.exp(mean) if metric is Perplexity else mean


def batch(rng, rows, steps, padding=0.4):
    labels = rng.integers(1, 7, size=(rows, steps)) * (rng.uniform(size=(rows, steps)) > padding)
    logits = rng.normal(size=(rows, steps, 7)) * 2
    # Every other prediction is correct, so that the accuracy is not zero.
    logits[:, ::2] += 9 * np.eye(7)[labels[:, ::2]]
    return labels, logits.astype("float32"), np.ones((rows, steps))


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**32 - 1),
    shapes=st.lists(st.sampled_from([(3, 1), (2, 6)]), min_size=1, max_size=3),
    padding=st.floats(0, 1),
)
@pytest.mark.parametrize("metric", METRICS)
def test_the_result_is_over_the_tokens_of_all_batches(metric, seed, shapes, padding):
    rng = np.random.default_rng(seed)
    batches = [batch(rng, *shape, padding) for shape in shapes]
    measured = metric()
    for labels, logits, _ in batches:
        measured.update_state(labels, logits)
    np.testing.assert_allclose(float(measured.result()), expected_of(metric, batches), rtol=1e-5)
    measured.reset_state()
    measured.update_state(*batches[0][:2])
    expected = expected_of(metric, batches[:1])
    np.testing.assert_allclose(float(measured.result()), expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()])
@pytest.mark.parametrize("metric", METRICS)
def test_sample_weights_may_be_those_of_rows_or_of_tokens(rng, metric, shape):
    measured, batches = metric(), []
    for rows, steps in [(3, 4), (2, 7)]:
        labels, logits, _ = batch(rng, rows, steps)
        weight = rng.uniform(size=(rows, *shape[1:]) if shape else (rows, steps))
        measured.update_state(labels, logits, sample_weight=weight)
        token_weights = np.broadcast_to(weight.reshape(rows, -1), labels.shape)
        batches.append((labels, logits, token_weights))
    np.testing.assert_allclose(float(measured.result()), expected_of(metric, batches), rtol=1e-5)


def test_perplexity_and_accuracy_equal_hand_computed_values():
    # The labels have p = 1/2, 1/8 and 1, with geometric mean (1/16)^(1/3). The padding has p = 0.9.
    logits = np.log([[[0.25, 0.25, 0.5, 1e-9], [0.5, 0.125, 0.375, 1e-9]],
                     [[1e-9, 1e-9, 1e-9, 1.0], [0.9, 0.1, 1e-9, 1e-9]]])  # fmt: skip
    labels = np.array([[2, 1], [3, PAD]])
    for metric, expected in ((Perplexity(), 16 ** (1 / 3)), (TokenAccuracy(), 2 / 3)):
        metric.update_state(labels, logits)
        np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-6)


def classifier(**compiled):
    model = keras.Sequential([keras.layers.Embedding(5, 4), keras.layers.Dense(7)])
    model.compile(keras.optimizers.Adam(0.3), loss=TokenCrossentropy(0.1), **compiled)
    return model


@pytest.mark.parametrize("policy", ["float32", *POLICIES])
def test_fit_and_evaluate_report_the_metrics(rng, policy):
    inputs = rng.integers(1, 5, size=(24, 3))
    inputs[::2, 2] = inputs[5] = PAD
    with dtype_policy(policy):
        model = classifier(metrics=[Perplexity(), TokenAccuracy()])
    data = (inputs, inputs)
    logs = model.fit(*data, validation_data=data, epochs=3, batch_size=5, verbose=0).history
    logits = keras.ops.convert_to_numpy(keras.ops.cast(model(inputs), "float32"))
    result = model.evaluate(*data, batch_size=7, verbose=0, return_dict=True)
    for metric, name in [(Perplexity, "perplexity"), (TokenAccuracy, "token_accuracy")]:
        expected = expected_of(metric, [(inputs, logits, np.ones(inputs.shape))])
        # In half precision, rounding may depend on the batch size.
        tolerance = 1e-5 if policy == "float32" else 2e-2
        np.testing.assert_allclose(result[name], expected, rtol=tolerance)
        np.testing.assert_allclose(logs[f"val_{name}"][-1], expected, rtol=tolerance)
    assert logs["perplexity"][-1] < logs["perplexity"][0]
    assert logs["token_accuracy"][-1] > 0.5


def test_weighted_metrics_get_the_weights_of_the_rows(rng):
    inputs = rng.integers(1, 5, size=(6, 4))
    weight = rng.uniform(size=6).astype("float32")
    model = classifier(weighted_metrics=[Perplexity()])
    logits = keras.ops.convert_to_numpy(model(inputs))
    result = model.evaluate(
        inputs, inputs, sample_weight=weight, batch_size=4, verbose=0, return_dict=True
    )
    token_weights = np.broadcast_to(weight[:, None], inputs.shape)
    expected = expected_of(Perplexity, [(inputs, logits, token_weights)])
    np.testing.assert_allclose(result["perplexity"], expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("metric", METRICS)
def test_half_precision_logits_are_summed_in_float32(rng, metric, dtype):
    labels, logits, weight = batch(rng, 40, 80)  # more tokens than float16 can count
    rounded = keras.ops.cast(logits, dtype)
    measured = metric()
    measured.update_state(labels, rounded)
    assert keras.backend.standardize_dtype(measured.result().dtype) == "float32"
    exact = keras.ops.convert_to_numpy(keras.ops.cast(rounded, "float32"))
    expected = expected_of(metric, [(labels, exact, weight)])
    np.testing.assert_allclose(float(measured.result()), expected, rtol=1e-4)


@pytest.mark.parametrize("metric", METRICS)
def test_config_round_trip(metric):
    again = keras.metrics.deserialize(keras.metrics.serialize(metric(name="mine")))
    assert type(again) is metric and again.get_config() == {"name": "mine"}


def test_metrics_are_saved_with_the_model(tmp_path, rng):
    model = classifier(metrics=[Perplexity(), TokenAccuracy()])
    inputs = rng.integers(1, 5, size=(4, 3))
    model.fit(inputs, inputs, verbose=0)
    before = model.evaluate(inputs, inputs, verbose=0, return_dict=True)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    after = again.evaluate(inputs, inputs, verbose=0, return_dict=True)
    assert set(after) == {"loss", "perplexity", "token_accuracy"}
    for name, value in after.items():
        np.testing.assert_allclose(value, before[name], rtol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_labels_may_have_a_last_axis_of_one(metric, rng):
    labels, logits, weight = batch(rng, 3, 4)
    measured = metric()
    measured.update_state(labels[..., None], logits)
    expected = expected_of(metric, [(labels, logits, weight)])
    np.testing.assert_allclose(float(measured.result()), expected, rtol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("shape", [(3, 4, 2), (3, 3)])
def test_labels_must_fit_the_logits(metric, shape):
    with pytest.raises(ValueError, match="`y_pred` must be logits"):
        metric().update_state(np.ones(shape, "int32"), np.zeros((3, 4, 7)))
