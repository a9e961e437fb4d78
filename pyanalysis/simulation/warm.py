"""The session state that a cache has after a trace: what a runtime cache starts from (GGML_MOECACHE_STATE_IN)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError
from pyanalysis.simulation.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyanalysis.simulation.arguments import CostLike, TraceLike
    from pyanalysis.simulation.result import Mode
    from pyanalysis.simulation.session import SessionState


def check_one_state(logs: Sequence[Path], policies: Sequence[str], capacities: Sequence[object], mode: Mode) -> None:
    """Raise ConfigError unless these arguments of `moecache simulate` are those of one state that a runtime can use."""
    for what, given in (("trace", logs), ("policy", policies), ("capacity", capacities)):
        if len(given) != 1:
            raise ConfigError(f"--state-out is the state of one {what}. Got {len(given)}; name one.")
    if mode != "event-atomic":
        raise ConfigError(
            f"--state-out is for a runtime, which decides by events: --mode must be event-atomic. Got {mode}"
        )
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
) -> SessionState:
    """Replay a whole trace and return the state; arguments and errors are those of simulate().

    `cost` only gives the bytes of an expert where the trace does not tell them: decisions do not depend on time.
    """
    session = Session(
        trace, policy, capacity, cost, per_layer=per_layer, timing="ideal", batch_size=batch_size, seed=seed
    )
    session.run()
    return session.export_state()
