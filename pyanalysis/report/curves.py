"""What the report says of a sweep: curves over capacity, capacities that reach a hit rate, sensitivity to costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyanalysis.simulation.result import SimulationResult


@dataclass(frozen=True)
class Reached:
    """Where a policy reaches a target hit rate, among the capacities that were simulated.

    experts  the smallest capacity whose hit rate is at least `target`; None: none of them is enough
    above    the largest smaller one that was simulated, which is not enough; None: there is none. The true smallest
             capacity lies above it, up to `experts`.
    """

    policy: str
    target: float
    experts: int | None
    above: int | None

    def __str__(self) -> str:
        if self.experts is None:
            return "not reached"
        if self.above is None or self.above == self.experts - 1:
            return f"{self.experts:,}"
        return f"{self.above + 1:,} to {self.experts:,}"


@dataclass(frozen=True)
class Sensitivity:
    """Time per token of one policy and capacity with one cost multiplied; `base_ns` without."""

    policy: str
    capacity: str
    field: str
    factor: float
    time_per_token_ns: float
    base_ns: float

    @property
    def change(self) -> float:
        """Relative: 0.1 is 10 % more time."""
        return self.time_per_token_ns / self.base_ns - 1


def curve_of(results: Iterable[SimulationResult], policy: str) -> list[SimulationResult]:
    """The results of a policy by rising capacity, each number of experts once."""
    by_experts = {result.capacity_experts: result for result in results if result.policy == policy}
    return [by_experts[experts] for experts in sorted(by_experts)]


def policies_of(results: Iterable[SimulationResult]) -> list[str]:
    """The policies in the order of the sweep."""
    return list(dict.fromkeys(result.policy for result in results))


def capacities_reaching(results: Sequence[SimulationResult], targets: Sequence[float]) -> list[Reached]:
    """For each policy and target (hit rates, 0 to 1) of one trace where it is first reached."""
    found = []
    for policy in policies_of(results):
        curve = curve_of(results, policy)
        for target in targets:
            place = next((i for i, result in enumerate(curve) if result.hit_rate >= target), None)
            experts = None if place is None else curve[place].capacity_experts
            above = curve[place - 1].capacity_experts if place else None
            found.append(Reached(policy, target, experts, above))
    return found
