"""The events of a trace as the simulator replays them: ggml_moecache/core/policies/README.md, "The event"."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError
from pyanalysis.simulation.regime import Steps
from pyanalysis.traces.event import MOST_EXPERTS

if TYPE_CHECKING:
    from pyanalysis.simulation.result import Mode
    from pyanalysis.traces import Trace

    Array = np.ndarray[Any, np.dtype[Any]]
    Column = tuple[int, str, int, int]


@dataclass(frozen=True, eq=False)
class EventStream:
    """What simulate() makes of a trace. Made once, it serves any number of policies and capacities, in any thread.

    columns           (layer, family, experts, bytes of one expert or 0) in rising order of layer and family
    experts_known     the numbers of experts come from the trace's description; else from the largest id that occurs
    model             fingerprint of the experts, "" where the trace does not know it
    n_tokens, n_decode_tokens   distinct tokens
    n_tokens_passed_by          of ubatches that are too large for a cache (mode "as-run"), not among n_tokens
    n_decode_steps              decode tokens, those of a ubatch that is one event ("as-run") counted as one
    """

    trace: str
    families: tuple[str, ...]
    columns: tuple[Column, ...]
    experts_known: bool
    model: str
    n_tokens: int
    n_decode_tokens: int
    n_tokens_passed_by: int
    n_decode_steps: int
    mode: Mode
    native: _native.EventStream = field(repr=False)
    source: Trace = field(repr=False)
    request: Array = field(repr=False)  # int64[rows] as in the trace
    token: Array = field(repr=False)  # int64[rows] likewise

    @staticmethod
    def of(
        trace: Trace,
        *,
        batch_size: int = 512,
        mode: Mode = "event-atomic",
        expert_bytes: int | None = None,
        replace_bytes: bool = False,
    ) -> EventStream:
        """`expert_bytes`: for layers of which the trace does not know it; with `replace_bytes` for all layers.

        Raises ConfigError for an empty trace.
        """
        if trace.n_events == 0:
            raise ConfigError(f"{trace.path}: there is no event to simulate")
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1 token. Got {batch_size} instead.")
        if mode not in ("event-atomic", "as-run", "per-access"):
            raise ConfigError(f"mode must be event-atomic, as-run or per-access. Got {mode!r} instead.")
        column, layers = trace.columns
        number, decode_tokens = _token_numbers(trace)
        decode = (trace.phase == 1).astype(np.uint8)
        n_tokens = len(trace.tokens)
        if mode == "as-run":
            run = _AsRun.of(trace, decode)
            unit, step, number, decode = run.unit, run.unit, run.number, run.decode
            n_tokens, decode_tokens, n_decode_steps = run.n_tokens, run.n_decode_tokens, run.n_decode_steps
        else:
            unit, step = _units(trace, number, batch_size)
            n_decode_steps = decode_tokens
        key = (step * len(layers) + column) * 2 + decode
        in_order = bool((key[1:] >= key[:-1]).all())
        order = np.arange(trace.n_events) if in_order else np.argsort(key, kind="stable")
        if mode == "as-run":
            order = order[run.replayed[order]]
        columns, known = _columns(trace, column, layers, expert_bytes)
        if replace_bytes:
            columns = [(layer, family, n_experts, expert_bytes or 0) for layer, family, n_experts, _ in columns]
        native = _native.EventStream.make(
            columns,
            order,
            np.ascontiguousarray(trace.ids, dtype=np.int32),
            np.ascontiguousarray(column, dtype=np.int64),
            number,
            _by_appearance(trace.request),
            decode,
            unit,
            mode == "per-access",
        )
        return EventStream(
            trace=str(trace.path),
            families=trace.families,
            columns=tuple(columns),
            experts_known=known,
            model=trace.model["fingerprint"] or "",
            n_tokens=n_tokens,
            n_decode_tokens=decode_tokens,
            n_tokens_passed_by=len(trace.tokens) - n_tokens,
            n_decode_steps=n_decode_steps,
            mode=mode,
            native=native,
            source=trace,
            request=trace.request,
            token=trace.token,
        )

    @functools.cached_property
    def steps(self) -> Steps:
        """The experts of each decoding step of the trace, those of ubatches that pass a cache by included."""
        return Steps.of(self.source)

    @functools.cached_property
    def first_item(self) -> Array:
        """int64[columns + 1]: item number of expert 0 of each column."""
        return np.concatenate([[0], np.cumsum([n for _, _, n, _ in self.columns])]).astype(np.int64)


def _by_appearance(values: Array) -> Array:
    """Each value's number in the order of first appearance, int64[n]."""
    if (values[1:] >= values[:-1]).all():
        return np.concatenate([[0], np.cumsum(values[1:] != values[:-1])]).astype(np.int64)
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return _ranks(first)[inverse]


def _ranks(first: Array) -> Array:
    ranks = np.empty(len(first), dtype=np.int64)
    ranks[np.argsort(first, kind="stable")] = np.arange(len(first))
    return ranks


def _token_numbers(trace: Trace) -> tuple[Array, int]:
    """(number of each event's token in the order of first appearance: int64[n], number of decode tokens)."""
    tokens = trace.tokens
    first = np.empty(len(tokens), dtype=np.int64)
    first[tokens.of_event[::-1]] = np.arange(trace.n_events - 1, -1, -1)  # the last assignment stays: the first event
    return _ranks(first)[tokens.of_event], int((tokens.phase == 1).sum())


def _units(trace: Trace, number: Array, batch_size: int) -> tuple[Array, Array]:
    """(unit, step) of each event, int64[n]: prefill rows of one unit and column are one event; steps follow in time."""
    row = np.arange(trace.n_events)
    prefill = trace.phase == 0
    if (trace.batch >= 0).all():
        step = _by_appearance(trace.batch)
        return np.where(prefill, -1 - step, row), step
    if not prefill.any():
        return row, number
    # Batches are not recorded: runs of prefill tokens of one request that follow one another are cut into batches.
    first = np.unique(number, return_index=True)[1]  # an event of each token, tokens in order
    request = trace.request[first]
    is_prefill = prefill[first]
    begins = np.ones(len(first), dtype=bool)
    begins[1:] = (request[1:] != request[:-1]) | (is_prefill[1:] != is_prefill[:-1])
    place = np.arange(len(first))
    place_in_run = place - np.maximum.accumulate(np.where(begins, place, 0))
    cut = begins | ~is_prefill | (place_in_run % batch_size == 0)
    step = (np.cumsum(cut) - 1)[number]
    return np.where(prefill, -1 - step, row), step


@dataclass(frozen=True, eq=False)
class _AsRun:
    """What the runtime makes of the ubatches of a trace: all rows of one in a layer are one event, looked up together.

    unit, number, decode   int64[n], int64[n], uint8[n]: the ubatch of each row; the number of its last token among the
                           tokens replayed; 1: no token of it is of a prompt
    replayed               bool[n]: not of a ubatch that passes the cache by
    """

    unit: Array
    number: Array
    decode: Array
    replayed: Array
    n_tokens: int
    n_decode_tokens: int
    n_decode_steps: int

    @staticmethod
    def of(trace: Trace, decode: Array) -> _AsRun:
        """Raises ConfigError if the trace does not tell its ubatches, or all of them pass the cache by."""
        if (trace.batch < 0).any():
            raise ConfigError(
                f"{trace.path}: mode as-run needs the ubatch of each event, which the trace does not tell"
            )
        unit = _by_appearance(trace.batch)
        n_units = int(unit.max()) + 1
        tokens = trace.tokens
        unit_of_token = np.empty(len(tokens), dtype=np.int64)
        unit_of_token[tokens.of_event] = unit
        sizes = np.bincount(unit_of_token, minlength=n_units)
        kept = sizes <= _native.MAX_UBATCH_TOKENS
        if not kept.any():
            raise ConfigError(
                f"{trace.path}: every ubatch has more than {_native.MAX_UBATCH_TOKENS} tokens and passes a cache by"
            )
        last = np.cumsum(np.where(kept, sizes, 0)) - 1
        all_decode = np.ones(n_units, dtype=np.uint8)
        np.minimum.at(all_decode, unit, decode)
        return _AsRun(
            unit=unit,
            number=last[unit],
            decode=all_decode[unit],
            replayed=kept[unit],
            n_tokens=int(sizes[kept].sum()),
            n_decode_tokens=int(sizes[kept & (all_decode == 1)].sum()),
            n_decode_steps=int((kept & (all_decode == 1)).sum()),
        )


def _columns(trace: Trace, column: Array, layers: Array, expert_bytes: int | None) -> tuple[list[Column], bool]:
    most = trace.ids.max(axis=1)
    used = np.zeros(len(layers), dtype=np.int64)
    np.maximum.at(used, column, most + 1)
    sizes = {(one["layer_id"], one["family"]): one["bytes"] for one in trace.model["expert_bytes"] or []}
    columns: list[Column] = []
    known = True
    for index, (layer, family_index) in enumerate(layers.tolist()):
        family = trace.families[family_index]
        n_experts = trace.n_experts(layer, family)
        if n_experts is None:
            known = False
            same = [used[i] for i, (_, other) in enumerate(layers.tolist()) if other == family_index]
            n_experts = int(max(same))
        if used[index] > n_experts:
            raise ConfigError(
                f"{trace.path}: layer {layer} names expert {used[index] - 1}, the trace says {n_experts} experts"
            )
        if n_experts > MOST_EXPERTS:
            raise ConfigError(
                f"{trace.path}: layer {layer} would have {n_experts:,} experts, the simulator takes at most "
                f"{MOST_EXPERTS:,}"
            )
        columns.append((layer, family, n_experts, sizes.get((layer, family), expert_bytes or 0)))
    return columns, known
