"""Texts in, translations out, whichever engine searches: a Keras model or an artifact.

encode the texts -> sort by length -> search in batches -> read the hypotheses -> restore the order
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.checks import check_positive, checked_texts
from keras_bahdanau_runtime.ids import EOS
from keras_bahdanau_runtime.text.batches import cut, length_sorted_batches, pad
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

Outputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Translation:
    """One translation of one text.

    Args:
        text: str. The translation.
        score: float. Its score under the search; higher is better.
        tokens: list of str. Readable pieces of `text`, with `"</s>"` last when the sentence was
            finished. A character spread over several tokens stands at the last of them.
        source_tokens: list of str. The same for the source.
        alignment: float32 array of shape `(len(tokens), len(source_tokens))`, the attention
            weights; `None` where they were not asked for.
    """

    text: str
    score: float
    tokens: list[str]
    source_tokens: list[str]
    alignment: NDArray[np.float32] | None = field(repr=False)


def translate_texts(
    texts: Iterable[str],
    tokenizer: Tokenizer,
    search: Callable[[NDArray[np.int32]], Outputs],
    batch_size: int = 32,
    n_best: int = 1,
    max_source_length: int | None = None,
    truncate: bool = False,
    progress: Callable[[int], object] | None = None,
    alignments: bool = True,
) -> list[Translation] | list[list[Translation]]:
    """Translates texts, in batches of similar length, and returns them in the order given.

    A blank text (empty or only white space) gives an empty `Translation` with score 0 and is not
    searched for.

    Args:
        texts: list of str, one sentence each.
        tokenizer: `Tokenizer`.
        search: Takes `(B, Tx)` int32 ids padded at the right with 0, the longest batch first, and
            returns NumPy arrays: `"tokens"` `(B, K, T)` int32, `"scores"` `(B, K)`, `"lengths"`
            `(B, K)` and, if asked for, `"alignments"` `(B, K, T, Tx)`, hypotheses best first. One
            that does not exist scores -inf.
        batch_size: int. Sentences in one batch.
        n_best: int. Hypotheses for each text, best first; fewer where the search found fewer.
        max_source_length: int, the longest source in tokens; `None` for no limit.
        truncate: bool. Whether to cut longer ones, with a warning in the log, instead of raising.
        progress: Called after each batch with the number of texts done so far.
        alignments: bool. Whether translations hold the attention weights.

    Returns:
        A list of `Translation`; with `n_best` above 1, a list of such lists. A blank text has one
        hypothesis.

    Raises:
        ValueError: `texts` is one str, an item is not a str or too long, a number is out of range,
            or `n_best` is above the number of hypotheses `K`.
    """
    check_positive(batch_size=batch_size, n_best=n_best)
    encoded = encode_texts(texts, tokenizer, max_source_length, truncate)
    results = [[] if ids else [_empty(alignments)] for ids in encoded]
    filled = [index for index, ids in enumerate(encoded) if ids]
    report = progress or (lambda done: None)
    done = len(encoded) - len(filled)
    if done:
        report(done)
    # Longest first: if memory does not suffice, it shows at once.
    for batch in length_sorted_batches([len(encoded[index]) for index in filled], batch_size):
        indices = [filled[place] for place in batch]
        outputs = search(pad([encoded[index] for index in indices]))
        _check_n_best(n_best, outputs)
        for row, index in enumerate(indices):
            found = {name: values[row] for name, values in outputs.items()}
            results[index] = _read_hypotheses(tokenizer, found, encoded[index], n_best)
        done += len(batch)
        report(done)
    return [hypotheses[0] for hypotheses in results] if n_best == 1 else results


def encode_texts(
    texts: Iterable[str],
    tokenizer: Tokenizer,
    max_source_length: int | None = None,
    truncate: bool = False,
) -> list[list[int]]:
    """The ids of texts, none for a blank one; arguments as for `translate_texts`.

    Example:

    >>> tokenizer = Tokenizer.train(["a"], ["a"], vocabulary_size=300)
    >>> [len(ids) for ids in encode_texts(["a", " "], tokenizer)]
    [2, 0]
    """
    texts = checked_texts("texts", texts)
    filled = [index for index, text in enumerate(texts) if text.strip()]
    encoded: list[list[int]] = [[] for _ in texts]
    found = tokenizer.encode_sources([texts[index] for index in filled])
    for index, ids in zip(filled, found, strict=True):
        if not truncate and max_source_length is not None and len(ids) > max_source_length:
            raise ValueError(
                f"Argument `texts` must have at most {max_source_length} tokens each, end of "
                f"sentence included. Received: {len(ids)} at index {index}. Split the text, or "
                "pass truncate=True."
            )
        encoded[index] = ids
    if max_source_length is not None:
        [encoded] = cut(max_source_length, texts=encoded)
    return encoded


def _check_n_best(n_best: int, outputs: Outputs) -> None:
    beam = outputs["tokens"].shape[1]
    if n_best > beam:
        raise ValueError(
            f"Argument `n_best` must be at most {beam}, the hypotheses that the search keeps. "
            f"Received: {n_best}"
        )


def _empty(alignments: bool) -> Translation:
    return Translation("", 0.0, [], [], np.zeros((0, 0), np.float32) if alignments else None)


def _read_hypotheses(
    tokenizer: Tokenizer, found: Outputs, source: list[int], n_best: int
) -> list[Translation]:
    """The best hypotheses for one source; `found` holds its row of each output."""
    existing = [k for k in range(n_best) if k == 0 or not np.isneginf(found["scores"][k])]
    source_tokens = tokenizer.source_decoder().tokens(source)
    alignments = found.get("alignments")
    translations = []
    for k in existing:
        ids = found["tokens"][k, : int(found["lengths"][k])].tolist()
        words = ids[: ids.index(EOS)] if EOS in ids else ids
        ids = ids[: len(words) + 1]
        tokens = tokenizer.target_decoder().tokens(ids)
        alignment = None
        if alignments is not None:  # copied, as a view would keep the whole batch in memory
            alignment = alignments[k, : len(ids), : len(source)].copy()
        translations.append(
            Translation(
                text="".join(tokens[: len(words)]),
                score=float(found["scores"][k]),
                tokens=tokens,
                source_tokens=list(source_tokens),
                alignment=alignment,
            )
        )
    return translations
