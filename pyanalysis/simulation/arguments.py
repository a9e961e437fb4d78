"""What simulate(), sweep() and Session take, as people write it: files, names, strings by comma, numpy's integers.

Everything here raises ConfigError, which names the argument, the rule and the value.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError
from pyanalysis import costs
from pyanalysis.cost import CostModel
from pyanalysis.simulation.stream import EventStream
from pyanalysis.traces import Trace, read_trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyanalysis.simulation.result import Mode

    TraceLike = Trace | EventStream | str | os.PathLike[str]
    CostLike = CostModel | str | os.PathLike[str]

MOST_WHOLE = 2**63 - 1  # the engine's numbers
_PER_ACCESS_ONLY = frozenset(policy.name for policy in _native.policies() if policy.per_access_only)


def whole(name: str, value: object, least: int) -> int:
    """`value`, an int or one of numpy's, from `least` to 2^63 - 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= MOST_WHOLE:
        raise ConfigError(f"{name} must be a whole number from {least} to 2^63 - 1. Got {value!r} instead.")
    return int(value)


def cost_of(cost: CostLike | None) -> CostModel | None:
    """A cost model, one that ships by its name, or one in a file."""
    if cost is None or isinstance(cost, CostModel):
        return cost
    if isinstance(cost, (str, os.PathLike)):
        return costs.load(os.fspath(cost))
    names = ", ".join(costs.names())
    raise ConfigError(f"cost must be a CostModel, a file or one of {names}. Got {type(cost).__name__} instead.")


def stream_of(trace: TraceLike, cost: CostModel | None, mode: Mode, batch_size: int) -> EventStream:
    """The events of a trace or of a file with one. Raises TraceError too, for a file that is none."""
    if isinstance(trace, EventStream):
        return trace
    if isinstance(trace, (str, os.PathLike)):
        trace = read_trace(Path(trace))
    if not isinstance(trace, Trace):
        raise ConfigError(
            f"a trace must be a Trace, an EventStream or the path of a trace. Got {type(trace).__name__} instead."
        )
    n_bytes = cost.expert_bytes if cost is not None else None
    return EventStream.of(trace, batch_size=whole("batch_size", batch_size, 1), mode=mode, expert_bytes=n_bytes)


def traces_of(traces: TraceLike | Iterable[TraceLike]) -> list[TraceLike]:
    """One trace or several."""
    if isinstance(traces, (Trace, EventStream, str, os.PathLike)):
        return [traces]
    return _listed("traces", traces, "traces or paths of traces")


def policies_of(policies: str | Iterable[str]) -> list[str]:
    """Policies as a list, or as one string by comma. None twice, for its results could not be told apart."""
    parts = policies.split(",") if isinstance(policies, str) else _listed("policies", policies, "names of policies")
    if not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"policies must be names of policies. Got {parts!r} instead.")
    names = [part.strip() for part in parts]
    if "" in names or not names:
        raise ConfigError(f"policies has an empty item: name policies by comma. Got {policies!r} instead.")
    return names


def canonical(stream: EventStream, policy: str, seed: int) -> str:
    """The policy as results name it."""
    if not isinstance(policy, str):
        raise ConfigError(f"policy must be the name of a policy. Got {policy!r} instead.")
    try:
        name = _native.canonical_policy(policy, whole("seed", seed, 0))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if stream.mode != "per-access" and name.split(":")[0] in _PER_ACCESS_ONLY:
        raise ConfigError(f"policy {name} exists for mode per-access only; the event-atomic one is cumulative-lfu")
    return name


def refuse_twice(policies: list[str], seed: int) -> None:
    """Raise if two are the same policy, however they are written. Those that do not exist are left to canonical()."""
    seen: dict[str, str] = {}
    for policy in policies:
        try:
            name = _native.canonical_policy(policy, whole("seed", seed, 0))
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if name in seen:
            raise ConfigError(f"policies has {seen[name]!r} and {policy!r}, which are the same policy; name it once")
        seen[name] = policy


def _listed(name: str, values: Iterable[Any], what: str) -> list[Any]:
    try:
        return list(values)
    except TypeError:
        raise ConfigError(f"{name} must be a list of {what}. Got {type(values).__name__} instead.") from None
