"""Generated scenes: two colored shapes and a sentence that describes their relative position."""

import numpy as np

SIZE, CELLS = 32, 3
COLORS = {
    "red": (0.9, 0.2, 0.2),
    "green": (0.2, 0.7, 0.3),
    "blue": (0.2, 0.3, 0.9),
    "yellow": (0.9, 0.8, 0.2),
}
SHAPES = ("circle", "square", "triangle")
WORDS = ["<pad>", "<unk>", "<s>", "</s>", "a", *COLORS, *SHAPES, "left", "above", "of"]
MAX_LENGTH = 9  # "a red circle left of a blue square" and the end token


def generate(count, seed):
    """Return images `(B, SIZE, SIZE, 3)` in [0, 1] and a list of `B` captions."""
    rng = np.random.default_rng(seed)
    images = rng.uniform(0.9, 1.0, (count, SIZE, SIZE, 3)).astype("float32")
    captions = [_draw_scene(image, rng) for image in images]
    return images, captions


def encode(captions):
    """Return captions as ids `(B, MAX_LENGTH)`, each with an end token and padded with 0."""
    ids = np.zeros((len(captions), MAX_LENGTH), "int32")
    for row, caption in enumerate(captions):
        words = [*caption.split(), "</s>"]
        ids[row, : len(words)] = [WORDS.index(word) for word in words]
    return ids


def decode(ids):
    """Return the caption of one row of ids, without its end token."""
    words = [WORDS[i] for i in ids]
    return " ".join(words[: words.index("</s>")] if "</s>" in words else words)


def _draw_scene(image, rng):
    """Draw two shapes into the image, in place, and return the caption."""
    while True:
        (y, x), (v, u) = rng.integers(0, CELLS, (2, 2)).tolist()
        if abs(x - u) != abs(y - v):
            break
    is_horizontal = abs(x - u) > abs(y - v)
    if (x > u) if is_horizontal else (y > v):
        y, x, v, u = v, u, y, x
    names = [_draw_shape(image, *cell, rng) for cell in ((y, x), (v, u))]
    return f"{names[0]} {'left of' if is_horizontal else 'above'} {names[1]}"


def _draw_shape(image, row, column, rng):
    """Draw one shape near the center of its cell and return its name."""
    color, shape = rng.choice(list(COLORS)), rng.choice(SHAPES)
    side = SIZE / CELLS
    top, left = (side * np.array([row, column]) + side / 2 + rng.uniform(-0.8, 0.8, 2)).tolist()
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    y, x = y - top, x - left
    inside = {
        "circle": y**2 + x**2 < 4.5**2,
        "square": np.maximum(abs(y), abs(x)) < 4,
        "triangle": (abs(y) < 4.5) & (abs(x) < (y + 4.5) / 2),
    }[shape]
    image[inside] = COLORS[color] + rng.normal(0, 0.03, (inside.sum(), 3))
    return f"a {color} {shape}"
