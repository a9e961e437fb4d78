#!/usr/bin/env python3
"""Print every source file that is longer than the limit of its kind, and fail if there is one.

A file that is too long holds more than one idea: split it by owner, not by number.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MAX_SOURCE_LINES = 500
MAX_TEST_LINES = 700
MAX_POLICY_LINES = 200
MAX_SCRIPT_LINES = 40
SUFFIXES = {".py", ".pyi", ".cpp", ".h", ".cu", ".cuh"}


def limit(path: Path) -> int | None:
    """Largest number of lines for `path`, or None if it is no source file."""
    if path.parts[0] == "scripts" and path.suffix == "":
        return MAX_SCRIPT_LINES
    if path.suffix not in SUFFIXES:
        return None
    if path.parts[0] == "tests":
        return MAX_TEST_LINES
    return MAX_POLICY_LINES if "policies" in path.parts else MAX_SOURCE_LINES


def main() -> int:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True, check=True
    )
    offenders = 0
    for name in listing.stdout.splitlines():
        path = Path(name)
        most = limit(path)
        if most is None or not path.is_file():
            continue
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > most:
            offenders += 1
            print(f"{name}: {lines} lines, at most {most} are allowed")
    return 1 if offenders else 0


if __name__ == "__main__":
    sys.exit(main())
