"""Answers and log-probabilities of a model, for the checks of data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a command imports this module for its help page
    from keras_bahdanau_runtime.scoring import TargetScore
    from keras_bahdanau_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextModel:
    """Functions of an artifact, or of the models of a run, that translate and score texts.

    Args:
        tokenizer: `Tokenizer` of the model.
        num_hypotheses: int. Largest `n_best` of `translate`.
        translate: Function of a list of texts and `n_best` that returns what
            `Translator.translate` returns with `on_error="keep"`.
        score: Function of lists of sources and targets that returns what `Translator.score` returns
            with `on_error="keep"`.
    """

    tokenizer: "Tokenizer"
    num_hypotheses: int
    translate: Callable[..., list[Any]]
    score: Callable[[list[str], list[str]], "list[TargetScore]"]
