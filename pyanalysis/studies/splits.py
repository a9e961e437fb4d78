"""What a study selects (fits) on and what it evaluates on: held-out tokens, held-out requests, a held-out workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyanalysis.studies.routing import Routing

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Split:
    """Fit on tokens `fit` (int64[n], rising) of `fit_on`, evaluate on `test` of `test_on`; the two may be one routing.

    held_out   "tokens": of each request the first half is fitted on; "requests": the first half of the requests;
               "workload": all of another trace of the same model
    """

    held_out: str
    fit_on: Routing
    fit: Array
    test_on: Routing
    test: Array

    @property
    def name(self) -> str:
        where = f"fitted on {self.fit_on.name}" if self.held_out == "workload" else ""
        return f"{self.test_on.name}, held-out {self.held_out}{', ' * bool(where)}{where}"


def splits_of(routing: Routing) -> list[Split]:
    """Held-out tokens, and held-out requests where there are two. Raises ConfigError where neither is possible."""
    length = np.bincount(routing.request)[routing.request]
    splits = []
    first = routing.place < length // 2
    if first.any():
        splits.append(Split("tokens", routing, np.flatnonzero(first), routing, np.flatnonzero(~first)))
    n_requests = int(routing.request.max()) + 1
    if n_requests > 1:
        first = routing.request < n_requests // 2
        splits.append(Split("requests", routing, np.flatnonzero(first), routing, np.flatnonzero(~first)))
    if not splits:
        raise ConfigError(f"{routing.name}: one decoded token leaves nothing to hold out")
    return splits


def workload_splits(routings: Sequence[Routing]) -> list[Split]:
    """One for each ordered pair of traces with the same layers, experts and top-k."""
    return [
        Split("workload", one, np.arange(one.n_tokens), other, np.arange(other.n_tokens))
        for other in routings
        for one in routings
        if one is not other and one.geometry == other.geometry
    ]


def all_splits(routings: Sequence[Routing]) -> tuple[list[Split], list[str]]:
    """(every split, what could not be held out and why)."""
    splits, notes = [], []
    for routing in routings:
        own = splits_of(routing)
        splits += own
        if not any(split.held_out == "requests" for split in own):
            notes.append(f"{routing.name} has one request: no held-out requests")
    between = workload_splits(routings)
    notes += [
        f"{routing.name}: no other trace with its layers, experts and top-k was given: no held-out workload"
        for routing in routings
        if not any(split.test_on is routing for split in between)
    ]
    return splits + between, notes
