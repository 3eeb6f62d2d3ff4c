import gzip

import pytest

from keras_bahdanau_runtime.text.word_vectors import read_word_vectors

LINES = ["dog 0.5 -1e-1 2", "cat 1 0 0", "dog 9 9 9", "fox 7 8 9 "]


@pytest.mark.parametrize("header", [[], ["4 3"]])
def test_vectors_of_the_words_are_read(header, tmp_path):
    path = tmp_path / "words.vec.gz"
    path.write_bytes(gzip.compress("\n".join(header + LINES).encode()))
    vectors = read_word_vectors(path, 3, {"dog", "fox", "hen"})
    expected = {"dog": [0.5, pytest.approx(-0.1), 2], "fox": [7, 8, 9]}
    assert {word: vector.tolist() for word, vector in vectors.items()} == expected


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (
            "4 300\ndog 1 2 3\n",
            (),
            "words.vec: expected vectors as wide as the embeddings, 3.* 300",
        ),
        ("dog 1 2\n", {"dog"}, "words.vec: expected vectors as wide .* width 2"),
        ("cat 1 2 3\ndog 1 2\n", {"dog"}, "line 2: expected 3 finite numbers. Received: 2"),
        ("cat 1 2 3\ndog 1 2 nan\n", {"dog"}, "line 2: expected 3 finite numbers"),
        ("cat 1 2 3\ndog 1 x 3\n", {"dog"}, "line 2: expected numbers. Received: .*'x'"),
        ("cat 1 2 3\ndog 1 " + "x" * 9999 + " 3\n", {"dog"}, "line 2: expected numbers.{1,200}$"),
        ("cat 1 2 3\ndog" + " 1" * 9999 + "\n", {"dog"}, "finite numbers. Received: 9999"),
        ("1 " + "9" * 9999 + "\n", (), "words.vec: expected vectors as wide .* width 1"),
        ("cat 1 2 3\ndog " + "1" * 2**24, {"dog"}, "line 2: expected at most 16 MB of text"),
    ],
)
def test_unreadable_vectors_are_refused(text, words, message, tmp_path):
    path = tmp_path / "words.vec"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_word_vectors(path, 3, words)
