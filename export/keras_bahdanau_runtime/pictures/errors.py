"""The errors of short outputs as an SVG file: confused symbols as bars, and aligned outputs."""

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.text.error_rates import (
    Comparison,
    Edit,
    confusions,
    error_rates,
    worst_outputs,
)

_CONFUSIONS, _OUTPUTS = 15, 12
_WIDTH, _MARGIN = 760, 24
_ROW = 26  # height of a bar with its space, and of a row of symbols
# Horizontal positions of the bars and of the first symbol of an output.
_BARS, _BARS_END, _SYMBOLS = 250, 560, 110
_LONGEST_LABEL = 14  # in widths of a letter
# Colors have a contrast of at least 4.5 to the background behind them. Errors also have a frame,
# which distinguishes them without colors.
_STYLE = """
svg { --ground: #ffffff; --text: #1b222c; --muted: #566170; --bar: #1261a0;
  --error: #a3271f; --error-ground: #fdf2f1; }
@media (prefers-color-scheme: dark) { svg { --ground: #1a1e25; --text: #e7eaef; --muted: #9da7b5;
  --bar: #8fb8e8; --error: #ff9d94; --error-ground: #2c1b1b; } }
text { fill: var(--text); font-size: 15px; }
.middle { text-anchor: middle; } .end { text-anchor: end; } .bold { font-weight: 600; }
.muted { fill: var(--muted); font-size: 13px; }
.error { fill: var(--error); font-weight: 600; }
rect { fill: var(--error-ground); stroke: var(--error); stroke-width: 1.5; }
.ground { fill: var(--ground); stroke: none; } .bar { fill: var(--bar); stroke: none; }
.empty { stroke-dasharray: 3 3; }
"""


def check_picture(path: str | os.PathLike[str]) -> None:
    """Raise a `ValueError` unless `error_picture` can write a file with this name."""
    if Path(path).suffix.lower() != ".svg":
        raise argument_error("picture", "end in .svg", os.fspath(path))
    if not Path(path).parent.is_dir():
        raise argument_error("picture", "be in a folder that exists", os.fspath(path))


def error_picture(
    sources: Sequence[str], comparisons: Sequence[Comparison], path: str | os.PathLike[str]
) -> str:
    """Draw the most frequent errors of symbols, and the outputs with the most errors, aligned.

    Browsers show the picture in light or dark colors, as the system does.

    Args:
        sources: List of `str`.
        comparisons: The `Comparison` of the output of each source.
        path: Where to write the SVG file.

    Returns:
        The text of the file.

    Raises:
        ValueError: The name of the file does not end in .svg, or its folder does not exist.
    """
    check_picture(path)
    rates = error_rates(comparisons)
    figure = _Figure()
    figure.text(_MARGIN, f"Errors of {len(comparisons):,} outputs", "bold", space=34)
    summary = f"{rates['exact']:.1f}% exact, {rates['ser']:.1f}% symbol errors"
    figure.text(_MARGIN, summary, "muted", space=22)
    _draw_confusions(figure, comparisons)
    _draw_outputs(figure, worst_outputs(sources, comparisons)[:_OUTPUTS])
    svg = figure.svg()
    with atomic_write(path) as temporary:
        temporary.write_text(svg, "utf-8")
    return svg


class _Figure:
    """SVG elements from top to bottom.

    Attributes:
        y: Base line of the text that was added last.
    """

    def __init__(self) -> None:
        self.y = 0.0
        self._elements: list[str] = []

    def text(self, x: float, text: str, style: str = "", space: float = 0.0) -> None:
        """Add a text, `space` below the one before."""
        self.y += space
        name = f' class="{style}"' if style else ""
        self._elements.append(f'<text x="{x:g}" y="{self.y:g}"{name}>{escape(text)}</text>')

    def box(self, x: float, width: float, style: str, height: float = 22) -> None:
        """Add a rectangle behind the text at the same height."""
        y = self.y - 5 - height / 2
        self._elements.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" '
            f'class="{style}"/>'
        )

    def svg(self) -> str:
        """Return the text of the SVG file."""
        height = self.y + _MARGIN
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" '
            f'width="{_WIDTH}" height="{height:g}" font-family="system-ui, -apple-system, '
            f'Segoe UI, Roboto, Noto Sans, sans-serif">\n<style>{_STYLE}</style>\n'
            f'<rect class="ground" width="{_WIDTH}" height="{height:g}" rx="8"/>\n'
            + "\n".join(self._elements)
            + "\n</svg>\n"
        )


def _draw_confusions(figure: _Figure, comparisons: Sequence[Comparison]) -> None:
    """Draw a bar for each of the most frequent errors, with the share of its symbol."""
    errors = confusions(comparisons).most_common(_CONFUSIONS)
    if not errors:
        figure.text(_MARGIN, "No symbol is wrong.", space=36)
        return
    totals = Counter(edit.expected for each in comparisons for edit in each.alignment)
    figure.text(_MARGIN, "Most frequent errors", "bold", space=40)
    figure.text(130, "expected", "muted end", space=24)
    figure.text(160, "received", "muted")
    figure.text(_BARS, "times", "muted")
    figure.text(_WIDTH - _MARGIN, "of the expected symbol", "muted end")
    for edit, count in errors:
        figure.y += _ROW
        figure.text(130, _label(edit.expected) or "none", "end" if edit.expected else "muted end")
        figure.text(145, "\N{RIGHTWARDS ARROW}", "muted middle")
        figure.text(160, _label(edit.received) or "none", "" if edit.received else "muted")
        length = (_BARS_END - _BARS) * count / errors[0][1]
        figure.box(_BARS, length, "bar", 16)
        figure.text(_BARS + length + 8, f"{count:,}")
        if edit.expected:
            share = f"{100 * count / totals[edit.expected]:.1f}% of {totals[edit.expected]:,}"
            figure.text(_WIDTH - _MARGIN, share, "end")


def _draw_outputs(figure: _Figure, outputs: Iterable[tuple[str, Comparison]]) -> None:
    """Draw sources, and below each its reference and its output, symbol below symbol."""
    for number, (source, comparison) in enumerate(outputs):
        if not number:
            figure.text(_MARGIN, "Outputs with the most errors", "bold", space=48)
            figure.y -= 8
        title = source if len(source) <= 80 else f"{source[:79]}\N{HORIZONTAL ELLIPSIS}"
        figure.text(_SYMBOLS + 6, _visible(title), "muted", space=38)
        for row in _rows(comparison.alignment):
            for side, name in enumerate(("expected", "received")):
                figure.text(_SYMBOLS - 10, name, "muted end", space=_ROW)
                for x, width, edit in row:
                    label, is_error = _label(edit[side]), edit.expected != edit.received
                    if is_error:
                        figure.box(x + 2, width - 4, "" if label else "empty")
                    if label:
                        figure.text(x + width / 2, label, "middle" + " error" * is_error)
            figure.y += 4


def _rows(alignment: Iterable[Edit]) -> list[list[tuple[float, float, Edit]]]:
    """Return the position and the width of the column of each edit, in rows that fit."""
    rows: list[list[tuple[float, float, Edit]]] = []
    x = float(_WIDTH)
    for edit in alignment:
        width = 16 + 9 * max(1, *(_width(_label(symbol)) for symbol in edit))
        if x + width > _WIDTH - _MARGIN:
            rows.append([])
            x = _SYMBOLS
        rows[-1].append((x, width, edit))
        x += width
    return rows


def _label(symbol: str) -> str:
    """Return a symbol of at most `_LONGEST_LABEL` widths of a letter, with signs for spaces."""
    label = _visible(symbol).replace(" ", "\N{OPEN BOX}")
    if not label.isprintable():  # joiners and marks of direction, which have no width
        label = " ".join(f"U+{ord(letter):04X}" for letter in label)
    if label and unicodedata.category(label[0]).startswith("M"):
        label = f"\N{DOTTED CIRCLE}{label}"
    while _width(label) > _LONGEST_LABEL:
        label = label.rstrip("\N{HORIZONTAL ELLIPSIS}")[:-1] + "\N{HORIZONTAL ELLIPSIS}"
    return label


def _visible(text: str) -> str:
    """Replace characters that cannot be in an XML file, and other spaces by a space."""
    return "".join(
        letter
        if letter.isprintable() or unicodedata.category(letter) == "Cf"
        else " " if letter.isspace() else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )  # fmt: skip


def _width(label: str) -> int:
    """Return the approximate width of a label, in widths of a letter."""
    return sum(
        0 if unicodedata.category(letter).startswith("M")
        else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in label
    )  # fmt: skip
