"""The comparison of an artifact with its model, and what it refuses."""

import keras
import numpy as np
import pytest
from models import TEXTS

from keras_bahdanau import BeamSearch
from keras_bahdanau_export import export
from keras_bahdanau_export.parity import (
    CallParity,
    Parity,
    _random_input,
    call_tolerance,
    compare,
    random_sources,
    relative_difference,
    verify,
)
from keras_bahdanau_runtime import ParityError, Translator


def test_an_artifact_can_be_verified_again(artifact, model, other_model):
    assert verify(model, artifact[0], texts=TEXTS, count=5, seed=1).sentences == 5 + len(TEXTS)
    with pytest.raises(ParityError, match="other tokens"):
        verify(other_model, artifact[0])
    with pytest.raises(ValueError, match=r"`model` must be .* Received: a Sequential"):
        verify(keras.Sequential([keras.Input((2,))]), artifact[0])


@pytest.mark.parametrize(
    "arguments, name",
    [({"count": -1}, "`count`"), ({"seed": -1}, "`seed`"), ({"count": 0}, "sources")],
)
def test_a_comparison_without_sources_is_refused(artifact, model, arguments, name):
    with pytest.raises(ValueError, match=name):
        verify(model, artifact[0], **arguments)


def test_differences_are_relative_to_large_numbers_and_exact_for_integers():
    ours = np.array([1.0, -np.inf, 200.0])
    assert relative_difference(ours, ours) == 0
    assert relative_difference(ours, np.array([1.0, -np.inf, 198.0])) == pytest.approx(0.01)
    assert relative_difference(ours, np.array([1.0, 3.0, 200.0])) == np.inf
    assert np.isnan(relative_difference(ours, np.array([1.0, np.nan, 200.0])))
    ids = np.array([10**6, 5])
    assert relative_difference(ids, ids) == 0 and relative_difference(ids, ids + 1) == 1


def test_random_ids_and_masks_are_padded_at_the_right():
    rng = np.random.default_rng(0)
    for dtype in ("int32", "bool"):
        drawn = _random_input(keras.KerasTensor((None, None), dtype), 50, 7, False, rng)
        lengths = drawn.sum(axis=1, keepdims=True)
        np.testing.assert_array_equal(drawn, np.arange(7) < lengths)
        assert drawn.shape == (50, 7) and drawn.dtype == dtype and len(np.unique(lengths)) > 3


def test_random_inputs_are_long_enough_and_finite_for_the_model(tmp_path):
    x = keras.Input((None, 2), name="x")
    frames = keras.layers.Conv1D(3, 9)(keras.ops.log(x))  # needs nine frames, positive numbers
    model = keras.Model(x, keras.layers.GlobalMaxPooling1D(name="y")(frames))
    assert export(model, tmp_path / "a").difference < 1e-4
    for arguments, message in (
        ({"count": 0}, "`count` must be an int of at least 1"),
        ({"texts": TEXTS}, "`texts` must be left out"),
    ):
        with pytest.raises(ValueError, match=message):
            verify(model, tmp_path / "a", **arguments)
    short = keras.Model(x, keras.layers.GlobalMaxPooling1D()(keras.layers.Conv1D(4, 2)(x)))
    with pytest.raises(ValueError, match=r"outputs of shapes \[\(None, 3\)\]. Received: .*4\)"):
        verify(short, tmp_path / "a")
    long = keras.Model(x, keras.layers.GlobalMaxPooling1D()(keras.layers.Conv1D(3, 2049)(x)))
    with pytest.raises(ValueError, match=r"one of the sizes \(7, 16, 64, 256, 2048\)"):
        verify(long, tmp_path / "a")


def test_random_sources_are_at_most_as_long_as_the_limit():
    lengths = [len(source) for source in random_sources(9, 3, count=200)]
    assert set(lengths) == {1, 2, 3}
    assert max(map(len, random_sources(9, 1000, count=500))) == 40


@pytest.mark.parametrize("output", ["scores", "alignments"])
def test_nan_scores_or_alignments_fail_parity(artifact, model, tokenizer, output, monkeypatch):
    translator = Translator(artifact[0])
    search = translator.search

    def search_with_nan(*arguments, **options):
        results = search(*arguments, **options)
        return {**results, output: np.full_like(results[output], np.nan)}

    monkeypatch.setattr(translator, "search", search_with_nan)
    sources = random_sources(tokenizer.source_vocabulary_size, 30)
    parity = compare(model, translator, sources, BeamSearch(3, 0.6), 9)
    with pytest.raises(ParityError, match="by nan"):
        parity.enforce()


def test_near_ties_count_where_the_model_confirms_their_score(
    artifact, model, tokenizer, other_model, monkeypatch
):
    """A narrower beam finds worse hypotheses of the same model, as a search with near ties may."""
    sources = random_sources(tokenizer.source_vocabulary_size, 30)
    arguments = Translator(artifact[0]), sources, BeamSearch(1, 0.6), 9
    parity = compare(model, *arguments)
    assert parity.equal + parity.ties < parity.sentences
    assert parity.score_difference > 1e-3
    monkeypatch.setattr("keras_bahdanau_export.parity._NEAR_TIE", 10.0)
    parity = compare(model, *arguments)
    assert parity.equal + parity.ties == parity.sentences
    parity = compare(other_model, *arguments)
    assert parity.equal + parity.ties < parity.sentences


@pytest.mark.parametrize(
    ("equal", "ties", "difference", "passes"),
    [
        (4, 0, 1e-6, True),
        (3, 1, 1e-6, True),
        (3, 0, 1e-6, False),
        (4, 0, 5e-4, True),
        (4, 0, 2e-3, False),
        (4, 0, np.nan, False),
    ],
)
def test_parity_of_a_search_allows_near_ties_and_a_thousandth(equal, ties, difference, passes):
    for differences in ((difference, 0.0), (0.0, difference)):
        parity = Parity(4, equal, ties, *differences, "jax")
        if passes:
            parity.enforce()
        else:
            with pytest.raises(ParityError):
                parity.enforce()


def test_the_tolerance_of_a_call_depends_on_its_precision():
    x = keras.Input((3,))
    for policy, gap in (("float32", 2e-4), ("mixed_bfloat16", 1e-2)):
        model = keras.Model(x, keras.layers.Dense(2, dtype=policy)(x))
        CallParity(3, gap / 4, "jax").enforce(call_tolerance(model))
        with pytest.raises(ParityError):
            CallParity(3, gap, "jax").enforce(call_tolerance(model))


def test_the_error_for_outputs_of_different_shapes_names_both():
    with pytest.raises(ParityError, match=r"Received: \(3, 1, 2\) for \(3, 7, 2\)"):
        relative_difference(np.ones((3, 7, 2)), np.ones((3, 1, 2)))
