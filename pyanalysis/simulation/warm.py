"""The session state that a cache has after a trace: what a runtime cache starts from (GGML_MOECACHE_STATE_IN)."""

from __future__ import annotations

import os
from itertools import zip_longest
from typing import TYPE_CHECKING

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError
from pyanalysis.simulation.arguments import cost_of, stream_of
from pyanalysis.simulation.session import Session
from pyanalysis.simulation.stream import EventStream
from pyanalysis.traces import read_trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyanalysis.simulation.arguments import CostLike, TraceLike
    from pyanalysis.simulation.result import Mode
    from pyanalysis.simulation.session import SessionState
    from pyanalysis.traces import Trace


def check_one_state(logs: Sequence[Path], policies: Sequence[str], capacities: Sequence[object], mode: Mode) -> None:
    """Raise ConfigError unless these arguments of `moecache simulate` are those of one state that a runtime can use."""
    if mode != "event-atomic":
        raise ConfigError(
            f"--state-out is for a runtime, which decides by events: --mode must be event-atomic. Got {mode}"
        )
    for what, given in (("trace", logs), ("policy", policies), ("capacity", capacities)):
        if len(given) != 1:
            raise ConfigError(f"--state-out is the state of one {what}. Got {len(given)}; name one.")
    ahead = {policy.name for policy in _native.policies() if policy.needs_future}
    if policies[0].partition(":")[0] in ahead:
        raise ConfigError(
            f"--state-out is for a runtime, and policy {policies[0]} sees the trace beforehand: none can run it"
        )


def state_after(
    trace: TraceLike,
    policy: str,
    capacity: int | str | Sequence[int],
    *,
    per_layer: bool = False,
    batch_size: int = 512,
    seed: int = 0,
    cost: CostLike | None = None,
    of_cache: Sequence[tuple[int, str, int]] | None = None,
) -> SessionState:
    """Replay a whole trace and return the state; arguments and errors are those of simulate().

    cost       only gives the bytes of an expert where the trace does not tell them: decisions do not depend on time
    of_cache   (layer, family, experts) of each column of the cache that is to have the state, if there is one

    Raises ConfigError for a trace that has lost all events of a layer, or of another model than the cache's: no cache
    has such a state.
    """
    if isinstance(trace, (str, os.PathLike)):
        trace = read_trace(os.fspath(trace))
    _check_whole(trace.source if isinstance(trace, EventStream) else trace)
    stream = stream_of(trace, cost_of(cost), "event-atomic", batch_size)
    if of_cache is not None:
        _check_same(stream, of_cache)
    session = Session(stream, policy, capacity, cost, per_layer=per_layer, timing="ideal", seed=seed)
    session.run()
    return session.export_state()


def _check_same(stream: EventStream, of_cache: Sequence[tuple[int, str, int]]) -> None:
    own = [(layer, family, n_experts) for layer, family, n_experts, _ in stream.columns]
    for one, other in zip_longest(own, of_cache):
        if one != other:
            has = "no further layer" if one is None else "layer {} ({}), {} experts".format(*one)
            cache = "no further layer" if other is None else "layer {} ({}), {} experts".format(*other)
            raise ConfigError(
                f"{stream.trace}: is of another model, or of other layers on the device: it has {has} where this cache "
                f"has {cache}"
            )


def _check_whole(trace: Trace) -> None:
    """Raise ConfigError if events were lost and with them all of a layer."""
    shared = sum(context.get("model") is None for context in trace.metadata.get("contexts") or ())
    if (trace.n_lost == 0 and trace.complete) or shared > 1:  # of several devices each log has some of the layers
        return
    there = set(trace.columns[1][:, 0].tolist())
    missing = sorted(set(trace.model["moe_layers"] or ()) - there)
    if not missing:
        return
    of = f"{len(missing)} of the model's {len(missing) + len(there)} MoE layers have"
    lost = f"lost {trace.n_lost:,} events" if trace.n_lost else "is not complete"
    raise ConfigError(
        f"{trace.path}: the trace {lost}, and {of} none left, so it gives no state for a cache; record it again with a "
        "larger GGML_MOECACHE_LOG_RING_EVENTS (moecache config), or take a trace of which moecache trace show says "
        "that no event was lost"
    )
