"""Ctrl-C in the program `moecache`: exit status 130, nothing half-written, however often it is pressed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

STATUS = 130  # 128 + SIGINT, as a shell has it
# Ctrl-C reaches a program more than once (held down, or passed on by a parent in the same process group), and a second
# KeyboardInterrupt would end the removal of files that the first one has begun. So those that follow within this time
# do nothing. Later ones do: the first may have been swallowed, as Python swallows what is raised in a __del__.
_QUIET_S = 2.0


class _Handler:
    def __init__(self) -> None:
        self.ending = False
        self._last = -_QUIET_S

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.ending or now - self._last < _QUIET_S:
            return
        self._last = now
        raise KeyboardInterrupt


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """In the body SIGINT raises KeyboardInterrupt once; one that leaves the body ends the process, with status 130.

    Elsewhere than in the main thread, and where SIGINT is ignored or somebody else's, nothing is changed. May be
    entered again inside itself: the outer one counts.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    handler = _Handler()
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    except KeyboardInterrupt:
        handler.ending = True
        _end()
    except BaseException:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _end() -> NoReturn:
    """Leave with status 130.

    A pool's threads may still be in C++ code. When it returns it wants the interpreter's lock, and an interpreter that
    is being torn down answers by ending the thread, which C++ takes for an error and aborts the process (exit status
    134). So with other threads there is no tearing down. Without, there is, and libraries say their last words.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if threading.active_count() == 1:
        sys.exit(STATUS)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a reader that has left, a stream that is closed
            stream.flush()
    os._exit(STATUS)
