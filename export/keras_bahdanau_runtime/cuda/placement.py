"""Says which operators of a graph do not run on the provider that was asked for."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.providers import CPU

logger = logging.getLogger("keras_bahdanau_runtime")

# What sizes are computed with, outside of loops: onnxruntime does it on the CPU on purpose.
_OF_SIZES = frozenset(
    "Add Cast Concat Div Equal Gather Max Min Mod Mul Range ReduceProd Shape Size Slice Squeeze "
    "Sub Unsqueeze Where".split()
)


def warn_of_cpu(session: Any, path: Path, asked: str, in_loops: set[str]) -> None:
    """Warns of operators on the CPU that compute no sizes, or stand in a loop; others belong there.

    Args:
        session: A session.
        path: Of its graph.
        asked: The provider that was asked for.
        in_loops: Names of the graph's nodes that stand in loops.
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        logger.info(
            "onnxruntime says from 1.24 on which operators of %s run on the CPU.", path.name
        )
        return
    left, total = Counter[str](), 0
    for part in session.get_provider_graph_assignment_info():
        for node in part.get_nodes():
            total += 1
            looped = node.name in in_loops
            if part.ep_name == CPU and (looped or node.op_type not in _OF_SIZES):
                left[f"{node.op_type} in a loop" if looped else node.op_type] += 1
    if left:
        logger.warning(
            "%d of %d operators of %s run on the CPU and not on %s: %s.",
            left.total(),
            total,
            path.name,
            asked,
            ", ".join(f"{name} ({count})" for name, count in left.most_common()),
        )
