"""Models that clients call by name: text models and graph models."""

import asyncio
import contextlib
import json
import logging
import reprlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.errors import (
    ArgumentError,
    ArtifactError,
    LimitError,
    RunError,
    UnsupportedArtifactError,
)
from keras_bahdanau_runtime.scoring import TargetScore, decode_score
from keras_bahdanau_runtime.search_options import (
    NO_CONSTRAINTS,
    Constraints,
    SearchOptions,
    check_constraints,
    check_prefix,
    constraint_inputs,
    encode_constraints,
    text_constraints,
)
from keras_bahdanau_runtime.search_settings import RANGES, ManifestSearch
from keras_bahdanau_runtime.service.engine import BATCH_COST, Engine, Job
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.protocol import (
    MAX_NUMBERS,
    InferRequest,
    InferResponse,
    Tensor,
    TensorSpec,
    as_json,
    json_array,
)
from keras_bahdanau_runtime.session import run_arrays
from keras_bahdanau_runtime.signature import (
    SCORE_FILE,
    SETTINGS,
    STEP_FILE,
    TRANSLATE,
)
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
NO_OPTIONS = SearchOptions()  # one object, so that the engine compares groups by identity
# Parameters of the protocol that a text model ignores.
_PROTOCOL_PARAMETERS = {"binary_data_output", "priority"}
_PROTOCOL_PREFIXES = ("sequence_", "triton_")
PARAMETERS = {
    *SETTINGS,
    *_PROTOCOL_PARAMETERS,
    *("n_best", "alignments", "timeout", "suppressed", "disable_unknown"),
}
_NO_SCORE = np.finfo(np.float32).min  # of a missing hypothesis, as JSON has no infinity
_SMALL_TEXTS = 4096  # characters that are encoded in the event loop
_TEXTS_AT_ONCE = 2**14  # characters that are encoded before it is the turn of another request
_MAX_SUPPRESSED = 1024  # tokens of a request
_BITS = (8, 16, 32, 64)
_ONNX_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    **{f"tensor(int{bits})": f"INT{bits}" for bits in _BITS},
    **{f"tensor(uint{bits})": f"UINT{bits}" for bits in _BITS},
}


class Statistics:
    """Counts and times of a model for Triton's statistics extension."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_request = 0  # milliseconds since 1970
        self._payloads = self._runs = 0
        # Number of requests and nanoseconds.
        self._success, self._failure, self._queue, self._compute = [0, 0], [0, 0], [0, 0], [0, 0]

    def count_run(self, payloads: int) -> None:
        """Count one run of the graph on this number of payloads."""
        with self._lock:
            self._payloads += payloads
            self._runs += 1

    def add_times(self, queued: int, computed: int) -> None:
        """Add the nanoseconds that one request waited and was computed."""
        with self._lock:
            for total, nanoseconds in ((self._queue, queued), (self._compute, computed)):
                total[0] += 1
                total[1] += nanoseconds

    def count_request(self, nanoseconds: int, succeeded: bool) -> None:
        """Count one request and its duration."""
        with self._lock:
            self._last_request = time.time_ns() // 10**6  # Unix time in milliseconds
            total = self._success if succeeded else self._failure
            total[0] += 1
            total[1] += nanoseconds

    def to_json(self) -> dict[str, Any]:
        """Return the statistics with Triton's names."""
        zero = {"count": 0, "ns": 0}

        def duration(total: Sequence[int]) -> dict[str, int]:
            return {"count": total[0], "ns": total[1]}

        return {
            "last_inference": self._last_request,
            "inference_count": self._payloads,
            "execution_count": self._runs,
            "inference_stats": {
                "success": duration(self._success),
                "fail": duration(self._failure),
                "queue": duration(self._queue),
                "compute_input": zero,
                "compute_infer": duration(self._compute),
                "compute_output": zero,
                "cache_hit": zero,
                "cache_miss": zero,
            },
            "batch_stats": [],
        }


class Model:
    """Base class of models.

    Args:
        name: str.
        version: A number, as a str.
        engine: `Engine` that runs the model.
    """

    platform = ""
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
            _check_names("outputs", [output.name for output in request.outputs], self.outputs)
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


class _ModelJob:
    """Base class of jobs that count their runs.

    A job has no reference to its model, because a reference cycle would keep the memory of an
    unloaded model until the next garbage collection.
    """

    batches_requests = False

    def __init__(self, model: Model) -> None:
        self.metrics, self._counts = model.metrics, model.counts

    def run(self, payloads: Sequence[Any]) -> list[Any]:
        results = self._run(payloads)
        self._counts.count_run(len(payloads))
        return results

    def record_times(self, queued: float, computed: float) -> None:
        self._counts.add_times(round(queued * 1e9), round(computed * 1e9))

    def _run(self, payloads: Sequence[Any]) -> list[Any]:
        raise NotImplementedError


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
        self._search, self._stream, self._score, self._alternatives = (
            _SearchJob(self),
            _StreamJob(self),
            _ScoreJob(self),
            _AlternativesJob(self),
        )

    async def translate(
        self,
        texts: Sequence[str],
        n_best: int = 1,
        alignments: bool = False,
        timeout: float | None = None,
        options: SearchOptions = NO_OPTIONS,
        constraints: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[list[Translation]]:
        """Return the translations of each text, best first.

        Args:
            texts: list of str.
            n_best: int, most translations per text.
            alignments: bool. Whether to return the attention weights.
            timeout: float, seconds; at most and by default the timeout of the service's limits.
            options: `SearchOptions`. Texts of several requests share a batch only if their options
                are equal.
            constraints: The arguments `prefixes`, `suppressed`, `disable_unknown` and `required` of
                `Translator.translate` that are set, by name.

        Raises:
            ServiceError: The request is invalid, is refused, or fails.
        """
        with self._measure():
            return await self._translate(texts, n_best, alignments, timeout, options, constraints)

    async def _translate(
        self,
        texts: Sequence[str],
        n_best: int,
        alignments: bool,
        timeout: float | None,
        options: SearchOptions,
        constraints: Mapping[str, Any],
    ) -> list[list[Translation]]:
        self._check(texts)
        if options is not NO_OPTIONS:
            self._check_options(options)
        max_n_best = self.max_n_best
        if options.beam_size is not None:
            max_n_best = min(max_n_best, options.beam_size)
        if not 1 <= n_best <= max_n_best:
            raise ServiceError(
                "invalid",
                f"Argument `n_best` must be from 1 to {max_n_best}. Received: {n_best}",
                "n_best",
            )
        # Reserved before the texts are encoded.
        with self.engine.reserve(len(texts), 0):
            async with self.engine.deadline(timeout):
                encoded = await self._encode(texts)
                if constraints:
                    # In a thread: a prefix has many completions.
                    arguments = texts, encoded, options, constraints
                    rows = await asyncio.to_thread(self._constraints, *arguments)
                else:
                    rows = [NO_CONSTRAINTS] * len(texts)
                payloads = [
                    (ids, n_best, alignments, options, row)
                    for ids, row in zip(encoded, rows, strict=True)
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

    def _check_options(self, options: SearchOptions) -> None:
        names = [name for name, value in vars(options).items() if value is not None]
        self._require_options(names)
        with _argument_errors():
            options.check(self.translator.manifest, self.max_beam_size)

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

    def _constraints(
        self,
        texts: Sequence[str],
        encoded: Sequence[Sequence[int]],
        options: SearchOptions,
        constraints: Mapping[str, Any],
    ) -> list[Constraints]:
        """Return the constraints of each text."""
        names = {"prefixes": "prefix", "disable_unknown": "suppressed"}
        self._require_options([names.get(name, name) for name in constraints])
        manifest = self.translator.manifest
        count = len(constraints.get("suppressed", ()))
        if count > _MAX_SUPPRESSED:
            raise ServiceError(
                "too_large",
                f"Argument `suppressed` must have at most {_MAX_SUPPRESSED} tokens. "
                f"Received: {count}",
                "suppressed",
            )
        self._check([prefix or "" for prefix in constraints.get("prefixes", ())], "prefix")
        phrases = constraints.get("required", ())
        self._check(["".join(each or ()) for each in phrases], "required")
        with _argument_errors():
            of_text = text_constraints(self.tokenizer, texts, **constraints)
            rows = [of_text(index) for index in range(len(texts))]
            for row, ids in zip(rows, encoded, strict=True):
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
            self._check(texts)
            self._check(targets, "target")
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
                    encoded = await self._encode(targets, "target")
                    for name, side in (("text", sources), ("target", encoded)):
                        if not all(side):
                            raise ServiceError(
                                "invalid",
                                f"Argument `{name}` must not be blank. "
                                f"Received: a blank text at index {side.index([])}",
                                name,
                            )
                    payloads = [(*pair, alignments) for pair in zip(sources, encoded, strict=True)]
                    lengths = [max(len(source), len(target)) for source, target, _ in payloads]
                    costs = [len(source) * len(target) for source, target, _ in payloads]
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
            self._check([text])
            self._check([prefix or ""], "prefix")
            with self.engine.reserve(1, 0):
                async with self.engine.deadline(timeout):
                    [ids] = await self._encode([text])
                    payload = (text, prefix or "", count)
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
                        limit = self.translator.manifest.search.output_limit(len(ids))
                        with _argument_errors():
                            start = await asyncio.to_thread(
                                encode_constraints, self.tokenizer, prefix
                            )
                            check_prefix(start, limit)
                        payload = (text, prefix, put, stopped)
                        cost = len(ids) * limit
                        await self._run(self._stream, [payload], [len(ids)], [cost], 1)

            self._check([text])
            self._check([prefix or ""], "prefix")
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

    def _check(self, texts: Sequence[str], argument: str = "text") -> None:
        limits = self.engine.limits
        limits.check_texts(len(texts))
        for index, text in enumerate(texts):
            if len(text) > limits.characters:
                raise ServiceError(
                    "too_large",
                    f"Argument `{argument}` must have at most {limits.characters} characters each. "
                    f"Received: {len(text)} at index {index}",
                    argument,
                )

    async def _encode(self, texts: Sequence[str], argument: str = "text") -> list[list[int]]:
        manifest, limit = self.translator.manifest, self.engine.limits.tokens
        longest = manifest.max_source_length
        encode: Callable[[Sequence[str]], list[list[int]]] = self._encode_sources
        if argument == "target":
            longest, encode = manifest.search.max_length, self._encode_targets
        max_length = min(limit, longest or limit)
        try:
            if sum(map(len, texts)) <= _SMALL_TEXTS:
                encoded = encode(texts)
            else:
                encoded = []
                for part in _in_parts(texts):
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

    def _encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        return encode_texts(texts, self.tokenizer)

    def _encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of targets, an empty list for a blank one."""
        encoded = self.tokenizer.encode_targets(texts)
        warn_about_unknown("target", encoded)
        return [ids if text.strip() else [] for text, ids in zip(texts, encoded, strict=True)]

    async def _infer(self, request: InferRequest) -> list[Tensor]:
        names = [tensor.name for tensor in request.inputs]
        _check_names("inputs", names, self.inputs, self.optional_inputs)
        inputs = {tensor.name: _texts(tensor) for tensor in request.inputs}
        texts = inputs["text"]
        constraints: dict[str, Any] = {}
        if "prefix" in inputs:
            constraints["prefixes"] = inputs["prefix"]
        if "required" in inputs:
            constraints["required"] = [
                _json_list(text or "[]", "required", (str,)) for text in inputs["required"]
            ]
        parameters = request.parameters
        if parameters:
            _check_parameter_names(parameters)
        n_best = get_parameter(parameters, "n_best", (int,), 1)
        timeout = _timeout(parameters)
        alignments = get_parameter(parameters, "alignments", (bool,), False)
        alignments = alignments or any(output.name == "alignment" for output in request.outputs)
        suppressed = get_parameter(parameters, "suppressed", (str,), None)
        if suppressed is not None:
            constraints["suppressed"] = _json_list(suppressed, "suppressed", (str, int))
        if get_parameter(parameters, "disable_unknown", (bool,), False):
            constraints["disable_unknown"] = True
        options = _search_options(parameters)
        results = await self._translate(texts, n_best, alignments, timeout, options, constraints)
        shape = (len(texts),) if n_best == 1 else (len(texts), n_best)
        translations = np.full(shape, b"", object)
        scores = np.full(shape, _NO_SCORE, np.float32)
        weights = np.full(shape, b"", object)
        for row, hypotheses in enumerate(results):
            for column, hypothesis in enumerate(hypotheses):
                index = (row,) if n_best == 1 else (row, column)
                translations[index] = hypothesis.text.encode("utf-8")
                scores[index] = hypothesis.score
        if alignments:
            rows = weights.reshape(len(texts), n_best)
            await asyncio.to_thread(_write_alignments, results, rows)
        tensors = [
            Tensor("translation", "BYTES", translations),
            Tensor("score", "FP32", scores),
        ]
        if alignments:
            tensors.append(Tensor("alignment", "BYTES", weights))
        return tensors


class _SearchJob(_ModelJob):
    """Search for translations of payloads in batches.

    A payload is `(ids, n_best, alignments, options, constraints)`. All payloads of a batch have
    equal options.
    """

    batches_requests = True

    def __init__(self, model: TextModel) -> None:
        super().__init__(model)
        self._translator, self._tokenizer = model.translator, model.tokenizer

    def _run(self, payloads: Sequence[Any]) -> list[Any]:
        aligned = any(payload[2] for payload in payloads)
        options: SearchOptions = payloads[0][3]
        rows = [payload[4] for payload in payloads]
        inputs = {} if options is NO_OPTIONS else options.inputs()
        if any(row is not NO_CONSTRAINTS for row in rows):
            inputs |= constraint_inputs(rows)
        source = pad([payload[0] for payload in payloads])
        arrays = self._translator.search(source, aligned, inputs=inputs)
        results = []
        for row, (ids, n_best, alignments, *_) in enumerate(payloads):
            hypotheses = {
                name: values[row]
                for name, values in arrays.items()
                if alignments or name != "alignments"
            }
            with _argument_errors():  # the options leave no output
                results.append(decode_hypotheses(self._tokenizer, hypotheses, ids, n_best))
        return results


class _StreamJob(_ModelJob):
    """Translate one payload `(text, prefix, put, stopped)` and pass each piece to `put`."""

    def __init__(self, model: TextModel) -> None:
        super().__init__(model)
        self._translator = model.translator

    def _run(self, payloads: Sequence[Any]) -> list[Any]:
        [(text, prefix, put, stopped)] = payloads
        pieces = []
        for piece in self._translator.stream(text, prefix=prefix):
            if stopped.is_set():
                break
            pieces.append(piece)
            put(piece)
        return ["".join(pieces)]


class _AlternativesJob(_ModelJob):
    """Return the alternatives for one payload `(text, prefix, count)`."""

    def __init__(self, model: TextModel) -> None:
        super().__init__(model)
        self._translator = model.translator

    def _run(self, payloads: Sequence[Any]) -> list[Any]:
        with _argument_errors():  # a blank text, or a prefix that is too long
            return [self._translator.alternatives(*payloads[0])]


class _ScoreJob(_ModelJob):
    """Score payloads `(source ids, target ids, alignments)` in batches.

    The first batch opens the graph, so that services that score nothing do not need its memory.
    """

    batches_requests = True

    def __init__(self, model: TextModel) -> None:
        super().__init__(model)
        self._translator, self._tokenizer = model.translator, model.tokenizer

    def _run(self, payloads: Sequence[Any]) -> list[Any]:
        sources, targets, alignments = zip(*payloads, strict=True)
        scorer = self._translator.open_scorer()
        arrays = scorer.score(pad(sources), pad(targets), any(alignments))
        results = []
        for row, (source, target, aligned) in enumerate(payloads):
            outputs = {
                name: values[row]
                for name, values in arrays.items()
                if aligned or name != "alignments"
            }
            results.append(decode_score(self._tokenizer, outputs, (source, target)))
        return results


class GraphModel(Model):
    """Model that runs an ONNX graph on the tensors of a request.

    Args:
        name: str.
        version: A number, as a str.
        engine: `Engine` that runs the model.
        session: Session of `open_graph`.
        search: Settings of the search that the graph contains; `None` if it contains none.

    Raises:
        UnsupportedArtifactError: An input or output of the graph is not a tensor of numbers.
    """

    platform = "onnxruntime_onnx"

    def __init__(
        self,
        name: str,
        version: str,
        engine: Engine,
        session: Any,
        search: ManifestSearch | None = None,
    ) -> None:
        super().__init__(name, version, engine)
        self.session, self._search = session, search
        self.inputs = [_tensor_spec(value) for value in session.get_inputs()]
        self.outputs = [_tensor_spec(value) for value in session.get_outputs()]
        self._job = _GraphJob(self)

    async def _infer(self, request: InferRequest) -> list[Tensor]:
        tensors = {tensor.name: tensor for tensor in request.inputs}
        names = [tensor.name for tensor in request.inputs]
        _check_names("inputs", names, self.inputs, ())
        for spec in self.inputs:
            tensor = tensors[spec.name]
            shape = tensor.data.shape
            # A loop over an empty axis crashes onnxruntime and the process.
            fits = len(shape) == len(spec.shape) and all(
                received == size or (size == -1 and received > 0)
                for size, received in zip(spec.shape, shape, strict=True)
            )
            if tensor.datatype != spec.datatype or not fits:
                raise ServiceError(
                    "invalid",
                    f"Argument `{spec.name}` must be {spec.datatype} of shape {list(spec.shape)}, "
                    "where -1 is any length of at least 1. "
                    f"Received: {tensor.datatype} of shape {list(shape)}",
                    spec.name,
                )
        outputs = [each.name for each in request.outputs] or [spec.name for spec in self.outputs]
        feeds = {name: np.asarray(tensor.data, order="C") for name, tensor in tensors.items()}
        size, limit = sum(array.size for array in feeds.values()), self.engine.limits.queued_tokens
        if size > limit:
            raise ServiceError(
                "too_large",
                f"Argument `inputs` must have at most {limit} numbers. Received: {size}",
            )
        payloads, costs = [(feeds, outputs)], [size]
        if self._search is not None:
            payloads, costs = self._split_search(self._search, feeds, outputs)
        lengths = [sum(array.size for array in inputs.values()) for inputs, _ in payloads]
        async with self.engine.deadline(_timeout(request.parameters)):
            results = await self._run(self._job, payloads, lengths, costs)
        datatypes = {spec.name: spec.datatype for spec in self.outputs}
        return [
            Tensor(name, datatypes[name], _join([arrays[name] for arrays in results]))
            for name in outputs
        ]

    def _split_search(
        self, search: ManifestSearch, feeds: Mapping[str, NDArray[Any]], outputs: list[str]
    ) -> tuple[list[tuple[dict[str, NDArray[Any]], list[str]]], list[int]]:
        """Return payloads of few rows and their costs, so that others need not wait for long.

        Raises:
            ServiceError: "invalid" if the inputs differ in rows, "too_large" if the attention
                weights would be too many.
        """
        rows, width = feeds[TRANSLATE.inputs[0].name].shape
        for name, array in feeds.items():
            if len(array) != rows:
                raise ServiceError(
                    "invalid",
                    f"Argument `{name}` must have as many rows as the source, {rows}. "
                    f"Received: {len(array)}",
                    name,
                )
        weights = rows * search.num_returned * search.max_steps * width
        if "alignments" in outputs and weights > MAX_NUMBERS:
            raise ServiceError(
                "too_large",
                f"Argument `outputs` is limited to {MAX_NUMBERS} attention weights. Name the other "
                f"outputs only, or send fewer or shorter rows. Received: {weights} weights",
                "outputs",
            )
        cost = width * search.output_limit(width) * search.num_hypotheses
        step = rows if rows * cost <= BATCH_COST else max(1, BATCH_COST // cost)
        starts = range(0, rows, step)
        payloads = [
            ({name: array[start : start + step] for name, array in feeds.items()}, outputs)
            for start in starts
        ]
        return payloads, [cost * min(step, rows - start) for start in starts]


class _GraphJob(_ModelJob):
    """Run a graph on payloads `(arrays by input name, output names)`, one request at a time."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__(model)
        self._session, self._timeout = model.session, model.engine.limits.timeout

    def _run(self, payloads: Sequence[Any]) -> list[Any]:
        return [
            run_arrays(self._session, feeds, outputs, self._timeout) for feeds, outputs in payloads
        ]


def _join(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Join the rows of one output of several runs.

    Raises:
        ServiceError: "unprocessable" if the artifact is not a valid search.
    """
    if len({array.shape[1:] for array in arrays}) > 1:
        shapes = [array.shape for array in arrays]
        message = f"The model failed: its runs return different shapes. Received: {shapes!r:.200}"
        raise ServiceError("unprocessable", message)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def get_parameter(
    parameters: Mapping[str, Any], name: str, types: tuple[type, ...], default: Any
) -> Any:
    """Return a parameter of a request after a check of its type.

    Raises:
        ServiceError: "invalid".
    """
    value = parameters.get(name, default)
    if value is default:
        return default
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        expected = " or ".join(kind.__name__ for kind in types)
        raise ServiceError(
            "invalid", f"Argument `{name}` must be {expected}. Received: {value!r:.80}", name
        )
    return value


def _timeout(parameters: Mapping[str, Any]) -> float | None:
    """Return the parameter `timeout` in seconds. Requests have it in microseconds, as in Triton."""
    microseconds = get_parameter(parameters, "timeout", (int,), None)
    if microseconds is None:
        return None
    if not 1 <= microseconds < 2**63:
        raise ServiceError(
            "invalid",
            "Argument `timeout` must be from 1 to 2**63 - 1 microseconds. "
            f"Received: {reprlib.repr(microseconds)}",
            "timeout",
        )
    return float(microseconds / 1e6)


def _search_options(parameters: Mapping[str, Any]) -> SearchOptions:
    """Return the search options among the parameters of a request.

    A number with a fraction may also be a str, because Triton's gRPC client refuses floats.
    """
    values = {}
    for name in parameters.keys() & {*SETTINGS}:
        if RANGES[name].kind is int:
            values[name] = get_parameter(parameters, name, (int,), None)
            continue
        value = get_parameter(parameters, name, (int, float, str), None)
        try:
            values[name] = float(value)
        except (ValueError, OverflowError) as error:
            raise ServiceError(
                "invalid", f"Argument `{name}` must be a number. Received: {value!r:.80}", name
            ) from error
    return SearchOptions(**values) if values else NO_OPTIONS


def _check_parameter_names(parameters: Mapping[str, Any]) -> None:
    """Refuse unknown parameters, such as a misspelled option."""
    for name in parameters:
        if name not in PARAMETERS and not name.startswith(_PROTOCOL_PREFIXES):
            name = name.encode("ascii", "backslashreplace").decode()
            message = f"Argument `{name:.80}` is unknown. Use only {sorted(PARAMETERS)}."
            raise ServiceError("invalid", message, name)


def _write_alignments(results: Sequence[Sequence[Translation]], rows: NDArray[Any]) -> None:
    """Write the attention weights of each hypothesis as JSON into an array `(n, K)`."""
    for row, hypotheses in zip(rows, results, strict=True):
        for column, hypothesis in enumerate(hypotheses):
            if hypothesis.alignment is not None:
                row[column] = as_json(json_array(hypothesis.alignment))


def _texts(tensor: Tensor) -> list[str]:
    """Return the texts of an input."""
    if tensor.datatype != "BYTES" or tensor.data.ndim != 1:
        raise ServiceError(
            "invalid",
            f"Argument `{tensor.name}` must be BYTES of shape [n]. "
            f"Received: {tensor.datatype} of shape {list(tensor.data.shape)}",
            tensor.name,
        )
    try:
        return [item.decode("utf-8") for item in tensor.data]
    except UnicodeDecodeError as error:
        raise ServiceError(
            "invalid", f"Argument `{tensor.name}` must be UTF-8. Received: {error}", tensor.name
        ) from error


def _json_list(text: str, name: str, types: tuple[type, ...]) -> list[Any]:
    """Return a JSON list of items of these types, from a parameter or an item of an input."""
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        items = None
    if not isinstance(items, list) or not {type(item) for item in items} <= {*types}:
        expected = " or ".join(kind.__name__ for kind in types)
        raise ServiceError(
            "invalid",
            f"Argument `{name}` must be a JSON list of {expected}. Received: {text!r:.80}",
            name,
        )
    return items


def _in_parts(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts in lists of at most `_TEXTS_AT_ONCE` characters, or of one text."""
    part: list[str] = []
    size = 0
    for text in texts:
        if part and size + len(text) > _TEXTS_AT_ONCE:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part


@contextlib.contextmanager
def _argument_errors() -> Iterator[None]:
    """Raise an `ArgumentError` of the block as a `ServiceError` with the name of the argument."""
    try:
        yield
    except ArgumentError as error:
        name = "prefix" if error.name == "prefixes" else error.name
        message = str(error).replace("`prefixes`", "`prefix`")
        raise ServiceError("invalid", message, name) from error


def _check_names(
    argument: str,
    names: Sequence[str],
    specs: Sequence[TensorSpec],
    optional: Sequence[TensorSpec] | None = None,
) -> None:
    """Refuse unknown and duplicate names.

    With a list of `optional` specs, all names of `specs` must be present.
    """
    required = [spec.name for spec in specs]
    expected = [*required, *(spec.name for spec in optional or ())]
    if len(set(names)) < len(names) or not set(names) <= set(expected):
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


def _tensor_spec(value: Any) -> TensorSpec:
    """Return the spec of an input or output of an onnxruntime session."""
    if value.type not in _ONNX_DATATYPES:
        raise UnsupportedArtifactError(
            f"{value.name!r}: expected one of {sorted(_ONNX_DATATYPES)}. Received: {value.type}"
        )
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return TensorSpec(value.name, _ONNX_DATATYPES[value.type], shape)
