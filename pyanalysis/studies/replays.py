"""Hits of a replay by decoded token, in the order of a study's routing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache.errors import ConfigError

if TYPE_CHECKING:
    from pyanalysis.simulation import EventStream, SimulationResult
    from pyanalysis.studies.routing import Routing
    from pyanalysis.traces import Trace

    Array = np.ndarray[Any, np.dtype[Any]]


def decode_hits(stream: EventStream, trace: Trace, routing: Routing, result: SimulationResult) -> tuple[Array, Array]:
    """(hits, experts asked for) of each decoded token of `routing`, int64[T]. REQUIRES: replayed with events=True."""
    log = result.events
    if log is None:
        raise ConfigError("the replay has no decisions: ask for events=True")
    hits = np.add.reduceat(log.hit, log.offsets[:-1], dtype=np.int64)
    token = token_of_event(stream, trace, routing)
    decoded = token >= 0
    asked = np.diff(log.offsets)
    found = np.bincount(token[decoded], hits[decoded], routing.n_tokens).astype(np.int64)
    return found, np.bincount(token[decoded], asked[decoded], routing.n_tokens).astype(np.int64)


def token_of_event(stream: EventStream, trace: Trace, routing: Routing) -> Array:
    """int64[events]: token of `routing` that each event of the replay belongs to, -1: a prompt's."""
    token_of_row = np.full(trace.n_events, -1, dtype=np.int64)
    there = routing.row >= 0
    token_of_row[routing.row[there]] = np.nonzero(there)[0]
    return np.where(stream.native.decode() == 1, token_of_row[stream.native.row()], -1)
