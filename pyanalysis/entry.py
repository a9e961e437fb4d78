"""What the installed program `moecache` calls: Ctrl-C is heeded from the first of its imports on."""

from __future__ import annotations

from pyanalysis import interrupt


def main() -> None:
    """Run the command line; ends with SystemExit."""
    with interrupt.handled():
        from pyanalysis import cli  # noqa: PLC0415 - takes a good part of a second

        cli.main()
