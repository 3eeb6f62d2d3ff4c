"""What is called by a name: what models of texts and models of tensors have in common."""

import contextlib
import reprlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_bahdanau_runtime.errors import LimitError, RunError
from keras_bahdanau_runtime.service.engine import Engine, Job
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.protocol import InferRequest, InferResponse, Tensor, TensorSpec


class Counts:
    """What Triton's statistics say of a model; nanoseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.last = 0  # milliseconds since 1970
        self.inferences = self.executions = 0
        # Of requests: count, time.
        self.succeeded, self.failed, self.queued, self.ran = [0, 0], [0, 0], [0, 0], [0, 0]

    def executed(self, payloads: int) -> None:
        """One run of the graph, for so many payloads."""
        with self._lock:
            self.inferences += payloads
            self.executions += 1

    def spent(self, queued: int, ran: int) -> None:
        """How long one request waited, and was worked on."""
        with self._lock:
            for kind, nanoseconds in ((self.queued, queued), (self.ran, ran)):
                kind[0] += 1
                kind[1] += nanoseconds

    def answered(self, nanoseconds: int, well: bool) -> None:
        """One request."""
        with self._lock:
            self.last = time.time_ns() // 10**6  # told, and never reckoned with
            kind = self.succeeded if well else self.failed
            kind[0] += 1
            kind[1] += nanoseconds

    def to_json(self) -> dict[str, Any]:
        """The counts as Triton names them."""
        nothing = {"count": 0, "ns": 0}

        def duration(pair: Sequence[int]) -> dict[str, int]:
            return {"count": pair[0], "ns": pair[1]}

        return {
            "last_inference": self.last,
            "inference_count": self.inferences,
            "execution_count": self.executions,
            "inference_stats": {
                "success": duration(self.succeeded),
                "fail": duration(self.failed),
                "queue": duration(self.queued),
                "compute_input": nothing,
                "compute_infer": duration(self.ran),
                "compute_output": nothing,
                "cache_hit": nothing,
                "cache_miss": nothing,
            },
            "batch_stats": [],
        }


class Model:
    """What is called by a name. Both kinds of model are one.

    Args:
        name: As it is called.
        version: A number, as a str.
        engine: The `Engine` that its work goes through.
    """

    platform = ""
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]

    def __init__(self, name: str, version: str, engine: Engine) -> None:
        self.name, self.version, self.versions = name, version, [version]
        self.engine, self.counts = engine, Counts()

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answers a request of the Open Inference Protocol.

        Raises:
            ServiceError: Of the kind that fits.
        """
        with self.measured():
            check_names("outputs", [wanted.name for wanted in request.outputs], self.outputs)
            outputs = await self._infer(request)
        wanted = {output.name for output in request.outputs} or self._usual()
        chosen = [tensor for tensor in outputs if tensor.name in wanted]
        return InferResponse(self.name, self.version, chosen, request.id)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Counts what is answered in the block."""
        metrics, began, well = self.engine.metrics, time.perf_counter_ns(), False
        try:
            yield
            well = True
        except Exception as error:
            kind = error.kind if isinstance(error, ServiceError) else "internal"
            metrics.errors.labels(self.name, kind).inc()
            raise
        finally:
            spent = time.perf_counter_ns() - began
            self.counts.answered(spent, well)
            metrics.of(self.name).latency.observe(spent / 1e9)

    async def _infer(self, request: InferRequest) -> list[Tensor]:
        raise NotImplementedError

    def _usual(self) -> set[str]:
        """The outputs of a request that names none."""
        return {spec.name for spec in self.outputs}

    def statistics(self) -> dict[str, Any]:
        """As Triton's statistics extension has it."""
        return {"name": self.name, "version": self.version, **self.counts.to_json()}


class CountedJob:
    """Work that is counted."""

    shared = False

    def __init__(self, model: Model) -> None:
        self.name, self._counts = model.name, model.counts

    def run(self, payloads: Sequence[Any], alone: bool) -> list[Any]:
        results = self._run(payloads, alone)
        self._counts.executed(len(payloads))
        return results

    def spent(self, waited: float, worked: float) -> None:
        self._counts.spent(round(waited * 1e9), round(worked * 1e9))

    def _run(self, payloads: Sequence[Any], alone: bool) -> list[Any]:
        raise NotImplementedError


async def answered(
    engine: Engine, job: Job, payloads: Sequence[Any], lengths: Sequence[int], held: int = 0
) -> list[Any]:
    """What `Engine.run` gives; what a graph may fail with is told as a `ServiceError`."""
    try:
        return await engine.run(job, payloads, lengths, held)
    except LimitError as error:
        raise ServiceError("too_large", f"The model could not do it: {error}") from error
    except RunError as error:
        raise ServiceError("unprocessable", f"The model could not do it: {error}") from error


def check_names(
    argument: str, names: Sequence[str], known: Sequence[TensorSpec], complete: bool = False
) -> None:
    """Raises a `ServiceError` for a name that is unknown or comes twice, or one that is missing."""
    expected = [spec.name for spec in known]
    if len(set(names)) < len(names) or not set(names) <= set(expected):
        raise ServiceError(
            "invalid",
            f"Argument `{argument}` must hold some of {expected}, each once. "
            f"Received: {names!r:.200}",
            argument,
        )
    if complete and len(names) < len(expected):
        raise ServiceError(
            "invalid",
            f"Argument `{argument}` must hold {expected}. Received: {names!r:.200}",
            argument,
        )


def parameter(
    parameters: Mapping[str, Any], name: str, kinds: tuple[type, ...], default: Any
) -> Any:
    """A parameter of a request, of one of these types."""
    value = parameters.get(name, default)
    if value is default:
        return default
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ServiceError(
            "invalid", f"Argument `{name}` must be {expected}. Received: {value!r:.80}", name
        )
    return value


def seconds_of(parameters: Mapping[str, Any]) -> float | None:
    """How long a request of the Open Inference Protocol may take, by its parameter `timeout`.

    That is an int of microseconds, as Triton has it; `None` where it is absent.

    Raises:
        ServiceError: "invalid".

    Example:

    >>> seconds_of({"timeout": 1_500_000})
    1.5
    """
    given = parameter(parameters, "timeout", (int,), None)
    if given is None:
        return None
    if not 1 <= given < 2**63:
        raise ServiceError(
            "invalid",
            "Argument `timeout` must be from 1 to 2**63 - 1 microseconds. "
            f"Received: {reprlib.repr(given)}",
            "timeout",
        )
    return float(given / 1e6)
