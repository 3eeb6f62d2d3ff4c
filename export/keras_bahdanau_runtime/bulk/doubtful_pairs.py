"""Find the pairs of parallel text whose targets are probably wrong.

translate the sources -> score the targets and the answers -> compare -> sort
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from keras_bahdanau_runtime.bulk.text_model import TextModel
from keras_bahdanau_runtime.text.parallel import Pair
from keras_bahdanau_runtime.translator import WINDOW_SIZE


@dataclass(frozen=True)
class DoubtfulPair:
    """A pair for which a model has another, more probable answer.

    Args:
        line: int. Number of the line, from 1, where the pair begins in its file.
        source: str. The source.
        target: str. The target in the file.
        answer: str. The best answer of the model that is no target of this source in the file.
        target_log_prob: float. Log-probability of the target, in nats, with its end.
        answer_log_prob: float. Log-probability of the answer.
        target_tokens: int. Number of tokens of the target, with its end.
    """

    line: int
    source: str
    target: str
    answer: str
    target_log_prob: float
    answer_log_prob: float
    target_tokens: int

    @property
    def difference(self) -> float:
        """How much more probable the answer is than the target, in nats."""
        return self.answer_log_prob - self.target_log_prob

    @property
    def target_log_prob_per_token(self) -> float:
        """Mean log-probability of the tokens of the target."""
        return self.target_log_prob / self.target_tokens


def find_doubtful_pairs(
    pairs: Sequence[Pair],
    model: TextModel,
    on_failed: Callable[[int, str], object],
    progress: Callable[[int], object] | None = None,
) -> Iterator[DoubtfulPair]:
    """Yield the pairs for which a model has a more probable answer, in their order.

    If a source occurs in several pairs with different targets, such as a word with two
    pronunciations, all of them are accepted: the answer is then the best one that is none of them.

    Args:
        pairs: Line number, source and target of each pair, as from `list_pairs`. Both texts are
            `None` for a bad line, which is left out.
        model: `TextModel`.
        on_failed: Called with the line number of a pair that cannot be compared, such as one with a
            blank side, and the reason.
        progress: Called with the number of finished pairs.

    Yields:
        A `DoubtfulPair` for each pair whose target is less probable than the answer.
    """
    join = model.tokenizer.join_target
    accepted: dict[str, set[str]] = {}
    for _, source, target in pairs:
        if source is not None and target is not None:
            accepted.setdefault(source, set()).add(join(target))
    for start in range(0, len(pairs), WINDOW_SIZE):
        window = pairs[start : start + WINDOW_SIZE]
        yield from _compare(window, accepted, model, on_failed)
        if progress is not None:
            progress(start + len(window))


def _compare(
    pairs: Sequence[Pair],
    accepted: dict[str, set[str]],
    model: TextModel,
    on_failed: Callable[[int, str], object],
) -> Iterator[DoubtfulPair]:
    """Yield the doubtful pairs of a window; `accepted` are the targets of each source."""
    texts = [
        (line, source, target)
        for line, source, target in pairs
        if source is not None and target is not None
    ]
    targets = model.score([source for _, source, _ in texts], [target for *_, target in texts])
    scored = []
    for (line, source, target), score in zip(texts, targets, strict=True):
        if score.error is None:
            scored.append((line, source, target, score))
        else:
            on_failed(line, score.error)
    sources = list(dict.fromkeys(source for _, source, _, _ in scored))
    answers, errors = _other_answers(sources, accepted, model)
    scores = model.score(list(answers), list(answers.values()))
    answer_scores = dict(zip(answers, scores, strict=True))
    for line, source, target, score in scored:
        if source in errors:
            on_failed(line, errors[source])
        elif source in answers:
            other = answer_scores[source]
            if other.error is not None:
                on_failed(line, other.error)
            # A normalizing tokenizer may read two different texts as the same tokens.
            elif other.tokens != score.tokens and other.total > score.total:
                yield DoubtfulPair(
                    line,
                    source,
                    target,
                    answers[source],
                    score.total,
                    other.total,
                    len(score.tokens),
                )


def _other_answers(
    sources: list[str], accepted: dict[str, set[str]], model: TextModel
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the best answer to each source that is not accepted, and the errors of sources."""
    # If N targets are accepted and the N best answers are all of them, no other answer is better.
    n_best = min(model.num_hypotheses, max((len(accepted[text]) for text in sources), default=1))
    answers, errors = dict[str, str](), dict[str, str]()
    for source, result in zip(sources, model.translate(sources, n_best=n_best), strict=True):
        hypotheses = [result] if n_best == 1 else result
        if hypotheses[0].error is not None:
            errors[source] = hypotheses[0].error
            continue
        texts = (hypothesis.text for hypothesis in hypotheses if hypothesis.text.strip())
        answer = next((text for text in texts if text not in accepted[source]), None)
        if answer is not None:
            answers[source] = answer
    return answers, errors


def most_doubtful(pairs: Iterator[DoubtfulPair], count: int) -> list[DoubtfulPair]:
    """Return the `count` most doubtful pairs, the most doubtful first.

    The order is that of the differences of the log-probabilities; equal ones keep their order.
    """
    return heapq.nlargest(count, pairs, key=lambda pair: pair.difference)
