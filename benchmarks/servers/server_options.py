"""Command-line arguments and response body of the servers in this folder.

    python NAME_server.py ARTIFACT PORT PROCESSES THREADS BATCH_SIZE MAX_WAIT

Each script serves a `Translator` with another framework, in few lines and with the settings that
the framework recommends. `bench_servers.py` starts them.
"""

import os
import sys
from typing import NamedTuple

from keras_bahdanau_runtime import Translator


class ServerOptions(NamedTuple):
    """The arguments of a server.

    Args:
        artifact: Path.
        port: HTTP port.
        processes: int, number of translating processes.
        threads: int, threads per batch.
        batch_size: int, maximum number of texts per batch.
        max_wait: float, maximum seconds that a text waits for its batch to fill.
    """

    artifact: str
    port: int
    processes: int
    threads: int
    batch_size: int
    max_wait: float

    @property
    def concurrent_batches(self):
        """Number of batches that keep one process's share of the cores busy."""
        return max(1, len(os.sched_getaffinity(0)) // (max(1, self.processes) * self.threads))

    def open_translator(self):
        return Translator(self.artifact, threads=self.threads)


def parse_options():
    """Return the `ServerOptions` of the command line."""
    artifact, port, processes, threads, batch_size, max_wait = sys.argv[1:]
    return ServerOptions(
        artifact, int(port), int(processes), int(threads), int(batch_size), float(max_wait)
    )


def response_body(translation):
    """Return the same fields as a response of the service."""
    return {"translations": [vars(translation)]}
