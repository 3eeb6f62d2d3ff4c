"""Rules that choose the settings of a model and its training from the pairs.

`RULES` is the only place for these numbers. The first rule whose condition is true applies.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras_bahdanau.data.choices import GIVEN, Choice, choice_of
from keras_bahdanau.data.text_statistics import Selection
from keras_bahdanau.model_defaults import ARCHITECTURE, DROPOUTS
from keras_bahdanau.training.options import TrainingOptions
from keras_bahdanau_runtime.search_settings import RANGES

SHORT_KINDS = ("characters", "symbols")  # pieces of short texts
MIN_COPIED = 0.5  # share of the characters of a target that are also in its source
VERY_FEW_PAIRS, FEW_PAIRS = 2500, 20_000
_SHORT = "target pieces are characters or symbols"
_SHORTEST = 20  # of the limits of lengths that are chosen
# Options of the model, which `init` determines.
_MODEL_OPTIONS = ("units", "embedding_dim", "attention_units", "copy", "dropout")
_DROPOUTS = ("dropout", "annotation_dropout", "readout_dropout")


class TextFacts(NamedTuple):
    """Facts about the training pairs that rules depend on.

    Args:
        pairs: Number of pairs, at most 100,000 of text files.
        target_kind: Kind of the target pieces, or the file of their tokenizer.
        tokens: Mean number of pieces of a pair, of both sides.
        longest: Number of pieces of the longest text of both sides.
        is_complete: Whether the facts are of all pairs, not of a sample of them.
        copied: Share of the characters of targets that are also in their sources; `None` if the
            pieces of a side are not characters.
    """

    pairs: int
    target_kind: str
    tokens: float
    longest: int
    is_complete: bool = True
    copied: float | None = None


class Rule(NamedTuple):
    """A row of the table of rules.

    Args:
        name: Name of such texts.
        condition: The condition in words.
        applies: Whether the condition is true.
        values: Values of options.
        updates: Number of updates that `epochs` is chosen for; `None` if `values` has the epochs.
        validation_updates: Smallest number of updates between validations, in whole passes.
        length_factor: `max_length` is the length of the longest text times this factor, so that
            early outputs that do not end take little time; `None` if `values` has it.
    """

    name: str
    condition: str
    applies: Callable[[TextFacts], bool]
    values: Mapping[str, Any]
    updates: int | None = None
    validation_updates: int = 1
    length_factor: int | None = None


_SENTENCES = {
    **{name: ARCHITECTURE[name] for name in ("units", "embedding_dim", "attention_units")},
    **dict(zip(_DROPOUTS, DROPOUTS, strict=True)),
    "label_smoothing": 0.1,
    "batch_size": 96,
    "epochs": 7,
    "learning_rate": 4e-3,
    "ema": 0.0,
    "average": 0,
    "patience": 0,
    "max_length": 100,
    "best_by": "bleu",
}
_SHORT_TEXTS = {
    **{name: value for name, value in _SENTENCES.items() if name not in ("epochs", "max_length")},
    "units": 192,
    "embedding_dim": 128,
    "attention_units": 128,
    "best_by": "exact",
}


def _dropouts(*rates: float) -> dict[str, float]:
    return dict(zip(_DROPOUTS, rates, strict=True))


# Settings that learn many pairs in few updates. They were worse for 800 pairs.
_FAST = {**_dropouts(0.2, 0.3, 0.5), "label_smoothing": 0.05, "learning_rate": 8e-3}
RULES = (
    Rule(
        "very few short texts",
        f"{_SHORT}, and there are fewer than {VERY_FEW_PAIRS:,} pairs",
        lambda facts: facts.target_kind in SHORT_KINDS and facts.pairs < VERY_FEW_PAIRS,
        {**_SHORT_TEXTS, **_dropouts(0.4, 0.4, 0.5), "batch_size": 32},
        updates=1000,
        validation_updates=100,
        length_factor=2,
    ),
    Rule(
        "few short texts",
        f"{_SHORT}, and there are fewer than {FEW_PAIRS:,} pairs",
        lambda facts: facts.target_kind in SHORT_KINDS and facts.pairs < FEW_PAIRS,
        {**_SHORT_TEXTS, **_FAST},
        updates=1400,
        validation_updates=320,
        length_factor=2,
    ),
    Rule(
        "many short texts",
        f"{_SHORT}, and there are at least {FEW_PAIRS:,} pairs",
        lambda facts: facts.target_kind in SHORT_KINDS,
        {**_SHORT_TEXTS, **_FAST, "units": 256},
        updates=3300,
        validation_updates=300,
        length_factor=2,
    ),
    Rule("sentences", "all other texts", lambda facts: True, _SENTENCES),
)


def choose_training(options: TrainingOptions, facts: TextFacts) -> list[Choice]:
    """Choose the settings of the model and of its training that are open.

    Args:
        options: `TrainingOptions`. With `init`, the model stays as it is.
        facts: `TextFacts` of the training pairs.

    Returns:
        The choice of each setting, in the order of a table.
    """
    rule = next(rule for rule in RULES if rule.applies(facts))
    number = "1 pair" if facts.pairs == 1 else f"{facts.pairs:,} pairs"
    reason = f"{rule.name}, {'' if facts.is_complete else 'at least '}{number}"
    choices = [
        choice_of(options, name, Selection(value, reason))
        for name, value in rule.values.items()
        if _is_open(options, name) or getattr(options, name) is not None
    ]
    if _is_open(options, "copy") or options.copy is not None:
        selection = Selection(False, "the pieces of a side are not characters")
        if options.prevents_copy is not None:
            selection = Selection(False, f"not with {options.prevents_copy}")
        elif facts.copied is not None:
            text = f"{facts.copied:.0%} of the target characters are also in their source"
            selection = Selection(facts.copied >= MIN_COPIED, text)
        choices.append(choice_of(options, "copy", selection))
    if rule.length_factor is not None:
        length = max(_SHORTEST, rule.length_factor * facts.longest)
        length = min(length, RANGES["max_length"].high)
        text = f"{rule.length_factor} times the longest text of {facts.longest} pieces"
        choices.append(choice_of(options, "max_length", Selection(length, text)))
    pairs_of_batch = next(choice.value for choice in choices if choice.option == "batch_size")
    if options.batch_tokens is not None:
        pairs_of_batch = max(1, options.batch_tokens / facts.tokens)
    if options.updates is not None or options.minutes is not None:
        choices = [choice for choice in choices if choice.option != "epochs"]
    elif rule.updates is not None:
        choices += _duration(options, facts, rule, pairs_of_batch * options.accumulate)
    return choices + [
        choice_of(options, name, Selection("", GIVEN))
        for name in ("batch_tokens", "updates", "minutes", "every")
        if getattr(options, name) is not None
    ]


def _is_open(options: TrainingOptions, name: str) -> bool:
    """Whether an option without a value is chosen: not by `init` and not by `--dropout`."""
    if name in _DROPOUTS and options.dropout is not None:
        return False
    return options.init is None or name not in (*_MODEL_OPTIONS, *_DROPOUTS)


def _duration(
    options: TrainingOptions, facts: TextFacts, rule: Rule, pairs_of_update: float
) -> list[Choice]:
    """Choose the passes of a run and the interval of its validations.

    Validations are after whole passes. If the number of passes is given, there is one after each.
    """
    updates_of_pass = -int(-facts.pairs // pairs_of_update)
    passes = max(1, -(-rule.validation_updates // updates_of_pass))
    updates = rule.updates or 0
    epochs = max(1, round(updates / updates_of_pass / passes)) * passes
    text = f"{epochs * updates_of_pass:,} updates of {min(pairs_of_update, facts.pairs):.0f} pairs"
    choices = [choice_of(options, "epochs", Selection(epochs, text))]
    if options.epochs is None and options.every is None and passes > 1:
        every = Selection(passes * updates_of_pass, f"{passes} passes")
        choices.append(choice_of(options, "every", every))
    return choices
