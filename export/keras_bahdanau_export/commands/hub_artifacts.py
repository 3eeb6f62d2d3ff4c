"""Artifacts of the commands: a folder, or an address on the Hugging Face Hub."""

from pathlib import Path

from keras_bahdanau_export.commands.terminal import print_message
from keras_bahdanau_runtime.hub import download, is_hub_address, parse_hub_address


def artifact_folder(artifact: str) -> Path:
    """Return the folder of an artifact, after downloading it if it is on the Hub.

    Args:
        artifact: A path, or `hf://USER/NAME` with an optional `@REVISION`.

    Raises:
        ValueError: The address has the wrong form, or as `download`, which may raise other errors.
    """
    if not is_hub_address(artifact):
        return Path(artifact)

    def announce(files: int, size: int) -> None:
        print_message(f"Downloading {artifact}: {files} files, {size / 1e6:,.1f} MB.")

    return download(*parse_hub_address(artifact), on_download=announce)
