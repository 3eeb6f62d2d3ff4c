"""Alignments as a page: one file for a browser, which points out where a word came from."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.ids import SPECIAL
from keras_bahdanau_runtime.pictures.figures import Panel, checked_panels

_FOLDER = Path(__file__).parent
# How a page asks for the parts that pages share.
_PARTS = {
    "/* alignment.css */": "alignment.css",
    "<!-- alignment.html -->": "alignment.html",
    "/* alignment.js */": "alignment.js",
}


def assemble_page(path: str | os.PathLike[str]) -> str:
    """A page with the look, the markup and the script of an alignment in their places.

    Args:
        path: A page that holds, where they go, the comments `/* alignment.css */`,
            `<!-- alignment.html -->` and `/* alignment.js */`.
    """
    page = Path(path).read_text("utf-8")
    for mark, name in _PARTS.items():
        page = page.replace(mark, (_FOLDER / name).read_text("utf-8"))
    return page


def alignment_page(
    alignments: Sequence[Panel],
    path: str | os.PathLike[str] | None = None,
    titles: Sequence[str] | None = None,
) -> str:
    """Alignments as one HTML file that needs nothing else: pointing at a word lights its partners.

    The page joins tokens to words by itself, and has a box to see the tokens.

    Args:
        alignments: For each sentence `(alignment, source tokens, target tokens)`: `(Ty, Tx)` float
            weights, `Tx` and `Ty` strings. They are tokens, not the words of `word_alignment`.
        path: Where to write the file; `None` to write nothing.
        titles: A name for each sentence in the list above them; its source if `None`.

    Returns:
        The HTML.

    Raises:
        ValueError: If there is no alignment, a shape does not fit its tokens, or `titles` are not
            as many.
    """
    panels = checked_panels(alignments, titles)
    if titles is None:
        titles = [_text(sources) for _, sources, _ in panels]
    data = [
        {
            "title": title,
            "source_tokens": list(sources),
            "tokens": list(targets),
            "alignment": [[round(weight, 4) for weight in row] for row in weights.tolist()],
        }
        for (weights, sources, targets), title in zip(panels, titles, strict=True)
    ]
    # What a text may hold must not end the script that it stands in.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    page = assemble_page(_FOLDER / "page.html").replace("/* data */", text)
    if path is not None:
        with atomic_write(path) as writing:
            writing.write_text(page, "utf-8")
    return page


def _text(tokens: Sequence[str]) -> str:
    return "".join(token for token in tokens if token not in SPECIAL.values())
