"""Models that speak text: the tokenizer they carry, and `translate`."""

import zipfile

import keras
import numpy as np
import pytest

from keras_bahdanau import (
    BeamSearch,
    Ensemble,
    GreedySearch,
    RNNSearch,
    Tokenizer,
    length_penalty_scores,
)
from keras_bahdanau_runtime.text.scores import corpus_scores

SIZES = {"units": 4, "embedding_dim": 3, "attention_units": 3, "maxout_units": 2}
TEXTS = ["a man", "", "a woman on a horse", "on", "  ", "a horse", "man on a woman"]
SEARCH = BeamSearch(3, 0.6)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS, ["ein Mann", "eine Frau"], vocabulary_size=280, joint=False)


def small(fitting, /, spare=2, **arguments):
    """A model with some more ids than a tokenizer."""
    sizes = fitting.source_vocabulary_size + spare, fitting.target_vocabulary_size + spare
    return RNNSearch(*sizes, **SIZES, **arguments)


@pytest.fixture(scope="module")
def model(tokenizer):
    keras.utils.set_random_seed(1)
    model = small(tokenizer, tokenizer=tokenizer, initializer=None)
    model.build()
    return model


@pytest.fixture(scope="module")
def generated(model, tokenizer):
    """What `generate` finds for each text that is not blank, in one batch."""
    sources = [tokenizer.encode_source(text) for text in TEXTS if text.strip()]
    return model.generate(sources, SEARCH, max_length=6)


@pytest.mark.parametrize("batch_size", [2, 32])
def test_translate_says_what_generate_finds(model, tokenizer, generated, batch_size):
    found = model.translate(TEXTS, SEARCH, max_length=6, n_best=2, batch_size=batch_size)
    rows = iter(range(len(TEXTS)))
    for text, hypotheses in zip(TEXTS, found, strict=True):
        if not text.strip():
            assert [(t.text, t.score, t.tokens) for t in hypotheses] == [("", 0.0, [])]
            continue
        row, source_tokens = next(rows), tokenizer.source_tokens(text)
        for k, translation in enumerate(hypotheses):
            length = generated.lengths[row, k]
            ids = generated.tokens[row, k, :length].tolist()
            tokens = tokenizer.target_decoder().tokens(ids)
            assert translation.tokens == tokens
            assert translation.text == "".join(tokens).removesuffix("</s>")
            assert translation.source_tokens == source_tokens
            assert translation.score == pytest.approx(generated.scores[row, k], abs=1e-5)
            weights = generated.alignments[row, k, :length, : len(source_tokens)]
            np.testing.assert_allclose(translation.alignment, weights, atol=1e-5)


def test_translate_passes_on_how_to_search(model):
    done = []
    found = model.translate(
        TEXTS,
        GreedySearch(),
        max_length=lambda lengths: np.minimum(lengths, 3),
        batch_size=4,
        progress=done.append,
        alignments=False,
    )
    assert done == [2, 6, 7]
    lengths = [len(translation.tokens) for translation in found]
    assert max(lengths) <= 3 and [length == 0 for length in lengths] == [
        not t.strip() for t in TEXTS
    ]
    assert {translation.alignment for translation in found} == {None}


@pytest.fixture
def shapes(model, monkeypatch):
    """The shapes that are searched; more than 40 ids at once are too many for the memory."""
    seen, generate = [], model.generate

    def limited(source, *rest):
        seen.append(source.shape)
        if source.size > 40:
            raise MemoryError("more than 40 ids")
        return generate(source, *rest)

    monkeypatch.setattr(model, "generate", limited)
    return seen


def test_on_jax_batches_have_as_many_rows_as_the_first(model, shapes):
    """A short last batch would be a new shape, which JAX compiles for."""
    model.translate(TEXTS, GreedySearch(), max_length=2, batch_size=3)
    model.translate(TEXTS[:4], GreedySearch(), max_length=2, batch_size=8)
    last = 3 if keras.config.backend() == "jax" else 2
    assert [rows for rows, _ in shapes] == [3, last, 3]


def test_what_is_too_much_for_the_memory_at_once_is_searched_text_by_text(model, shapes):
    texts = ["a man on a boat", "two men at a boat", "a boat on the water"]
    found = model.translate(texts, GreedySearch(), max_length=2, on_error="keep")
    assert shapes[0][0] == 3 and [rows for rows, _ in shapes[1:]] == [1, 1, 1]
    assert [one.error for one in found] == [None] * 3


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"texts": "a man"}, "`texts` must be a list of str"),
        ({"texts": ["a", None]}, r"`texts\[1\]` must be a str. Received: None"),
        ({"texts": ["a"], "n_best": 4}, "`n_best` must be at most 3"),
        ({"texts": ["a"], "batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"texts": ["a"], "max_length": 0}, "`max_length` must be a positive integer"),
        ({"texts": ["a"], "search": "beam"}, "`search` must be a search"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "keep"])
def test_translate_names_the_wrong_argument(model, arguments, message, on_error):
    with pytest.raises(ValueError, match=message):
        model.translate(**{"search": SEARCH, "max_length": 2, "on_error": on_error, **arguments})


def test_a_model_without_a_tokenizer_says_how_to_attach_one(tokenizer):
    with pytest.raises(ValueError, match=r"attach it with model\.tokenizer = "):
        small(tokenizer).translate(["a man"])


def test_a_tokenizer_may_not_have_more_ids_than_the_model(tokenizer):
    known = tokenizer.source_vocabulary_size
    with pytest.raises(ValueError, match=f"at most the model's {known - 1} source .* {known}"):
        small(tokenizer, spare=-1, tokenizer=tokenizer)
    model = RNNSearch(known, tokenizer.target_vocabulary_size - 1, **SIZES)
    with pytest.raises(ValueError, match=r"model's .* target ids"):
        model.tokenizer = tokenizer
    with pytest.raises(ValueError, match=r"must be a Tokenizer or None\. Received: str"):
        model.tokenizer = "tokenizer.json"
    assert model.tokenizer is None
    model = small(tokenizer, tokenizer=tokenizer)
    model.tokenizer = None
    assert model.tokenizer is None


def test_the_file_holds_the_tokenizer_and_the_configuration_does_not(model, tokenizer, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.tokenizer == tokenizer
    again = loaded.translate(TEXTS, SEARCH, max_length=4)
    for one, other in zip(model.translate(TEXTS, SEARCH, max_length=4), again, strict=True):
        assert (one.text, one.score) == (other.text, pytest.approx(other.score, abs=1e-5))
    assert "tokenizer" not in model.get_config()
    assert RNNSearch.from_config(model.get_config()).tokenizer is None
    assert keras.models.clone_model(model).tokenizer is None


def test_a_file_without_a_tokenizer_loads(tokenizer, tmp_path):
    model = small(tokenizer)
    model.build()
    model.save(tmp_path / "model.keras")
    names = zipfile.ZipFile(tmp_path / "model.keras").namelist()
    # As files were before models had a tokenizer.
    assert sorted(names) == ["config.json", "metadata.json", "model.weights.h5"]
    assert keras.saving.load_model(tmp_path / "model.keras").tokenizer is None


def test_a_tokenizer_in_a_file_is_checked(model, tmp_path):
    model.save(tmp_path / "model.keras")
    other = Tokenizer.train(TEXTS, TEXTS)
    assert other.target_vocabulary_size > model.target_vocabulary_size
    other.save(tmp_path / "tokenizer.json")
    with (
        zipfile.ZipFile(tmp_path / "model.keras") as old,
        zipfile.ZipFile(tmp_path / "changed.keras", "w") as new,
    ):
        for name in old.namelist():
            changed = (tmp_path / "tokenizer.json").read_bytes()
            new.writestr(name, changed if name.endswith("tokenizer.json") else old.read(name))
    with pytest.raises(ValueError, match="at most the model's"):
        keras.saving.load_model(tmp_path / "changed.keras")


def test_an_ensemble_speaks_as_its_models_do(model, tokenizer, tmp_path):
    other = small(tokenizer)
    other.build()
    ensemble = Ensemble([other, model])
    assert ensemble.tokenizer == tokenizer
    ensemble.build()
    ensemble.save(tmp_path / "ensemble.keras")
    loaded = keras.saving.load_model(tmp_path / "ensemble.keras")
    assert loaded.tokenizer == tokenizer
    assert [part.tokenizer for part in loaded.models] == [None, tokenizer]
    assert "tokenizer" not in ensemble.get_config()
    ours, theirs = (each.translate(TEXTS[:2], SEARCH, max_length=3) for each in (ensemble, loaded))
    assert [t.text for t in ours] == [t.text for t in theirs]


def test_an_ensemble_needs_one_tokenizer(tokenizer):
    other = Tokenizer.train(["ab"], ["cd"], vocabulary_size=270)
    models = [small(tokenizer, tokenizer=each) for each in (tokenizer, other)]
    with pytest.raises(ValueError, match="`models` must share one tokenizer"):
        Ensemble(models)
    assert Ensemble(models, tokenizer=other).tokenizer is other
    assert Ensemble([small(tokenizer), small(tokenizer)]).tokenizer is None


def test_a_length_penalty_is_scored_by_what_it_finds(model):
    texts = [text for text in TEXTS if text.strip()]
    found = model.translate(texts, BeamSearch(3, 2.0), max_length=30)
    references = [translation.text[::-1] for translation in found]
    options = {"beam": 3, "max_length": 30, "tokenize": "char"}
    scores = length_penalty_scores(model, texts, references, (2.0, 0.0), **options)
    assert list(scores) == [2.0, 0.0]
    mirrored = corpus_scores([translation.text for translation in found], references, "char")
    assert 0 < scores[2.0] == mirrored["bleu"] < 100


@pytest.mark.parametrize(
    ("sources", "references", "penalties", "message"),
    [
        ([], [], [1.0], "`references` must hold a translation of each"),
        (["a", "b"], ["a"], [1.0], "Received: 1 of 2"),
        ("a", ["a"], [1.0], "`sources` must be"),
        (["a"], ["a"], [], "`penalties` must hold at least one"),
        (["a"], ["a"], [-1.0], "`length_penalty`"),
    ],
)
def test_length_penalties_need_texts(model, sources, references, penalties, message):
    with pytest.raises(ValueError, match=message):
        length_penalty_scores(model, sources, references, penalties)
