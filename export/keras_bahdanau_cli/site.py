"""Command `site`: write a static web site that translates in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from keras_bahdanau_cli.arguments import MaxCharacters, MaxTokens
from keras_bahdanau_cli.hub_artifacts import artifact_folders
from keras_bahdanau_cli.terminal import print_message


def site(
    artifacts: Annotated[
        list[str],
        typer.Argument(
            help="Artifacts: PATH or NAME=PATH. Also hf://USER/NAME[@REVISION] on the Hugging Face "
            "Hub."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to create.")],
    runtime: Annotated[
        Path, typer.Option(help="Folder of the npm package onnxruntime-web.")
    ] = Path("node_modules/onnxruntime-web"),
    example: Annotated[
        list[str] | None,
        typer.Option(help="A text that the page offers to translate. May be repeated."),
    ] = None,
    max_characters: MaxCharacters = 5000,
    max_tokens: MaxTokens = 1024,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a site at the output.")
    ] = False,
) -> None:
    """Write a static web site that translates in the browser, without a server.

    Example:
        keras-bahdanau site en-de=artifact -o site
    """
    from keras_bahdanau_runtime.site import write_site

    folders = artifact_folders(artifacts)
    size = write_site(
        folders, output, runtime, example or (), max_characters, max_tokens, overwrite
    )
    print_message(
        f"The site is {output}: {size / 1e6:.1f} MB with {', '.join(folders)}. "
        f"Look at it with: python -m http.server --directory {output}"
    )
