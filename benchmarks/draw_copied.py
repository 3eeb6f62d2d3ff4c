r"""Draw which letters of an output a model has copied, and from where.

    python benchmarks/draw_copied.py run $'talo\tN;IN+ESS;SG' --output docs/pictures/copied.png

RUN is a run of `keras-bahdanau train --copy`. A cell of the picture is the attention weight of a
source piece times the share of the probability of the output piece that was copied.
"""

import argparse
from pathlib import Path

from keras_bahdanau import load_best
from keras_bahdanau.plot import plot_alignments


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    model = load_best(arguments.run)
    tokenizer, panels, titles = model.tokenizer, [], []
    for text, translation in zip(arguments.texts, model.translate(arguments.texts), strict=True):
        source = tokenizer.encode_source(text)
        target = tokenizer.encode_target(translation.text)
        [shares] = model.copied_shares([source], [target])
        [weights] = model.score([source], [target]).alignments
        copied = weights[: len(target), : len(source)] * shares[: len(target), None]
        pieces = [piece.strip() or "␣" for piece in tokenizer.source_tokens(text)]
        panels.append((copied, pieces, tokenizer.target_tokens(target)))
        titles.append(f"{translation.text}: {shares[: len(target) - 1].mean():.0%} copied")
    plot_alignments(panels, arguments.output, titles)


if __name__ == "__main__":
    main()
