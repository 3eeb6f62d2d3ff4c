"""Settings of a service and its limits, which are also the flags of the command `serve`."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import option
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.logs import check_log_format, log_format_option

_LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


def _limit(default: int | None, help: str, flag: str) -> Any:
    return option(default, help, flags=flag, minimum=1, panel="Limits")


@dataclass(frozen=True, kw_only=True)
class TextLimits:
    """Limits of each text."""

    characters: int = _limit(5000, "Maximum characters of a text.", "--max-characters")
    tokens: int = _limit(1024, "Maximum tokens of a text.", "--max-tokens")


@dataclass(frozen=True, kw_only=True)
class Limits(TextLimits):
    """Limits of a service for each request and for its queue.

    The tokens of a text include the end of sentence. The cost of a request is the sum over its
    texts of source tokens x steps x beam, where the steps are the most that the search can take.

    Args:
        queued_tokens: int, tokens of the texts that wait or run.
        body: int, bytes of a request before and after decompression.
        bodies: int, bytes of all bodies that are arriving or being parsed, without the first 64 KiB
            of each.

    Raises:
        ValueError: A value is not positive.
    """

    texts: int = _limit(256, "Maximum texts of a request.", "--max-texts")
    queue: int = _limit(4096, "Maximum number of texts that wait or run.", "--max-queue")
    queued_tokens: int = 500_000
    body: int = 16 * 2**20
    bodies: int = 256 * 2**20
    beam_size: int | None = _limit(
        None, "Largest beam_size of a request; that of the artifact by default.", "--max-beam-size"
    )
    cost: int = _limit(
        50_000_000,
        "Largest cost of a request: the sum of source tokens x steps x beam of its texts.",
        "--max-cost",
    )
    timeout: float = option(60.0, "Time limit of a request, in seconds.", panel="Limits")

    def __post_init__(self) -> None:
        counts = {name: value for name, value in vars(self).items() if name != "timeout"}
        if self.beam_size is None:
            del counts["beam_size"]
        check_positive(**counts)
        check_range("timeout", self.timeout, float, 0, open_low=True)

    def check_texts(self, count: int) -> None:
        """Refuse a request with too many texts.

        Raises:
            ServiceError: "too_large".
        """
        if count > self.texts:
            raise ServiceError(
                "too_large",
                f"Argument `text` must be at most {self.texts} texts. Received: {count}",
                "text",
            )

    def check_cost(self, cost: int) -> None:
        """Refuse a request that takes too long to compute.

        Raises:
            ServiceError: "too_costly".
        """
        if cost > self.cost:
            raise ServiceError(
                "too_costly",
                f"A request must cost at most {self.cost}, the sum over its texts of source tokens "
                f"x steps x beam. Send fewer or shorter texts. Received: {cost}",
            )


@dataclass(frozen=True)
class Settings:
    """Settings of a service.

    `sources` are the folders by model name; see `Repository`. Port 0 is any free port, and
    `grpc_port=None` is no gRPC. Batches are those of `Engine`, `megabytes` is that of `Translator`,
    and several processes share the port and the cores; see `processes.supervise`.

    Raises:
        ValueError: A value is out of range, the address is not local and there are neither keys nor
            `no_auth`, or the TLS files are not a certificate and its unencrypted key.
    """

    sources: Mapping[str, Path]
    host: str = option("127.0.0.1", "Address to listen on.", panel="Network")
    port: int = option(8000, "HTTP port; 0 for a free one.", panel="Network")
    grpc_port: int | None = option(8001, "gRPC port; 0 disables gRPC.", panel="Network")
    api_key_file: Path | None = option(
        None, "File of accepted API keys, one a line.", panel="Access"
    )
    no_auth: bool = option(
        False, "Accept requests without a key on any address.", flags="--no-auth", panel="Access"
    )
    tls_certificate: Path | None = option(None, "TLS certificate chain, PEM.", panel="Network")
    tls_key: Path | None = option(None, "Private key of the certificate, PEM.", panel="Network")
    watch: float = option(
        0.0, "Seconds between checks for replaced artifacts; 0 disables them.", panel="System"
    )
    grace: float = option(
        30.0, "Seconds to finish accepted requests after SIGTERM.", panel="System"
    )
    drain_delay: float = option(
        0.0,
        "Seconds after SIGTERM in which requests are still accepted, while the service is not "
        "ready and load balancers remove it.",
        panel="System",
    )
    log_format: str = log_format_option()
    tracing: bool = option(
        False,
        "Send traces by OTLP over HTTP; OpenTelemetry's variables, such as "
        "OTEL_EXPORTER_OTLP_ENDPOINT, configure them. Needs the extra tracing.",
        flags="--tracing",
        panel="System",
    )
    # In seconds.
    max_wait: float = option(
        0.005,
        "Milliseconds that a request waits for others to batch.",
        per_unit=1000,
        panel="Batching",
    )
    batch_size: int = option(12, "Maximum number of texts in a batch.", panel="Batching")
    parallel_batches: int | None = option(
        None, "Batches that one process runs at once; one per core by default.", panel="Batching"
    )
    model_threads: int | None = option(
        None,
        "Threads of a model, shared by the batches that run at once; by default one per core, at "
        "most 4, and 1 with several processes.",
        panel="Batching",
    )
    megabytes: float | None = option(
        1024.0,
        "Memory limit for the runs of a model, in MB, without its weights.",
        panel="Limits",
    )
    limits: Limits = field(default_factory=Limits)
    processes: int = option(1, "Number of processes that share the port.", panel="System")

    def __post_init__(self) -> None:
        if not self.sources:
            raise argument_error("sources", "name an artifact", received="none")
        if self.host not in _LOCAL_HOSTS and self.api_key_file is None and not self.no_auth:
            raise argument_error(
                "host",
                f"be one of {_LOCAL_HOSTS} without keys",
                received=(
                    f"{self.host!r}. Pass api_key_file, or no_auth=True if a proxy or a firewall "
                    "controls access."
                ),
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise argument_error(
                ("tls_certificate", "tls_key"), "be passed together", received="one of them"
            )
        if self.tls_certificate is not None and self.tls_key is not None:
            _check_certificate(self.tls_certificate, self.tls_key)
        check_log_format(self.log_format)
        check_positive(batch_size=self.batch_size, processes=self.processes)
        for name in ("watch", "grace", "drain_delay", "max_wait"):
            check_range(name, getattr(self, name), float, 0)
        for name in ("port", "grpc_port"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), int, 0, 65535)
        if self.processes > 1 and self.grpc_port == 0:
            raise argument_error(
                "grpc_port", "be a number, or None, with several processes", received="0"
            )


def _check_certificate(certificate: Path, key: Path) -> None:
    """Raise a `ValueError` unless the files are a certificate chain and its unencrypted key."""
    try:
        # With an empty password OpenSSL does not prompt for one in the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise argument_error(
            ("tls_certificate", "tls_key"),
            "be PEM files of a certificate chain and of its key, not encrypted",
            received=f"{certificate} and {key}, {error}",
        ) from error
