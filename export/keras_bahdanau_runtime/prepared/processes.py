"""Work shared by processes: results in the order of the tasks, few of which wait at a time."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any


def each(
    function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], processes: int
) -> Iterator[Any]:
    """Calls `function(*task)` for each task.

    Args:
        function: A function of a module; processes import that module, and whatever the script that
            was started imports outside of `if __name__ == "__main__"`.
        tasks: Taken one by one, two more than there are processes in advance.
        processes: How many processes share the work; 1 for none but this one.

    Yields:
        The results, in the order of the tasks.

    Raises:
        ChildProcessError: If a process was killed.
    """
    if processes == 1:
        for task in tasks:
            yield function(*task)
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    pool = ProcessPoolExecutor(processes, context, initializer=_begin)
    waiting: deque[Future[Any]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(function, *task))
            if len(waiting) == processes + 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "A process that shared the work has died: killed for lack of memory, or started by a "
            'script that does its work outside of `if __name__ == "__main__"`. The same call goes '
            "on where it was."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Makes a process one of many: no threads of the library's, no life after its parent."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too, and ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
