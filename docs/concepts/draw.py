"""Draw the diagrams of the concept pages: `python docs/concepts/draw.py` writes the SVG files.

The figures are 440 units wide with text of 15 units, so they are readable on a phone of 390 px.
"""

import math
import re
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH = 440
# Name: (fill, stroke). Text on every fill has a contrast of at least 7 to 1.
COLORS = {
    "blue": ("#dbeafe", "#1261a0"),
    "orange": ("#ffedd5", "#b8480b"),
    "green": ("#dcfce7", "#00755e"),
    "gray": ("#f3f4f6", "#757575"),
    "white": ("#ffffff", "#757575"),
}
INK, LINE = "#111827", "#374151"
# Inverted lightness with the same hues, for readers with a dark theme.
DARK = "@media (prefers-color-scheme: dark) { svg { filter: invert(0.92) hue-rotate(180deg) } }"


class Figure:
    """SVG elements of one figure.

    Args:
        title: Description for screen readers.
        height: Height in units.
    """

    def __init__(self, title, height):
        self.title = title
        self.height = height
        self.elements = []

    def text(self, x, y, text, size=15, anchor="middle", weight="normal", color=INK):
        """Add a line of text centered vertically at `y`; `a_i` and `a_{ij}` are subscripts."""
        spans, lowered = [], False
        for part in re.split(r"(_\{[^}]*\}|_\w)", text):
            if not part:
                continue
            is_subscript = part.startswith("_")
            shift = f' dy="{0.25 * size * (is_subscript - lowered):g}"'
            shift = shift if is_subscript != lowered else ""
            small = f' font-size="{0.8 * size:g}"' if is_subscript else ""
            spans.append(f"<tspan{shift}{small}>{escape(part.strip('_{}'))}</tspan>")
            lowered = is_subscript
        self.elements.append(
            f'<text x="{x:g}" y="{y + 0.35 * size:g}" font-size="{size}" text-anchor="{anchor}" '
            f'font-weight="{weight}" fill="{color}">{"".join(spans)}</text>'
        )

    def box(self, x, y, width, height, lines="", color="blue", dashed=False, **style):
        """Add a box with centered lines of text, separated by newlines."""
        fill, stroke = COLORS[color]
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.elements.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
            f'fill="{fill}" stroke="{stroke}" stroke-width="1.5"{dashes}/>'
        )
        lines = lines.split("\n") if lines else []
        for number, line in enumerate(lines):
            middle = y + height / 2 + (number - (len(lines) - 1) / 2) * 20
            self.text(x + width / 2, middle, line, **style)

    def arrow(self, *points, dashed=False):
        """Add a line through points `(x, y)` with a head at the last one."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.elements.append(
            f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.6"'
            f'{dashes} marker-end="url(#head)"/>'
        )

    def bar(self, x, y, width, height, color):
        """Add a filled bar."""
        self.elements.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'fill="{COLORS[color][1]}"/>'
        )

    def svg(self):
        """Return the text of the SVG file."""
        body = "\n".join(self.elements)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
            f'width="{WIDTH}" height="{self.height}" role="img" '
            'font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n<style>{DARK}</style>\n"
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0,0 L10,5 L0,10 z" fill="{LINE}"/>'
            "</marker></defs>\n"
            f'<rect width="{WIDTH}" height="{self.height}" rx="8" fill="#ffffff"/>\n'
            f"{body}\n</svg>\n"
        )


def attention():
    """Memory computed once per source, and one step that reads it."""
    figure = Figure("Attention: a memory computed once per source, and one step", 500)
    columns = [20 + 82 * j for j in range(5)]
    figure.text(20, 22, "Once per source: memory", anchor="start", weight="bold")
    for j, x in enumerate(columns):
        is_padding = j == 4
        name = "padding" if is_padding else f"h_{j + 1}"
        figure.box(x, 44, 72, 34, name, "gray" if is_padding else "blue", dashed=is_padding)
        if not is_padding:
            figure.arrow((x + 36, 78), (x + 36, 108))
            figure.box(x, 110, 72, 34, f"U_a h_{j + 1}", "blue")
    figure.box(columns[4], 110, 72, 34, "mask", "gray", dashed=True)
    figure.arrow((columns[4] + 36, 78), (columns[4] + 36, 108), dashed=True)
    figure.text(20, 184, "At every step i", anchor="start", weight="bold")
    figure.box(20, 204, 118, 38, "query s_{i-1}", "orange")
    figure.box(168, 204, 252, 38, "e_{ij} = v_a · tanh(W_a s_{i-1} + U_a h_j)", "white", size=14)
    figure.arrow((138, 223), (166, 223))
    figure.arrow((294, 144), (294, 202))
    figure.arrow((294, 242), (294, 268))
    figure.text(306, 255, "softmax, mask", anchor="start", size=14)
    weights = [0.08, 0.62, 0.22, 0.08, 0.0]
    for j, (x, weight) in enumerate(zip(columns, weights, strict=True)):
        figure.bar(
            x + 14, 368 - 80 * weight, 44, max(80 * weight, 2), "orange" if weight else "gray"
        )
        figure.text(x + 36, 356 - 80 * weight, f"{weight:g}", size=14)
        figure.text(x + 36, 386, "0" if j == 4 else f"a_{{i{j + 1}}}")
    figure.text(20, 304, "weights", anchor="start", size=14)
    figure.arrow((220, 402), (220, 428))
    figure.box(90, 430, 260, 44, "context  c_i = Σ_j a_{ij} h_j", "green")
    return figure


def decoder():
    """One step of the decoder: attention, cell, readout, and the loop."""
    figure = Figure("One decoder step: attention, cell and readout; the output is fed back", 470)
    figure.box(150, 16, 140, 42, "memory", "blue")
    figure.arrow((220, 58), (220, 92))
    figure.box(150, 94, 140, 50, "attention.step", "white")
    figure.box(24, 94, 72, 50, "state\ns_{i-1}", "orange")
    figure.arrow((96, 119), (148, 119))
    figure.text(122, 106, "query", size=14)
    figure.arrow((220, 144), (220, 184))
    figure.text(230, 163, "context c_i", anchor="start", size=14)
    figure.box(150, 186, 140, 50, "cell\n[x_i ; c_i]", "white")
    figure.arrow((54, 144), (54, 211), (148, 211))
    figure.box(344, 186, 84, 50, "state\ns_i", "orange")
    figure.arrow((290, 211), (342, 211))
    figure.arrow((220, 236), (220, 286))
    figure.text(230, 261, "state, x_i, c_i", anchor="start", size=14)
    figure.box(150, 288, 140, 50, "readout, logits\nW_o t_i", "white")
    figure.arrow((220, 338), (220, 374))
    figure.box(150, 376, 140, 34, "token y_i", "green")
    figure.box(12, 288, 84, 50, "E y_{i-1}\n= x_i", "gray")
    figure.arrow((54, 288), (54, 262), (120, 262), (120, 226), (148, 226))
    figure.arrow((150, 393), (54, 393), (54, 340), dashed=True)
    figure.arrow((386, 236), (386, 440), (8, 440), (8, 119), (23, 119), dashed=True)
    figure.text(220, 456, "dashed: to the next step, i + 1", size=14)
    return figure


def masking():
    """A padded batch, its mask, and what the layers do at masked positions."""
    figure = Figure("A batch of three padded sources, its mask, and the attention weights", 476)
    rows = [[17, 5, 9, 8, 6, 3], [4, 11, 3, 0, 0, 0], [12, 7, 5, 3, 0, 0]]
    weights = [
        [0.1, 0.2, 0.4, 0.1, 0.1, 0.1],
        [0.3, 0.5, 0.2, 0, 0, 0],
        [0.1, 0.1, 0.2, 0.6, 0, 0],
    ]

    def table(top, title, cells):
        figure.text(20, top, title, anchor="start", weight="bold")
        for r, row in enumerate(cells):
            for j, cell in enumerate(row):
                real = rows[r][j] != 0
                figure.box(
                    20 + 67 * j,
                    top + 18 + 32 * r,
                    61,
                    27,
                    cell,
                    "blue" if real else "gray",
                    dashed=not real,
                )

    table(22, "source ids (3 is the end, 0 is padding)", [[str(x) for x in row] for row in rows])
    table(174, "mask: True = keep", [[str(x != 0) for x in row] for row in rows])
    table(326, "weights a_{ij}: exactly 0 at padding", [[f"{x:g}" for x in row] for row in weights])
    figure.text(20, 462, "Every row of weights sums to one.", anchor="start", size=14)
    return figure


# Bigram probabilities of the search figure; the page's code has the same numbers.
PROBABILITIES = {
    "start": {"A": 0.6, "B": 0.35, "C": 0.05},
    "A": {"C": 0.5, "end": 0.45, "B": 0.05},
    "B": {"C": 0.6, "A": 0.3, "end": 0.1},
    "C": {"end": 0.85, "B": 0.1, "A": 0.05},
}


def log_prob(*tokens):
    """Return the log-probability of tokens after the start."""
    pairs = zip(("start", *tokens), tokens, strict=False)
    return sum(math.log(PROBABILITIES[before][after]) for before, after in pairs)


def score(*tokens):
    """Return the log-probability divided by the GNMT length penalty."""
    return log_prob(*tokens) / ((5 + len(tokens)) / 6)


def search():
    """A beam of two hypotheses over three steps."""
    figure = Figure("Beam search with two hypotheses over three steps", 452)

    def node(x, y, tokens, color, dashed=False, value=log_prob):
        name = " ".join(tokens) or "start"
        number = f"\n{value(*tokens):.2f}" if tokens else ""
        figure.box(x, y, 88, 48, name + number, color, dashed)

    for x, title in ((120, "step 1"), (236, "step 2"), (352, "step 3")):
        figure.text(x + 40, 20, title, weight="bold")
    node(8, 96, (), "gray")
    node(116, 40, ("A",), "blue")
    node(116, 152, ("B",), "blue")
    node(116, 232, ("C",), "white", dashed=True)
    for y in (64, 176, 256):
        figure.arrow((96, 120), (114, y), dashed=y == 256)
    node(232, 40, ("A", "C"), "blue")
    node(232, 96, ("A", "end"), "green")
    node(232, 152, ("B", "C"), "blue")
    node(232, 232, ("B", "A"), "white", dashed=True)
    figure.arrow((204, 64), (230, 64))
    figure.arrow((204, 68), (230, 118))
    figure.arrow((204, 176), (230, 176))
    figure.arrow((204, 180), (230, 254), dashed=True)
    node(346, 40, ("A", "C", "end"), "green")
    node(346, 152, ("B", "C", "end"), "green")
    figure.arrow((320, 64), (344, 64))
    figure.arrow((320, 176), (344, 176))
    figure.box(8, 306, 426, 136, "", "white")
    figure.text(20, 326, "ended, ranked by log p / lp", anchor="start", weight="bold")
    ended = [("A", "end"), ("A", "C", "end"), ("B", "C", "end")]
    for number, tokens in enumerate(sorted(ended, key=lambda tokens: -score(*tokens))):
        y = 352 + 26 * number
        label = "returned" if number < 2 else "displaced"
        figure.text(20, y, f"{number + 1}.  {' '.join(tokens)}", anchor="start")
        penalty = f"{log_prob(*tokens):.2f} / {(5 + len(tokens)) / 6:.2f} = {score(*tokens):.2f}"
        figure.text(130, y, penalty, anchor="start")
        figure.text(424, y, label, anchor="end", size=14)
    figure.text(20, 431, "Blue: live. Green: ended. Dashed: not chosen.", anchor="start", size=14)
    return figure


def artifact():
    """The way from a Keras model to an artifact that runs without Keras."""
    figure = Figure("From a Keras model to an artifact folder and to onnxruntime", 520)
    figure.box(20, 16, 400, 52, "Keras model and search\n(TensorFlow, JAX or torch)", "orange")
    figure.arrow((220, 68), (220, 104))
    figure.text(232, 86, "trace, write, optimize", anchor="start", size=14)
    figure.box(20, 106, 400, 224, "", "gray")
    figure.text(34, 126, "artifact/", anchor="start", weight="bold")
    figure.box(34, 142, 372, 50, "model.onnx\nencoder, every step, search", "blue")
    figure.box(34, 200, 180, 50, "tokenizer.json\ntext and ids", "blue")
    figure.box(226, 200, 180, 50, "manifest.json\nhashes, parity", "blue")
    figure.box(
        34,
        258,
        372,
        60,
        "optional: encoder.onnx, step.onnx,\nshortlist.npz",
        "white",
        True,
    )
    figure.arrow((220, 330), (220, 366))
    figure.text(232, 348, "if equal to Keras: rename", anchor="start", size=14)
    figure.box(20, 368, 400, 52, "Translator\nnumpy, onnxruntime, tokenizers", "green")
    figure.arrow((140, 420), (140, 454))
    figure.arrow((300, 420), (300, 454))
    figure.box(20, 456, 190, 50, "text, scores,\nalignments", "white")
    figure.box(230, 456, 190, 50, "service: HTTP,\ngRPC, Triton", "white")
    return figure


def precision():
    """Number formats of the parts of a graph, and the comparisons at export."""
    figure = Figure("Number formats of an exported graph, and the comparisons at export", 520)
    figure.text(14, 22, "Format of each part by precision", anchor="start", weight="bold")
    colors = {"float32": "blue", "float16": "green", "int8": "orange"}
    table = [
        ("products\nwith weights", "float32", "float16", "int8"),
        ("embeddings", "float32", "float16", "int8"),
        ("weights of\nGRU, LSTM", "float32", "float16", "float16"),
        ("softmax,\nsearch", "float32", "float32", "float32"),
    ]
    for column, name in enumerate(colors):
        figure.text(173 + 105 * column, 50, name, weight="bold")
    for number, (part, *formats) in enumerate(table):
        y = 66 + 56 * number
        lines = part.split("\n")
        for row, line in enumerate(lines):
            figure.text(14, y + 24 + 20 * (row - (len(lines) - 1) / 2), line, anchor="start")
        for column, name in enumerate(formats):
            figure.box(124 + 105 * column, y, 98, 48, name, colors[name])
    figure.text(14, 312, "Comparisons at export", anchor="start", weight="bold")
    figure.box(14, 332, 412, 42, "Keras in float32, on its own backend", "white")
    figure.arrow((220, 374), (220, 404))
    figure.text(232, 389, "same tokens (or ties)", anchor="start", size=13)
    figure.box(14, 406, 412, 36, "float32 graph", "blue")
    figure.arrow((220, 442), (220, 472))
    figure.text(232, 457, "loss of BLEU is limited", anchor="start", size=13)
    figure.box(14, 474, 412, 36, "float16 or int8 graph", "orange")
    return figure


FIGURES = (attention, decoder, masking, search, artifact, precision)


def main():
    """Write one SVG file per figure next to this script."""
    for draw in FIGURES:
        path = Path(__file__).with_name(f"{draw.__name__}.svg")
        path.write_text(draw().svg(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
