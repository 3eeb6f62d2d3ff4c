"""The command `serve`: the service of `keras_bahdanau_runtime.service`, set by options."""

from pathlib import Path
from typing import Annotated

import typer

from keras_bahdanau_runtime.errors import ArtifactError, require
from keras_bahdanau_runtime.files import folder_name


def serve(
    artifacts: Annotated[
        list[str],
        typer.Argument(
            help="Artifacts, or folders of them by version number: PATH, or NAME=PATH.",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of HTTP; 0 for a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="Port of gRPC; 0 for none.")] = 8001,
    workers: Annotated[int, typer.Option(help="Processes on the port.")] = 1,
    api_key_file: Annotated[
        Path | None, typer.Option(help="Keys that open the service, one a line.")
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Let everybody in on any address.")
    ] = False,
    tls_certificate: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    watch: Annotated[
        float, typer.Option(help="Seconds between looks for replaced artifacts; 0 for none.")
    ] = 0.0,
    grace: Annotated[float, typer.Option(help="Seconds for accepted work after SIGTERM.")] = 30.0,
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
    max_wait: Annotated[float, typer.Option(help="Milliseconds to wait for a batch.")] = 5.0,
    batch_size: Annotated[int, typer.Option(help="Most texts in a batch.")] = 12,
    threads: Annotated[
        int | None,
        typer.Option(help="Batches at once of a worker; one for each of its cores if absent."),
    ] = None,
    alone_threads: Annotated[
        int | None,
        typer.Option(
            help="Of a batch that is all there is to do; every core, at most 4, if absent, and 1 "
            "with several workers. "
            "More than 1 has a model twice in memory."
        ),
    ] = None,
    megabytes: Annotated[
        float, typer.Option(help="Most memory of a model's runs, weights not counted.")
    ] = 1024.0,
    max_characters: Annotated[int, typer.Option(help="Of a text.", min=1)] = 5000,
    max_tokens: Annotated[int, typer.Option(help="Of a text.", min=1)] = 1024,
    max_texts: Annotated[int, typer.Option(help="Of a request.", min=1)] = 256,
    max_queue: Annotated[int, typer.Option(help="Texts that wait or run.", min=1)] = 4096,
    timeout: Annotated[float, typer.Option(help="Longest time of a request, in seconds.")] = 60.0,
) -> None:
    """Serves artifacts over HTTP and gRPC: a page, /translate, and the Open Inference Protocol."""
    for module in ("starlette", "uvicorn", "prometheus_client"):
        require(module, extra="serve")
    from keras_bahdanau_runtime.service.engine import Limits
    from keras_bahdanau_runtime.service.errors import ServiceError
    from keras_bahdanau_runtime.service.server import Settings
    from keras_bahdanau_runtime.service.workers import supervise

    settings = Settings(
        _named(artifacts),
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
            seconds=timeout,
        ),
    )
    try:
        finished = supervise(settings, workers)
    except ServiceError as error:
        raise ArtifactError(str(error)) from error
    if not finished:
        raise typer.Exit(1)


def _named(artifacts: list[str]) -> dict[str, Path]:
    """Folders by model name: NAME of NAME=PATH, or the folder's."""
    found: dict[str, Path] = {}
    for given in artifacts:
        name, separator, path = given.partition("=")
        if not separator or "/" in name:
            name, path = folder_name(given), given
        if name in found:
            raise ValueError(
                f"Argument `artifacts` must have a name of its own each. Received: {name!r} twice"
            )
        found[name] = Path(path)
    return found
