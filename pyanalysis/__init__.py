"""The tools around the cache: the command-line program `moecache` and what it delegates to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyanalysis.simulation import capacity_for, simulate, sweep

__all__ = ["capacity_for", "simulate", "sweep"]


def __getattr__(name: str) -> object:
    # Loaded on first use: commands that simulate nothing start without it.
    if name in __all__:
        from pyanalysis import simulation  # noqa: PLC0415

        return getattr(simulation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
