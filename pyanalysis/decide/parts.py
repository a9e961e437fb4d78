"""What a decision selects on and what it holds out, and the units whose resampling gives the intervals.

Only decoded tokens are selected on and evaluated. Prompts are replayed too: they warm the cache as they would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache.errors import ConfigError

if TYPE_CHECKING:
    from pyanalysis.simulation.stream import EventStream
    from pyanalysis.traces import Trace

    Array = np.ndarray[Any, np.dtype[Any]]

BLOCK_TOKENS = 256
FEWEST_REQUESTS = 20  # with fewer evaluated requests the units are blocks of tokens
FEWEST_UNITS = 5  # with fewer units there is no interval


@dataclass(frozen=True, eq=False)
class Part:
    """Decode events of some tokens. e events in the replay, u units.

    events   int64[p]   indices of the part's events
    unit     int64[p]   unit of each
    tokens   int64[u]   tokens of each unit
    """

    events: Array
    unit: Array
    tokens: Array
    kind: str  # "requests" or "blocks of 256 tokens"

    @property
    def n_units(self) -> int:
        return len(self.tokens)

    @property
    def has_intervals(self) -> bool:
        return self.n_units >= FEWEST_UNITS


@dataclass(frozen=True, eq=False)
class Split:
    """A selection part, which comes first, and a held-out part, which nothing is chosen on."""

    name: str  # "requests" or "tokens"
    selection: Part
    held_out: Part


def first_tokens(trace: Trace, n_tokens: int) -> Trace:
    """The events of the first `n_tokens` tokens of a trace, in the order in which tokens first appear."""
    return only_events(trace, _number_of_token(trace.tokens.of_event)[trace.tokens.of_event] < n_tokens)


def only_events(trace: Trace, keep: Array) -> Trace:
    """The events that `keep` bool[n] names, in their order."""
    names = ("request", "token", "layer", "family", "phase", "batch", "ids", "line")
    kept: dict[str, Any] = {name: getattr(trace, name)[keep] for name in names}
    for name in ("weights", "top1"):
        values = getattr(trace, name)
        kept[name] = None if values is None else values[keep]
    place = np.searchsorted(np.flatnonzero(keep), trace.overflows[:, 0])
    inside = place < keep.sum()
    overflows = np.column_stack([place, trace.overflows[:, 1:]])[inside]
    return replace(trace, overflows=overflows, **kept)


def _number_of_token(of_event: Array) -> Array:
    """Of each token its number in the order of first appearance, int64[tokens]."""
    _, first = np.unique(of_event, return_index=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    return number


def splits_of(trace: Trace, stream: EventStream) -> list[Split]:
    """The splits that the trace allows.

    requests   the first half of the requests is selected on, the others are held out; needs two requests with decoded
               tokens
    tokens     of each request the first half of its decoded tokens is selected on, the rest is held out

    Raises ConfigError for a trace without decoded tokens, or in which no request has two.
    """
    events, token, request = _decoded(trace, stream)
    place, length = _place_in_request(request)
    if length.max() < 2:  # noqa: PLR2004 - two halves
        raise ConfigError(f"{stream.trace}: no request has two decoded tokens; there is nothing to hold out")
    splits = []
    n_requests = int(request.max()) + 1
    if n_requests > 1:
        splits.append(_split("requests", events, token, request, request < n_requests // 2))
    splits.append(_split("tokens", events, token, request, place < length // 2))
    return splits


def whole(trace: Trace, stream: EventStream) -> Part:
    """All decoded tokens: what is evaluated on when something was chosen on another trace. Raises as splits_of()."""
    events, token, request = _decoded(trace, stream)
    return _part(events, token, request, np.ones(len(request), dtype=bool))


def _decoded(trace: Trace, stream: EventStream) -> tuple[Array, Array, Array]:
    """(decode events, token of each, request of each token), tokens and requests numbered by first appearance."""
    events = np.flatnonzero(stream.native.decode())
    row = stream.native.row()[events]
    names, token = np.unique(trace.tokens.of_event[row], return_inverse=True)
    if len(names) == 0:
        raise ConfigError(f"{stream.trace}: no token was decoded; a decision is about decoding")
    number = _number_of_token(token)
    token = number[token]  # of each event, by first appearance
    request = np.empty(len(names), dtype=np.int64)
    request[token] = trace.request[row]
    _, first, request = np.unique(request, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first, kind="stable")] = np.arange(len(first))
    request = order[request]  # of each token, by first appearance
    return events, token, request


def _place_in_request(request: Array) -> tuple[Array, Array]:
    """(place of each token among those of its request, their number), int64[tokens]."""
    order = np.argsort(request, kind="stable")
    counts = np.bincount(request)
    place = np.empty(len(request), dtype=np.int64)
    place[order] = np.arange(len(request)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place, counts[request]


def _split(name: str, events: Array, token: Array, request: Array, selected: Array) -> Split:
    return Split(name, _part(events, token, request, selected), _part(events, token, request, ~selected))


def _part(events: Array, token: Array, request: Array, members: Array) -> Part:
    """`members` bool[tokens]; `token` of each event, `request` of each token."""
    own = np.flatnonzero(members)
    requests, unit_of_token = np.unique(request[own], return_inverse=True)
    kind = "requests"
    if len(requests) < FEWEST_REQUESTS:
        kind = f"blocks of {BLOCK_TOKENS} tokens"
        # A rest shorter than a block belongs to the block before it: units should weigh about the same.
        last = max(len(own) // BLOCK_TOKENS - 1, 0)
        unit_of_token = np.minimum(np.arange(len(own)) // BLOCK_TOKENS, last)
    unit = np.full(len(members), -1, dtype=np.int64)
    unit[own] = unit_of_token
    inside = members[token]
    return Part(events[inside], unit[token[inside]], np.bincount(unit_of_token), kind)
