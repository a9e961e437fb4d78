"""From evidence to the cells that decide: which adaptive policy stands for all of them, and the intervals."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pyanalysis.decide.evidence import BOUND, COLD, STATIC
from pyanalysis.decide.intervals import Bootstrap, Interval
from pyanalysis.decide.verdict import ADAPTIVE, CAPACITIES, Cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyanalysis.decide.evidence import Evidence

STATICS = (STATIC, COLD)


def choose_adaptive(evidences: Sequence[Evidence], policies: Sequence[str]) -> tuple[str, dict[str, float]]:
    """(the policy, mean loss of each): the smallest mean loss of time against the fastest adaptive policy.

    Over all traces, splits, cost models and capacities of 5 to 60 %, on the selection parts only. Every trace weighs
    the same; one that is too short for an interval has no say, unless all are. Equal losses: the earlier policy.
    """
    losses = mean_losses(evidences, policies)
    return min(policies, key=lambda policy: losses[policy]), losses


def voting(evidences: Sequence[Evidence]) -> list[Evidence]:
    """Those with enough held-out units for an interval; all of them if none has."""
    return [e for e in evidences if any(split.held_out.has_intervals for split in e.splits)] or list(evidences)


def mean_losses(
    evidences: Sequence[Evidence], policies: Sequence[str], *, misses_per_copy: float = 0.0
) -> dict[str, float]:
    """Of each policy. A copy is taken to cost `misses_per_copy` misses, if that is more than its cost model says.

    Over the traces that have a say, and the capacities of 5 to 60 %, or where there are none all but 0.
    """
    percents = {percent for evidence in evidences for *_, percent in evidence.selection if percent > 0}
    within = {percent for percent in percents if CAPACITIES[0] <= percent <= CAPACITIES[1]} or percents
    if not within:
        return dict.fromkeys(policies, 0.0)  # at capacity 0 all are alike
    of_trace = []
    for evidence in voting(evidences):
        losses = []
        for cost, split, percent in dict.fromkeys((c, s, p) for c, s, _, p in evidence.selection):
            if percent in within:
                found = np.array([evidence.selection[cost, split, policy, percent] for policy in policies])
                model = evidence.costs[cost]
                more_ns = max(0.0, misses_per_copy * model.cpu_miss_ns - model.copy_event_ns)
                times = found @ [1.0, more_ns]
                losses.append(times / times.min() - 1)
        of_trace.append(np.mean(losses, axis=0))
    return dict(zip(policies, np.mean(of_trace, axis=0).tolist(), strict=True))


def bootstrap_of(evidence: Evidence, split: str, seed: int) -> Bootstrap:
    """The draws of a held-out part: the same for all policies, capacities and costs; other ones for another trace."""
    part = next(one.held_out for one in evidence.splits if one.name == split)
    own = zlib.crc32(f"{evidence.name}/{split}".encode())
    return Bootstrap(part.n_units, enough=part.has_intervals, seed=seed * (1 << 32) + own)


def cells_of(evidence: Evidence, adaptive: str, *, seed: int) -> list[Cell]:
    """One for each split, cost model and capacity; capacity 0 must be among them."""
    cells = []
    for split in evidence.splits:
        bootstrap = bootstrap_of(evidence, split.name, seed)
        for cost, model in evidence.costs.items():
            nothing = evidence.sums[cost, split.name, adaptive, 0.0].time_ns(model)
            for percent in evidence.slots:
                names = (adaptive, BOUND, *STATICS)
                sums = {name: evidence.sums[cost, split.name, name, percent] for name in names}
                times = {name: one.time_ns(model) for name, one in sums.items()}
                one, bound = sums[adaptive], sums[BOUND]
                saved = {name: bootstrap.relative(times[name], nothing) for name in (adaptive, *STATICS)}
                against = {name: bootstrap.relative(times[adaptive], times[name]) for name in STATICS}
                cells.append(
                    Cell(
                        workload=evidence.name,
                        split=split.name,
                        cost=cost,
                        percent=percent,
                        saved={ADAPTIVE: saved.pop(adaptive), **saved},
                        bound_time=bootstrap.relative(times[adaptive], times[BOUND]),
                        bound_hits=bootstrap.difference(one.hits, bound.hits, one.accesses),
                        against=against,
                    )
                )
    return cells


@dataclass(frozen=True)
class Point:
    """One policy at one capacity on a held-out part; time per decode token in ns, copies per 1,000 decode tokens."""

    workload: str
    split: str
    cost: str
    policy: str
    percent: float
    experts: int
    hit_rate: Interval
    time_ns: Interval
    copies: int
    late: int
    tokens: int


def points_of(evidence: Evidence, *, seed: int) -> list[Point]:
    """Every policy and capacity of the evidence, in its order."""
    points = []
    parts = {split.name: split.held_out for split in evidence.splits}
    bootstraps = {name: bootstrap_of(evidence, name, seed) for name in parts}
    experts = {percent: sum(slots) for percent, slots in evidence.slots.items()}
    order = {percent: place for place, percent in enumerate(evidence.slots)}
    for (cost, split, policy, percent), sums in sorted(
        evidence.sums.items(), key=lambda one: (one[0][1], one[0][0], one[0][2], order[one[0][3]])
    ):
        points.append(
            Point(
                workload=evidence.name,
                split=split,
                cost=cost,
                policy=policy,
                percent=percent,
                experts=experts[percent],
                hit_rate=bootstraps[split].ratio(sums.hits, sums.accesses),
                time_ns=bootstraps[split].ratio(sums.time_ns(evidence.costs[cost]), parts[split].tokens),
                copies=sums.copies,
                late=sums.late,
                tokens=int(parts[split].tokens.sum()),
            )
        )
    return points
