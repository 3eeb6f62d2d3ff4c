"""The last step of `prepare`: the pairs of each shard, gathered from all blocks."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_bahdanau_runtime.prepared.corpus import hash_of, shard_name
from keras_bahdanau_runtime.prepared.encoding import block_name
from keras_bahdanau_runtime.prepared.shard import LAST, Shard, file_name, files_of, join
from keras_bahdanau_runtime.prepared.unfinished import WORK


def gather(output: Path, number: int, bounds: Any, aligned: bool, seed: int) -> dict[str, Any]:
    """Writes a shard, unless it is there: its pairs of all blocks, in an order drawn at random.

    Args:
        output: The corpus's folder.
        number: The shard's.
        bounds: Where its pairs begin and end in each block, ints `(blocks, 2)`.
        aligned: Whether there are alignments.
        seed: Of the order.

    Returns:
        Size and hash of each file, by its name.
    """
    name = shard_name(number)
    if not (output / file_name(name, LAST)).exists():
        # The maps of the blocks are let go as soon as they are joined.
        shard = join(
            [
                Shard.load(output / WORK, block_name(block), aligned).part(begin, end)
                for block, (begin, end) in enumerate(bounds)
            ]
        )
        rng = np.random.default_rng([seed, 1, number])
        shard.take(rng.permutation(len(shard))).save(output, name)
    names = [file_name(name, kind) for kind in files_of(aligned)]
    return {name: record_of(output / name) for name in names}


def record_of(path: Path) -> dict[str, Any]:
    """Size and hash of a file, as the manifest has them."""
    return {"bytes": path.stat().st_size, "sha256": hash_of(path)}
