"""The smallest capacity at which a policy reaches a hit rate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError
from pyanalysis.simulation.arguments import cost_of, policies_of, stream_of
from pyanalysis.simulation.capacity import slots_of
from pyanalysis.simulation.run import Replay, simulate_capacities, sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyanalysis.simulation.arguments import CostLike, TraceLike
    from pyanalysis.simulation.result import Mode, SimulationResult, Timing
    from pyanalysis.simulation.run import Capacity
    from pyanalysis.simulation.stream import EventStream


@dataclass(frozen=True)
class TargetCapacity:
    """Where a policy first has a hit rate of at least `target_hit_rate` over a trace.

    capacity_experts  as in SimulationResult; None: no capacity that was simulated is enough
    hit_rate          at that capacity
    exact             every smaller capacity was simulated as well (of None: every capacity). More slots can mean fewer
                      hits for most policies, so nothing is concluded about capacities that were not simulated.
    """

    trace: str
    policy: str
    target_hit_rate: float
    per_layer: bool
    capacity_experts: int | None
    hit_rate: float | None
    exact: bool

    def row(self) -> dict[str, Any]:
        """The fields by name: one line of `-o jsonl`."""
        return asdict(self)


def capacity_for(
    trace: TraceLike,
    policies: str | Iterable[str],
    targets: float | Iterable[float],
    capacities: int | str | Iterable[Capacity] | None = None,
    cost: CostLike | None = None,
    *,
    per_layer: bool = False,
    timing: Timing | None = None,
    mode: Mode = "event-atomic",
    batch_size: int = 512,
    seed: int = 0,
    workers: int | None = None,
) -> list[TargetCapacity]:
    """The smallest capacity that reaches each target hit rate (in (0, 1]), policy by policy.

    Every number of experts is simulated: in one pass for policies that have one with ideal timing, one by one for the
    others, unless `capacities` names those to simulate for them (`exact` then says whether a smaller one was left out).
    The other arguments and errors are those of sweep().
    """
    cost = cost_of(cost)
    stream = stream_of(trace, cost, mode, batch_size)
    wanted = [targets] if isinstance(targets, (int, float)) else list(targets)
    replay = Replay(cost, per_layer, timing, seed, victim_agreement=False)
    found = []
    for policy in policies_of(policies):
        results: list[SimulationResult] = []
        if not _in_one_pass(stream, policy, replay):
            asked = list(range(_most(stream, per_layer=per_layer) + 1)) if capacities is None else capacities
            results = sweep(
                [stream],
                [policy],
                asked,
                cost,
                per_layer=per_layer,
                timing=timing,
                seed=seed,
                victim_agreement=False,
                workers=workers,
            )
        found += reached(stream, policy, wanted, replay, results)
    return found


def reached(
    stream: EventStream,
    policy: str,
    targets: Sequence[float],
    replay: Replay,
    simulated: Sequence[SimulationResult],
) -> list[TargetCapacity]:
    """The same of results that are there, `simulated`; a policy with one pass is replayed at every capacity instead."""
    for target in targets:
        if isinstance(target, bool) or not isinstance(target, (int, float)) or not 0 < target <= 1:
            raise ConfigError(f"a target must be a hit rate in (0, 1]. Got {target!r} instead.")
    numbers = range(_most(stream, per_layer=replay.per_layer) + 1)
    if _in_one_pass(stream, policy, replay):
        simulated = simulate_capacities(stream, policy, list(numbers), replay)
    curve = sorted(simulated, key=lambda result: sum(result.slots))
    seen = {result.slots for result in curve}
    unseen = [
        slots for slots in (slots_of(stream, n, per_layer=replay.per_layer) for n in numbers) if slots not in seen
    ]
    least_unseen = min(map(sum, unseen), default=None)
    rows = []
    for target in targets:
        first = next((result for result in curve if result.hit_rate >= target), None)
        exact = least_unseen is None or (first is not None and sum(first.slots) < least_unseen)
        experts, rate = (first.capacity_experts, first.hit_rate) if first else (None, None)
        rows.append(TargetCapacity(stream.trace, curve[0].policy, target, replay.per_layer, experts, rate, exact))
    return rows


def _in_one_pass(stream: EventStream, policy: str, replay: Replay) -> bool:
    try:
        return _native.one_pass(stream.native, replay.per_layer, policy, replay.options(stream))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _most(stream: EventStream, *, per_layer: bool) -> int:
    experts = [n for n, _ in _native.budgets(list(stream.columns), per_layer)]
    return max(experts) if per_layer else sum(experts)
