"""Command `site`: write a static web site that translates in the browser."""

from dataclasses import dataclass
from pathlib import Path

from keras_bahdanau_cli.arguments import argument, output_path
from keras_bahdanau_cli.hub_artifacts import artifact_folders
from keras_bahdanau_cli.terminal import print_message
from keras_bahdanau_runtime.option_fields import option
from keras_bahdanau_runtime.service.settings import TextLimits


@dataclass(frozen=True, kw_only=True)
class SiteOptions:
    """Artifacts and folders of a site."""

    artifacts: list[str] = argument(
        "Artifacts: PATH or NAME=PATH. Also hf://USER/NAME[@REVISION] on the Hugging Face Hub."
    )
    output: Path = output_path("The folder to create.")
    runtime: Path = option(
        Path("node_modules/onnxruntime-web"), "Folder of the npm package onnxruntime-web."
    )
    example: tuple[str, ...] = option(
        (), "A text that the page offers to translate. May be repeated."
    )
    overwrite: bool = option(False, "Replace a site at the output.", flags="--overwrite")


def site(options: SiteOptions, limits: TextLimits) -> None:
    """Write a static web site that translates in the browser, without a server.

    Example:
        keras-bahdanau site en-de=artifact -o site
    """
    from keras_bahdanau_runtime.site import write_site

    output, folders = options.output, artifact_folders(options.artifacts)
    size = write_site(
        folders,
        output,
        options.runtime,
        options.example,
        limits.characters,
        limits.tokens,
        options.overwrite,
    )
    print_message(
        f"The site is {output}: {size / 1e6:.1f} MB with {', '.join(folders)}. "
        f"Look at it with: python -m http.server --directory {output}"
    )
