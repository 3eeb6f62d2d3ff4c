"""`Translator.translate` and `model.translate` return the same for the same options."""

from dataclasses import fields

import numpy as np
import pytest
from models import TEXTS

from keras_bahdanau import BeamSearch, GreedySearch, Sampling
from keras_bahdanau_runtime import SearchOptions, Translator
from keras_bahdanau_runtime.errors import UnsupportedArtifactError

pytestmark = pytest.mark.usefixtures("eager_models")

SEARCH = BeamSearch(3, length_penalty=0.6)  # of the shared artifact
PREFIXES = ["ein Ma", None, "zwei ", "日", "ein  Hund", "Hu"]


@pytest.fixture(scope="module")
def translator(artifact):
    return Translator(artifact[0], threads=1)


def assert_same(model, translator, search=SEARCH, texts=TEXTS, **options):
    """Check equal translations of both engines, and return them."""
    lists = [
        engine.translate(texts, n_best=2, batch_size=2, **arguments, **options)
        for engine, arguments in ((translator, {}), (model, {"search": search}))
    ]
    for hypotheses, expected in zip(*lists, strict=True):
        assert [h.tokens for h in hypotheses] == [h.tokens for h in expected]
        scores = [[h.score for h in each] for each in (hypotheses, expected)]
        np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-5)
        for one, other in zip(hypotheses, expected, strict=True):
            np.testing.assert_allclose(one.alignment, other.alignment, atol=1e-4)
    return lists[0]


def texts_of(lists):
    return [[translation.text for translation in hypotheses] for hypotheses in lists]


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 2},
        {"length_penalty": 0, "coverage_penalty": 0.4},
        {"min_length": 5, "no_repeat_ngram": 1},
        {"repetition_penalty": 1.5, "disable_unknown": True},
    ],
    ids=str,
)
def test_options_for_all_texts(model, translator, options):
    changed = assert_same(model, translator, max_length=9, **options)
    lists = changed, translator.translate(TEXTS, n_best=2)
    changed, default = ([[(h.text, h.score) for h in row] for row in each] for each in lists)
    assert changed != default


def test_suppressed_tokens_for_all_texts(model, translator):
    [source, *_] = translator.tokenizer.encode_sources(TEXTS)
    first = int(translator.translate_ids([source])["tokens"][0, 0, 0])
    [[before, *_], *_] = translator.translate(TEXTS, n_best=2)
    [[after, *_], *_] = assert_same(model, translator, max_length=9, suppressed=["Hund", first])
    assert before.tokens[0] not in after.tokens


def test_extreme_options_give_finite_scores(model, translator, sampling):
    for search, artifact, options in (
        (SEARCH, translator, {"length_penalty": 5, "coverage_penalty": 1000}),
        (SEARCH, translator, {"repetition_penalty": 1000, "min_length": 9, "no_repeat_ngram": 9}),
        (sampling[0], sampling[1], {"temperature": 1e-6, "repetition_penalty": 1000}),
        (sampling[0], sampling[1], {"top_p": 1e-6, "top_k": 2**31 - 1}),
    ):
        artifact = artifact if search is SEARCH else Translator(artifact, threads=1)
        lists = [
            engine.translate(TEXTS, max_length=9, **arguments, **options)
            for engine, arguments in ((artifact, {}), (model, {"search": search}))
        ]
        scores = np.array([[each.score for each in translations] for translations in lists])
        assert np.isfinite(scores).all()


def test_a_text_without_a_possible_token_is_an_error_of_both_engines(model, translator, sampling):
    options = {"suppressed": [*range(model.target_vocabulary_size)], "max_length": 9}
    for engine, arguments in (
        (translator, {}),
        (model, {"search": SEARCH}),
        (Translator(sampling[1], threads=1), {}),
        (Translator(sampling[1], threads=1), {"top_p": 0.5}),
        (model, {"search": sampling[0]}),
    ):
        with pytest.raises(ValueError, match="`options` must leave an output for each text"):
            engine.translate(TEXTS, **arguments, **options)


def test_each_text_has_its_prefix(model, translator):
    texts = (TEXTS * 6)[: len(PREFIXES)]
    lists = assert_same(model, translator, texts=texts, prefixes=PREFIXES, max_length=9)
    for prefix, hypotheses in zip(PREFIXES, texts_of(lists), strict=True):
        assert all(text.startswith(prefix or "") for text in hypotheses)
    assert_same(
        model,
        translator,
        texts=texts,
        prefixes=PREFIXES,
        max_length=8,
        beam_size=2,
        suppressed=["ein", "Hund"],
        no_repeat_ngram=1,
        repetition_penalty=1.3,
    )


def test_empty_prefixes_change_nothing(translator):
    lists = [
        translator.translate(TEXTS, n_best=2, prefixes=each) for each in (None, ["", None, ""])
    ]
    scores = [[h.score for hypotheses in each for h in hypotheses] for each in lists]
    assert texts_of(lists[0]) == texts_of(lists[1]) and scores[0] == scores[1]


def test_options_of_a_search_that_samples(model, sampling):
    search, path, _ = sampling
    translator = Translator(path, threads=1)
    for options in (
        {"temperature": 0.7, "top_k": 5},
        {"top_k": 0, "top_p": 0.8},
        {"prefixes": PREFIXES[: len(TEXTS)], "repetition_penalty": 1.2},
    ):
        assert_same(model, translator, search, max_length=9, **options)


def test_texts_contain_their_phrases_and_equal_those_of_the_model(model, translator):
    required = [["bike"], None, ["man", "a dog"]]
    received = texts_of(assert_same(model, translator, max_length=9, required=required))
    for hypotheses, phrases in zip(received, required, strict=True):
        assert all(phrase in text for text in hypotheses for phrase in phrases or [])
    assert received[1:2] == texts_of(translator.translate(TEXTS[1:2], n_best=2))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"prefixes": ["a" * 30]}, "`prefixes` must have at most 9 tokens each"),
        ({"required": [["a"]], "beam_size": 1}, "`beam_size` must be at least 2 .* Received: 1"),
        ({"required": [["a" * 30]]}, "`required` must have at most 9 tokens for a text"),
        ({"required": [["a"]], "suppressed": ["a"]}, "`required` .* also in `suppressed`"),
    ],
    ids=str,
)
def test_phrases_that_no_output_can_contain_are_refused(model, translator, options, message):
    for engine, arguments in ((translator, {}), (model, {"search": SEARCH, "max_length": 9})):
        with pytest.raises(ValueError, match=message):
            engine.translate(["a dog"], **arguments, **options)


NUMBERS = [
    *(-1, -0.0, 0, 1e-46, 1e-6, 0.5, 1, 2, 3, 5, 5.1, 10, 1000, 1001, 1e6, 1e7, 1e38, 10**400),
    *(2**31, float("inf"), float("nan"), True, "1", [1], np.float64(1), np.float32(1), np.int64(1)),
]
VALUES = {
    **{field.name: NUMBERS for field in fields(SearchOptions) if field.name != "max_length"},
    "beam": [3],
    "n_best": [0, 1, True, 1.0],
    "suppressed": [[0, 5], [5, 0], [3], ["ein"], ["ein Hund"], ["\ud800"], [-1], [999], [True]],
    "disable_unknown": [True],
    "prefixes": [["ein"], ["\ud800"], [5], [], ["a", "b"], "a", [None]],
    "required": [[["ein"]], ["ein"], [[" "]], [["\ud800"]], [[5]], [], [None], [[]], "a"],
}


def outcome(engine, **arguments):
    """The error message of a call that searches nothing, or `None`."""
    try:
        engine.translate([" "], **arguments)
    except (ValueError, UnsupportedArtifactError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", VALUES)
def test_both_engines_accept_the_same_values(model, translator, sampling, name):
    accepted = []
    draw = Translator(sampling[1], threads=1)
    for search, artifact in ((SEARCH, translator), (sampling[0], draw)):
        for value in VALUES[name]:
            expected = outcome(model, search=search, max_length=9, **{name: value})
            received = outcome(artifact, **{name: value})
            if "must be left out for a" in str(expected):  # the option of another search
                assert "has no such option" in received
            elif name == "beam_size":  # of a model without an export there is another limit
                assert (expected is None) == (received is None) or "at most 3" in received
            elif name == "required" and search is not SEARCH:
                assert expected == received or "needs a BeamSearch" in expected
            else:
                assert expected == received, value
            accepted.append(expected is None)
    assert any(accepted) != (name == "beam")


def test_a_model_refuses_phrases_for_one_hypothesis(model):
    for options in ({"search": GreedySearch()}, {"search": Sampling(2)}):
        with pytest.raises(ValueError, match=r"`required` needs a BeamSearch"):
            model.translate(["a dog"], required=[["a"]], **options)
