"""The documents that are generated from the library's tables are those of the installed library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_reasons_and_variables_are_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, REPOSITORY / "scripts" / "generate_docs.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
