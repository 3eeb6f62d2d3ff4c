"""Command `serve`: run the HTTP and gRPC service of `keras_bahdanau_runtime.service`."""

import sys
from dataclasses import dataclass

from keras_bahdanau_cli.arguments import argument
from keras_bahdanau_cli.flags import Values
from keras_bahdanau_cli.hub_artifacts import artifact_folders
from keras_bahdanau_runtime.errors import ArtifactError, require
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.settings import Limits, Settings


@dataclass(frozen=True, kw_only=True)
class ServedArtifacts:
    """Artifacts to serve."""

    artifacts: list[str] = argument(
        "Artifacts, or folders of artifacts by version number: PATH, or NAME=PATH. Also "
        "hf://USER/NAME[@REVISION] on the Hugging Face Hub."
    )


def serve(served: ServedArtifacts, settings: Values[Settings], limits: Limits) -> None:
    """Serve artifacts over HTTP and gRPC: web page, /translate, and Open Inference Protocol.

    Example:
        keras-bahdanau serve en-de=artifact --port 8000 --grpc-port 8001
    """
    for module in ("starlette", "uvicorn", "prometheus_client"):
        require(module, extra="serve")
    if settings.get("tracing"):
        for module in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
            require(module, extra="tracing")
    from keras_bahdanau_runtime.service.processes import supervise

    if settings.get("grpc_port") == 0:
        settings["grpc_port"] = None  # a free port would be unknown to clients
    try:
        finished = supervise(
            Settings(artifact_folders(served.artifacts), limits=limits, **settings)
        )
    except ServiceError as error:
        raise ArtifactError(str(error)) from error
    if not finished:
        sys.exit(1)
