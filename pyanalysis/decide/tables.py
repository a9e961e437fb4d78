"""The tables of the decision's report: cells are text as people read it; the numbers are in points.csv."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.decide.evidence import BOUND, COLD, OPTIMUM, STATIC
from pyanalysis.decide.verdict import ADAPTIVE, NOTHING, TIE
from pyanalysis.report.plots import layer_name
from pyanalysis.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyanalysis.decide.cells import Point
    from pyanalysis.decide.decision import Decision, Group, Varied
    from pyanalysis.decide.evidence import Evidence
    from pyanalysis.decide.intervals import Interval
    from pyanalysis.decide.parts import Part
    from pyanalysis.decide.verdict import Verdict
    from pyanalysis.report.tables import Value

    Array = np.ndarray[Any, np.dtype[Any]]

SHORT_PERCENTS = (5.0, 10.0, 20.0, 40.0, 60.0)
LAYER_PERCENTS = (5.0, 20.0, 50.0)
TARGETS = (0.5, 0.8, 0.9, 0.95)
TOP_SHARES = (5, 10, 25, 50)  # per cent of a layer's experts
SIGNS = {ADAPTIVE: "A", STATIC: "S", COLD: "C", TIE: "=", NOTHING: "0"}


def shown_percent(percent: float) -> str:
    return f"{percent:g}%"


def signed(interval: Interval) -> str:
    """A relative difference with its interval."""
    return (
        f"{interval.value:+.1%} ({interval.low:+.1%} to {interval.high:+.1%})"
        if interval.known
        else (f"{interval.value:+.1%} (no interval)")
    )


def evidence(decision: Decision) -> Table:
    """What each trace is."""
    rows: list[list[Value]] = []
    for group in decision.groups:
        for one in group.evidences:
            model = one.trace.model
            columns = one.stream.columns
            experts = sorted({n for _, _, n, _ in columns})
            used, of_file = len(one.trace.tokens), one.n_tokens_of_file
            rows.append(
                [
                    one.name,
                    model["file"] or f"{Path(one.name).stem} (the name of the file)",
                    group.name if one.sequences is not None else f"{group.name} (ubatches not recorded)",
                    f"{len(columns)} x {' or '.join(map(str, experts))}, top-{one.trace.ids.shape[1]}",
                    f"{used:,}" if used == of_file else f"first {used:,} of {of_file:,}",
                    f"{one.stream.n_decode_tokens:,}",
                    "; ".join(
                        f"{split.name}: {split.held_out.tokens.sum():,} in {_units(split.held_out)}"
                        f"{'' if split.held_out.has_intervals else ' (no interval, no vote)'}"
                        for split in one.splits
                    ),
                    " to ".join(f"{n:,}" for n in dict.fromkeys((one.sizes[0], one.sizes[-1])))
                    if one.sizes
                    else "not recorded",
                ]
            )
    header = ["trace", "model", "sequences", "layers x experts", "tokens", "decoded", "held-out tokens", "expert bytes"]
    return Table("evidence", header, rows)


def _units(part: Part) -> str:
    return f"{part.n_units} {part.kind if part.n_units > 1 else part.kind.replace('s', '', 1)}"


def verdict_row(name: str, group: Group, verdict: Verdict) -> list[Value]:
    if verdict.outcome == "undecided":
        return [name, "undecided", "-", "0", "-", "-", "-", "-", "-"]
    losses = [f"{verdict.losses[candidate]:.1%}" for candidate in (ADAPTIVE, STATIC, COLD)]
    return [
        name,
        verdict.outcome,
        group.policy_of(verdict.recommended),
        f"{verdict.n_cells}",
        f"{verdict.n_paying}",
        f"{verdict.n_equivalent}",
        *losses,
    ]


VERDICT_HEADER = [
    *("evidence", "outcome", "recommended", "cells", "where a cache pays", "where adaptive equals hindsight"),
    *("largest loss: adaptive", STATIC, COLD),
]


def verdicts(group: Group) -> Table:
    rows = [verdict_row("all of them", group, group.verdict)]
    costs = list(dict.fromkeys(cell.cost for cell in group.cells))
    if len(costs) > 1:
        rows += [verdict_row(f"costs {cost}", group, group.verdict_of(cost=cost)) for cost in costs]
    if len(group.evidences) > 1:
        rows += [verdict_row(one.name, group, group.verdict_of(workload=one.name)) for one in group.evidences]
    return Table("verdicts", VERDICT_HEADER, rows)


def candidates(group: Group) -> Table:
    """How the adaptive policies did on the selection parts, best first."""
    ranked = sorted(group.losses, key=lambda policy: group.losses[policy])
    rows: list[list[Value]] = [
        [policy, f"{group.losses[policy]:.2%}", f"{group.losses_with_copies[policy]:.2%}"] for policy in ranked
    ]
    return Table("selection", ["policy", "mean loss", "if a copy cost the CPU one miss"], rows)


def winners(group: Group) -> Table:
    percents = sorted({cell.percent for cell in group.cells if cell.percent > 0})
    signs = {(c.workload, c.split, c.cost, c.percent): SIGNS[c.winner] for c in group.cells}
    keys = dict.fromkeys((c.workload, c.split, c.cost) for c in group.cells)
    rows: list[list[Value]] = [[", ".join(key), *(signs.get((*key, p), "") for p in percents)] for key in keys]
    return Table("winners", ["trace, held-out part, costs", *map(shown_percent, percents)], rows)


def against_bound(group: Group) -> Table:
    rows: list[list[Value]] = []
    for cell in group.cells:
        if cell.percent in SHORT_PERCENTS:
            place = f"{cell.workload}, {cell.split}, {cell.cost}"
            points = signed(cell.bound_hits).replace("%", "")
            against = [signed(cell.against[name]) for name in (STATIC, COLD)]
            rows.append([place, shown_percent(cell.percent), signed(cell.bound_time), points, *against])
    header = [
        *("trace, held-out part, costs", "capacity", f"time against {BOUND}", f"hits against {BOUND} (points)"),
        *(f"time against {STATIC}", f"time against {COLD}"),
    ]
    return Table("against_hindsight", header, rows)


def sensitivity(group: Group) -> Table:
    def row(one: Varied) -> list[Value]:
        return verdict_row(f"{one.cost}, {one.field} x {one.factor:g}", group, one.verdict)

    return Table("sensitivity", ["changed cost", *VERDICT_HEADER[1:]], [row(one) for one in group.sensitivity])


# --- of one trace ---------------------------------------------------------------------------------------------------


def key_policies(adaptive: str) -> list[str]:
    """The lines of plots and of tables in the text: the bounds, the candidates, and two everybody knows."""
    return list(dict.fromkeys([OPTIMUM, BOUND, STATIC, COLD, adaptive, "cumulative-lfu", "lru"]))


def curves(points: Iterable[Point], policies: Sequence[str], value: str) -> dict[str, list[tuple[float, float]]]:
    """(capacity in per cent, value) of each policy; `value` is `hit_rate` in per cent or `time_ns` in ms."""
    scale = 100 if value == "hit_rate" else 1e-6
    found: dict[str, list[tuple[float, float]]] = {policy: [] for policy in policies}
    for point in points:
        if point.policy in found:
            found[point.policy].append((point.percent, scale * getattr(point, value).value))
    return {policy: sorted(line) for policy, line in found.items() if line}


def by_capacity(name: str, points: Sequence[Point], policies: Sequence[str], value: str) -> Table:
    """One row per capacity: hit rate or time per token in ms with the interval's half width."""
    form = _rate if value == "hit_rate" else _milliseconds
    cells = {(p.policy, p.percent): form(getattr(p, value)) for p in points}
    own = [policy for policy in policies if any(p.policy == policy for p in points)]
    experts = {p.percent: p.experts for p in points}
    rows: list[list[Value]] = [
        [shown_percent(percent), f"{experts[percent]:,}", *(cells.get((policy, percent)) for policy in own)]
        for percent in sorted(experts)
    ]
    return Table(name, ["capacity", "experts", *own], rows)


def _rate(interval: Interval) -> str:
    return (
        f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"
        if interval.known
        else (f"{interval.value:.3f}")
    )


def _milliseconds(interval: Interval) -> str:
    low, value, high = (1e-6 * x for x in (interval.low, interval.value, interval.high))
    return f"{value:.2f} ({low:.2f} to {high:.2f})" if interval.known else f"{value:.2f}"


def targets(points: Sequence[Point], policies: Sequence[str]) -> Table:
    """The smallest capacity of the sweep that reaches a hit rate, above the largest that does not."""
    lines = curves(points, policies, "hit_rate")
    rows: list[list[Value]] = [[policy, *(_reached(line, 100 * t) for t in TARGETS)] for policy, line in lines.items()]
    return Table("targets", ["policy", *(f"{target:.0%}" for target in TARGETS)], rows)


def _reached(line: Sequence[tuple[float, float]], target: float) -> str:
    place = next((place for place, (_, rate) in enumerate(line) if rate >= target), None)
    if place is None:
        return "not reached"
    percent = shown_percent(line[place][0])
    return percent if place == 0 else f"{line[place - 1][0]:g} to {percent}"


def copies(points: Sequence[Point], policies: Sequence[str]) -> Table:
    """Copies per decoded token during the held-out part, those of prompts included, and the share of late ones."""
    percents = [p for p in SHORT_PERCENTS if any(point.percent == p for point in points)]
    cells = {(p.policy, p.percent): _copies(p) for p in points}
    own = [p for p in policies if p not in (STATIC, BOUND) and any(point.policy == p for point in points)]
    rows: list[list[Value]] = [[policy, *(cells.get((policy, percent)) for percent in percents)] for policy in own]
    return Table("copies", ["policy", *map(shown_percent, percents)], rows)


def _copies(point: Point) -> str:
    late = f"{point.late / point.copies:.1%} late" if point.copies else "none"
    return f"{point.copies / point.tokens:.3f} ({late})" if point.copies else late


def sorted_shares(one: Evidence, split: str) -> list[Array]:
    """Of each column the share of accesses of each expert, falling; columns without an access are left out."""
    cuts = one.stream.first_item[1:-1]
    columns = np.split(one.uses[split], cuts)
    return [np.sort(uses)[::-1] / uses.sum() for uses in columns if uses.sum()]


def frequencies(one: Evidence, split: str) -> Table:
    """Share of the accesses that go to a layer's most used experts; least, mean and most of the layers."""
    rows: list[list[Value]] = []
    shares = sorted_shares(one, split)
    for percent in TOP_SHARES:
        top = [float(share[: max(1, round(len(share) * percent / 100))].sum()) for share in shares]
        rows.append([f"most used {percent} %", *(f"{x:.1%}" for x in (min(top), float(np.mean(top)), max(top)))])
    never = [float((share == 0).mean()) for share in shares]
    rows.append(["never used", *(f"{x:.1%}" for x in (min(never), float(np.mean(never)), max(never)))])
    return Table("frequencies", ["experts of a layer", "least", "mean", "most"], rows)


def layers(one: Evidence, group: Group, split: str, cost: str) -> Table:
    """Hit rate of each layer at a few capacities."""
    percents = [percent for percent in LAYER_PERCENTS if percent in one.slots]
    pairs = [(policy, percent) for policy in (group.adaptive, STATIC, BOUND) for percent in percents]
    rates = []
    for policy, percent in pairs:
        sums = one.sums[cost, split, policy, percent]
        rates.append(sums.layer_hits / np.maximum(sums.layer_accesses, 1))
    names = [layer_name(layer, family) for layer, family, *_ in one.stream.columns]
    rows: list[list[Value]] = [[name, *(f"{rate[i]:.3f}" for rate in rates)] for i, name in enumerate(names)]
    return Table("layers", ["layer", *(f"{policy} at {shown_percent(at)}" for policy, at in pairs)], rows)
