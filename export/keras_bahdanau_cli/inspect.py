"""Command `inspect`: check an artifact and print its manifest."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from keras_bahdanau_cli.arguments import ARTIFACT, argument
from keras_bahdanau_cli.hub_artifacts import artifact_folder
from keras_bahdanau_cli.terminal import plain
from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.manifest import Manifest, read_unreplaced
from keras_bahdanau_runtime.option_fields import option


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """An artifact, and what to check in it."""

    artifact: str = argument(ARTIFACT)
    provider: str | None = option(
        None,
        "Also list the operators that this provider leaves to the CPU, and why.",
        values=("cuda",),
    )


def inspect(options: InspectOptions) -> None:
    """Check an artifact and print its manifest.

    Example:
        keras-bahdanau inspect artifact
    """
    from keras_bahdanau_runtime.session import read_graph

    def check(manifest: Manifest) -> tuple[Manifest, dict[str, Any]]:
        graphs = {}
        for name in manifest.files:
            if name.endswith(".onnx"):
                contents = read_graph(manifest, name)
                if options.provider is not None:
                    graphs[name] = contents
            else:
                manifest.check(name)
        return manifest, graphs

    manifest, graphs = read_unreplaced(artifact_folder(options.artifact), check)
    table = Table("property", "value", title=plain(options.artifact))
    table.add_row("format version", str(manifest.format_version))
    for name, record in manifest.files.items():
        row = f"{record.bytes:,} bytes, sha256 {record.sha256[:12]}..."
        table.add_row(plain(name), plain(row))
    sections = {
        "search": manifest.search.document,
        **{name: getattr(manifest, name) for name in ("vocabulary", "packages", "parity")},
    }
    for name, values in {**sections, **manifest.other}.items():
        if isinstance(values, dict):
            values = "\n".join(f"{key}: {value}" for key, value in values.items())
        table.add_row(plain(name), plain(values))
    table.add_row("max source length", str(manifest.max_source_length))
    if options.provider is not None:
        for name, lines in _gpu_fallbacks(graphs).items():
            text = "\n".join(lines) or "all operators run there, except shape arithmetic"
            table.add_row(plain(f"{name} on {options.provider}"), plain(text))
    Console().print(table)


def _gpu_fallbacks(graphs: dict[str, tuple[bytes, dict[str, bytes]]]) -> dict[str, list[str]]:
    """Return what CUDA leaves to the CPU, by graph, from the bytes that were checked."""
    onnx_ir = require("onnx_ir", extra="export")
    from keras_bahdanau_export.graph.writer import gpu_fallbacks

    fallbacks = {}
    for name, (contents, weights) in graphs.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            for file, data in {name: contents, **weights}.items():
                Path(folder, file).write_bytes(data)
            fallbacks[name] = gpu_fallbacks(onnx_ir.load(path))
    return fallbacks
