"""The format and the compression of a data file, both selected by the end of its name."""

import os
from pathlib import Path
from typing import NamedTuple

# Suffixes in lower case; the case of a name does not matter.
COMPRESSIONS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
_FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".tmx": "tmx",
}


# Other formats, whose lines are no sentences, and compressions that are not read.
_STRUCTURED = {
    *(".json", ".json5", ".jsonlines", ".geojson", ".ldjson", ".psv", ".parq", ".sgm", ".sgml"),
    *(".lz4", ".lzma", ".7z", ".rar", ".z", ".tgz", ".tbz", ".tbz2", ".txz"),
    *(".xml", ".xlf", ".xliff", ".html", ".htm", ".yaml", ".yml", ".po", ".srt", ".vtt"),
    *(".xls", ".xlsx", ".ods", ".doc", ".docx", ".odt", ".rtf", ".pdf"),
    *(".arrow", ".feather", ".avro", ".orc", ".npy", ".npz", ".pkl", ".sqlite", ".zip", ".tar"),
}


class FileKind(NamedTuple):
    """Format and compression of a data file.

    Args:
        format: "csv", "tsv", "jsonl", "parquet" or "tmx"; `None` for any other name.
        compression: "gzip", "bzip2", "xz" or "zstd"; `None` for an uncompressed file.
    """

    format: str | None = None
    compression: str | None = None


def uncompressed_name(path: str | os.PathLike[str]) -> str:
    """Return the name of a file without its folder and without the suffix of a compression.

    Example:

    >>> uncompressed_name("data/train.tsv.xz")
    'train.tsv'
    """
    name = Path(path).name
    stem, suffix = os.path.splitext(name)
    return stem if suffix.lower() in COMPRESSIONS else name


def file_kind(path: str | os.PathLike[str]) -> FileKind:
    """Return the kind of a file with this name.

    Raises:
        ValueError: The name is that of a compressed Parquet file, which is always compressed
            inside.

    Example:

    >>> file_kind("data/train.CSV.gz")
    FileKind(format='csv', compression='gzip')
    """
    suffix = Path(path).suffix.lower()
    format_suffix = Path(uncompressed_name(path)).suffix.lower()
    kind = FileKind(_FORMATS.get(format_suffix), COMPRESSIONS.get(suffix))
    if kind.format == "parquet" and kind.compression is not None:
        raise ValueError(
            f"{os.fspath(path)}: expected Parquet without a compression around it. "
            f"Received: {kind.compression}. Unpack the file first."
        )
    return kind


def is_lines(path: str | os.PathLike[str]) -> bool:
    """Return whether a file with this name has one sentence per line, as those of no known format.

    Example:

    >>> is_lines("train.en.gz"), is_lines("train.json"), is_lines("train.tsv")
    (True, False, False)
    """
    suffix = Path(uncompressed_name(path)).suffix.lower()
    return suffix not in _FORMATS and suffix not in _STRUCTURED
