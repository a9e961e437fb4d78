"""simulate() and sweep(): traces, policies and capacities in, results out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyanalysis.cost import CostModel
    from pyanalysis.simulation.result import Mode, SimulationResult, Timing
    from pyanalysis.traces import Trace

    Capacity = int | str | Sequence[int]


def simulate(
    trace: Trace,
    policy: str,
    capacity: Capacity,
    cost: CostModel | None = None,
    *,
    per_layer: bool = False,
    timing: Timing = "ideal",
    mode: Mode = "event-atomic",
    batch_size: int = 512,
    seed: int = 0,
    victim_agreement: bool = False,
    events: bool = False,
) -> SimulationResult:
    """Replay a trace against one policy at one capacity.

    capacity     experts as a number, "all", a share of the experts ("5%": rounded to the nearest whole expert, at least
                 1), or memory ("2GiB", "512MiB": as many whole experts as fit); of each layer with per_layer, of all
                 layers together without. A list of numbers gives each layer (and family, in rising order) its own.
    cost         needed for timing "clocked" and for every time in the result
    timing       "ideal": a copy is complete at the next token of its layer; "clocked": when the cost model says so
    mode         "per-access": every expert of an event is an event of its own. A comparison, not what a runtime can do
    batch_size   tokens per union event of prefill tokens whose ubatch the trace does not name
    seed         of policies that draw, unless the policy itself says seed=
    victim_agreement, events   also compute these fields of the result

    Raises ConfigError for a policy, capacity, cost or combination that cannot be.
    """
    raise NotImplementedError


def sweep(
    traces: Sequence[Trace],
    policies: Sequence[str],
    capacities: Sequence[Capacity],
    cost: CostModel | None = None,
    *,
    per_layer: bool = False,
    timing: Timing = "ideal",
    mode: Mode = "event-atomic",
    batch_size: int = 512,
    seed: int = 0,
    victim_agreement: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[SimulationResult]:
    """Every policy at every capacity over every trace, in this order of nesting: traces, policies, capacities.

    workers   threads; default: as many as this process may use CPUs. The results do not depend on it.
    progress  called with (results finished, results in all) from the calling thread
    The rest as in simulate().
    """
    raise NotImplementedError
