"""Texts in, translations out, whichever engine searches: a Keras model or an artifact.

encode the texts -> sort by length -> search in batches -> read the hypotheses -> restore the order
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.checks import check_positive, check_text, checked_stream, checked_texts
from keras_bahdanau_runtime.errors import CorruptArtifactError, UnsupportedArtifactError, require
from keras_bahdanau_runtime.ids import EOS
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.signature import TOKENIZER_FILE
from keras_bahdanau_runtime.text.batches import cut, length_sorted_batches, pad
from keras_bahdanau_runtime.text.tokenizer import Tokenizer, TokenizerVersionError

_T = TypeVar("_T")
_Found = TypeVar("_Found")
Outputs = Mapping[str, NDArray[Any]]
# A batch is searched until its last sentence ends, and the more there are the later that is: on a
# CPU 16 at once take 0.8 to 0.9 of the time of 32.
BATCH_SIZE = 16
# Of ordinary sentences these have some 500 ids; memory and time grow with the padded ones.
BATCH_TOKENS = 4096


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
        error: str. Why there is no translation, of a text that could not be translated and was
            kept (`on_error="keep"`), with an empty `text` and a `score` of NaN; otherwise `None`.
    """

    text: str
    score: float
    tokens: list[str]
    source_tokens: list[str]
    alignment: NDArray[np.float32] | None = field(repr=False)
    error: str | None = None


def translate_texts(
    texts: Iterable[str],
    tokenizer: Tokenizer,
    search: Callable[[NDArray[np.int32]], Outputs],
    batch_size: int = BATCH_SIZE,
    batch_tokens: int | None = BATCH_TOKENS,
    n_best: int = 1,
    max_source_length: int | None = None,
    truncate: bool = False,
    progress: Callable[[int], object] | None = None,
    alignments: bool = True,
    on_error: str = "raise",
    workers: int = 1,
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
        batch_size: int. Most sentences in one batch.
        batch_tokens: int. Most source ids in one batch, padding included; a longer sentence is a
            batch of its own. `None` for no limit.
        n_best: int. Hypotheses for each text, best first; fewer where the search found fewer.
        max_source_length: int, the longest source in tokens; `None` for no limit.
        truncate: bool. Whether to cut longer ones, with a warning in the log, instead of raising.
        progress: Called after each batch with the number of texts done so far.
        alignments: bool. Whether translations hold the attention weights.
        on_error: "raise", or "keep" for a `Translation` with an `error` in the place of each text
            that is too long, no Unicode text, or that the search fails for. The other texts of its
            batch are then searched for one by one.
        workers: int. Threads that call `search`, each with a batch of its own.

    Returns:
        A list of `Translation`; with `n_best` above 1, a list of such lists. A blank text, and one
        with an error, has one hypothesis.

    Raises:
        ValueError: `texts` is one str, an item is not a str or too long, a number is out of range,
            or `n_best` is above the number of hypotheses `K`.
    """
    check_positive(batch_size=batch_size, n_best=n_best)
    if on_error not in ("raise", "keep"):
        raise ValueError(f'Argument `on_error` must be "raise" or "keep". Received: {on_error!r}')
    keep = on_error == "keep"
    refused = None if keep and not truncate else max_source_length
    texts, unreadable = _readable(texts) if keep else (texts, {})
    encoded = encode_texts(texts, tokenizer, refused, truncate)
    results = [[] if ids else [empty(alignments)] for ids in encoded]
    for index, reason in unreadable.items():
        results[index] = [_failed(reason)]
    if keep and max_source_length is not None:
        for index, ids in enumerate(encoded):
            if len(ids) > max_source_length:
                results[index] = [_failed(_too_long(max_source_length, len(ids)))]
    filled = [index for index, ids in enumerate(encoded) if ids and not results[index]]
    report = progress or (lambda done: None)
    done = len(encoded) - len(filled)
    if done:
        report(done)
    # Longest first: if memory does not suffice, it shows at once.
    lengths = [len(encoded[index]) for index in filled]
    batches = [
        [filled[place] for place in batch]
        for batch in length_sorted_batches(lengths, batch_size, batch_tokens)
    ]

    def searched(batch: list[int]) -> list[Outputs | str]:
        return _search(search, [encoded[index] for index in batch], n_best, keep)

    with _mapped(searched, batches, workers) as found:
        for batch, rows in zip(batches, found, strict=True):
            for index, row in zip(batch, rows, strict=True):
                if isinstance(row, str):
                    results[index] = [_failed(row)]
                else:
                    results[index] = read_hypotheses(tokenizer, row, encoded[index], n_best)
            done += len(batch)
            report(done)
    return [hypotheses[0] for hypotheses in results] if n_best == 1 else results


def _readable(texts: Iterable[str]) -> tuple[list[str], dict[int, str]]:
    """The texts, blank ones for what is `str` and no Unicode text, and why, by their places."""
    readable = list(checked_stream("texts", texts, keep=True))
    reasons = dict[int, str]()
    for index, text in enumerate(readable):
        try:
            check_text("text", text)
        except ValueError as error:
            readable[index], reasons[index] = "", str(error)
    return readable, reasons


@contextlib.contextmanager
def _mapped(
    function: Callable[[_T], _Found], items: list[_T], workers: int
) -> Iterator[Iterator[_Found]]:
    """What `function` makes of each item, in order, by as many threads; none is left behind."""
    if workers == 1 or len(items) < 2:
        yield map(function, items)
        return
    pool = ThreadPoolExecutor(min(workers, len(items)), "keras_bahdanau search")
    try:
        yield pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)


def _search(
    search: Callable[[NDArray[np.int32]], Outputs], rows: list[list[int]], n_best: int, keep: bool
) -> list[Outputs | str]:
    """For each row its part of the outputs or, with `keep`, why there is none."""
    try:
        outputs = search(pad(rows))
    except Exception as error:  # of an engine that is not known here; nothing of it is lost
        if not keep:
            raise
        if len(rows) == 1:
            return [f"{type(error).__name__}: {error}"]
        return [found for row in rows for found in _search(search, [row], n_best, keep)]
    beam = outputs["tokens"].shape[1]
    if n_best > beam:
        raise ValueError(
            f"Argument `n_best` must be at most {beam}, the hypotheses that the search returns. "
            f"Received: {n_best}"
        )
    return [{name: values[i] for name, values in outputs.items()} for i in range(len(rows))]


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
            raise ValueError(_too_long(max_source_length, len(ids), f" at index {index}"))
        encoded[index] = ids
    if max_source_length is not None:
        [encoded] = cut(max_source_length, texts=encoded)
    return encoded


def _too_long(limit: int, length: int, place: str = "") -> str:
    return (
        f"Argument `texts` must have at most {limit} tokens each, end of sentence included. "
        f"Received: {length}{place}. Split the text, or translate it with truncate=True."
    )


def empty(alignments: bool) -> Translation:
    """The `Translation` of a blank text; `alignments` says whether it holds an alignment."""
    return Translation("", 0.0, [], [], np.zeros((0, 0), np.float32) if alignments else None)


def _failed(reason: str) -> Translation:
    return Translation("", math.nan, [], [], None, reason)


def read_hypotheses(
    tokenizer: Tokenizer, found: Outputs, source: list[int], n_best: int
) -> list[Translation]:
    """The best hypotheses for one source.

    Args:
        tokenizer: `Tokenizer`.
        found: Its row of each output of a search, as `translate_texts` describes them.
        source: The ids of the source.
        n_best: int. Most hypotheses.
    """
    scores = found["scores"][:n_best]
    existing = [k for k, score in enumerate(scores) if k == 0 or not np.isneginf(score)]
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


def load_tokenizer(manifest: Manifest) -> Tokenizer:
    """The artifact's tokenizer, which may have at most as many ids as the model."""
    require("tokenizers", extra="runtime")
    path, vocabulary = manifest.folder / TOKENIZER_FILE, manifest.vocabulary
    try:
        tokenizer = Tokenizer.parse(manifest.read(TOKENIZER_FILE), path)
    except TokenizerVersionError as error:
        raise UnsupportedArtifactError(str(error)) from error
    except ValueError as error:
        raise CorruptArtifactError(str(error)) from error
    for side in ("source", "target"):
        size = getattr(tokenizer, f"{side}_vocabulary_size")
        known = vocabulary.get(side)
        if known is not None and size > known:
            raise CorruptArtifactError(
                f"{path}: expected at most {known} {side} tokens, as many as the model knows. "
                f"Received: {size}"
            )
    return tokenizer
