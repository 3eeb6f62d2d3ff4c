"""Draws what several runs of `keras-bahdanau train` reached, side by side.

`python benchmarks/draw_curves.py curves.png tensorflow=runs/a jax=runs/b torch=runs/c` reads
`history.csv` of each run: BLEU on the first held-out set and the training loss, by checkpoint.
"""

import csv
import sys
from pathlib import Path


def history(run):
    """The columns of a run's history, a dict from name to a list of floats."""
    with open(Path(run) / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def draw(histories, path):
    """Writes the picture of the histories, a dict from label to what `history` returns."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for axes, column, label in zip(
        panels, ("val_bleu", "loss"), ("held-out BLEU, greedy", "training loss"), strict=True
    ):
        # Curves that lie on each other stay visible: later ones are thinner.
        for number, (name, found) in enumerate(histories.items()):
            width = 1.5 * (len(histories) - number)
            axes.plot(found["epoch"], found[column], linewidth=width, label=name)
        axes.set(xlabel="epoch", ylabel=label)
        axes.grid(alpha=0.3)
    panels[0].legend(loc="lower right")
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    path, *runs = sys.argv[1:]
    draw({name: history(run) for name, run in (each.split("=", 1) for each in runs)}, path)
