"""How translations are written to files."""

import json
import math

import numpy as np
import pytest

from keras_bahdanau_runtime import Translation
from keras_bahdanau_runtime.bulk.formats import OutputFormat

WEIGHTS = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]], "float32")
BEST = Translation("ein Rad", -0.25, ["ein", " Rad", "</s>"], ["a", " bike", "</s>"], WEIGHTS)
SECOND = Translation("Rad", -1.5, ["Rad", "</s>"], ["a", " bike", "</s>"], WEIGHTS[1:])
FAILED = Translation("", math.nan, [], [], None, "too long")


def test_plain_text_is_the_best_translation():
    assert OutputFormat().lines(3, [BEST]) == ["ein Rad"]
    assert OutputFormat().lines(3, [FAILED]) == [""]


def test_a_blank_text_has_no_score():
    blank = Translation("", None, [], [], None)
    assert OutputFormat(scores=True).lines(3, [blank]) == ["3 |||  ||| "]
    [line] = OutputFormat(as_json=True).lines(3, [blank])
    assert json.loads(line)["translations"][0]["score"] is None


def test_an_n_best_list_has_a_line_per_translation():
    lines = OutputFormat(n_best=2).lines(3, [BEST, SECOND])
    assert lines == ["3 ||| ein Rad ||| -0.250000", "3 ||| Rad ||| -1.500000"]
    assert OutputFormat(n_best=2).lines(3, [FAILED]) == []


def test_tokens_and_links_follow_the_score():
    style = OutputFormat(scores=True, tokens=True, alignments="pharaoh")
    assert style.lines(0, [BEST]) == ["0 ||| ein Rad ||| -0.250000 ||| ein ▁Rad </s> ||| 0-0 1-1"]


def test_json_has_every_field():
    [line] = OutputFormat(n_best=2, alignments="json", as_json=True).lines(7, [BEST, SECOND])
    document = json.loads(line)
    assert document["row"] == 7 and document["error"] is None
    first, second = document["translations"]
    assert (first["text"], first["score"], second["tokens"]) == ("ein Rad", -0.25, ["Rad", "</s>"])
    np.testing.assert_allclose(first["alignment"], WEIGHTS, atol=1e-6)
    [line] = OutputFormat(as_json=True).lines(0, [FAILED])
    assert json.loads(line) == {"row": 0, "translations": [], "error": "too long"}


@pytest.mark.parametrize(
    "arguments, message",
    [({"n_best": 0}, "`n_best` must be a positive"), ({"alignments": "moses"}, "'moses'")],
)
def test_a_wrong_format_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        OutputFormat(**arguments)
