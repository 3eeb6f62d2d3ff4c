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
each_space = pytest.mark.parametrize("average", SPACES)


def member(seed, vocabulary=9, **sizes):
    """A small model with weights large enough to be sure of something."""
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
    """By hand, in float64."""
    parts = np.stack([log_probs_of(model, inputs) for model in members])
    if average == "probability":
        return np.log(np.exp(parts).mean(axis=0))
    mean = parts.mean(axis=0)
    return mean - np.logaddexp.reduce(mean, axis=-1, keepdims=True)


def close(one, other):
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one.alignments, other.alignments, atol=1e-5)


@each_space
def test_one_model_is_its_own_ensemble(members, average):
    close(
        Ensemble(members[:1] * 2, average).generate(SOURCE, SEARCH, max_length=5),
        members[0].generate(SOURCE, SEARCH, max_length=5),
    )
    np.testing.assert_allclose(
        log_probs_of(Ensemble(members[:1], average)), log_probs_of(members[0]), atol=1e-5
    )


@each_space
def test_predictions_are_averaged(members, average):
    ensemble = Ensemble(members, average)
    found = keras.ops.convert_to_numpy(ensemble(INPUTS, training=False))
    np.testing.assert_allclose(found, averaged(members, average), rtol=1e-4, atol=1e-5)


def test_hypotheses_are_scored_by_the_average(members, average="probability"):
    ensemble = Ensemble(members, average)
    found = ensemble.generate(SOURCE, SEARCH, max_length=5)
    scores = ensemble.score(SOURCE, found.tokens[:, 0])
    np.testing.assert_allclose(scores.totals, found.totals[:, 0], atol=1e-4)
    longest = scores.lengths.max()
    np.testing.assert_allclose(scores.alignments, found.alignments[:, 0, :longest], atol=1e-4)
    for b, tokens in enumerate(found.tokens[:, 0]):
        n = found.lengths[b, 0]
        inputs = {"source": SOURCE[b : b + 1], "target": np.array([[BOS, *tokens[: n - 1]]])}
        expected = averaged(members, average, inputs)[0, np.arange(n), tokens[:n]]
        np.testing.assert_allclose(found.log_probs[b, 0, :n], expected, atol=1e-4)
    # Every model follows the same outputs, so the weights are the mean of theirs.
    alone = [model.score(SOURCE, found.tokens[:, 0]).alignments for model in members]
    np.testing.assert_allclose(scores.alignments, np.mean(alone, axis=0), atol=1e-5)


def test_the_spaces_differ(members):
    one, other = (averaged(members, average) for average in SPACES)
    assert np.abs(one - other).max() > 0.1


def test_saves_and_loads(members, tmp_path):
    ensemble = Ensemble(members, "log_probability")
    expected = ensemble.generate(SOURCE, SEARCH, max_length=5)
    ensemble.save(tmp_path / "two.keras")
    again = keras.saving.load_model(tmp_path / "two.keras")
    assert again.average == "log_probability" and len(again.models) == 2
    close(again.generate(SOURCE, SEARCH, max_length=5), expected)


def test_builds_the_models_that_have_no_weights_yet():
    sizes = {"units": 4, "embedding_dim": 3, "attention_units": 3, "maxout_units": 2}
    ensemble = Ensemble([RNNSearch(9, 9, **sizes) for _ in range(2)])
    ensemble.generate(SOURCE, GreedySearch(), max_length=2)
    assert all(model.built for model in ensemble.models)


def test_refuses_no_models(members):
    for models in ([], None, [3], members[0]):
        with pytest.raises(ValueError, match=r"`models` must be a list of at least one .*Rec"):
            Ensemble(models)


def test_refuses_vocabularies_that_differ(members):
    with pytest.raises(ValueError, match=r"`models` must agree .*\[\(9, 9\), \(9, 8\)\]"):
        Ensemble([members[0], member(3, vocabulary=8)])


@pytest.mark.parametrize("average", ["mean", None])
def test_refuses_a_space_it_does_not_know(members, average):
    with pytest.raises(ValueError, match="`average` must be one of"):
        Ensemble(members, average)
