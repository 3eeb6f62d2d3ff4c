"""Models that clients call by name, and text models. `graph_model` has the other kind."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.calibration import Calibration, why_uncalibrated
from keras_bahdanau_runtime.errors import (
    ArtifactError,
    LimitError,
    RunError,
    argument_error,
)
from keras_bahdanau_runtime.request import (
    CONFIDENCES,
    NO_CONFIDENCE,
    NO_OPTIONS,
    TranslationRequest,
    check_characters,
)
from keras_bahdanau_runtime.scoring import TargetScore, decode_score
from keras_bahdanau_runtime.search_options import (
    NO_CONSTRAINTS,
    Constraints,
    SearchOptions,
    check_constraints,
    check_count,
    constraint_inputs,
    text_constraints,
)
from keras_bahdanau_runtime.service.engine import Engine, Job
from keras_bahdanau_runtime.service.errors import ServiceError, argument_errors
from keras_bahdanau_runtime.service.metrics import Statistics
from keras_bahdanau_runtime.service.protocol import (
    MAX_NUMBERS,
    InferRequest,
    InferResponse,
    Tensor,
    TensorSpec,
    as_json,
    json_array,
)
from keras_bahdanau_runtime.service.request_log import RequestLog
from keras_bahdanau_runtime.signature import SCORE_FILE, STEP_FILE
from keras_bahdanau_runtime.text.alignment import Link, text_links
from keras_bahdanau_runtime.text.batches import pad
from keras_bahdanau_runtime.text.unknown import warn_about_unknown
from keras_bahdanau_runtime.translation import (
    Alternative,
    Translation,
    decode_hypotheses,
    empty_translation,
    encode_texts,
)
from keras_bahdanau_runtime.translator import Translator

logger = logging.getLogger("keras_bahdanau_runtime")

MAX_ALTERNATIVES = 20
_NO_SCORE = np.finfo(np.float32).min  # of a missing hypothesis and of a blank text
_SMALL_TEXTS = 4096  # characters that are encoded in the event loop
_TEXTS_AT_ONCE = 2**14  # characters that are encoded before it is the turn of another request
_MAX_SUPPRESSED = 1024  # tokens of a request
_BY_TEXT = {"prefixes", "required"}  # constraints with a value for each text


class Model:
    """Base class of models.

    Args:
        name: str.
        version: A number, as a str.
        engine: `Engine` that runs the model.

    Attributes:
        versions: list of str, all versions of this name.
        artifact: str, the beginning of the SHA-256 of the artifact's `manifest.json`.
    """

    platform = artifact = ""
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]

    def __init__(self, name: str, version: str, engine: Engine) -> None:
        self.name, self.version, self.versions = name, version, [version]
        self.engine, self.metrics = engine, engine.metrics.for_model(name)
        self.counts = Statistics()

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request of the Open Inference Protocol.

        Raises:
            ServiceError: The request is invalid, is refused, or fails.
        """
        with self._measure():
            check_names("outputs", [output.name for output in request.outputs], self.outputs)
            tensors = await self._infer(request)
        names = {output.name for output in request.outputs} or {spec.name for spec in self.outputs}
        outputs = [tensor for tensor in tensors if tensor.name in names]
        return InferResponse(self.name, self.version, outputs, request.id)

    async def _infer(self, request: InferRequest) -> list[Tensor]:
        """Return the outputs that the model has computed, requested or not."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _measure(self) -> Iterator[None]:
        """Count the request of the block, its duration and its error."""
        start, succeeded = time.perf_counter_ns(), False
        try:
            yield
            succeeded = True
        except Exception as error:
            kind = error.kind if isinstance(error, ServiceError) else "internal"
            self.engine.metrics.errors.labels(self.name, kind).inc()
            if (log := RequestLog.current()) is not None:
                log.error = kind  # a stream has sent its status before
            raise
        finally:
            duration = time.perf_counter_ns() - start
            self.counts.count_request(duration, succeeded)
            self.metrics.latency.observe(duration / 1e9)

    async def _run(
        self,
        job: Job,
        payloads: Sequence[Any],
        lengths: Sequence[int],
        costs: Sequence[int],
        reserved: int = 0,
        group: Hashable = None,
    ) -> list[Any]:
        """Return the results of `Engine.run`, with errors of the graph as `ServiceError`."""
        if (log := RequestLog.current()) is not None:
            log.texts, log.tokens = reserved or None, sum(lengths)
        try:
            return await self.engine.run(job, payloads, lengths, reserved, group, costs)
        except LimitError as error:
            raise ServiceError("too_large", f"The model failed: {error}") from error
        except RunError as error:
            raise ServiceError("unprocessable", f"The model failed: {error}") from error
        except ArtifactError as error:  # of a graph that its first request opens
            logger.error("A graph of %s could not be opened: %s", self.name, error)
            message = f"A graph of the model {self.name!r} could not be opened. Reload the model."
            raise ServiceError("conflict", message, "model") from error

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of Triton's statistics extension."""
        return {"name": self.name, "version": self.version, **self.counts.to_json()}


class ModelJob:
    """Base class of jobs that count their runs.

    A job has no reference to its model, because a reference cycle would keep the memory of an
    unloaded model until the next garbage collection.

    Args:
        model: `Model` whose runs it counts.
    """

    batches_requests = False

    def __init__(self, model: Model) -> None:
        self.metrics, self._counts = model.metrics, model.counts

    def run(self, payloads: Sequence[Any]) -> Any:
        """Return the outputs of the graph."""
        raise NotImplementedError

    def decode(self, payloads: Sequence[Any], outputs: Any) -> list[Any]:
        """Return the result for each payload."""
        results = self._decode(payloads, outputs)
        self._counts.count_run(len(payloads))
        return results

    def release_memory(self) -> None:
        """Return the memory that runs have left to the system, if the model can."""

    def record_times(self, queued: float, computed: float) -> None:
        """Record the seconds that one request waited and was computed."""
        self._counts.add_times(round(queued * 1e9), round(computed * 1e9))

    def _decode(self, payloads: Sequence[Any], outputs: Any) -> list[Any]:
        return list(outputs)


class TextModel(Model):
    """Model that translates texts.

    A request of the Open Inference Protocol may have the optional inputs `prefix` and `required`,
    and the parameters `n_best`, `alignments`, `timeout`, `suppressed`, `disable_unknown` and the
    fields of `SearchOptions`.

    Args:
        name: str.
        version: A number, as a str.
        engine: `Engine` that runs the model.
        translator: `Translator` of an artifact with a tokenizer.

    Attributes:
        streams: bool. Whether the artifact has a step graph.
        options: dict of the optional inputs of the search by name, with the setting of the export
            or `None`.
        max_beam_size: int, largest `beam_size` of a request.
        max_n_best: int, largest `n_best` of a request.
    """

    platform = "keras_bahdanau_text"

    def __init__(self, name: str, version: str, engine: Engine, translator: Translator) -> None:
        super().__init__(name, version, engine)
        self.translator = translator
        self.tokenizer = translator.require_tokenizer()
        manifest = translator.manifest
        self.streams = STEP_FILE in manifest.files
        self.max_n_best = manifest.search.num_returned
        self.max_beam_size = manifest.search.num_hypotheses
        if engine.limits.beam_size is not None:
            self.max_beam_size = min(self.max_beam_size, engine.limits.beam_size)
        self._beam_size = manifest.search.num_hypotheses
        search = replace(manifest.search, beam_size=self._beam_size)
        # Completions belong to a prefix.
        names = [name for name in manifest.options if name != "completions"]
        self.options = {name: getattr(search, name, None) for name in names}
        self.inputs = [TensorSpec("text", "BYTES", (-1,))]
        self.optional_inputs = [TensorSpec(name, "BYTES", (-1,)) for name in ("prefix", "required")]
        self.outputs = [
            TensorSpec("translation", "BYTES", (-1,)),
            TensorSpec("score", "FP32", (-1,)),
            TensorSpec("alignment", "BYTES", (-1,)),  # only if the request asks for it
        ]
        if translator.calibration is not None:
            self.outputs += [TensorSpec(name, "FP32", (-1,)) for name in CONFIDENCES]
        self._search, self._stream = _SearchJob(self), _StreamJob(self)
        self._score, self._alternatives = _ScoreJob(self), _AlternativesJob(self)

    async def translate(self, request: TranslationRequest) -> list[list[Translation]]:
        """Return the translations of each text, best first.

        Texts of several requests share a batch only if their options are equal.

        Args:
            request: `TranslationRequest`. Its timeout is at most, and by default, that of the
                service's limits.

        Raises:
            ServiceError: The request is invalid, is refused, or fails.
        """
        with self._measure():
            return await self._translate(request)

    async def _translate(self, request: TranslationRequest) -> list[list[Translation]]:
        self._check_request(request)
        texts, options, alignments = request.texts, request.options, request.alignments
        # Reserved before the texts are encoded.
        with self.engine.reserve(len(texts), 0):
            async with self.engine.deadline(request.timeout):
                encoded = await self._encode(texts)
                constraints = request.constraints
                rows = [NO_CONSTRAINTS] * len(texts)
                if constraints:
                    rows = await self._constraints(request, encoded)
                payloads = [
                    _SearchPayload(text, ids, request.n_best, alignments, options, row)
                    for text, ids, row in zip(texts, encoded, rows, strict=True)
                    if ids
                ]
                lengths = [len(ids) for ids in encoded if ids]
                # Batches with constraints have slower steps.
                group: Hashable = (options, "constrained") if constraints else options
                beam = options.beam_size or self._beam_size
                costs = [
                    length * options.output_limit(self.translator.manifest, length) * beam
                    for length in lengths
                ]
                count = len(texts)
                results = await self._run(self._search, payloads, lengths, costs, count, group)
        if alignments:
            _check_weights([each.alignment for hypotheses in results for each in hypotheses])
        remaining = iter(results)
        return [next(remaining) if ids else [empty_translation(alignments)] for ids in encoded]

    def _check_request(self, request: TranslationRequest) -> None:
        """Refuse values that the model or the service does not allow, before texts are encoded."""
        search = self.translator.manifest.search
        names = {"prefixes": "prefix", "disable_unknown": "suppressed"}
        constraints = [names.get(name, name) for name in request.constraints]
        self._require_options([*request.options.values(), *constraints])
        with argument_errors():
            request.options.check_values(
                search.max_steps, search.min_length or 0, self.max_beam_size
            )
            request.check_n_best(self.max_n_best)
        self._check_characters(
            text=request.texts,
            prefix=[each or "" for each in request.prefixes or ()],
            required=["".join(each or ()) for each in request.required or ()],
            suppressed=[each for each in request.suppressed if isinstance(each, str)],
        )
        if len(request.suppressed) > _MAX_SUPPRESSED:
            raise ServiceError(
                "too_large",
                f"Argument `suppressed` must have at most {_MAX_SUPPRESSED} tokens. "
                f"Received: {len(request.suppressed)}",
                "suppressed",
            )

    def _require_options(self, names: Sequence[str]) -> None:
        """Refuse options that the graph does not have."""
        for name in names:
            if name not in self.options:
                reason = f"Its options are {[*self.options]}."
                if not self.options:
                    reason = "An older version exported it. Export it again to set options."
                raise ServiceError(
                    "unprocessable",
                    f"Argument `{name}` must be left out for the model {self.name!r}. {reason}",
                    name,
                )

    async def _constraints(
        self, request: TranslationRequest, encoded: Sequence[Sequence[int]]
    ) -> list[Constraints]:
        """Return the constraints of each text as ids. Those of many texts are encoded in parts."""
        count = len(request.texts)
        with argument_errors():
            for name in _BY_TEXT:
                check_count(name, getattr(request, name) or None, count)
        parts = [slice(count)]
        if _BY_TEXT & request.constraints.keys():
            # The completions of a prefix may be most of the vocabulary.
            sizes = [self.tokenizer.target_vocabulary_size] * count
            for index, prefix in enumerate(request.prefixes or ()):
                sizes[index] += len(prefix or "")
            for index, phrases in enumerate(request.required or ()):
                sizes[index] += sum(map(len, phrases or ()))
            parts = [*_in_parts(sizes)]
        if len(parts) == 1:
            return await asyncio.to_thread(self._encode_constraints, request, encoded, parts[0])
        rows = list[Constraints]()
        for part in parts:
            rows += await self.engine.prepare(self._encode_constraints, request, encoded, part)
        return rows

    def _encode_constraints(
        self, request: TranslationRequest, encoded: Sequence[Sequence[int]], part: slice
    ) -> list[Constraints]:
        """Return the constraints of some texts as ids; called in a thread."""
        manifest, options = self.translator.manifest, request.options
        constraints = {
            name: value[part] if name in _BY_TEXT else value
            for name, value in request.constraints.items()
        }
        with argument_errors():
            of_text = text_constraints(self.tokenizer, request.texts[part], **constraints)
            rows = [of_text(index) for index in range(len(encoded[part]))]
            for row, ids in zip(rows, encoded[part], strict=True):
                if ids:
                    limit = options.output_limit(manifest, len(ids))
                    check_constraints(row, manifest, limit, options.beam_size)
        return rows

    async def score(
        self,
        texts: Sequence[str],
        targets: Sequence[str],
        alignments: bool = False,
        timeout: float | None = None,
    ) -> list[TargetScore]:
        """Return the log-probabilities of given targets; arguments as for `translate`.

        Args:
            texts: list of str.
            targets: list of str, the target of each text.
            alignments: bool. Whether to return the attention weights.
            timeout: float, seconds; at most and by default the timeout of the service's limits.

        Raises:
            ServiceError: "conflict" for an artifact without `score.onnx`; otherwise as `translate`.
        """
        with self._measure():
            if SCORE_FILE not in self.translator.manifest.files:
                raise ServiceError(
                    "conflict",
                    f"The model {self.name!r} has no graph that scores targets. Export it again.",
                    "model",
                )
            self._check_characters(text=texts, target=targets)
            if len(targets) != len(texts):
                raise ServiceError(
                    "invalid",
                    f"Argument `target` must have one text for each of {len(texts)} texts. "
                    f"Received: {len(targets)}",
                    "target",
                )
            with self.engine.reserve(len(texts), 0):
                async with self.engine.deadline(timeout):
                    sources = await self._encode(texts)
                    encoded = await self._encode(targets, "target", texts)
                    for name, side in (("text", sources), ("target", encoded)):
                        if not all(side):
                            raise ServiceError(
                                "invalid",
                                f"Argument `{name}` must not be blank. "
                                f"Received: a blank text at index {side.index([])}",
                                name,
                            )
                    pairs = [*zip(sources, encoded, strict=True)]
                    payloads = [
                        _ScorePayload(text, *pair, alignments)
                        for text, pair in zip(texts, pairs, strict=True)
                    ]
                    lengths = [max(len(source), len(target)) for source, target in pairs]
                    costs = [len(source) * len(target) for source, target in pairs]
                    results = await self._run(self._score, payloads, lengths, costs, len(texts))
            if alignments:
                _check_weights([each.alignment for each in results])
            return results

    async def align(
        self,
        texts: Sequence[str],
        targets: Sequence[str],
        threshold: float | None = None,
        pieces: bool = False,
        timeout: float | None = None,
    ) -> list[list[Link]]:
        """Return the links between given texts and targets.

        Args:
            texts: As for `score`.
            targets: As for `score`.
            threshold: As for `Translator.align`.
            pieces: As for `Translator.align`.
            timeout: As for `score`.

        Raises:
            ServiceError: As `score`.
        """
        scores = await self.score(texts, targets, True, timeout)

        def links() -> list[list[Link]]:
            return [
                text_links(each.alignment, each.source_tokens, each.tokens, threshold, pieces)
                for each in scores
                if each.alignment is not None  # always
            ]

        return links() if len(texts) == 1 else await asyncio.to_thread(links)

    async def alternatives(
        self, text: str, prefix: str | None = None, count: int = 5, timeout: float | None = None
    ) -> list[Alternative]:
        """Return the most probable words after the beginning of a translation.

        Args:
            text: str.
            prefix: As for `Translator.alternatives`; `None` for none.
            count: int from 1 to `MAX_ALTERNATIVES`.
            timeout: As for `translate`.

        Raises:
            ServiceError: As `stream`.
        """
        with self._measure():
            self._check_streams()
            self._check_characters(text=[text], prefix=[prefix or ""])
            with self.engine.reserve(1, 0):
                async with self.engine.deadline(timeout):
                    [ids] = await self._encode([text])
                    payload = _AlternativesPayload(text, prefix or "", count)
                    steps = self.translator.manifest.search.output_limit(len(ids))
                    cost = len(ids) * steps * count
                    [words] = await self._run(self._alternatives, [payload], [len(ids)], [cost], 1)
            return list(words)

    async def stream(self, text: str, prefix: str | None = None) -> AsyncIterator[str]:
        """Yield the pieces of the greedy translation of a text, one per step.

        Args:
            text: str.
            prefix: The beginning of the translation, which is yielded, too; `None` for none.

        Raises:
            ServiceError: "conflict" for an artifact without a step graph; otherwise as `translate`.
        """
        with self._measure():
            self._check_streams()
            loop, stopped = asyncio.get_running_loop(), threading.Event()
            pieces: asyncio.Queue[str | None] = asyncio.Queue()

            def put(piece: str) -> None:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

            async def run() -> None:
                with self.engine.reserve(1, 0):
                    async with self.engine.deadline():
                        [ids] = await self._encode([text])
                        payload = _StreamPayload(text, prefix, put, stopped)
                        cost = len(ids) * self.translator.manifest.search.output_limit(len(ids))
                        await self._run(self._stream, [payload], [len(ids)], [cost], 1)

            self._check_characters(text=[text], prefix=[prefix or ""])
            task = asyncio.ensure_future(run())
            task.add_done_callback(lambda _: pieces.put_nowait(None))  # after the last piece
            try:
                while (piece := await pieces.get()) is not None:
                    yield piece
                await task
            finally:
                stopped.set()
                task.cancel()

    def _check_streams(self) -> None:
        if not self.streams:
            raise ServiceError(
                "conflict",
                f"The model {self.name!r} has no step graph. Export it with stepwise=True.",
                "model",
            )

    def _check_characters(self, **texts: Sequence[str]) -> None:
        with argument_errors("too_large"):
            for name, each in texts.items():
                check_characters(name, each, self.engine.limits.characters)

    async def _encode(
        self,
        texts: Sequence[str],
        argument: str = "text",
        sources: Sequence[str] | None = None,
    ) -> list[list[int]]:
        """Return the ids of texts or, with their `sources`, of targets."""
        manifest, limit = self.translator.manifest, self.engine.limits.tokens
        longest, sizes = manifest.max_source_length, [*map(len, texts)]
        if sources is not None:
            longest = manifest.search.max_length
            sizes = [size + len(source) for size, source in zip(sizes, sources, strict=True)]
        max_length = min(limit, longest or limit)

        def encode(part: slice) -> list[list[int]]:
            if sources is None:
                return encode_texts(texts[part], self.tokenizer)
            return self._encode_targets(texts[part], sources[part])

        try:
            if sum(sizes) <= _SMALL_TEXTS:
                encoded = encode(slice(None))
            else:
                encoded = []
                for part in _in_parts(sizes):
                    encoded += await self.engine.prepare(encode, part)
        except ValueError as error:
            raise ServiceError("invalid", str(error), argument) from error
        for index, ids in enumerate(encoded):
            if len(ids) > max_length:
                raise ServiceError(
                    "too_large",
                    f"Argument `{argument}` must have at most {max_length} tokens each, including "
                    f"the end of sentence. Received: {len(ids)} at index {index}",
                    argument,
                )
        return encoded

    def _encode_targets(self, texts: Sequence[str], sources: Sequence[str]) -> list[list[int]]:
        """Return the ids of targets, an empty list for a blank one."""
        encoded = self.tokenizer.encode_targets(texts, sources)
        warn_about_unknown("target", encoded)
        return [ids if text.strip() else [] for text, ids in zip(texts, encoded, strict=True)]

    def _texts(self, tensor: Tensor) -> list[str]:
        """Return the texts of an input."""
        if tensor.datatype != "BYTES" or tensor.data.ndim != 1:
            raise argument_error(
                tensor.name,
                "be BYTES of shape [n]",
                received=f"{tensor.datatype} of shape {list(tensor.data.shape)}",
            )
        self.engine.limits.check_texts(tensor.data.size)
        try:
            return [item.decode("utf-8") for item in tensor.data]
        except UnicodeDecodeError as error:
            raise argument_error(tensor.name, "be UTF-8", received=str(error)) from error

    async def _infer(self, request: InferRequest) -> list[Tensor]:
        names = [tensor.name for tensor in request.inputs]
        check_names("inputs", names, self.inputs, self.optional_inputs)
        with argument_errors():
            inputs = {tensor.name: self._texts(tensor) for tensor in request.inputs}
            translation = TranslationRequest.from_inputs(inputs, request.parameters)
        texts, n_best = translation.texts, translation.n_best
        is_requested = any(output.name == "alignment" for output in request.outputs)
        alignments = translation.alignments or is_requested
        results = await self._translate(replace(translation, alignments=alignments))
        shape = (len(texts),) if n_best == 1 else (len(texts), n_best)
        translations = np.full(shape, b"", object)
        scores = np.full(shape, _NO_SCORE, np.float32)
        weights = np.full(shape, b"", object)
        confidences = {name: np.full(shape, NO_CONFIDENCE, np.float32) for name in CONFIDENCES}
        for row, hypotheses in enumerate(results):
            for column, hypothesis in enumerate(hypotheses):
                index = (row,) if n_best == 1 else (row, column)
                translations[index] = hypothesis.text.encode("utf-8")
                if hypothesis.score is not None:
                    scores[index] = hypothesis.score
                if hypothesis.confidence is not None:
                    for name, values in confidences.items():
                        values[index] = getattr(hypothesis, name)
        if alignments:
            rows = weights.reshape(len(texts), n_best)
            await asyncio.to_thread(_write_alignments, results, rows)
        tensors = [
            Tensor("translation", "BYTES", translations),
            Tensor("score", "FP32", scores),
        ]
        if alignments:
            tensors.append(Tensor("alignment", "BYTES", weights))
        if self.translator.calibration is not None:
            tensors += [Tensor(name, "FP32", values) for name, values in confidences.items()]
        return tensors


class _SearchPayload(NamedTuple):
    """A text to translate; the payloads of a batch have equal options."""

    text: str
    ids: list[int]
    n_best: int
    alignments: bool
    options: SearchOptions
    constraints: Constraints


class _StreamPayload(NamedTuple):
    """A text to translate piece by piece; `put` gets each piece until `stopped` is set."""

    text: str
    prefix: str | None
    put: Callable[[str], object]
    stopped: threading.Event


class _AlternativesPayload(NamedTuple):
    """A text, the beginning of its translation, and the largest number of words after it."""

    text: str
    prefix: str
    max_words: int


class _ScorePayload(NamedTuple):
    """A text, its ids, and those of its target."""

    text: str
    source: list[int]
    target: list[int]
    alignments: bool


class _TextJob(ModelJob):
    """Base class of the jobs of a text model.

    Args:
        model: `TextModel`.
    """

    def __init__(self, model: TextModel) -> None:
        super().__init__(model)
        self._translator, self._tokenizer = model.translator, model.tokenizer

    def release_memory(self) -> None:
        """Return the memory that runs have left to the system."""
        self._translator.release_memory()


class _SearchJob(_TextJob):
    """Search for translations, in batches."""

    batches_requests = True

    def run(self, payloads: Sequence[_SearchPayload]) -> dict[str, NDArray[Any]]:
        """Search, and return the arrays of `Translator.search`."""
        aligned, options = any(payload.alignments for payload in payloads), payloads[0].options
        rows = [payload.constraints for payload in payloads]
        inputs = {} if options is NO_OPTIONS else options.inputs()
        if any(row is not NO_CONSTRAINTS for row in rows):
            inputs |= constraint_inputs(rows)
        source = pad([payload.ids for payload in payloads])
        return self._translator.search(source, aligned, inputs=inputs)

    def _decode(
        self, payloads: Sequence[_SearchPayload], outputs: dict[str, NDArray[Any]]
    ) -> list[Any]:
        calibration = self._translator.calibration_for(payloads[0].options)
        if isinstance(calibration, Calibration):
            outputs |= calibration.judge(outputs)
        results = []
        for row, payload in enumerate(payloads):
            with argument_errors():  # the options leave no output
                translations = decode_hypotheses(
                    self._tokenizer.for_source(payload.text),
                    _outputs_of(outputs, row, payload.alignments),
                    payload.ids,
                    payload.n_best,
                    why_uncalibrated(calibration, payload.constraints),
                )
            results.append(translations)
        return results


class _StreamJob(_TextJob):
    """Translate one text and pass on its pieces."""

    def run(self, payloads: Sequence[_StreamPayload]) -> list[Any]:
        """Translate, and return the whole text."""
        [(text, prefix, put, stopped)] = payloads
        with argument_errors():  # the prefix is too long, or cannot be spelled
            stream = self._translator.stream(text, prefix=prefix)
        pieces = []
        for piece in stream:
            if stopped.is_set():
                break
            pieces.append(piece)
            put(piece)
        return ["".join(pieces)]


class _AlternativesJob(_TextJob):
    """Return the alternatives for one prefix."""

    def run(self, payloads: Sequence[_AlternativesPayload]) -> list[Any]:
        """Return the alternatives."""
        with argument_errors():  # a blank text, or a prefix that is too long
            return [self._translator.alternatives(*payloads[0])]


class _ScoreJob(_TextJob):
    """Score targets, in batches.

    The first batch opens the graph, so that services that score nothing do not need its memory.
    """

    batches_requests = True

    def run(self, payloads: Sequence[_ScorePayload]) -> dict[str, NDArray[Any]]:
        """Return the arrays of `Scorer.score`."""
        _, sources, targets, alignments = zip(*payloads, strict=True)
        scorer = self._translator.open_scorer()
        return scorer.score(pad(sources), pad(targets), any(alignments))

    def _decode(
        self, payloads: Sequence[_ScorePayload], outputs: dict[str, NDArray[Any]]
    ) -> list[Any]:
        return [
            decode_score(
                self._tokenizer.for_source(payload.text),
                _outputs_of(outputs, row, payload.alignments),
                (payload.source, payload.target),
            )
            for row, payload in enumerate(payloads)
        ]


def _outputs_of(
    arrays: Mapping[str, NDArray[Any]], row: int, alignments: bool
) -> dict[str, NDArray[Any]]:
    """Return one row of each output, without the alignments if its request needs none."""
    names = [name for name in arrays if alignments or name != "alignments"]
    return {name: arrays[name][row] for name in names}


def _write_alignments(results: Sequence[Sequence[Translation]], rows: NDArray[Any]) -> None:
    """Write the attention weights of each hypothesis as JSON into an array `(n, K)`."""
    for row, hypotheses in zip(rows, results, strict=True):
        for column, hypothesis in enumerate(hypotheses):
            if hypothesis.alignment is not None:
                row[column] = as_json(json_array(hypothesis.alignment))


def _in_parts(sizes: Sequence[int]) -> Iterator[slice]:
    """Yield parts of texts of at most `_TEXTS_AT_ONCE` characters, or of one text.

    Args:
        sizes: Number of characters of each text.
    """
    begin = total = 0
    for end, size in enumerate(sizes):
        if end > begin and total + size > _TEXTS_AT_ONCE:
            yield slice(begin, end)
            begin, total = end, 0
        total += size
    yield slice(begin, len(sizes))


def _check_weights(alignments: Sequence[NDArray[Any] | None]) -> None:
    """Refuse a response with too many attention weights."""
    count = sum(alignment.size for alignment in alignments if alignment is not None)
    if count > MAX_NUMBERS:
        raise ServiceError(
            "too_large",
            f"Argument `alignments` is limited to {MAX_NUMBERS} weights per response. Send fewer "
            f"or shorter texts. Received: {count} weights",
            "alignments",
        )


def check_names(
    argument: str,
    names: Sequence[str],
    specs: Sequence[TensorSpec],
    optional: Sequence[TensorSpec] | None = None,
) -> None:
    """Refuse unknown names; `protocol.checked_request` has refused duplicate ones.

    With a list of `optional` specs, all names of `specs` must be present.
    """
    required = [spec.name for spec in specs]
    expected = [*required, *(spec.name for spec in optional or ())]
    if not set(names) <= set(expected):
        raise ServiceError(
            "invalid",
            f"Argument `{argument}` must have names of {expected}, each at most once. "
            f"Received: {names!r:.200}",
            argument,
        )
    if optional is not None and not set(required) <= set(names):
        raise ServiceError(
            "invalid",
            f"Argument `{argument}` must have the names {required}. Received: {names!r:.200}",
            argument,
        )
