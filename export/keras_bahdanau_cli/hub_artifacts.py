"""Artifacts of the commands: a folder, or an address on the Hugging Face Hub."""

from pathlib import Path

from keras_bahdanau_cli.terminal import print_message
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import folder_name
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


def artifact_folders(artifacts: list[str]) -> dict[str, Path]:
    """Return the folders of several artifacts by name.

    Args:
        artifacts: NAME=ARTIFACT, or ARTIFACT with the name of the folder or repository.

    Raises:
        ValueError: Two artifacts have the same name, or as `artifact_folder`.
    """
    paths: dict[str, str] = {}
    for argument in artifacts:
        name, separator, path = argument.partition("=")
        if not separator or "/" in name:
            path = argument
            folder = parse_hub_address(path)[0] if is_hub_address(path) else path
            name = folder_name(folder)
        if name in paths:
            raise argument_error("artifacts", "have different names", received=f"{name!r} twice")
        paths[name] = path
    return {name: artifact_folder(path) for name, path in paths.items()}
