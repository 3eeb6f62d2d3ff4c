"""Generated scenes: two coloured shapes, and a sentence that says how they stand."""

import numpy as np

SIZE, CELLS = 32, 3
COLOURS = {
    "red": (0.9, 0.2, 0.2),
    "green": (0.2, 0.7, 0.3),
    "blue": (0.2, 0.3, 0.9),
    "yellow": (0.9, 0.8, 0.2),
}
SHAPES = ("circle", "square", "triangle")
WORDS = ["<pad>", "<unk>", "<s>", "</s>", "a", *COLOURS, *SHAPES, "left", "above", "of"]
LONGEST = 9  # "a red circle left of a blue square" and its end


def draw(count, seed):
    """Images `(B, SIZE, SIZE, 3)` in [0, 1], and their captions, `B` strings."""
    rng = np.random.default_rng(seed)
    images = rng.uniform(0.9, 1.0, (count, SIZE, SIZE, 3)).astype("float32")
    captions = [_scene(image, rng) for image in images]
    return images, captions


def ids(captions):
    """Captions as ids `(B, LONGEST)`, with the end of each, padded with 0."""
    found = np.zeros((len(captions), LONGEST), "int32")
    for row, caption in enumerate(captions):
        words = [*caption.split(), "</s>"]
        found[row, : len(words)] = [WORDS.index(word) for word in words]
    return found


def text(ids):
    """One caption of ids, up to its end."""
    words = [WORDS[i] for i in ids]
    return " ".join(words[: words.index("</s>")] if "</s>" in words else words)


def _scene(image, rng):
    """Paints two shapes into the image; says which stands left of the other, or above it."""
    while True:
        (y, x), (v, u) = rng.integers(0, CELLS, (2, 2)).tolist()
        if abs(x - u) != abs(y - v):
            break
    across = abs(x - u) > abs(y - v)
    if (x > u) if across else (y > v):
        y, x, v, u = v, u, y, x
    names = [_paint(image, *place, rng) for place in ((y, x), (v, u))]
    return f"{names[0]} {'left of' if across else 'above'} {names[1]}"


def _paint(image, row, column, rng):
    """One shape near the middle of its cell; returns its name."""
    colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
    side = SIZE / CELLS
    top, left = (side * np.array([row, column]) + side / 2 + rng.uniform(-0.8, 0.8, 2)).tolist()
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    y, x = y - top, x - left
    inside = {
        "circle": y**2 + x**2 < 4.5**2,
        "square": np.maximum(abs(y), abs(x)) < 4,
        "triangle": (abs(y) < 4.5) & (abs(x) < (y + 4.5) / 2),
    }[shape]
    image[inside] = COLOURS[colour] + rng.normal(0, 0.03, (inside.sum(), 3))
    return f"a {colour} {shape}"
