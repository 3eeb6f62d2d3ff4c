"""Traces with OpenTelemetry: spans of each request, and of its queue, run and decoding."""

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.service.request_log import RequestLog
from keras_bahdanau_runtime.version import __version__

_SERVICE_NAME = "keras_bahdanau"  # unless OTEL_SERVICE_NAME is set


class Tracing:
    """Sends spans of requests by OTLP over HTTP, in a thread.

    OpenTelemetry's variables configure it, such as `OTEL_EXPORTER_OTLP_ENDPOINT`,
    `OTEL_SERVICE_NAME` and `OTEL_TRACES_SAMPLER`.

    Raises:
        MissingDependencyError: The extra `tracing` is not installed.
    """

    def __init__(self) -> None:
        trace, sdk, export, otlp, resources, context = (
            require(f"opentelemetry.{module}", extra="tracing")
            for module in (
                *("trace", "sdk.trace", "sdk.trace.export"),
                *("exporter.otlp.proto.http.trace_exporter", "sdk.resources"),
                "trace.propagation.tracecontext",
            )
        )
        os.environ.setdefault("OTEL_SERVICE_NAME", _SERVICE_NAME)
        self._trace = trace
        self._propagator = context.TraceContextTextMapPropagator()
        self._provider = sdk.TracerProvider(
            resource=resources.Resource.create({"service.version": __version__}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(_SERVICE_NAME, __version__)

    def begin(self, headers: Mapping[str, Any]) -> "RequestSpan":
        """Start the span of a request, the child of the span in its header `traceparent`."""
        parent = self._propagator.extract(headers)
        span = self._tracer.start_span("request", parent, kind=self._trace.SpanKind.SERVER)
        carrier: dict[str, str] = {}
        context = self._trace.set_span_in_context(span)
        self._propagator.inject(carrier, context)
        return RequestSpan(self._trace, self._tracer, span, context, carrier["traceparent"])

    def close(self, seconds: float) -> None:
        """Send the remaining spans, for at most some seconds."""
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        thread.join(seconds)


class RequestSpan:
    """Span of one request; see `Tracing.begin`.

    Attributes:
        traceparent: str, the header that names this span.
    """

    def __init__(self, trace: Any, tracer: Any, span: Any, context: Any, traceparent: str) -> None:
        self._trace, self._tracer, self._span, self._context = trace, tracer, span, context
        self.traceparent = traceparent

    def end(self, log: RequestLog, call: str, status: Any) -> None:
        """Set the attributes of the span, and end it.

        Args:
            log: `RequestLog`.
            call: Function of an HTTP endpoint, or method of gRPC.
            status: Status of the response.
        """
        if log.times is not None:
            queued, started, ran, done = map(_nanoseconds, log.times)
            for name, begin, end in (
                ("queue", queued, started),
                ("run", started, ran),
                ("decode", ran, done),
            ):
                self._tracer.start_span(name, self._context, start_time=begin).end(end)
        if call:
            self._span.update_name(call)
        attributes = {
            "request_id": log.id,
            "model": log.model,
            "texts": log.texts,
            "tokens": log.tokens,
            "error.type": log.error,
            "rpc.response.status_code"
            if isinstance(status, str)
            else "http.response.status_code": status,
        }
        self._span.set_attributes(
            {name: value for name, value in attributes.items() if value not in (None, "")}
        )
        if log.error:
            self._span.set_status(self._trace.StatusCode.ERROR)
        self._span.end()


def _nanoseconds(monotonic: float) -> int:
    """Return a time of `time.monotonic` in nanoseconds since 1970, as spans have them."""
    return time.time_ns() - round(1e9 * (time.monotonic() - monotonic))  # wall clock of the trace
