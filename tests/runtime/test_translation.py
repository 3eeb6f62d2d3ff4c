"""`translate_texts`, which Keras models and artifacts share, with a search that copies."""

import numpy as np
import pytest

from keras_bahdanau_runtime.errors import RunError
from keras_bahdanau_runtime.ids import EOS, PAD
from keras_bahdanau_runtime.text.tokenizer import Tokenizer
from keras_bahdanau_runtime.translation import encode_texts, translate_texts

TEXTS = ["short", "", "the longest of them all", "x", "   ", "twin a", "twin b", "\t", "last"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS, TEXTS, vocabulary_size=270)


class Copy:
    """A search whose best hypothesis is the source, and whose second is the source's first id."""

    def __init__(self, alignments=True):
        self.shapes = []
        self.alignments = alignments

    def __call__(self, source, indices):
        assert source.dtype == np.int32
        self.shapes.append(source.shape)
        lengths = (source != PAD).sum(axis=1)
        first = np.full_like(source, PAD)
        first[:, 0] = source[:, 0]
        outputs = {
            "tokens": np.stack([source, first], axis=1),
            "scores": np.stack([lengths, np.where(lengths > 3, -1.0, -np.inf)], axis=1),
            "lengths": np.stack([lengths, np.ones_like(lengths)], axis=1),
        }
        if self.alignments:
            width = source.shape[1]
            eye = np.eye(width, dtype="float32")
            outputs["alignments"] = np.tile(eye, (*lengths.shape, 2, 1, 1))
        return outputs


@pytest.mark.parametrize("batch_size", [1, 2, 4, 64])
def test_translations_keep_the_order(tokenizer, batch_size):
    search, done = Copy(), []
    translations = translate_texts(TEXTS, tokenizer, search, batch_size, progress=done.append)
    assert [translation.text for translation in translations] == [text.strip() for text in TEXTS]
    for translation, text in zip(translations, TEXTS, strict=True):
        ids = tokenizer.encode_source(text) if text.strip() else []
        assert translation.score == (len(ids) or None)  # a blank text has none
        np.testing.assert_array_equal(translation.alignment, np.eye(len(ids)))
        assert translation.source_tokens == translation.tokens
    # Blank texts are finished first, then the batches, from the longest texts to the shortest.
    assert done == [3, *(min(9, 3 + n) for n in range(batch_size, 6 + batch_size, batch_size))]
    widths = [width for _, width in search.shapes]
    assert widths == sorted(widths, reverse=True)
    assert sum(rows for rows, _ in search.shapes) == 6


def test_n_best_leaves_out_hypotheses_that_do_not_exist(tokenizer):
    translations = translate_texts(["twin twin a", "", "x"], tokenizer, Copy(), n_best=2)
    assert [len(hypotheses) for hypotheses in translations] == [2, 1, 1]
    best, second = translations[0]
    assert second.text == best.tokens[0] and second.tokens == best.tokens[:1]
    assert second.alignment.shape == (1, len(best.source_tokens))
    with pytest.raises(ValueError, match=r"`n_best` must be at most 2, the hypotheses .* 3"):
        translate_texts(["x"], tokenizer, Copy(), n_best=3)


def test_n_best_leaves_out_worse_hypotheses(tokenizer):
    def search(source, indices):
        scores = np.array([[-1.0, -2.0, -3.0]])
        tokens = np.full((1, 3, 1), EOS, "int32")
        return {"tokens": tokens, "scores": scores, "lengths": np.ones((1, 3), "int32")}

    [hypotheses] = translate_texts(["x"], tokenizer, search, n_best=2, alignments=False)
    assert [hypothesis.score for hypothesis in hypotheses] == [-1.0, -2.0]


@pytest.mark.parametrize(
    "score, error, message",
    [
        (-np.inf, ValueError, "`options` must leave an output for each text"),
        (np.nan, RunError, "must return finite scores"),
        (np.inf, RunError, "must return finite scores"),
    ],
)
def test_a_text_without_an_output_is_an_error(tokenizer, score, error, message):
    def search(source, indices):
        tokens = np.full((len(source), 2, 1), EOS, "int32")
        scores = np.full((len(source), 2), -np.inf)
        scores[:, 0] = [score if index else -1.0 for index in indices]
        return {"tokens": tokens, "scores": scores, "lengths": np.ones((len(source), 2), "int32")}

    with pytest.raises(error, match=message):
        translate_texts(["y", "x"], tokenizer, search, alignments=False)
    kept = translate_texts(["y", "x"], tokenizer, search, alignments=False, on_error="keep")
    assert kept[0].score == -1.0 and kept[0].error is None
    assert message in kept[1].error


def test_alignments_can_be_left_out(tokenizer):
    translations = translate_texts(["x", " "], tokenizer, Copy(alignments=False), alignments=False)
    assert [translation.alignment for translation in translations] == [None, None]


def test_id_without_a_piece_is_shown_as_unknown(tokenizer):
    def search(source, indices):
        tokens = np.array([[[tokenizer.target_vocabulary_size, EOS]]], "int32")
        return {"tokens": tokens, "scores": np.zeros((1, 1)), "lengths": np.array([[2]])}

    [translation] = translate_texts(["x"], tokenizer, search, alignments=False)
    assert (translation.text, translation.tokens) == ("<unk>", ["<unk>", "</s>"])


def test_tokens_after_eos_are_ignored(tokenizer):
    def search(source, indices):
        tokens = np.array([[[*tokenizer.encode_target("x"), 9, 9]]], "int32")
        alignments = np.ones((1, 1, tokens.shape[2], source.shape[1]), "float32")
        lengths = np.array([[tokens.shape[2]]])
        scores = np.zeros((1, 1))
        return dict(tokens=tokens, scores=scores, lengths=lengths, alignments=alignments)

    [translation] = translate_texts(["x"], tokenizer, search)
    assert (translation.text, translation.tokens[-1]) == ("x", "</s>")
    assert translation.alignment.shape == (len(translation.tokens), len(translation.source_tokens))


@pytest.mark.parametrize("texts", [[], ["", " "]])
def test_search_is_not_called_for_blank_texts(tokenizer, texts):
    search = Copy()
    assert [t.text for t in translate_texts(texts, tokenizer, search)] == [""] * len(texts)
    assert not search.shapes


def test_texts_are_truncated_only_on_request(tokenizer, caplog):
    texts = ["x", " ", "the longest of them all"]
    whole = encode_texts(texts, tokenizer)
    assert whole == [tokenizer.encode_source("x"), [], tokenizer.encode_source(texts[2])]
    limit = len(whole[2]) - 1
    with pytest.raises(ValueError, match=f"at most {limit} tokens .* {limit + 1} at index 2"):
        encode_texts(texts, tokenizer, limit)
    assert not caplog.records
    cut = encode_texts(texts, tokenizer, limit, truncate=True)
    assert cut == [*whole[:2], [*whole[2][: limit - 1], EOS]]
    assert caplog.messages == [f"Cut 1 of 3 texts to {limit} ids."]


def test_the_share_of_unknown_pieces_is_logged_if_most_are_unknown(caplog):
    tokenizer = Tokenizer.from_pieces(["ein@@", "er"])
    encode_texts(["ein@@ er", "ein Tor"], tokenizer)  # a half
    assert caplog.text == ""
    encode_texts(["ein@@ Tor", "ein Tor", " "], tokenizer)
    assert "75.0 % of the pieces of `texts` are unknown to the tokenizer" in caplog.text
