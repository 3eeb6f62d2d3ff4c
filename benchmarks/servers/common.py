"""What each of the servers here is told, and what each answers.

    python SERVER.py ARTIFACT PORT PROCESSES THREADS BATCH_SIZE MAX_WAIT

They show how a `Translator` is served by others, in few lines, with the settings that each of them
has for it; `bench_servers.py` starts them.
"""

import os
import sys
from typing import NamedTuple

from keras_bahdanau_runtime import Translator


class Given(NamedTuple):
    """The arguments of a server.

    Args:
        artifact: Path.
        port: Of HTTP.
        processes: int, those that translate.
        threads: int, the threads of one batch.
        batch_size: int. Most texts in a batch.
        max_wait: float, seconds that a text waits for others.
    """

    artifact: str
    port: int
    processes: int
    threads: int
    batch_size: int
    max_wait: float

    @property
    def at_once(self):
        """The batches of one process that keep its share of the cores busy."""
        return max(1, len(os.sched_getaffinity(0)) // (max(1, self.processes) * self.threads))

    def open(self):
        return Translator(self.artifact, threads=self.threads)


def given():
    """`Given`, from the command line."""
    artifact, port, processes, threads, batch_size, max_wait = sys.argv[1:]
    return Given(
        artifact, int(port), int(processes), int(threads), int(batch_size), float(max_wait)
    )


def answer(translation):
    """The fields that the service answers with, as JSON."""
    return {"translations": [vars(translation)]}
