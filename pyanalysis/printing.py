"""Results on stdout."""

from __future__ import annotations

import os
import sys


def show(text: str) -> None:
    """Print `text`. A reader that has left (`moecache ... | head`) is no error: the exit status stays the command's."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """Send what is still to be printed nowhere, or the interpreter would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
