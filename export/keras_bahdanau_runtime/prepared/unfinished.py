"""What is not finished of a corpus: a folder in that of the corpus, and whose it may be."""

import contextlib
import json
from pathlib import Path

from keras_bahdanau_runtime.prepared.corpus import FORMAT, MANIFEST_FILE, SHARD, TOKENIZER_FILE

WORK = "work"
PLAN_FILE = "plan.json"
BLOCK = "block-"  # so the names of a block's files begin


def may_become_corpus(output: Path) -> bool:
    """Whether a folder holds nothing, a corpus, or what an interrupted call has left of one."""
    names = {path.name for path in output.iterdir() if not path.name.startswith(".")}
    if MANIFEST_FILE in names:
        try:
            return bool(json.loads((output / MANIFEST_FILE).read_bytes())["format"] == FORMAT)
        except (ValueError, KeyError, TypeError):
            return False
    work = output / WORK
    if names and not (work.is_dir() and all(map(_is_ours, work.iterdir()))):
        return False
    return all(name in (WORK, TOKENIZER_FILE) or name.startswith(SHARD) for name in names)


def remove_work(output: Path) -> None:
    """Removes the folder with what was written into it, and leaves what anybody else did."""
    work = output / WORK
    if work.is_dir():
        for path in filter(_is_ours, work.iterdir()):
            path.unlink()
        with contextlib.suppress(OSError):  # it holds something else
            work.rmdir()


def _is_ours(path: Path) -> bool:
    """Whether a file of the folder is one of `prepare`; hidden ones are those of `written`."""
    return path.is_file() and (path.name == PLAN_FILE or path.name.startswith((BLOCK, ".")))
