import keras
import numpy as np
import pytest

from keras_bahdanau import BeamSearch, Ensemble, GreedySearch, RNNSearch
from keras_bahdanau_runtime.ids import BOS, PAD

SOURCE = np.array([[5, 6, 7, 3], [8, 3, 0, 0]], "int32")
TARGET = np.array([[2, 4, 5], [2, 6, 0]], "int32")
INPUTS = {"source": SOURCE, "target": TARGET}
SEARCH = BeamSearch(3, 0.6, forbidden=(PAD,))
SPACES = ["probability", "log_probability"]


def member(seed, vocabulary=9, **sizes):
    """A small model with weights so large that its probabilities are far from uniform."""
    sizes = {"units": 4, "embedding_dim": 3, "attention_units": 3, "maxout_units": 2} | sizes
    model = RNNSearch(9, vocabulary, **sizes)
    model.build()
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if np.issubdtype(weight.dtype, np.floating):
            weight.assign(rng.normal(size=weight.shape))
    return model


@pytest.fixture(scope="module")
def members():
    return [member(1), member(2, units=3)]


def log_probs_of(model, inputs=INPUTS):
    logits = keras.ops.convert_to_numpy(model(inputs, training=False)).astype("float64")
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def averaged(members, average, inputs=INPUTS):
    """Log-probabilities of the ensemble, computed in float64."""
    parts = np.stack([log_probs_of(model, inputs) for model in members])
    if average == "probability":
        return np.log(np.exp(parts).mean(axis=0))
    mean = parts.mean(axis=0)
    return mean - np.logaddexp.reduce(mean, axis=-1, keepdims=True)


def assert_same_outputs(actual, expected):
    np.testing.assert_array_equal(actual.tokens, expected.tokens)
    np.testing.assert_allclose(actual.scores, expected.scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(actual.alignments, expected.alignments, atol=1e-5)


@pytest.mark.parametrize("average", SPACES)
def test_an_ensemble_of_one_model_equals_the_model(members, average):
    assert_same_outputs(
        Ensemble(members[:1] * 2, average).generate(SOURCE, SEARCH, max_length=5),
        members[0].generate(SOURCE, SEARCH, max_length=5),
    )
    np.testing.assert_allclose(
        log_probs_of(Ensemble(members[:1], average)), log_probs_of(members[0]), atol=1e-5
    )


@pytest.mark.parametrize("average", SPACES)
def test_predictions_are_averaged(members, average):
    predictions = keras.ops.convert_to_numpy(Ensemble(members, average)(INPUTS, training=False))
    np.testing.assert_allclose(predictions, averaged(members, average), rtol=1e-4, atol=1e-5)


def test_hypotheses_are_scored_by_the_average(members):
    ensemble = Ensemble(members, "probability")
    result = ensemble.generate(SOURCE, SEARCH, max_length=5)
    scores = ensemble.score(SOURCE, result.tokens[:, 0])
    np.testing.assert_allclose(scores.totals, result.totals[:, 0], atol=1e-4)
    longest = scores.lengths.max()
    np.testing.assert_allclose(scores.alignments, result.alignments[:, 0, :longest], atol=1e-4)
    for b, tokens in enumerate(result.tokens[:, 0]):
        n = result.lengths[b, 0]
        inputs = {"source": SOURCE[b : b + 1], "target": np.array([[BOS, *tokens[: n - 1]]])}
        expected = averaged(members, "probability", inputs)[0, np.arange(n), tokens[:n]]
        np.testing.assert_allclose(result.log_probs[b, 0, :n], expected, atol=1e-4)
    # All models read the same outputs, so the attention weights are the mean of theirs.
    alignments = [model.score(SOURCE, result.tokens[:, 0]).alignments for model in members]
    np.testing.assert_allclose(scores.alignments, np.mean(alignments, axis=0), atol=1e-5)


def test_a_loaded_ensemble_gives_the_same_outputs(members, tmp_path):
    ensemble = Ensemble(members, "log_probability")
    expected = ensemble.generate(SOURCE, SEARCH, max_length=5)
    ensemble.save(tmp_path / "two.keras")
    again = keras.saving.load_model(tmp_path / "two.keras")
    assert again.average == "log_probability" and len(again.models) == 2
    assert_same_outputs(again.generate(SOURCE, SEARCH, max_length=5), expected)


def test_models_without_weights_are_built():
    sizes = {"units": 4, "embedding_dim": 3, "attention_units": 3, "maxout_units": 2}
    ensemble = Ensemble([RNNSearch(9, 9, **sizes) for _ in range(2)])
    ensemble.generate(SOURCE, GreedySearch(), max_length=2)
    assert all(model.built for model in ensemble.models)


def test_invalid_models_and_averages_are_refused(members):
    not_a_list = r"`models` must be a list of at least one .*Rec"
    other_vocabulary = [members[0], member(3, vocabulary=8)]
    for models, average, message in (
        ([], "probability", not_a_list),
        (None, "probability", not_a_list),
        ([3], "probability", not_a_list),
        (members[0], "probability", not_a_list),
        (other_vocabulary, "probability", r"`models` must agree .*\[\(9, 9\), \(9, 8\)\]"),
        (members, "mean", "`average` must be one of"),
        (members, None, "`average` must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            Ensemble(models, average)
