"""Tokenizers of models, and `translate`."""

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
    TranslationScore,
)
from keras_bahdanau.training import length_penalty_scores
from keras_bahdanau_runtime.text.scores import corpus_scores

SIZES = {"units": 4, "embedding_dim": 3, "attention_units": 3, "maxout_units": 2}
TEXTS = ["a man", "", "a woman on a horse", "on", "  ", "a horse", "man on a woman"]
SEARCH = BeamSearch(3, 0.6)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS, ["ein Mann", "eine Frau"], vocabulary_size=280, joint=False)


def small_model(fitting, /, spare=2, **arguments):
    """Return a model with `spare` more ids than the tokenizer `fitting`."""
    sizes = fitting.source_vocabulary_size + spare, fitting.target_vocabulary_size + spare
    return RNNSearch(*sizes, **SIZES, **arguments)


@pytest.fixture(scope="module")
def model(tokenizer):
    keras.utils.set_random_seed(1)
    model = small_model(tokenizer, tokenizer=tokenizer, initializer=None)
    model.build()
    return model


@pytest.fixture(scope="module")
def generated(model, tokenizer):
    """The result of `generate` for all texts that are not blank, in one batch."""
    sources = [tokenizer.encode_source(text) for text in TEXTS if text.strip()]
    return model.generate(sources, SEARCH, max_length=6)


@pytest.mark.parametrize("batch_size", [2, 32])
def test_translate_returns_the_text_and_score_of_generate(model, tokenizer, generated, batch_size):
    translations = model.translate(TEXTS, SEARCH, max_length=6, n_best=2, batch_size=batch_size)
    rows = iter(range(len(TEXTS)))
    for text, hypotheses in zip(TEXTS, translations, strict=True):
        if not text.strip():
            assert [(t.text, t.score, t.tokens) for t in hypotheses] == [("", None, [])]
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


def test_translate_passes_on_its_search_options(model):
    done = []
    translations = model.translate(
        TEXTS,
        GreedySearch(),
        max_length=lambda lengths: np.minimum(lengths, 3),
        batch_size=4,
        progress=done.append,
        alignments=False,
    )
    assert done == [2, 6, 7]
    lengths = [len(translation.tokens) for translation in translations]
    assert max(lengths) <= 3
    assert [length > 0 for length in lengths] == [bool(text.strip()) for text in TEXTS]
    assert {translation.alignment for translation in translations} == {None}


@pytest.fixture
def shapes(model, monkeypatch):
    """Shapes of the searched batches. A batch of more than 40 ids raises a MemoryError."""
    shapes, generate = [], model.generate

    def limited(source, *rest):
        shapes.append(source.shape)
        if source.size > 40:
            raise MemoryError("more than 40 ids")
        return generate(source, *rest)

    monkeypatch.setattr(model, "generate", limited)
    return shapes


def test_on_jax_all_batches_have_as_many_rows_as_the_first(model, shapes):
    """JAX would compile the search again for a short last batch."""
    model.translate(TEXTS, GreedySearch(), max_length=2, batch_size=3)
    model.translate(TEXTS[:4], GreedySearch(), max_length=2, batch_size=8)
    last = 3 if keras.config.backend() == "jax" else 2
    assert [rows for rows, _ in shapes] == [3, last, 3]


def test_a_batch_that_does_not_fit_into_memory_is_searched_text_by_text(model, shapes):
    texts = ["a man on a boat", "two men at a boat", "a boat on the water"]
    translations = model.translate(texts, GreedySearch(), max_length=2, on_error="keep")
    assert shapes[0][0] == 3 and [rows for rows, _ in shapes[1:]] == [1, 1, 1]
    assert [translation.error for translation in translations] == [None] * 3


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"texts": "a man"}, "`texts` must be a list of str"),
        ({"texts": ["a", None]}, r"`texts\[1\]` must be a str. Received: None"),
        ({"texts": ["a"], "n_best": 4}, "`n_best` must be at most 3"),
        ({"texts": ["a"], "batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"texts": ["a"], "max_length": 0}, "`max_length` must be an int of at least 1"),
        ({"texts": ["a"], "search": "beam"}, "`search` must be a search"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "keep"])
def test_translate_names_the_wrong_argument(model, arguments, message, on_error):
    with pytest.raises(ValueError, match=message):
        model.translate(**{"search": SEARCH, "max_length": 2, "on_error": on_error, **arguments})


def test_padding_among_suppressed_tokens_suppresses_nothing(model):
    with_padding, without = (
        model.translate(["a man", "on"], SEARCH, 4, suppressed=ids) for ids in ([0, 5], [5])
    )
    assert [each.tokens for each in with_padding] == [each.tokens for each in without]


def test_options_that_leave_no_output_are_an_error(model):
    every_id = [*range(model.tokenizer.target_vocabulary_size + 2)]
    search = BeamSearch(2, forbidden=(0, 2, *every_id[4:]))
    for engine_options in ({"suppressed": every_id[:-2]}, {"disable_unknown": True}):
        with pytest.raises(ValueError, match="`options` must leave an output for each text"):
            model.translate(["a man"], search, 3, min_length=2, **engine_options)


def test_phrases_with_a_forbidden_token_are_an_error(model):
    forbidden = model.tokenizer.encode_target("Frau")[0]
    search = BeamSearch(2, forbidden=(0, 2, forbidden))
    with pytest.raises(ValueError, match=f"`required` .* the search forbids. .* id {forbidden}"):
        model.translate(["a man"], search, 9, required=[["Frau"]])


def test_the_error_without_a_tokenizer_shows_how_to_attach_one(tokenizer):
    with pytest.raises(ValueError, match=r"attach it with model\.tokenizer = "):
        small_model(tokenizer).translate(["a man"])


def test_a_tokenizer_may_not_have_more_ids_than_the_model(tokenizer):
    size = tokenizer.source_vocabulary_size
    with pytest.raises(ValueError, match=f"at most the model's {size - 1} source .* {size}"):
        small_model(tokenizer, spare=-1, tokenizer=tokenizer)
    model = RNNSearch(size, tokenizer.target_vocabulary_size - 1, **SIZES)
    with pytest.raises(ValueError, match=r"model's .* target ids"):
        model.tokenizer = tokenizer
    with pytest.raises(ValueError, match=r"must be a Tokenizer or None\. Received: str"):
        model.tokenizer = "tokenizer.json"
    assert model.tokenizer is None
    model = small_model(tokenizer, tokenizer=tokenizer)
    model.tokenizer = None
    assert model.tokenizer is None


def test_the_file_holds_the_tokenizer_and_the_config_does_not(model, tokenizer, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.tokenizer == tokenizer
    results, expected = (each.translate(TEXTS, SEARCH, max_length=4) for each in (loaded, model))
    assert [result.text for result in results] == [each.text for each in expected]
    scores = [each.score for each in expected]
    assert [result.score for result in results] == pytest.approx(scores, abs=1e-5)
    assert "tokenizer" not in model.get_config()
    assert RNNSearch.from_config(model.get_config()).tokenizer is None
    assert keras.models.clone_model(model).tokenizer is None


def test_a_file_without_a_tokenizer_loads(tokenizer, tmp_path):
    model = small_model(tokenizer)
    model.build()
    model.save(tmp_path / "model.keras")
    names = zipfile.ZipFile(tmp_path / "model.keras").namelist()
    # Files of versions before tokenizers have the same members.
    assert sorted(names) == ["config.json", "metadata.json", "model.weights.h5"]
    assert keras.saving.load_model(tmp_path / "model.keras").tokenizer is None


def test_a_tokenizer_in_a_file_is_checked(model, tmp_path):
    model.save(tmp_path / "model.keras")
    other = Tokenizer.train(TEXTS, TEXTS)
    assert other.target_vocabulary_size > model.target_vocabulary_size
    other.save(tmp_path / "tokenizer.json")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (name,) = (name for name in members if name.endswith("tokenizer.json"))
    members[name] = (tmp_path / "tokenizer.json").read_bytes()
    with zipfile.ZipFile(tmp_path / "changed.keras", "w") as archive:
        for name, contents in members.items():
            archive.writestr(name, contents)
    with pytest.raises(ValueError, match="at most the model's"):
        keras.saving.load_model(tmp_path / "changed.keras")


def test_an_ensemble_has_the_tokenizer_of_its_models(model, tokenizer, tmp_path):
    other = small_model(tokenizer)
    other.build()
    ensemble = Ensemble([other, model])
    assert ensemble.tokenizer == tokenizer
    ensemble.build()
    ensemble.save(tmp_path / "ensemble.keras")
    loaded = keras.saving.load_model(tmp_path / "ensemble.keras")
    assert loaded.tokenizer == tokenizer
    assert [each.tokenizer for each in loaded.models] == [None, tokenizer]
    assert "tokenizer" not in ensemble.get_config()
    texts = [
        [translation.text for translation in each.translate(TEXTS[:2], SEARCH, max_length=3)]
        for each in (ensemble, loaded)
    ]
    assert texts[0] == texts[1]


def test_models_of_an_ensemble_must_share_a_tokenizer(tokenizer):
    other = Tokenizer.train(["ab"], ["cd"], vocabulary_size=270)
    models = [small_model(tokenizer, tokenizer=each) for each in (tokenizer, other)]
    with pytest.raises(ValueError, match="`models` must share one tokenizer"):
        Ensemble(models)
    assert Ensemble(models, tokenizer=other).tokenizer is other
    assert Ensemble([small_model(tokenizer), small_model(tokenizer)]).tokenizer is None


def test_a_length_penalty_is_scored_by_its_translations(model):
    texts = [text for text in TEXTS if text.strip()]
    translations = model.translate(texts, BeamSearch(3, 2.0), max_length=30)
    outputs = [translation.text for translation in translations]
    references = [output[::-1] for output in outputs]
    options = {"beam_size": 3, "max_length": 30, "tokenize": "char"}
    scores = length_penalty_scores(model, texts, references, (2.0, 0.0), **options)
    assert list(scores) == [2.0, 0.0]
    assert 0 < scores[2.0] == corpus_scores(outputs, references, "char")["bleu"] < 100


@pytest.mark.parametrize("pieces", [["ab@@", "cd", "ef"], ["▁ab", "cd", "▁ef"]])
def test_references_that_are_split_into_pieces_are_joined_like_translations(pieces):
    tokenizer = Tokenizer.from_pieces(pieces)
    keras.utils.set_random_seed(2)  # whose output is not blank
    model = small_model(tokenizer, spare=0, tokenizer=tokenizer)
    texts, search = [" ".join(pieces)], BeamSearch(2, 1.0)
    [output] = [item.text for item in model.translate(texts, search, max_length=9)]
    # One piece for each letter, as another tokenizer of the same kind would split them.
    has_marks_at_ends = pieces[0].endswith("@@")
    words = ["@@ ".join(w) if has_marks_at_ends else " ".join(f"▁{w}") for w in output.split()]
    split = " ".join(words)
    assert tokenizer.join_target(split) == output != split
    options = {"beam_size": 2, "max_length": 9, "tokenize": "char"}
    assert length_penalty_scores(model, texts, [split], [1.0], **options)[1.0] > 99.9
    scores = TranslationScore(texts, [[split]], search=search, max_length=9).score(model)
    assert (scores["exact"], scores["ser"]) == (100, 0)


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
def test_invalid_arguments_of_length_penalty_scores_are_refused(
    model, sources, references, penalties, message
):
    with pytest.raises(ValueError, match=message):
        length_penalty_scores(model, sources, references, penalties)
