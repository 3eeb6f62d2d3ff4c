"""Translates with an artifact: onnxruntime, numpy and tokenizers, and no Keras.

encode the texts -> sort by length -> run model.onnx in batches -> decode -> restore the order
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_bahdanau_runtime.artifact import read_manifest
from keras_bahdanau_runtime.errors import CorruptArtifactError, UnsupportedArtifactError
from keras_bahdanau_runtime.operators import check_contents
from keras_bahdanau_runtime.session import Providers, check_graph, open_session, run
from keras_bahdanau_runtime.signature import (
    EOS_ID,
    EOS_TOKEN,
    MODEL_FILE,
    NOISE,
    PAD_ID,
    SAMPLE,
    TOKENIZER_FILE,
    TRANSLATE,
    most_rows,
)
from keras_bahdanau_runtime.stepper import Stepper
from keras_bahdanau_runtime.text.pieces import read_tokenizers, source_pieces, target_pieces

logger = logging.getLogger("keras_bahdanau_runtime")


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


@dataclass(frozen=True)
class _Source:
    """One encoded text: its place among the texts, its ids, and a readable piece for each id."""

    index: int
    ids: list[int]
    pieces: list[str]


class Translator:
    """Runs an artifact with onnxruntime. One translator may be used by many threads at once.

    Args:
        path: Folder of the artifact. Every file in it is checked against its hash first.
        providers: `"auto"` takes CUDA where onnxruntime has it and the CPU otherwise, and logs
            which. A name, or a list of names or `(name, options)` pairs, is taken exactly. What
            runs on the CPU although another provider was asked for is logged, too.
        threads: int, the threads of one operator. `None` leaves it to onnxruntime, one for each
            physical core, which was the fastest wherever it was measured. A server that runs
            several translators or requests at once gives each of them fewer.

    Raises:
        ValueError: `path` is not a folder, a provider is not available, or `threads` is not
            positive.
        CorruptArtifactError: The artifact is incomplete, damaged or tampered with.
        UnsupportedArtifactError: It is in a newer format, holds no `model.onnx`, or one with
            operators that are not on the list in `contents`.
        MissingDependencyError: onnxruntime is not installed, or tokenizers is not and the artifact
            needs it.

    Example:

    >>> translator = Translator("artifact")
    >>> translator.translate(["a man on a bike"])[0].text
    'ein Mann auf einem Fahrrad'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        providers: Providers = "auto",
        threads: int | None = None,
    ) -> None:
        if threads is not None:
            _check_positive("threads", threads)
        self.manifest = read_manifest(path)
        folder = self.manifest.folder
        if MODEL_FILE not in self.manifest.files:
            raise UnsupportedArtifactError(
                f"{folder}: holds no {MODEL_FILE}. Export it with format='onnx'."
            )
        signature = self.manifest.signatures.get(MODEL_FILE)
        if signature not in (TRANSLATE.to_json(), SAMPLE.to_json()):
            raise UnsupportedArtifactError(
                f"{folder}: {MODEL_FILE} holds no search but the call of a model. "
                "Run it with onnxruntime.InferenceSession."
            )
        if "source" not in self.manifest.vocabulary:
            raise CorruptArtifactError(
                f"{folder}: the manifest gives no vocabulary size for 'source'."
            )
        check_contents(folder / MODEL_FILE, self.manifest.files)
        self._session = open_session(folder / MODEL_FILE, providers, threads)
        self._draws = signature == SAMPLE.to_json()
        check_graph(self._session, SAMPLE if self._draws else TRANSLATE, folder / MODEL_FILE)
        if self._draws and not {"n", "max_length", "seed"} <= set(self.manifest.search):
            raise CorruptArtifactError(
                f"{folder}: the manifest does not say how many numbers the search draws."
            )
        self._providers, self._threads = providers, threads
        self._stepper: Stepper | None = None
        self._opening = threading.Lock()
        self._tokenizers: tuple[Any, Any] | None = None
        if TOKENIZER_FILE in self.manifest.files:
            self._tokenizers = read_tokenizers(folder / TOKENIZER_FILE)
            self._check_vocabulary(folder / TOKENIZER_FILE)

    @property
    def providers(self) -> list[str]:
        """Names of the execution providers in use, the preferred one first."""
        return list(self._session.get_providers())

    def translate(
        self,
        texts: Iterable[str],
        batch_size: int = 32,
        n_best: int = 1,
        truncate: bool = False,
        progress: Callable[[int], object] | None = None,
        alignments: bool = True,
    ) -> list[Translation] | list[list[Translation]]:
        """Translates texts, in batches of similar length, and returns them in the order given.

        A blank text (empty or only white space) gives an empty `Translation` with score 0, and the
        model is not run.

        Args:
            texts: list of str, one sentence each.
            batch_size: int. Sentences in one run of the model.
            n_best: int. Hypotheses for each text, best first; at most the beam width of the
                artifact. A text gets fewer where the search found fewer.
            truncate: bool. Whether to cut a text longer than the artifact's limit, with the number
                of such texts in the log, instead of raising.
            progress: Called after each batch with the number of texts done so far.
            alignments: bool. Whether to fetch the attention weights, by far the largest output,
                from where they were computed.

        Returns:
            A list of `Translation`; with `n_best` above 1, a list of such lists. A blank text has
            one hypothesis.

        Raises:
            ValueError: `texts` is one str, an item is not a str or too long, a number is out of
                range, or the artifact holds no tokenizer.
        """
        _check_positive("batch_size", batch_size)
        _check_positive("n_best", n_best)
        sources, total = self._encode(texts, truncate)
        empty = Translation("", 0.0, [], [], np.zeros((0, 0), np.float32) if alignments else None)
        results: list[list[Translation]] = [[empty] for _ in range(total)]
        done = total - len(sources)
        if progress is not None and done:
            progress(done)
        # Longest first: if memory does not suffice, it shows at once.
        sources.sort(key=lambda source: len(source.ids), reverse=True)
        for start in range(0, len(sources), batch_size):
            batch = sources[start : start + batch_size]
            rows = np.full((len(batch), len(batch[0].ids)), PAD_ID, np.int32)
            for row, source in zip(rows, batch, strict=True):
                row[: len(source.ids)] = source.ids
            found = self._run(rows)
            wanted = [name for name in found if alignments or name != "alignments"]
            outputs = {name: found[name].numpy() for name in wanted}
            beam = outputs["tokens"].shape[1]
            if n_best > beam:
                raise ValueError(
                    f"n_best: expected at most the beam width, {beam}. Received: {n_best}"
                )
            for place, source in enumerate(batch):
                results[source.index] = [
                    self._read_hypothesis(outputs, place, k, source)
                    for k in range(n_best)
                    if k == 0 or not np.isneginf(outputs["scores"][place, k])
                ]
            done += len(batch)
            if progress is not None:
                progress(done)
        return [hypotheses[0] for hypotheses in results] if n_best == 1 else results

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """The token ids of texts, blank ones left out.

        Args:
            texts: list of str, one sentence each.

        Returns:
            list of lists of int, each ended by 3 (end of sentence).

        Raises:
            ValueError: As `translate`.
        """
        return [source.ids for source in self._encode(texts, truncate=False)[0]] if texts else []

    def translate_ids(
        self, source: ArrayLike, noise: ArrayLike | None = None
    ) -> dict[str, NDArray[Any]]:
        """Runs the graph on token ids.

        Args:
            source: Integer array of shape `(B, Tx)`, each row ended by 3 (end of sentence) as in
                training and padded with 0 at the right.
            noise: For an artifact that samples, the numbers in [0, 1) to draw with, float32 of
                shape `(B, n, max_length)`; those of its seed, or fresh ones, if `None`.

        Returns:
            Dict of `"tokens"` int32 `(B, K, T)`, `"scores"` float32 `(B, K)`, `"lengths"` int32
            `(B, K)` and `"alignments"` float32 `(B, K, T, Tx)`, hypotheses best first.

        Raises:
            ValueError: Wrong rank or dtype, no rows, a row of only padding or with padding inside,
                an id outside the vocabulary, or a row longer than the artifact's limit; or `noise`
                of another shape, or for an artifact that does not sample.
        """
        array = np.asarray(source)
        if array.ndim != 2 or array.size == 0 or array.dtype.kind not in "iu":
            raise ValueError(
                "source: expected a non-empty integer array of shape (batch, source_length). "
                f"Received: dtype {array.dtype}, shape {array.shape}"
            )
        vocabulary = self.manifest.vocabulary
        most = most_rows(self.manifest.search, vocabulary.get("target", 1))
        if len(array) > most:
            raise ValueError(
                f"source: expected at most {most} rows at once. Received: {len(array)}"
            )
        size = vocabulary["source"]
        limit = self.manifest.max_source_length or array.shape[1]
        for wrong, expected in (
            ((array < 0) | (array >= size), f"ids from 0 to {size - 1}"),
            ((array == PAD_ID).all(axis=1, keepdims=True), "a token in every row"),
            ((array[:, :-1] == PAD_ID) & (array[:, 1:] != PAD_ID), "padding (0) at the right only"),
            (array[:, limit:] != PAD_ID, f"at most {limit} tokens a row"),
        ):
            if wrong.any():
                row = int(np.argwhere(wrong)[0, 0])
                raise ValueError(f"source: expected {expected}. Received: row {row}, {array[row]}")
        outputs = self._run(array.astype(np.int32), noise)
        return {name: value.numpy() for name, value in outputs.items()}

    def stream(self, text: str, max_length: int = 100) -> Iterator[str]:
        """Translates one text greedily and yields the translation while it is made.

        Needs `encoder.onnx` and `step.onnx`, which are opened at the first call.

        Args:
            text: str, one sentence.
            max_length: int. Number of tokens after which the translation is cut.

        Yields:
            str, what each step adds to the translation; a step that completes no character yields
            nothing.

        Raises:
            ValueError: As `translate`.
            UnsupportedArtifactError: The artifact holds no steps; export with `stepwise=True`.

        Example:

        >>> for piece in Translator("artifact").stream("a man on a bike"):
        ...     print(piece, end="", flush=True)
        """
        _check_positive("max_length", max_length)
        sources, _ = self._encode([text], truncate=False)
        stepper = self._opened_stepper()
        return self._stream(stepper, sources, max_length)

    def _stream(self, stepper: Stepper, sources: list[_Source], max_length: int) -> Iterator[str]:
        ids: list[int] = []
        text = shown = ""
        for source in sources:  # one, or none for a blank text
            for token in stepper.greedy(np.asarray([source.ids], np.int32), max_length):
                ids.append(token)
                text = "".join(target_pieces(self._text_tokenizers()[1], ids))
                # The next token may complete the character that ends in replacement signs.
                sure = text.rstrip("\N{REPLACEMENT CHARACTER}")
                if len(sure) > len(shown):
                    yield sure[len(shown) :]
                    shown = sure
            if len(text) > len(shown):
                yield text[len(shown) :]

    def _opened_stepper(self) -> Stepper:
        with self._opening:
            if self._stepper is None:
                self._stepper = Stepper(self.manifest, self._providers, self._threads)
            return self._stepper

    def _run(self, source: NDArray[np.int32], noise: ArrayLike | None = None) -> dict[str, Any]:
        """The outputs, left where they were computed."""
        feeds: dict[str, NDArray[Any]] = {TRANSLATE.inputs[0].name: source}
        if self._draws:
            feeds[NOISE.name] = self._checked_noise(noise, len(source))
        elif noise is not None:
            raise ValueError("noise: expected None, as this artifact draws nothing.")
        return run(self._session, feeds, [tensor.name for tensor in TRANSLATE.outputs])

    def _checked_noise(self, noise: ArrayLike | None, rows: int) -> NDArray[np.float32]:
        search = self.manifest.search
        shape = (rows, search["n"], search["max_length"])
        if noise is None:
            return np.random.default_rng(search["seed"]).random(shape, dtype=np.float32)
        array = np.asarray(noise, np.float32)
        if array.shape != shape or not ((array >= 0) & (array < 1)).all():
            raise ValueError(
                f"noise: expected numbers in [0, 1) of shape {shape}. Received: shape {array.shape}"
            )
        return array

    def _encode(self, texts: Iterable[str], truncate: bool) -> tuple[list[_Source], int]:
        """Returns the sources that are not blank, and the number of all texts."""
        if isinstance(texts, str):
            raise ValueError(
                f"texts: expected a list of str. Received: one str, {texts!r:.80}; write [text]."
            )
        tokenizer, _ = self._text_tokenizers()
        texts = list(texts)
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(
                    f"texts: expected str items. Received: {type(text).__name__} at index {index}"
                )
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"texts: expected Unicode at index {index}. Received: {error}"
                ) from error
        indices = [index for index, text in enumerate(texts) if text.strip()]
        limit = self.manifest.max_source_length
        sources, cut = [], 0
        encodings = tokenizer.encode_batch([texts[index] for index in indices])
        for index, encoding in zip(indices, encodings, strict=True):
            ids, pieces = encoding.ids, source_pieces(texts[index], encoding)
            if limit is not None and len(ids) > limit:
                if not truncate:
                    raise ValueError(
                        f"texts: expected at most {limit} tokens, end of sentence included. "
                        f"Received: {len(ids)} at index {index}. Split the text, or pass "
                        "truncate=True."
                    )
                cut += 1
                ids, pieces = [*ids[: limit - 1], EOS_ID], [*pieces[: limit - 1], EOS_TOKEN]
            sources.append(_Source(index, ids, pieces))
        if cut:
            logger.warning(
                "Truncated %d of %d texts to %d tokens (truncate=True).", cut, len(texts), limit
            )
        return sources, len(texts)

    def _read_hypothesis(
        self, outputs: dict[str, NDArray[Any]], place: int, k: int, source: _Source
    ) -> Translation:
        ids = outputs["tokens"][place, k, : int(outputs["lengths"][place, k])].tolist()
        words = ids[: ids.index(EOS_ID)] if EOS_ID in ids else ids
        pieces = target_pieces(self._text_tokenizers()[1], words)
        if len(words) < len(ids):
            pieces.append(EOS_TOKEN)
        alignment = outputs.get("alignments")
        if alignment is not None:  # copied, as a view would keep the whole batch in memory
            alignment = alignment[place, k, : len(pieces), : len(source.ids)].copy()
        return Translation(
            text="".join(pieces[: len(words)]),
            score=float(outputs["scores"][place, k]),
            tokens=pieces,
            source_tokens=list(source.pieces),
            alignment=alignment,
        )

    def _text_tokenizers(self) -> tuple[Any, Any]:
        if self._tokenizers is None:
            raise ValueError(
                f"texts: the artifact {self.manifest.folder} was exported without a tokenizer and "
                "takes no text. Export it with tokenizer=..., or call translate_ids."
            )
        return self._tokenizers

    def _check_vocabulary(self, path: Path) -> None:
        for side, tokenizer in zip(("source", "target"), self._text_tokenizers(), strict=True):
            size, known = tokenizer.get_vocab_size(), self.manifest.vocabulary.get(side)
            if known is not None and size > known:
                raise CorruptArtifactError(
                    f"{path}: expected at most {known} {side} tokens, as many as the model knows. "
                    f"Received: {size}"
                )


def _check_positive(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: expected an int of at least 1. Received: {value!r}")
