"""Metrics of a service: Prometheus metrics, and the statistics of Triton."""

import functools
import os
import platform
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
    multiprocess,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from keras_bahdanau_runtime.version import __version__

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_COSTS = tuple(10**exponent for exponent in range(2, 10))
_PREFIX = "keras_bahdanau_"
_PROCESS_METRICS = ("process_resident_memory_bytes", "process_cpu_seconds")


class ModelMetrics(NamedTuple):
    """Metrics with the label of one model; see `Metrics`."""

    wait: Histogram
    batches: Histogram
    tokens: Counter
    cost: Histogram
    latency: Histogram


class Metrics:
    """Metrics of one service.

    Attributes:
        requests: Counter of requests, by `model`, `call` and `code`. `call` is the function of an
            HTTP endpoint ("translate") or the method of gRPC ("ModelInfer"), `code` the status of
            the response.
        errors: Counter of requests that a model failed to answer, by `model` and `kind`, a name of
            `KINDS`.
        in_flight: Gauge of the requests that have no complete response yet.
        models: Gauge by `model`, `version` and `artifact`, 1 while the model is served, then 0.
            `artifact` is the beginning of the SHA-256 of its `manifest.json`.
        queue: Gauge of the texts that wait or run.
        bodies: Gauge of the bytes of bodies that are arriving or being parsed.
        wait: Histogram of the seconds that a text waited, by `model`.
        batches: Histogram of the texts in a batch, by `model`.
        tokens: Counter of source tokens, by `model`.
        cost: Histogram of the costs of requests, including refused ones, by `model`; see `Limits`.
        max_cost: Gauge of the limit of the cost of a request.
        latency: Histogram of the seconds from a request to its response, by `model`.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def metric(
            kind: Any, name: str, help: str, labels: tuple[str, ...] = (), **options: Any
        ) -> Any:
            return kind(_PREFIX + name, help, labels, registry=self.registry, **options)

        self.requests: Counter = metric(
            Counter, "requests", "Responses sent.", ("model", "call", "code")
        )
        self.errors: Counter = metric(
            Counter, "errors", "Requests that a model failed to answer.", ("model", "kind")
        )
        build: Gauge = metric(
            Gauge,
            "build_info",
            "Versions of the service, with the value 1.",
            ("version", "python"),
            multiprocess_mode="livemax",
        )
        build.labels(__version__, platform.python_version()).set(1)
        self.models: Gauge = metric(
            Gauge,
            "model_info",
            "1 for each model that is served, and 0 for earlier ones.",
            ("model", "version", "artifact"),
            multiprocess_mode="livemax",
        )
        self.in_flight: Gauge = metric(
            Gauge,
            "requests_in_flight",
            "Requests without a complete response, with the one that reads the metrics.",
            multiprocess_mode="livesum",
        )
        self.queue: Gauge = metric(
            Gauge, "queue_length", "Texts that wait or run.", multiprocess_mode="livesum"
        )
        self.bodies: Gauge = metric(
            Gauge,
            "body_bytes",
            "Bytes of bodies that are arriving or being parsed, without 64 KiB of each.",
            multiprocess_mode="livesum",
        )
        self.wait: Histogram = metric(
            Histogram, "queue_seconds", "Time a text waited.", ("model",), buckets=_SECONDS
        )
        self.batches: Histogram = metric(
            Histogram, "batch_size", "Texts in a batch.", ("model",), buckets=_SIZES
        )
        self.tokens: Counter = metric(Counter, "tokens", "Source tokens.", ("model",))
        self.cost: Histogram = metric(
            Histogram,
            "request_cost",
            "Source tokens x steps x beam of the texts of a request.",
            ("model",),
            buckets=_COSTS,
        )
        self.max_cost: Gauge = metric(
            Gauge, "max_request_cost", "Largest cost of a request.", multiprocess_mode="mostrecent"
        )
        self.latency: Histogram = metric(
            Histogram,
            "request_seconds",
            "Time from request to response.",
            ("model",),
            buckets=_SECONDS,
        )
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            self.registry.register(_Processes([os.getpid()]))

    def for_model(self, name: str) -> ModelMetrics:
        """Return the metrics of a model. Keep the result: the lookup takes longer than counting."""
        return ModelMetrics(
            self.wait.labels(name),
            self.batches.labels(name),
            self.tokens.labels(name),
            self.cost.labels(name),
            self.latency.labels(name),
        )

    def render(self) -> bytes:
        """Return the metrics of all processes of the service in Prometheus's text format."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return bytes(generate_latest(self.registry))
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        # The file of a process with live gauges is deleted when the process ends.
        files = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]).glob("gauge_livesum_*.db")
        registry.register(_Processes([int(file.stem.rpartition("_")[2]) for file in files]))
        return bytes(generate_latest(registry))


class _Processes(Collector):
    """Memory and processor time of processes, summed, if the system has `/proc`."""

    def __init__(self, process_ids: Sequence[int]) -> None:
        self._collectors = [
            ProcessCollector(pid=functools.partial(int, process_id), registry=None)
            for process_id in process_ids
        ]

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        sums: dict[str, Metric] = {}
        for collector in self._collectors:
            for metric in collector.collect():
                if metric.name in _PROCESS_METRICS:
                    total = sums.setdefault(metric.name, metric)
                    if total is not metric:
                        value = total.samples[0].value + metric.samples[0].value
                        total.samples[0] = total.samples[0]._replace(value=value)
        return sums.values()


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
