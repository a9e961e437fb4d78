"""The prompt sets that ship with the package; README.md has their sources and licences."""

from __future__ import annotations

from pathlib import Path

NAMES = ("long", "heterogeneous")


def path_of(name: str) -> Path | None:
    """The prompt file of a workload that ships, None for another name."""
    return Path(__file__).with_name(f"{name}.jsonl") if name in NAMES else None
