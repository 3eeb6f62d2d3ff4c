"""Error rates of short outputs, such as pronunciations: exact matches and edits of symbols."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from keras_bahdanau_runtime.errors import argument_error, require

# How a text is divided into symbols.
UNITS: dict[str, Callable[[str], list[str]]] = {"characters": list, "symbols": str.split}


class Edit(NamedTuple):
    """A symbol of a reference and the one in its place in the output; "" where there is none."""

    expected: str
    received: str


@dataclass(frozen=True)
class Comparison:
    """An output and the reference that it is nearest to.

    Args:
        output: The output.
        reference: The reference with the fewest edits per symbol; the first one of several.
        alignment: `Edit` for each symbol of both in order, with equal symbols where they agree.
    """

    output: str
    reference: str
    alignment: tuple[Edit, ...]

    @property
    def edits(self) -> list[Edit]:
        """The insertions, deletions and substitutions that turn the reference into the output."""
        return [edit for edit in self.alignment if edit.expected != edit.received]

    @property
    def is_exact(self) -> bool:
        """Whether the output is equal to the reference."""
        return self.output == self.reference

    @property
    def length(self) -> int:
        """Number of symbols of the reference."""
        return sum(edit.expected != "" for edit in self.alignment)


def compare(
    outputs: Sequence[str], references: Sequence[Sequence[str]], unit: str = "characters"
) -> list[Comparison]:
    """Align each output with the nearest of its references.

    Args:
        outputs: List of `str`.
        references: A list of `str` for each output; either of them is right.
        unit: "characters", or "symbols" for those separated by spaces.

    Returns:
        A list of `Comparison`s.

    Raises:
        ValueError: The lists differ in length or are empty, an output has no reference, or `unit`
            is unknown.
        MissingDependencyError: rapidfuzz is not installed.

    Example:

    >>> [comparison] = compare(["kot"], [["kat", "kut"]])
    >>> comparison.edits
    [Edit(expected='a', received='o')]
    """
    if unit not in UNITS:
        raise argument_error("unit", f"be one of {', '.join(UNITS)}", unit)
    if len(outputs) != len(references) or not all(map(len, references)) or not outputs:
        raise argument_error(
            "references",
            "have one or several texts for each output",
            received=f"{len(references)} lists for {len(outputs)} outputs",
        )
    return [
        _nearest(output, texts, UNITS[unit])
        for output, texts in zip(outputs, references, strict=True)
    ]


def _nearest(
    output: str, references: Sequence[str], split: Callable[[str], list[str]]
) -> Comparison:
    distance = require("rapidfuzz.distance", extra="text").Levenshtein
    received = split(output)

    def share_of_edits(reference: str) -> float:
        expected = split(reference)
        return float(distance.distance(expected, received)) / max(len(expected), 1)

    reference = output if output in references else min(references, key=share_of_edits)
    expected = split(reference)
    alignment: list[Edit] = []
    for tag, i, i_end, j, j_end in distance.opcodes(expected, received):
        if tag in ("equal", "replace"):
            alignment += map(Edit, expected[i:i_end], received[j:j_end])
        else:
            alignment += [Edit(symbol, "") for symbol in expected[i:i_end]]
            alignment += [Edit("", symbol) for symbol in received[j:j_end]]
    return Comparison(output, reference, tuple(alignment))


def error_rates(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """Return the exact matches and the symbol error rate in percent.

    Args:
        comparisons: `Comparison`s, at least one.

    Returns:
        `{"exact": float, "ser": float}`: the share of outputs that are equal to a reference; and
        the edits of all outputs, divided by the symbols of their references. Each is between 0 and
        100, but `ser` is larger if outputs are longer than their references.
    """
    edits = sum(len(comparison.edits) for comparison in comparisons)
    symbols = sum(comparison.length for comparison in comparisons)
    exact = sum(comparison.is_exact for comparison in comparisons)
    return {"exact": 100 * exact / len(comparisons), "ser": 100 * edits / max(symbols, 1)}


def error_intervals(
    comparisons: Sequence[Comparison], samples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of each of the `error_rates`, by the percentile bootstrap.

    Args:
        comparisons: `Comparison`s, at least one.
        samples: Number of samples, each as large as the test set.
        seed: Random seed of the samples.

    Returns:
        The lower and upper limit in percent, by the names of `error_rates`.
    """
    import numpy as np  # a command imports this module for its help page

    exact = np.array([comparison.is_exact for comparison in comparisons])
    edits = np.array([len(comparison.edits) for comparison in comparisons])
    symbols = np.array([comparison.length for comparison in comparisons])
    rng = np.random.default_rng(seed)
    values: dict[str, list[float]] = {"exact": [], "ser": []}
    for _ in range(samples):
        rows = rng.integers(0, len(exact), len(exact))
        values["exact"].append(exact[rows].mean())
        values["ser"].append(edits[rows].sum() / max(symbols[rows].sum(), 1))
    limits = {name: np.percentile(numbers, [2.5, 97.5]) for name, numbers in values.items()}
    return {name: (100 * float(low), 100 * float(high)) for name, (low, high) in limits.items()}


def confusions(comparisons: Iterable[Comparison]) -> Counter[Edit]:
    """Count how often each symbol was received for another one, or missing, or added.

    Example:

    >>> confusions(compare(["kot", "rot"], [["kat"], ["rat"]])).most_common(1)
    [(Edit(expected='a', received='o'), 2)]
    """
    return Counter(edit for comparison in comparisons for edit in comparison.edits)


def worst_outputs(
    sources: Sequence[str], comparisons: Sequence[Comparison]
) -> list[tuple[str, Comparison]]:
    """Return the outputs that have errors, those with the most errors first.

    Args:
        sources: List of `str`.
        comparisons: The `Comparison` of the output of each source.

    Returns:
        `(source, comparison)` for each output with a wrong symbol. A source that occurs several
        times is listed once if its outputs are the same.

    Example:

    >>> comparisons = compare(["kat", "kot", "mis"], [["kat"], ["kat"], ["maas"]])
    >>> [source for source, _ in worst_outputs(["a", "b", "c"], comparisons)]
    ['c', 'b']
    """
    wrong = {
        (source, comparison.output, comparison.reference): (source, comparison)
        for source, comparison in zip(sources, comparisons, strict=True)
        if comparison.edits
    }
    return sorted(wrong.values(), key=lambda item: -len(item[1].edits))


def shared_references(
    sources: Sequence[str], references: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Return the references of each line, with those of other lines that have the same source.

    Example:

    >>> shared_references(["read", "cat", "read"], [["ɹiːd"], ["kæt"], ["ɹɛd"]])
    [['ɹiːd', 'ɹɛd'], ['kæt'], ['ɹiːd', 'ɹɛd']]
    """
    by_source: dict[str, list[str]] = {}
    for source, texts in zip(sources, references, strict=True):
        by_source.setdefault(source, []).extend(texts)
    return [by_source[source] for source in sources]
