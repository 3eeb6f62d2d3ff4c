"""The processes that a launcher, such as torchrun, started together."""

import os

# Environment variables with the rank and number of processes: those of torchrun, and those that
# `keras.distribution.initialize` reads.
_LAUNCHER_VARIABLES = {
    "torch": ("RANK", "WORLD_SIZE"),
    "jax": ("KERAS_DISTRIBUTION_PROCESS_ID", "KERAS_DISTRIBUTION_NUM_PROCESSES"),
}


def launched_rank(backend: str | None = None) -> tuple[int, int]:
    """Return `(rank, processes)` of this process from the variables of a launcher.

    Args:
        backend: Keras backend; `None` for the launcher of any backend.
    """
    for name, (rank, processes) in _LAUNCHER_VARIABLES.items():
        if backend in (None, name) and processes in os.environ:
            return int(os.environ[rank]), int(os.environ[processes])
    return 0, 1
