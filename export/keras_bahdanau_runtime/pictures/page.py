"""Alignments as an HTML file that highlights aligned words."""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.ids import SPECIAL
from keras_bahdanau_runtime.pictures.figures import Panel, checked_panels
from keras_bahdanau_runtime.search_settings import RANGES, SearchSettings

# Settings of a search that the page can set.
PAGE_SETTINGS = tuple(
    setting.name for setting in dataclasses.fields(SearchSettings) if setting.metadata["on_page"]
)
_FOLDER = Path(__file__).parent
# Placeholders in the pages for the files that they share.
_PLACEHOLDERS = {
    "/* alignment.css */": "alignment.css",
    "<!-- alignment.html -->": "alignment.html",
    "/* alignment.js */": "alignment.js",
}


def translator_page(client: str) -> str:
    """Return the HTML of the page that translates a text and shows its alignment.

    Args:
        client: JavaScript that defines `client`, through which the page gets its translations; see
            `service/client.js`.
    """
    page = _assemble("translator.html").replace("/* client.js */", client)
    page = page.replace("/* settings */ []", json.dumps([*PAGE_SETTINGS]))
    return page.replace("<!-- settings -->", "\n        ".join(map(_setting, PAGE_SETTINGS)))


def _setting(name: str) -> str:
    """Return the label and the field of a setting of the search."""
    kind, low, _ = RANGES[name]
    step, mode = ("1", "numeric") if kind is int else ("0.1", "decimal")
    field = f'<input id="{name}" type="number" min="{low}" step="{step}" inputmode="{mode}">'
    return f"<label>{name.replace('_', ' ').capitalize()} {field}</label>"


def _assemble(name: str) -> str:
    """Return a page with the style, markup and script of the alignment view."""
    page = (_FOLDER / name).read_text("utf-8")
    for placeholder, file in _PLACEHOLDERS.items():
        page = page.replace(placeholder, (_FOLDER / file).read_text("utf-8"))
    return page


def alignment_page(
    alignments: Sequence[Panel],
    path: str | os.PathLike[str] | None = None,
    titles: Sequence[str] | None = None,
) -> str:
    """Create a self-contained HTML file: pointing at a word highlights the aligned words.

    The page joins tokens to words, and has a checkbox to show the tokens.

    Args:
        alignments: `(alignment, source tokens, target tokens)` for each sentence: `(Ty, Tx)` float
            weights, `Tx` and `Ty` strings. Pass tokens, not the words of `word_alignment`.
        path: Where to write the file; `None` to not write it.
        titles: A title for each sentence in the list of sentences; `None` for the sources.

    Returns:
        The HTML.

    Raises:
        ValueError: There is no alignment, a shape does not match its tokens, or `titles` has
            another length.
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
    # A "<" in a text must not end the script element.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    page = _assemble("page.html").replace("/* data */", text)
    if path is not None:
        with atomic_write(path) as temporary:
            temporary.write_text(page, "utf-8")
    return page


def _text(tokens: Sequence[str]) -> str:
    return "".join(token for token in tokens if token not in SPECIAL.values())
