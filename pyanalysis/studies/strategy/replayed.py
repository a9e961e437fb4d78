"""One replay: of a policy by the simulator, or of a strategy's plan by core/strategies; both with the clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError
from pyanalysis.decide.replays import Replayed

if TYPE_CHECKING:
    from pyanalysis.cost import CostModel
    from pyanalysis.decide.replays import Replayer
    from pyanalysis.studies.strategy.base import Plan

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Outcome:
    """`detail`: what replay_strategy() gives; None for a policy, which never prefetches."""

    replayed: Replayed
    detail: dict[str, Any] | None

    def counts(self, events: Array) -> dict[str, Any]:
        """Of the copies that were begun at `events` (int64[n]): fields of verdicts.Cell."""
        late = self.replayed.late
        inside = np.isin(self.replayed.copied_event, events)
        if self.detail is None:
            return {"copies": int(inside.sum()), "late": int(late[inside].sum())}
        prefetch = inside & (self.detail["prefetch"] == 1)
        asked = prefetch & (self.detail["asked"] == 1)
        demand = inside & (self.detail["prefetch"] == 0)
        return {
            "copies": int(inside.sum()),
            "late": int(late[demand].sum()),
            "prefetches": int(prefetch.sum()),
            "asked": int(asked.sum()),
            "in_time": int((self.detail["in_time"][asked] == 1).sum()),
            "used": int(self.detail["used"][prefetch].sum()),
            "delayed": int(self.detail["delayed"][demand].sum()),
            "made_late": int(self.detail["made_late"][demand].sum()),
        }


def replay_policy(replayer: Replayer, policy: str, slots: tuple[int, ...], cost: CostModel) -> Outcome:
    """Raises ConfigError for a policy that cannot be."""
    return Outcome(replayer.replay(policy, slots, cost), None)


def replay_plan(replayer: Replayer, plan: Plan, slots: tuple[int, ...], cost: CostModel) -> Outcome:
    """Raises ConfigError for a plan whose arrays do not fit the trace."""
    costs = [
        *(cost.cpu_miss_ns, cost.cpu_event_ns, cost.gpu_hit_ns, cost.other_layer_ns, cost.other_token_ns),
        *(cost.copy_latency_ns, cost.copy_bandwidth_bytes_per_s, cost.copy_event_ns),
    ]
    scores = None if plan.scores is None else (plan.scores.values, plan.scores.row_of_event)
    f = plan.forecast
    forecast = None if f is None else (f.offsets, f.items, f.ahead, f.confidence)
    try:
        found = _native.replay_strategy(
            replayer.stream.native, replayer.per_layer, list(slots), plan.options(), costs, scores, forecast
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return Outcome(Replayed(found["hit"], found["copy_event"], found["in_time"] == 0), found)


def replay_plan_at_once(replayer: Replayer, plan: Plan, slots: tuple[int, ...]) -> dict[str, Any]:
    """The same without a clock: every copy is there at the next event. Only for plans without a forecast."""
    if plan.forecast is not None:
        raise ConfigError("prefetches without a clock would always be in time")
    no_time = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1e30, 0.0]
    scores = None if plan.scores is None else (plan.scores.values, plan.scores.row_of_event)
    stream = replayer.stream.native
    return _native.replay_strategy(stream, replayer.per_layer, list(slots), plan.options(), no_time, scores, None)
