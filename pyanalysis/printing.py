"""Results on stdout."""

from __future__ import annotations

import os
import sys

from ggml_moecache.errors import BackendError


def show(text: str) -> None:
    """Print `text`. A reader that has left (`moecache ... | head`) is no error: the exit status stays the command's."""
    try:
        write(text + "\n")
    except BrokenPipeError:
        discard_stdout()


def write(data: str | bytes, *, go_on: bool = False) -> None:
    """Write `data` to stdout, at once. Raises BrokenPipeError if the reader has left, BackendError on a full disk.

    `go_on`: there are files to write as well, so a reader that has left is no reason to stop.
    """
    try:
        if isinstance(data, bytes):
            sys.stdout.buffer.write(data)
        else:
            sys.stdout.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        if not go_on:
            raise
        discard_stdout()
    except OSError as error:
        discard_stdout()
        raise BackendError(
            f"stdout cannot be written: {error.strerror}; what was to be printed is incomplete"
        ) from None


def discard_stdout() -> None:
    """Send what is still to be printed nowhere, or the interpreter would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
