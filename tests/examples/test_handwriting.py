"""Rows of digits of the handwriting example."""

import numpy as np

from examples.handwriting import rows


def test_a_row_shows_the_digits_of_its_text():
    labels = np.array([3, 7, 9])
    pictures = np.ones((3, 8, 8), "float32") * labels[:, None, None] / 10
    images, texts = rows.generate(30, rows.Digits(pictures, labels), seed=1)
    assert {len(text) for text in texts} == {3, 4, 5, 6}
    for image, text in zip(images[..., 0], texts, strict=True):
        values = image.max(axis=0)
        columns = (10 * values[values > 0]).round().tolist()
        assert columns == [int(digit) for digit in text for _ in range(8)]
        assert ((image > 0).sum(axis=0)[values > 0] == 8).all()


def test_ids_of_a_text_end_with_the_end_token():
    ids = rows.encode(["907", "123456"])
    assert ids.tolist() == [[13, 4, 11, 3, 0, 0, 0], [5, 6, 7, 8, 9, 10, 3]]
    assert [rows.decode(row) for row in ids] == ["907", "123456"]


def test_parts_of_the_digits_are_disjoint_and_complete():
    parts = [rows.PARTS[name] for name in ("training", "validation", "test")]
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == sum(len(rows.read(name).labels) for name in rows.PARTS) == 1797
