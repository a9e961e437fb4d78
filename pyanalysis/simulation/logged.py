"""The cache that a log's run had, as its run.json tells it.

`moecache simulate --mode as-run` replays it where nothing else is asked for; `moecache trace show` says its regime.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ggml_moecache.errors import ConfigError
from pyanalysis.simulation.capacity import slots_of
from pyanalysis.simulation.regime import line
from pyanalysis.simulation.stream import EventStream

if TYPE_CHECKING:
    from pyanalysis.simulation.regime import Regime
    from pyanalysis.traces import Trace


@dataclass(frozen=True)
class LoggedCache:
    """As run.json has it. `capacity` as the simulator takes it: what was configured, or the slots that `auto` got."""

    policy: str
    capacity: str
    per_layer: bool


def cache_of(trace: Trace) -> LoggedCache | None:
    """None: the run had no cache, or the log does not tell it.

    Of capacity `auto` it does not tell the slots of each layer, or of one of several devices.
    """
    run = trace.metadata
    contexts: list[dict[str, Any]] = run.get("contexts") or []
    own = next((one for one in contexts if one.get("context_id") == trace.context_id), {})
    policy, capacity = run.get("policy"), own.get("capacity") or run.get("capacity")
    parameters = run.get("policy_parameters") or {}
    per_layer = bool(parameters.get("per_layer"))
    if capacity == "auto":
        known = len(contexts) == 1 and not per_layer and parameters.get("n_slots")
        capacity = str(parameters["n_slots"]) if known else None
    if not isinstance(policy, str) or not policy or not isinstance(capacity, str) or capacity in ("", "0"):
        return None
    return LoggedCache(policy, capacity, per_layer)


@dataclass(frozen=True)
class LoggedRegime:
    """The operating regime of a run (regime.py) with its own cache."""

    cache: LoggedCache
    step: str
    regime: Regime
    lossy: bool  # events were lost: a step counts with those that are there

    def __str__(self) -> str:
        shown = line(self.step, [(self.cache.capacity, self.regime)], per_layer=self.cache.per_layer)
        return f"{shown} (of what the log still has: events were lost)" if self.lossy else shown

    def as_json(self) -> dict[str, Any]:
        """Names as in a row of `moecache simulate --json`."""
        return {
            "capacity": self.cache.capacity,
            "per_layer": self.cache.per_layer,
            "step": self.step,
            "step_experts_over_slots": self.regime.mean,
            "steps_above_slots": self.regime.above,
            "lossy": self.lossy,
        }


def regime_of(trace: Trace) -> LoggedRegime | None:
    """None: the log does not tell its cache (cache_of) or its experts, or no token was decoded."""
    cache = cache_of(trace)
    if cache is None:
        return None
    stream = EventStream.of(trace)
    try:
        slots = slots_of(stream, cache.capacity, per_layer=cache.per_layer)
    except ConfigError:
        return None
    regime = stream.steps.over(slots, per_layer=cache.per_layer)
    return None if regime is None else LoggedRegime(cache, stream.steps.unit, regime, trace.n_lost > 0)
