"""The format and the compression of a data file, both selected by the end of its name."""

import os
from pathlib import Path
from typing import NamedTuple

# Suffixes in lower case; the case of a name does not matter.
COMPRESSIONS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
_FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".tmx": "tmx",
}


class FileKind(NamedTuple):
    """Format and compression of a data file.

    Args:
        format: "csv", "tsv", "jsonl", "parquet" or "tmx"; `None` for any other name.
        compression: "gzip", "bzip2", "xz" or "zstd"; `None` for an uncompressed file.
    """

    format: str | None = None
    compression: str | None = None


def file_kind(path: str | os.PathLike[str]) -> FileKind:
    """Return the kind of a file with this name.

    Raises:
        ValueError: The name is that of a compressed Parquet file, which is always compressed
            inside.

    Example:

    >>> file_kind("data/train.CSV.gz")
    FileKind(format='csv', compression='gzip')
    """
    name = Path(Path(path).name)
    compression = COMPRESSIONS.get(name.suffix.lower())
    if compression is not None:
        name = name.with_suffix("")
    kind = FileKind(_FORMATS.get(name.suffix.lower()), compression)
    if kind.format == "parquet" and compression is not None:
        raise ValueError(
            f"{os.fspath(path)}: expected Parquet without a compression around it. "
            f"Received: {compression}. Unpack the file first."
        )
    return kind
