"""Plot the training curves of several runs of `keras-bahdanau train`.

`python benchmarks/draw_curves.py curves.png tensorflow=runs/a jax=runs/b torch=runs/c` reads
`history.csv` of each run and plots two columns by checkpoint: BLEU on the first held-out set, and
the training loss.
"""

import argparse
import csv
from pathlib import Path

from keras_bahdanau_runtime.pictures.style import saved_figure


def read_history(run):
    """Return the columns of a run's history, a dict from name to a list of floats."""
    with open(Path(run) / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def draw(histories, path):
    """Save the plot of `histories`, a dict from label to the result of `read_history`."""
    with saved_figure(path, 9, 4) as figure:
        panels = figure.subplots(1, 2)
        for axes, column, label in zip(
            panels, ("val_bleu", "loss"), ("held-out BLEU, greedy", "training loss"), strict=True
        ):
            # Later curves are thinner, so curves that coincide stay visible.
            for number, (name, history) in enumerate(histories.items()):
                width = 1.5 * (len(histories) - number)
                axes.plot(history["epoch"], history[column], linewidth=width, label=name)
            axes.set(xlabel="epoch", ylabel=label)
        panels[0].legend(loc="lower right")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plot", help="path of the plot, a PNG")
    parser.add_argument("runs", nargs="+", help="LABEL=FOLDER of a run")
    arguments = parser.parse_args()
    runs = dict(run.split("=", 1) for run in arguments.runs)
    draw({label: read_history(folder) for label, folder in runs.items()}, arguments.plot)


if __name__ == "__main__":
    main()
