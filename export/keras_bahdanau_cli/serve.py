"""Command `serve`: run the HTTP and gRPC service of `keras_bahdanau_runtime.service`."""

from pathlib import Path
from typing import Annotated

import typer

from keras_bahdanau_cli.arguments import MaxCharacters, MaxTokens
from keras_bahdanau_cli.hub_artifacts import artifact_folders
from keras_bahdanau_runtime.errors import ArtifactError, require


def serve(
    artifacts: Annotated[
        list[str],
        typer.Argument(
            help="Artifacts, or folders of artifacts by version number: PATH, or NAME=PATH. Also "
            "hf://USER/NAME[@REVISION] on the Hugging Face Hub.",
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on.", rich_help_panel="Network")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="HTTP port; 0 for a free one.", rich_help_panel="Network")
    ] = 8000,
    grpc_port: Annotated[
        int, typer.Option(help="gRPC port; 0 disables gRPC.", rich_help_panel="Network")
    ] = 8001,
    processes: Annotated[
        int, typer.Option(help="Number of processes that share the port.", rich_help_panel="System")
    ] = 1,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File of accepted API keys, one a line.", rich_help_panel="Access"),
    ] = None,
    no_auth: Annotated[
        bool,
        typer.Option(
            "--no-auth",
            help="Accept requests without a key on any address.",
            rich_help_panel="Access",
        ),
    ] = False,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="TLS certificate chain, PEM.", rich_help_panel="Network")
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(help="Private key of the certificate, PEM.", rich_help_panel="Network"),
    ] = None,
    watch: Annotated[
        float,
        typer.Option(
            help="Seconds between checks for replaced artifacts; 0 disables them.",
            rich_help_panel="System",
        ),
    ] = 0.0,
    grace: Annotated[
        float,
        typer.Option(
            help="Seconds to finish accepted requests after SIGTERM.", rich_help_panel="System"
        ),
    ] = 30.0,
    log_format: Annotated[
        str, typer.Option(help="Format of the log: text or json.", rich_help_panel="System")
    ] = "text",
    max_wait: Annotated[
        float,
        typer.Option(
            help="Milliseconds that a request waits for others to batch.",
            rich_help_panel="Batching",
        ),
    ] = 5.0,
    batch_size: Annotated[
        int, typer.Option(help="Maximum number of texts in a batch.", rich_help_panel="Batching")
    ] = 12,
    parallel_batches: Annotated[
        int | None,
        typer.Option(
            help="Batches that one process runs at once; one per core by default.",
            rich_help_panel="Batching",
        ),
    ] = None,
    model_threads: Annotated[
        int | None,
        typer.Option(
            help="Threads of a model, shared by the batches that run at once; by default one per "
            "core, at most 4, and 1 with several processes.",
            rich_help_panel="Batching",
        ),
    ] = None,
    megabytes: Annotated[
        float,
        typer.Option(
            help="Memory limit for the runs of a model, in MB, without its weights.",
            rich_help_panel="Limits",
        ),
    ] = 1024.0,
    max_characters: MaxCharacters = 5000,
    max_tokens: MaxTokens = 1024,
    max_texts: Annotated[
        int, typer.Option(help="Maximum texts of a request.", min=1, rich_help_panel="Limits")
    ] = 256,
    max_queue: Annotated[
        int,
        typer.Option(
            help="Maximum number of texts that wait or run.", min=1, rich_help_panel="Limits"
        ),
    ] = 4096,
    max_beam_size: Annotated[
        int | None,
        typer.Option(
            help="Largest beam_size of a request; that of the artifact by default.",
            min=1,
            rich_help_panel="Limits",
        ),
    ] = None,
    max_cost: Annotated[
        int,
        typer.Option(
            help="Largest cost of a request: the sum of source tokens x steps x beam of its texts.",
            min=1,
            rich_help_panel="Limits",
        ),
    ] = 50_000_000,
    timeout: Annotated[
        float, typer.Option(help="Time limit of a request, in seconds.", rich_help_panel="Limits")
    ] = 60.0,
) -> None:
    """Serve artifacts over HTTP and gRPC: web page, /translate, and Open Inference Protocol.

    Example:
        keras-bahdanau serve en-de=artifact --port 8000 --grpc-port 8001
    """
    for module in ("starlette", "uvicorn", "prometheus_client"):
        require(module, extra="serve")
    from keras_bahdanau_runtime.service.engine import Limits
    from keras_bahdanau_runtime.service.errors import ServiceError
    from keras_bahdanau_runtime.service.processes import supervise
    from keras_bahdanau_runtime.service.server import Settings

    settings = Settings(
        artifact_folders(artifacts),
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
        parallel_batches=parallel_batches,
        model_threads=model_threads,
        megabytes=megabytes,
        limits=Limits(
            characters=max_characters,
            tokens=max_tokens,
            texts=max_texts,
            queue=max_queue,
            timeout=timeout,
            beam_size=max_beam_size,
            cost=max_cost,
        ),
        processes=processes,
    )
    try:
        finished = supervise(settings)
    except ServiceError as error:
        raise ArtifactError(str(error)) from error
    if not finished:
        raise typer.Exit(1)
