"""What a service counts, as Prometheus reads it."""

import os
from typing import Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_PREFIX = "keras_bahdanau_"


class OfModel(NamedTuple):
    """What is counted of one model; see `Metrics`."""

    wait: Histogram
    batches: Histogram
    tokens: Counter
    latency: Histogram


class Metrics:
    """Counters of one service.

    Attributes:
        requests: Counter of requests, by `model`, `call` ("translate" of HTTP, "ModelInfer" of
            gRPC) and `code`, the status of the answer.
        errors: Counter of what a model did not answer, by `model` and `kind`, a name of `KINDS`.
        queue: Gauge of the texts that wait or are worked on.
        wait: Histogram of the seconds that a text waited, by `model`.
        batches: Histogram of the texts in a batch, by `model`.
        tokens: Counter of source tokens, by `model`.
        latency: Histogram of the seconds from a request to its answer, by `model`.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def named(
            kind: Any, name: str, help: str, labels: tuple[str, ...] = (), **options: Any
        ) -> Any:
            return kind(_PREFIX + name, help, labels, registry=self.registry, **options)

        self.requests: Counter = named(
            Counter, "requests", "Requests answered.", ("model", "call", "code")
        )
        self.errors: Counter = named(Counter, "errors", "Requests failed.", ("model", "kind"))
        self.queue: Gauge = named(
            Gauge, "queue_length", "Texts that wait or run.", multiprocess_mode="livesum"
        )
        self.wait: Histogram = named(
            Histogram, "queue_seconds", "Time a text waited.", ("model",), buckets=_SECONDS
        )
        self.batches: Histogram = named(
            Histogram, "batch_size", "Texts in a batch.", ("model",), buckets=_SIZES
        )
        self.tokens: Counter = named(Counter, "tokens", "Source tokens.", ("model",))
        self.latency: Histogram = named(
            Histogram,
            "request_seconds",
            "Time from request to answer.",
            ("model",),
            buckets=_SECONDS,
        )

        self._models: dict[str, OfModel] = {}

    def of(self, model: str) -> OfModel:
        """The counters with the label of a model, which prometheus_client looks up slowly."""
        if model not in self._models:
            self._models[model] = OfModel(
                self.wait.labels(model),
                self.batches.labels(model),
                self.tokens.labels(model),
                self.latency.labels(model),
            )
        return self._models[model]

    def render(self) -> bytes:
        """The text that Prometheus reads, of all processes of the service."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return bytes(generate_latest(self.registry))
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return bytes(generate_latest(together))
