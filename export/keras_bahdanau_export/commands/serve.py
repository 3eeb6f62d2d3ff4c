"""Command `serve`: the service of `keras_bahdanau_runtime.service`."""

from pathlib import Path
from typing import Annotated

import typer

from keras_bahdanau_runtime.errors import ArtifactError, require
from keras_bahdanau_runtime.files import given_name


def serve(
    artifacts: Annotated[
        list[str],
        typer.Argument(
            help="Artifacts, or folders with artifacts by version number: PATH or NAME=PATH.",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="HTTP port; 0 for any free port.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC port; 0 for no gRPC.")] = 8001,
    processes: Annotated[int, typer.Option(help="Processes that share the port.")] = 1,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the API keys, one per line.")
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Listen on any address without API keys.")
    ] = False,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="File of the certificate chain, PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="File of the certificate's key, PEM.")
    ] = None,
    watch: Annotated[
        float, typer.Option(help="Seconds between checks for replaced artifacts; 0 for none.")
    ] = 0.0,
    grace: Annotated[float, typer.Option(help="Seconds for accepted work after SIGTERM.")] = 30.0,
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
    max_wait: Annotated[
        float, typer.Option(help="Milliseconds that a text waits for a batch.")
    ] = 5.0,
    batch_size: Annotated[int, typer.Option(help="Most texts in a batch.")] = 12,
    threads: Annotated[
        int | None,
        typer.Option(help="Batches at once in a process; by default one per core of the process."),
    ] = None,
    alone_threads: Annotated[
        int | None,
        typer.Option(
            help="Threads of a batch that is the only work: by default one per core, at most 4, or "
            "1 with several processes. More than 1 keeps the model in memory twice."
        ),
    ] = None,
    megabytes: Annotated[
        float, typer.Option(help="Most memory for the computations of a model, without weights.")
    ] = 1024.0,
    max_characters: Annotated[int, typer.Option(help="Per text.", min=1)] = 5000,
    max_tokens: Annotated[int, typer.Option(help="Per text.", min=1)] = 1024,
    max_texts: Annotated[int, typer.Option(help="Per request.", min=1)] = 256,
    max_queue: Annotated[int, typer.Option(help="Texts that wait or run.", min=1)] = 4096,
    timeout: Annotated[float, typer.Option(help="Most seconds for a request.")] = 60.0,
) -> None:
    """Serve artifacts over HTTP and gRPC: a web page, translation, and the inference protocol."""
    for module in ("starlette", "uvicorn", "prometheus_client"):
        require(module, extra="serve")
    from keras_bahdanau_runtime.service.engine import Limits
    from keras_bahdanau_runtime.service.errors import ServiceError
    from keras_bahdanau_runtime.service.processes import supervise
    from keras_bahdanau_runtime.service.server import Settings

    settings = Settings(
        _sources(artifacts),
        host,
        port,
        grpc_port or None,
        api_key_file=api_key_file,
        no_auth=no_auth,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        watch=watch,
        grace=grace,
        log_format=log_format,
        max_wait=max_wait / 1000,
        batch_size=batch_size,
        threads=threads,
        alone_threads=alone_threads,
        megabytes=megabytes,
        limits=Limits(
            characters=max_characters,
            tokens=max_tokens,
            texts=max_texts,
            queue=max_queue,
            timeout=timeout,
        ),
        processes=processes,
    )
    try:
        finished = supervise(settings)
    except ServiceError as error:
        raise ArtifactError(str(error)) from error
    if not finished:
        raise typer.Exit(1)


def _sources(artifacts: list[str]) -> dict[str, Path]:
    """Return folders by model name: NAME of NAME=PATH, or the name of the folder."""
    sources: dict[str, Path] = {}
    for argument in artifacts:
        name, separator, path = argument.partition("=")
        if not separator or "/" in name:
            name, path = given_name(argument), argument
        if name in sources:
            raise ValueError(
                f"Argument `artifacts` must have different names. Received: {name!r} twice"
            )
        sources[name] = Path(path)
    return sources
