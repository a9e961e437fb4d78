"""Where a command is to write a file, as it was typed: pathlib forgets the slash that makes a name a folder's."""

from __future__ import annotations

import os
from pathlib import Path

from ggml_moecache.errors import MoeCacheError


def file_to_write(text: str) -> Path:
    """The path of a file; `type=` of an argparse option. Raises MoeCacheError for the name of a folder.

    Not a ConfigError: that is a ValueError, of which argparse makes a message of its own without the reason.
    """
    if text.endswith(os.sep):
        raise MoeCacheError(
            f"'{text}' is the name of a folder, and a file is to be written; leave the '{os.sep}' at its end away, or "
            "name a file in it"
        )
    return _named(text)


def folder_to_write(text: str) -> Path:
    """The path of a folder, likewise. Raises MoeCacheError for an empty name, which pathlib takes for '.'."""
    return _named(text)


def _named(text: str) -> Path:
    if not text:
        raise MoeCacheError("an empty name is given where a file or folder is to be written; name one")
    return Path(text)
