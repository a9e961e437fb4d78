"""Threads for replays, which run in C++ without the interpreter's lock."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def pool(workers: int | None = None) -> Iterator[ThreadPoolExecutor]:
    """A pool of `workers` threads; default: as many as this process may use CPUs.

    An error, or Ctrl-C, leaves it at once: jobs that have not begun are dropped, those that run are not waited for. (A
    replay cannot be stopped and may take minutes; ThreadPoolExecutor's own end would wait for it.)
    """
    executor = ThreadPoolExecutor(workers or len(os.sched_getaffinity(0)))
    try:
        yield executor
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    executor.shutdown()
