"""A model of texts: translations by the hypotheses of a search, or piece by piece."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np

from keras_bahdanau_runtime.service.engine import Engine
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.models import (
    CountedJob,
    Model,
    answered,
    check_names,
    parameter,
    seconds_of,
)
from keras_bahdanau_runtime.service.protocol import InferRequest, Tensor, TensorSpec, as_json
from keras_bahdanau_runtime.signature import STEP_FILE, num_returned
from keras_bahdanau_runtime.text.batches import pad
from keras_bahdanau_runtime.translation import (
    Translation,
    decode_hypotheses,
    empty_translation,
    encode_texts,
)
from keras_bahdanau_runtime.translator import Translator

_NONE = np.finfo(np.float32).min  # the score where there is no hypothesis: JSON has no infinity
_SMALL = 4096  # characters that are encoded without a thread of their own
_MOST_WEIGHTS = 2**22  # of the attention in one answer: some 80 MB of JSON


class _Search(CountedJob):
    """Searches for translations of `(ids, n_best, alignments)`, many at once.

    It does not know its model, which would else not go with the last who knows it.

    Attributes:
        lone: `Translator` for a batch that is alone; see `TextModel.add_threads`.
    """

    shared = True

    def __init__(self, model: "TextModel") -> None:
        super().__init__(model)
        self._translator = self.lone = model.translator
        self._tokenizer = model.tokenizer

    def _run(self, payloads: Sequence[Any], alone: bool) -> list[Any]:
        aligned = any(alignments for _, _, alignments in payloads)
        translator = self.lone if alone else self._translator
        found = translator.search(pad([ids for ids, _, _ in payloads]), aligned)
        results = []
        for place, (ids, n_best, alignments) in enumerate(payloads):
            row = {
                name: values[place]
                for name, values in found.items()
                if alignments or name != "alignments"
            }
            results.append(decode_hypotheses(self._tokenizer, row, ids, n_best))
        return results


class _Stream(CountedJob):
    """Puts a translation, piece by piece, into a queue of an event loop."""

    def __init__(self, model: "TextModel") -> None:
        super().__init__(model)
        self._translator = model.translator

    def _run(self, payloads: Sequence[Any], alone: bool) -> list[Any]:
        [(text, put, left)] = payloads
        pieces = []
        for piece in self._translator.stream(text):
            if left.is_set():
                break
            pieces.append(piece)
            put(piece)
        return ["".join(pieces)]


class TextModel(Model):
    """Texts in, translations out.

    A request of the Open Inference Protocol may have the parameters `n_best`, `alignments` and, as
    for a graph, `timeout`.

    Args:
        name: As it is called.
        version: A number, as a str.
        engine: The `Engine` that its work goes through.
        translator: `Translator` of an artifact with a tokenizer; with one thread, as several
            batches are worked on at once.
    """

    platform = "keras_bahdanau_text"

    def __init__(self, name: str, version: str, engine: Engine, translator: Translator) -> None:
        super().__init__(name, version, engine)
        self.translator = translator
        self.tokenizer = translator.require_tokenizer()
        self.streams = STEP_FILE in translator.manifest.files
        self.most = num_returned(translator.manifest.search)
        self.inputs = [TensorSpec("text", "BYTES", (-1,))]
        self.outputs = [
            TensorSpec("translation", "BYTES", (-1,)),
            TensorSpec("score", "FP32", (-1,)),
            TensorSpec("alignment", "BYTES", (-1,)),
        ]
        self._search, self._stream = _Search(self), _Stream(self)

    def add_threads(self, threads: int) -> None:
        """Opens the artifact once more, with so many threads for a batch that is alone.

        Raises:
            CorruptArtifactError: The artifact was replaced since it was opened.
        """
        lone = self.translator.with_threads(threads)
        lone.translate(["a"])  # the first run is slower than the others
        self._search.lone = lone

    async def translate(
        self,
        texts: Sequence[str],
        n_best: int = 1,
        alignments: bool = False,
        seconds: float | None = None,
    ) -> list[list[Translation]]:
        """The hypotheses for each text, best first.

        Args:
            texts: list of str.
            n_best: int, most hypotheses for a text.
            alignments: bool. Whether they hold the attention weights.
            seconds: The longest that it may take; the service's limit if `None`.

        Raises:
            ServiceError: Of the kind that fits.
        """
        with self.measured():
            return await self._translate(texts, n_best, alignments, seconds)

    async def _translate(
        self, texts: Sequence[str], n_best: int, alignments: bool, seconds: float | None
    ) -> list[list[Translation]]:
        if not 1 <= n_best <= self.most:
            raise ServiceError(
                "invalid",
                f"Argument `n_best` must be from 1 to {self.most}. Received: {n_best}",
                "n_best",
            )
        self._check(texts)
        # Held before work is spent on them, and until the end.
        with self.engine.held(len(texts), 0):
            async with self.engine.timely(seconds):
                encoded = await self._encode(texts)
                filled = [ids for ids in encoded if ids]
                payloads = [(ids, n_best, alignments) for ids in filled]
                lengths = list(map(len, filled))
                found = await answered(self.engine, self._search, payloads, lengths, len(texts))
        if alignments:
            _check_weights(found)
        rest = iter(found)
        return [next(rest) if ids else [empty_translation(alignments)] for ids in encoded]

    async def stream(self, text: str) -> AsyncIterator[str]:
        """Yields what each step adds to the greedy translation of a text.

        Raises:
            ServiceError: "conflict" for an artifact without steps; otherwise as `translate`.
        """
        with self.measured():
            if not self.streams:
                raise ServiceError(
                    "conflict",
                    f"The model {self.name!r} has no single steps: export it with stepwise=True.",
                    "model",
                )
            loop, left = asyncio.get_running_loop(), threading.Event()
            pieces: asyncio.Queue[str | None] = asyncio.Queue()

            def put(piece: str) -> None:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

            async def run() -> None:
                with self.engine.held(1, 0):
                    async with self.engine.timely():
                        [ids] = await self._encode([text])
                        payloads = [(text, put, left)]
                        await answered(self.engine, self._stream, payloads, [len(ids)], 1)

            self._check([text])
            running = asyncio.ensure_future(run())
            running.add_done_callback(lambda _: pieces.put_nowait(None))  # after the last piece
            try:
                while (piece := await pieces.get()) is not None:
                    yield piece
                await running
            finally:
                left.set()
                running.cancel()

    def _check(self, texts: Sequence[str]) -> None:
        limits = self.engine.limits
        limits.check_texts(len(texts))
        for index, text in enumerate(texts):
            if len(text) > limits.characters:
                raise ServiceError(
                    "too_large",
                    f"Argument `text` must have at most {limits.characters} characters each. "
                    f"Received: {len(text)} at index {index}",
                    "text",
                )

    async def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        limit = self.engine.limits.tokens
        most = min(limit, self.translator.manifest.max_source_length or limit)
        try:
            if sum(map(len, texts)) <= _SMALL:
                encoded = encode_texts(texts, self.tokenizer)
            else:
                encoded = await asyncio.to_thread(encode_texts, texts, self.tokenizer)
        except ValueError as error:
            raise ServiceError("invalid", str(error), "text") from error
        for index, ids in enumerate(encoded):
            if len(ids) > most:
                raise ServiceError(
                    "too_large",
                    f"Argument `text` must have at most {most} tokens each, end of sentence "
                    f"included. Received: {len(ids)} at index {index}",
                    "text",
                )
        return encoded

    async def _infer(self, request: InferRequest) -> list[Tensor]:
        names = [tensor.name for tensor in request.inputs]
        check_names("inputs", names, self.inputs, complete=True)
        [given] = request.inputs
        if given.datatype != "BYTES" or given.data.ndim != 1:
            raise ServiceError(
                "invalid",
                "Argument `text` must be BYTES of shape [n]. "
                f"Received: {given.datatype} of shape {list(given.data.shape)}",
                "text",
            )
        try:
            texts = [item.decode("utf-8") for item in given.data]
        except UnicodeDecodeError as error:
            raise ServiceError(
                "invalid", f"Argument `text` must be UTF-8. Received: {error}", "text"
            ) from error
        n_best = parameter(request.parameters, "n_best", (int,), 1)
        seconds = seconds_of(request.parameters)
        aligned = parameter(request.parameters, "alignments", (bool,), False)
        aligned = aligned or any(wanted.name == "alignment" for wanted in request.outputs)
        found = await self._translate(texts, n_best, aligned, seconds)
        shape = (len(texts),) if n_best == 1 else (len(texts), n_best)
        translations = np.full(shape, b"", object)
        scores = np.full(shape, _NONE, np.float32)
        alignment = np.full(shape, b"", object)
        for row, best in enumerate(found):
            for column, one in enumerate(best):
                place = (row,) if n_best == 1 else (row, column)
                translations[place] = one.text.encode("utf-8")
                scores[place] = one.score
                if one.alignment is not None:
                    alignment[place] = as_json(one.alignment)
        tensors = [
            Tensor("translation", "BYTES", translations),
            Tensor("score", "FP32", scores),
        ]
        if aligned:
            tensors.append(Tensor("alignment", "BYTES", alignment))
        return tensors

    def _usual(self) -> set[str]:
        return {"translation", "score", "alignment"}  # the last where it was asked for


def _check_weights(found: Sequence[Sequence[Translation]]) -> None:
    """Raises a `ServiceError`, "too_large", for more attention weights than an answer may hold."""
    aligned = [one.alignment for best in found for one in best if one.alignment is not None]
    count = sum(alignment.size for alignment in aligned)
    if count > _MOST_WEIGHTS:
        raise ServiceError(
            "too_large",
            f"Argument `alignments` must be asked for of fewer or shorter texts: {count} weights, "
            f"where an answer has at most {_MOST_WEIGHTS}.",
            "alignments",
        )
