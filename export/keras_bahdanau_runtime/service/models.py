"""Models that clients call by name: text models and graph models."""

import asyncio
import contextlib
import reprlib
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_bahdanau_runtime.errors import LimitError, RunError, UnsupportedArtifactError
from keras_bahdanau_runtime.service.engine import Engine, Job
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.protocol import (
    InferRequest,
    InferResponse,
    Tensor,
    TensorSpec,
    as_json,
)
from keras_bahdanau_runtime.session import run_arrays
from keras_bahdanau_runtime.signature import STEP_FILE, num_returned
from keras_bahdanau_runtime.text.batches import pad
from keras_bahdanau_runtime.translation import (
    Translation,
    decode_hypotheses,
    empty_translation,
    encode_texts,
)
from keras_bahdanau_runtime.translator import Translator

_NO_SCORE = np.finfo(np.float32).min  # of a missing hypothesis, as JSON has no infinity
_SMALL_TEXTS = 4096  # characters that are encoded in the event loop
_MAX_WEIGHTS = 2**22  # attention weights of one response, about 80 MB of JSON
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
        self, job: Job, payloads: Sequence[Any], lengths: Sequence[int], reserved: int = 0
    ) -> list[Any]:
        """Return the results of `Engine.run`, with errors of the graph as `ServiceError`."""
        try:
            return await self.engine.run(job, payloads, lengths, reserved)
        except LimitError as error:
            raise ServiceError("too_large", f"The model failed: {error}") from error
        except RunError as error:
            raise ServiceError("unprocessable", f"The model failed: {error}") from error

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

    def run(self, payloads: Sequence[Any], is_alone: bool) -> list[Any]:
        results = self._run(payloads, is_alone)
        self._counts.count_run(len(payloads))
        return results

    def record_times(self, queued: float, computed: float) -> None:
        self._counts.add_times(round(queued * 1e9), round(computed * 1e9))

    def _run(self, payloads: Sequence[Any], is_alone: bool) -> list[Any]:
        raise NotImplementedError


class TextModel(Model):
    """Model that translates texts.

    A request of the Open Inference Protocol may have the parameters `n_best`, `alignments` and
    `timeout`.

    Args:
        name: str.
        version: A number, as a str.
        engine: `Engine` that runs the model.
        translator: `Translator` of an artifact with a tokenizer. It should use one thread, as the
            engine runs several batches at once.
    """

    platform = "keras_bahdanau_text"

    def __init__(self, name: str, version: str, engine: Engine, translator: Translator) -> None:
        super().__init__(name, version, engine)
        self.translator = translator
        self.tokenizer = translator.require_tokenizer()
        self.streams = STEP_FILE in translator.manifest.files
        self.max_n_best = num_returned(translator.manifest.search)
        self.inputs = [TensorSpec("text", "BYTES", (-1,))]
        self.outputs = [
            TensorSpec("translation", "BYTES", (-1,)),
            TensorSpec("score", "FP32", (-1,)),
            TensorSpec("alignment", "BYTES", (-1,)),  # only if the request asks for it
        ]
        self._search, self._stream = _SearchJob(self), _StreamJob(self)

    def add_threads(self, threads: int) -> None:
        """Open the artifact a second time, with several threads for a batch that runs alone.

        Raises:
            CorruptArtifactError: The artifact was replaced since it was opened.
        """
        translator = self.translator.with_threads(threads)
        translator.translate(["a"])  # the first run is slower than later ones
        self._search.alone_translator = translator

    async def translate(
        self,
        texts: Sequence[str],
        n_best: int = 1,
        alignments: bool = False,
        timeout: float | None = None,
    ) -> list[list[Translation]]:
        """Return the translations of each text, best first.

        Args:
            texts: list of str.
            n_best: int, most translations per text.
            alignments: bool. Whether to return the attention weights.
            timeout: float, seconds; at most and by default the timeout of the service's limits.

        Raises:
            ServiceError: The request is invalid, is refused, or fails.
        """
        with self._measure():
            return await self._translate(texts, n_best, alignments, timeout)

    async def _translate(
        self, texts: Sequence[str], n_best: int, alignments: bool, timeout: float | None
    ) -> list[list[Translation]]:
        if not 1 <= n_best <= self.max_n_best:
            raise ServiceError(
                "invalid",
                f"Argument `n_best` must be from 1 to {self.max_n_best}. Received: {n_best}",
                "n_best",
            )
        self._check(texts)
        # Reserved before the texts are encoded.
        with self.engine.reserve(len(texts), 0):
            async with self.engine.deadline(timeout):
                encoded = await self._encode(texts)
                nonempty = [ids for ids in encoded if ids]
                payloads = [(ids, n_best, alignments) for ids in nonempty]
                lengths = list(map(len, nonempty))
                results = await self._run(self._search, payloads, lengths, len(texts))
        if alignments:
            _check_weights(results)
        remaining = iter(results)
        return [next(remaining) if ids else [empty_translation(alignments)] for ids in encoded]

    async def stream(self, text: str) -> AsyncIterator[str]:
        """Yield the pieces of the greedy translation of a text, one per step.

        Raises:
            ServiceError: "conflict" for an artifact without a step graph; otherwise as `translate`.
        """
        with self._measure():
            if not self.streams:
                raise ServiceError(
                    "conflict",
                    f"The model {self.name!r} has no step graph. Export it with stepwise=True.",
                    "model",
                )
            loop, stopped = asyncio.get_running_loop(), threading.Event()
            pieces: asyncio.Queue[str | None] = asyncio.Queue()

            def put(piece: str) -> None:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

            async def run() -> None:
                with self.engine.reserve(1, 0):
                    async with self.engine.deadline():
                        [ids] = await self._encode([text])
                        await self._run(self._stream, [(text, put, stopped)], [len(ids)], 1)

            self._check([text])
            task = asyncio.ensure_future(run())
            task.add_done_callback(lambda _: pieces.put_nowait(None))  # after the last piece
            try:
                while (piece := await pieces.get()) is not None:
                    yield piece
                await task
            finally:
                stopped.set()
                task.cancel()

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
        max_length = min(limit, self.translator.manifest.max_source_length or limit)
        try:
            if sum(map(len, texts)) <= _SMALL_TEXTS:
                encoded = encode_texts(texts, self.tokenizer)
            else:
                encoded = await asyncio.to_thread(encode_texts, texts, self.tokenizer)
        except ValueError as error:
            raise ServiceError("invalid", str(error), "text") from error
        for index, ids in enumerate(encoded):
            if len(ids) > max_length:
                raise ServiceError(
                    "too_large",
                    f"Argument `text` must have at most {max_length} tokens each, including the "
                    f"end of sentence. Received: {len(ids)} at index {index}",
                    "text",
                )
        return encoded

    async def _infer(self, request: InferRequest) -> list[Tensor]:
        names = [tensor.name for tensor in request.inputs]
        _check_names("inputs", names, self.inputs, complete=True)
        [source] = request.inputs
        if source.datatype != "BYTES" or source.data.ndim != 1:
            raise ServiceError(
                "invalid",
                "Argument `text` must be BYTES of shape [n]. "
                f"Received: {source.datatype} of shape {list(source.data.shape)}",
                "text",
            )
        try:
            texts = [item.decode("utf-8") for item in source.data]
        except UnicodeDecodeError as error:
            raise ServiceError(
                "invalid", f"Argument `text` must be UTF-8. Received: {error}", "text"
            ) from error
        n_best = get_parameter(request.parameters, "n_best", (int,), 1)
        timeout = _timeout(request.parameters)
        alignments = get_parameter(request.parameters, "alignments", (bool,), False)
        alignments = alignments or any(output.name == "alignment" for output in request.outputs)
        results = await self._translate(texts, n_best, alignments, timeout)
        shape = (len(texts),) if n_best == 1 else (len(texts), n_best)
        translations = np.full(shape, b"", object)
        scores = np.full(shape, _NO_SCORE, np.float32)
        weights = np.full(shape, b"", object)
        for row, hypotheses in enumerate(results):
            for column, hypothesis in enumerate(hypotheses):
                index = (row,) if n_best == 1 else (row, column)
                translations[index] = hypothesis.text.encode("utf-8")
                scores[index] = hypothesis.score
                if hypothesis.alignment is not None:
                    weights[index] = as_json(hypothesis.alignment)
        tensors = [
            Tensor("translation", "BYTES", translations),
            Tensor("score", "FP32", scores),
        ]
        if alignments:
            tensors.append(Tensor("alignment", "BYTES", weights))
        return tensors


class _SearchJob(_ModelJob):
    """Search for translations of payloads `(ids, n_best, alignments)` in batches.

    Attributes:
        alone_translator: `Translator` for a batch that runs alone; see `TextModel.add_threads`.
    """

    batches_requests = True

    def __init__(self, model: TextModel) -> None:
        super().__init__(model)
        self._translator = self.alone_translator = model.translator
        self._tokenizer = model.tokenizer

    def _run(self, payloads: Sequence[Any], is_alone: bool) -> list[Any]:
        aligned = any(alignments for _, _, alignments in payloads)
        translator = self.alone_translator if is_alone else self._translator
        arrays = translator.search(pad([ids for ids, _, _ in payloads]), aligned)
        results = []
        for row, (ids, n_best, alignments) in enumerate(payloads):
            hypotheses = {
                name: values[row]
                for name, values in arrays.items()
                if alignments or name != "alignments"
            }
            results.append(decode_hypotheses(self._tokenizer, hypotheses, ids, n_best))
        return results


class _StreamJob(_ModelJob):
    """Translate one payload `(text, put, stopped)` and pass each piece to `put`."""

    def __init__(self, model: TextModel) -> None:
        super().__init__(model)
        self._translator = model.translator

    def _run(self, payloads: Sequence[Any], is_alone: bool) -> list[Any]:
        [(text, put, stopped)] = payloads
        pieces = []
        for piece in self._translator.stream(text):
            if stopped.is_set():
                break
            pieces.append(piece)
            put(piece)
        return ["".join(pieces)]


class GraphModel(Model):
    """Model that runs an ONNX graph on the tensors of a request.

    Args:
        name: str.
        version: A number, as a str.
        engine: `Engine` that runs the model.
        session: Session of `open_graph`.

    Raises:
        UnsupportedArtifactError: An input or output of the graph is not a tensor of numbers.
    """

    platform = "onnxruntime_onnx"

    def __init__(self, name: str, version: str, engine: Engine, session: Any) -> None:
        super().__init__(name, version, engine)
        self.session = session
        self.inputs = [_tensor_spec(value) for value in session.get_inputs()]
        self.outputs = [_tensor_spec(value) for value in session.get_outputs()]
        self._job = _GraphJob(self)

    async def _infer(self, request: InferRequest) -> list[Tensor]:
        tensors = {tensor.name: tensor for tensor in request.inputs}
        names = [tensor.name for tensor in request.inputs]
        _check_names("inputs", names, self.inputs, complete=True)
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
        async with self.engine.deadline(_timeout(request.parameters)):
            [arrays] = await self._run(self._job, [(feeds, outputs)], [size])
        datatypes = {spec.name: spec.datatype for spec in self.outputs}
        return [Tensor(name, datatypes[name], array) for name, array in arrays.items()]


class _GraphJob(_ModelJob):
    """Run a graph on payloads `(arrays by input name, output names)`, one request at a time."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__(model)
        self._session, self._timeout = model.session, model.engine.limits.timeout

    def _run(self, payloads: Sequence[Any], is_alone: bool) -> list[Any]:
        return [
            run_arrays(self._session, feeds, outputs, self._timeout) for feeds, outputs in payloads
        ]


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


def _check_names(
    argument: str, names: Sequence[str], specs: Sequence[TensorSpec], complete: bool = False
) -> None:
    """Refuse unknown and duplicate names, and missing names if they must be `complete`."""
    expected = [spec.name for spec in specs]
    if len(set(names)) < len(names) or not set(names) <= set(expected):
        raise ServiceError(
            "invalid",
            f"Argument `{argument}` must have names of {expected}, each at most once. "
            f"Received: {names!r:.200}",
            argument,
        )
    if complete and len(names) < len(expected):
        raise ServiceError(
            "invalid",
            f"Argument `{argument}` must have the names {expected}. Received: {names!r:.200}",
            argument,
        )


def _check_weights(results: Sequence[Sequence[Translation]]) -> None:
    """Refuse a response with too many attention weights."""
    alignments = [each.alignment for hypotheses in results for each in hypotheses]
    count = sum(alignment.size for alignment in alignments if alignment is not None)
    if count > _MAX_WEIGHTS:
        raise ServiceError(
            "too_large",
            f"Argument `alignments` is limited to {_MAX_WEIGHTS} weights per response. Send fewer "
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
