"""From measurements to the cost model of the simulator (pyanalysis/cost.schema.json), and how each figure follows.

An event of k experts on this machine, in the terms of the cost model:
    cpu_miss_ns                 slope of the line through the CPU's event times by number of misses
    gpu_hit_ns                  slope of the line through the GPU's event times by number of hits
    other_layer_ns              decode time per MoE layer with everything resident, less k * gpu_hit_ns: an event of
                                hits only takes what was measured; launches, head and dense layers are in it
    copy_event_ns               slope of the line through the times of an event of k / 2 misses by the copies handed
                                over right before it
    cpu_event_ns                decode time per MoE layer at capacity 0, less other_layer_ns and k * cpu_miss_ns: as
                                the plugin hands over to the CPU and back
Where not everything fits the GPU, other_layer_ns is the decode time at capacity 0 less the CPU's event time, and the
handing over stays in it. What was not measured is null.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pyanalysis.calibrate.spread import Line

if TYPE_CHECKING:
    from pyanalysis.calibrate.experts import Geometry
    from pyanalysis.calibrate.measure import CopyTimes
    from pyanalysis.calibrate.spread import Spread

COST_FIELDS = (
    *("cpu_miss_ns", "cpu_event_ns", "gpu_hit_ns", "other_layer_ns", "other_token_ns"),
    *("copy_latency_ns", "copy_bandwidth_bytes_per_s", "copy_event_ns"),
)

_HEAD = "Output head and dense layers are in it, so other_token_ns is 0."


@dataclass
class Measured:
    """Everything that was measured; None or absent: it was not, `missing` says why, by what it is about.

    cpu            by threads, by misses: ns per event      hits  by hits: ns per event
    expert_copy    ns on the queue and bytes of one expert  decode  by capacity ("0", "all"): ns per token
    beside         by copies handed over right before: ns per event of k / 2 misses
    """

    cpu: dict[int, dict[int, Spread]]
    hits: dict[int, Spread] | None = None
    copies: list[CopyTimes] = field(default_factory=list)
    expert_copy: tuple[Spread, Spread] | None = None
    decode: dict[str, Spread] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    beside: dict[int, Spread] | None = None

    @property
    def best_threads(self) -> int:
        """The thread count at which an event of misses only is computed fastest."""
        return min(self.cpu, key=lambda n: self.cpu[n][max(self.cpu[n])].median)


@dataclass
class Costs:
    """The cost fields, and a sentence for each about where it comes from."""

    values: dict[str, float | None]
    sources: list[str]


def costs_of(measured: Measured, geometry: Geometry, n_threads: int) -> Costs:
    """The cost model's figures, with the CPU at `n_threads`."""
    costs = Costs(dict.fromkeys(COST_FIELDS), [])
    say = costs.sources.append
    k = max(measured.cpu[n_threads])
    cpu = _line(measured.cpu[n_threads], "cpu_miss_ns", say)
    costs.values["cpu_miss_ns"] = cpu.slope
    n_events = min(spread.n for spread in measured.cpu[n_threads].values())
    say(f"cpu_miss_ns: slope over events of 1 to {k} misses, {n_threads} CPU threads, {n_events} of each.")
    _copy_costs(measured, costs)
    if measured.hits is not None:
        costs.values["gpu_hit_ns"] = _line(measured.hits, "gpu_hit_ns", say).slope
        n_runs = min(spread.n for spread in measured.hits.values())
        say(f"gpu_hit_ns: slope over events of 1 to {max(measured.hits)} hits, {n_runs} graphs of 64 of each.")
    _layer_costs(measured, geometry, cpu, k, costs)
    for what, why in measured.missing.items():
        say(f"{what}: not measured: {why}.")
    return costs


def _line(times: dict[int, Spread], name: str, say: Any) -> Line:  # noqa: ANN401 - takes a string
    """The line through the medians; through the origin where a part of it would be negative."""
    points = [(float(n), spread.median) for n, spread in sorted(times.items())]
    line = Line.through(points)
    if line.slope > 0 and line.fixed >= 0:
        return line
    slope = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    say(f"{name}: the line is drawn through the origin: {line.fixed:.0f} ns + n * {line.slope:.0f} ns is no cost.")
    return Line(0.0, slope)


def _at_least_0(name: str, value: float, say: Any) -> float:  # noqa: ANN401 - takes a string
    if value < 0:
        say(f"{name}: {value:.0f} ns came out, which is no cost; 0 stands for it.")
    return max(value, 0.0)


def _copy_costs(measured: Measured, costs: Costs) -> None:
    pinned = [c for c in measured.copies if c.pinned]
    if not pinned or measured.expert_copy is None:
        return
    largest = max(pinned, key=lambda c: c.n_bytes)
    bandwidth = largest.n_bytes / largest.queued_ns.median * 1e9
    took, size = (spread.median for spread in measured.expert_copy)
    latency = took - size / bandwidth * 1e9
    costs.values["copy_bandwidth_bytes_per_s"] = bandwidth
    costs.values["copy_latency_ns"] = _at_least_0("copy_latency_ns", latency, costs.sources.append)
    costs.sources.append(
        f"copy_bandwidth_bytes_per_s: pinned copies of {largest.n_bytes} bytes, queued. copy_latency_ns: one expert, "
        f"its matrices one by one, takes {took:.0f} ns on the queue: less its {size:.0f} bytes at that bandwidth."
    )
    if measured.beside is not None:
        slope = Line.through([(float(n), spread.median) for n, spread in sorted(measured.beside.items())]).slope
        costs.values["copy_event_ns"] = _at_least_0("copy_event_ns", slope, costs.sources.append)
        costs.sources.append(
            f"copy_event_ns: slope over events of misses with 0 to {max(measured.beside)} experts' copies handed over "
            "right before: the handing over, and what the copies take from the CPU's memory bandwidth."
        )


def _layer_costs(measured: Measured, geometry: Geometry, cpu: Line, k: int, costs: Costs) -> None:
    n_layers = len(geometry.layers)
    hit = costs.values["gpu_hit_ns"]
    per_layer = {name: spread.median / n_layers for name, spread in measured.decode.items()}
    say = costs.sources.append
    misses = k * cpu.slope
    if hit is None or not per_layer:
        return
    costs.values["other_token_ns"] = 0.0
    if "all" in per_layer:
        other = _at_least_0("other_layer_ns", per_layer["all"] - k * hit, say)
        say(f"other_layer_ns: {_share(measured, 'all', n_layers)}, less {k} * gpu_hit_ns. {_HEAD}")
        if "0" in per_layer:
            costs.values["cpu_event_ns"] = _at_least_0("cpu_event_ns", per_layer["0"] - other - misses, say)
            say(
                f"cpu_event_ns: {_share(measured, '0', n_layers)}, less other_layer_ns and {k} * cpu_miss_ns. Handing "
                "over to the CPU and back is in it."
            )
    else:
        other = _at_least_0("other_layer_ns", per_layer["0"] - cpu.fixed - misses, say)
        costs.values["cpu_event_ns"] = cpu.fixed
        say(
            f"other_layer_ns: {_share(measured, '0', n_layers)}, less the CPU's event of {k} misses. Handing over to "
            f"the CPU and back is in it. {_HEAD} cpu_event_ns: what the line of cpu_miss_ns leaves for no miss."
        )
    costs.values["other_layer_ns"] = other


def _share(measured: Measured, capacity: str, n_layers: int) -> str:
    took = measured.decode[capacity].median
    return f"decode at capacity {capacity} takes {took:.0f} ns a token; of that one of {n_layers} equal parts"


def details(measured: Measured) -> dict[str, Any]:
    """Every measurement with its spread, for the field `calibration` of the cost model."""

    def by_number(times: dict[int, Spread]) -> dict[str, Any]:
        return {str(n): spread.as_json() for n, spread in sorted(times.items())}

    expert = measured.expert_copy
    return {
        "cpu_event_ns_by_threads_and_misses": {str(n): by_number(times) for n, times in sorted(measured.cpu.items())},
        "gpu_event_ns_by_hits": None if measured.hits is None else by_number(measured.hits),
        "copies_to_device": [asdict(copy) for copy in measured.copies],
        "expert_copy": None if expert is None else {"queued_ns": expert[0].as_json(), "bytes": expert[1].as_json()},
        "event_ns_by_copies_beside": None if measured.beside is None else by_number(measured.beside),
        "decode_token_ns_by_capacity": {name: spread.as_json() for name, spread in measured.decode.items()},
        "not_measured": measured.missing,
    }
