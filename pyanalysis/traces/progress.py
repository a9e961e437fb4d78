"""A line on stderr that shows how far long work has come. Nothing is shown unless stderr is a terminal."""

from __future__ import annotations

import sys
import time

_INTERVAL_S = 0.1
_QUIET_S = 0.5  # work that takes less shows nothing


class Progress:
    """Call `update` as often as convenient and `close` at the end; `what` names the work."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._enabled = sys.stderr.isatty()
        self._next = time.monotonic() + _QUIET_S
        self._shown = False

    def update(self, fraction: float) -> None:
        """`fraction` of the work is done, 0 to 1."""
        if not self._enabled or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _INTERVAL_S
        self._shown = True
        print(f"\r{self._what}: {min(fraction, 1):4.0%}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
