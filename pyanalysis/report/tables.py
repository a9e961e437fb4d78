"""The tables behind the plots: header and rows of plain values, one function per plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyanalysis.report.curves import capacities_reaching, curve_of, policies_of
from pyanalysis.report.plots import layer_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyanalysis.report.curves import Sensitivity
    from pyanalysis.simulation.result import SimulationResult

Value = str | int | float | None


class Table(NamedTuple):
    """`rows` have as many values as `header`; None: not known. `name` is that of its CSV file."""

    name: str
    header: list[str]
    rows: list[list[Value]]


def _by_capacity(name: str, results: Sequence[SimulationResult], value: Callable[[SimulationResult], Value]) -> Table:
    """One row per capacity, one column per policy."""
    policies = policies_of(results)
    curves = {policy: {r.capacity_experts: value(r) for r in curve_of(results, policy)} for policy in policies}
    experts = sorted({result.capacity_experts for result in results})
    return Table(name, ["experts", *policies], [[n, *(curves[p].get(n) for p in policies)] for n in experts])


def hit_rates(results: Sequence[SimulationResult]) -> Table:
    return _by_capacity("hit_rate", results, lambda r: r.hit_rate)


def copied(results: Sequence[SimulationResult]) -> Table:
    """Bytes of all copies; their number where the size of an expert is not known."""
    if any(result.copy_bytes is None for result in results):
        return _by_capacity("copies", results, lambda r: r.copies)
    return _by_capacity("copy_bytes", results, lambda r: r.copy_bytes)


def times(results: Sequence[SimulationResult]) -> Table:
    return _by_capacity("time_per_token_ns", results, lambda r: r.time_per_token_ns)


def heat_map(results: Sequence[SimulationResult], policy: str, number: int) -> Table:
    """Hit rates, one row per layer, one column per capacity."""
    curve = curve_of(results, policy)
    rows: list[list[Value]] = [
        [layer_name(one.layer, one.family), *(result.layers[place].hit_rate for result in curve)]
        for place, one in enumerate(curve[0].layers)
    ]
    return Table(f"layers_{number}", ["layer", *(str(result.capacity_experts) for result in curve)], rows)


def reached(results: Sequence[SimulationResult], targets: Sequence[float]) -> Table:
    """The capacity at which each policy reaches each target, among those that were simulated."""
    found = {(one.policy, one.target): str(one) for one in capacities_reaching(results, targets)}
    rows: list[list[Value]] = [[p, *(found[p, target] for target in targets)] for p in policies_of(results)]
    return Table("targets", ["policy", *(f"{target:.1%}" for target in targets)], rows)


def sensitivity(rows: Sequence[Sensitivity]) -> Table:
    """Change of the time per token, one row per cost and factor, one column per policy and capacity."""
    columns = list(dict.fromkeys((one.policy, one.capacity) for one in rows))
    changes = {(one.policy, one.capacity, one.field, one.factor): one.change for one in rows}
    costs = list(dict.fromkeys((one.field, one.factor) for one in rows))
    return Table(
        "sensitivity",
        ["cost", *(f"{policy} at {capacity}" for policy, capacity in columns)],
        [
            [f"{field} x {factor:g}", *(changes.get((*column, field, factor)) for column in columns)]
            for field, factor in costs
        ],
    )
