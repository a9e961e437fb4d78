"""From the cells of the strategies study to its tables and its verdicts.

The margin is the decision report's, 2 % of time per token. A strategy is faster on a trace, held-out part and cost
model if its time, summed over the capacities, is below the winner's by more than the margin, the whole bootstrap
interval. It is chosen for a cost model only if it is faster on every trace that has enough units for intervals, on
held-out tokens and on held-out requests. (That cost models are judged apart was decided after the first run, whose two
cost models disagreed.)
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.decide.intervals import Bootstrap
from pyanalysis.report.plots import lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyanalysis.studies.findings import Findings

    Array = np.ndarray[Any, np.dtype[Any]]

MARGIN = 0.02
_MUST = ("tokens", "requests")  # held-out parts that decide; a workload is shown


@dataclass(frozen=True, eq=False)
class Cell:
    """One strategy, trace, split, cost model and capacity, over the held-out part of u units.

    kind        "policy", "strategy", or "bound": it sees the future
    time_ns, hits, accesses, tokens   [u]; time_ns without predicting, which takes predict_ns a token
    copies      begun at the part's own events, of which prompts are none; `late` of them: demand copies that were not
                complete at their layer's next token
    prefetches  of those copies; `asked`: the event of the deadline asked for the expert, `in_time` of these the copy
                was complete; `used`: a hit before it was evicted. None: no prefetching
    delayed     demand copies that waited for a prefetch, `made_late` by it
    """

    trace: str
    split: str
    held_out: str
    cost: str
    percent: float
    strategy: str
    kind: str
    least_confidence: float
    time_ns: Array
    hits: Array
    accesses: Array
    tokens: Array
    predict_ns: float
    dearer_copy_ns: float  # what a copy would take more from its token if it took as much as a miss
    copies: int
    copy_bytes: int
    enough_units: bool
    late: int
    prefetches: int | None = None
    asked: int | None = None
    in_time: int | None = None
    used: int | None = None
    delayed: int | None = None
    made_late: int | None = None

    @property
    def us_per_token(self) -> float:
        return float(self.time_ns.sum() / self.tokens.sum()) / 1e3

    @property
    def hit_rate(self) -> float:
        return float(self.hits.sum() / self.accesses.sum())


@dataclass(frozen=True)
class Standing:
    """A strategy against the winner on one trace, held-out part and cost model, all capacities together.

    change   of time per token, predicting included, with its interval
    """

    strategy: str
    kind: str
    trace: str
    split: str
    held_out: str
    cost: str
    low: float
    change: float
    high: float
    hit_change: float
    predicting: float  # time of predicting by the winner's time
    with_copies: float  # the change if every copy took as much from its token as a miss
    known: bool

    @property
    def faster(self) -> bool:
        return self.known and self.high < -MARGIN

    @property
    def slower(self) -> bool:
        return self.known and self.low > MARGIN


def standings(cells: Sequence[Cell], winner: str, *, seed: int) -> list[Standing]:
    """Every strategy but the winner, in the order of the cells."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.split, cell.cost, cell.strategy), []).append(cell)
    found = []
    for (split, cost, strategy), own in groups.items():
        base = groups[split, cost, winner]
        if strategy == winner:
            continue
        draws = Bootstrap(len(own[0].tokens), enough=own[0].enough_units, seed=seed)
        time, base_time = sum(c.time_ns + c.predict_ns * c.tokens for c in own), sum(c.time_ns for c in base)
        predicting = sum(float(c.predict_ns * c.tokens.sum()) for c in own) / float(np.sum(base_time))
        interval = draws.relative(np.asarray(time), np.asarray(base_time))
        spent, base_spent = (
            float(np.sum(total)) + sum(c.copies * c.dearer_copy_ns for c in group)
            for total, group in ((time, own), (base_time, base))
        )
        hits = np.mean([a.hit_rate - b.hit_rate for a, b in zip(own, base, strict=True)])
        found.append(
            Standing(
                strategy=strategy,
                kind=own[0].kind,
                trace=own[0].trace,
                split=split,
                held_out=own[0].held_out,
                cost=cost,
                low=interval.low,
                change=interval.value,
                high=interval.high,
                hit_change=float(hits),
                predicting=predicting,
                with_copies=spent / base_spent - 1,
                known=interval.known,
            )
        )
    return found


def verdict(own: Sequence[Standing], traces: Sequence[str]) -> str:
    """Of one strategy with one cost model, by the rule above; `traces`: all that are long enough to vote."""
    deciding = [one for one in own if one.held_out in _MUST]
    voting = [one for one in deciding if one.known]
    if not voting:
        return "undecided: too few units for intervals"
    gains = [
        trace for trace in traces if {one.held_out for one in voting if one.trace == trace and one.faster} == set(_MUST)
    ]
    if len(gains) == len(traces):
        return "chosen"
    if any(one.hit_change > 0 and one.change > 0 for one in voting) and not gains:
        return "rejected: more hits, more time" if all(one.change > 0 for one in voting) else "rejected"
    if gains:
        return f"rejected: faster on {', '.join(gains)} only"
    return "rejected"


def add(findings: Findings, cells: Sequence[Cell], winner: str, strategies: Sequence[str], *, seed: int) -> None:
    """The verdicts, the standings and every cell."""
    found = standings(cells, winner, seed=seed)
    findings.heading("Verdicts")
    findings.say(
        f"Faster or slower: more than {MARGIN:.0%} of time per token, all capacities together, the whole interval. "
        "Chosen for a cost model: faster on every trace that is long enough for intervals, on held-out tokens and on "
        "held-out requests. 'if copies cost' is the worst change of time if each copy took as much from its token as a "
        "miss, where the cost model says that it takes less: the worst case, as in the decision report."
    )
    rows: list[list[Any]] = []
    traces = list(dict.fromkeys(one.trace for one in found if one.held_out in _MUST and one.known))
    names = dict.fromkeys([*strategies, *(one.strategy for one in found)])
    for strategy, cost in itertools.product(names, dict.fromkeys(one.cost for one in found)):
        own = [one for one in found if (one.strategy, one.cost) == (strategy, cost)]
        if not own:
            continue
        fixed = {"bound": "sees the future", "policy": "a policy"}
        judged = verdict(own, traces) if own[0].kind == "strategy" else fixed[own[0].kind]
        deciding = [one for one in own if one.held_out in _MUST]
        changes = [one.change for one in deciding] or [one.change for one in own]
        counts = (sum(one.faster for one in deciding), sum(one.slower for one in deciding), len(deciding))
        spent = 100 * max(one.predicting for one in own)
        copied = 100 * max(one.with_copies for one in deciding or own)
        rows.append([strategy, cost, *counts, 100 * min(changes), 100 * max(changes), spent, copied, judged])
    header = [
        "strategy",
        "cost",
        "faster",
        "slower",
        "of",
        "best time %",
        "worst time %",
        "of it predicting",
        "if copies cost",
        "verdict",
    ]
    findings.table("verdicts", header, rows)
    chosen = [f"{row[0]} for {row[1]}" for row in rows if row[-1] == "chosen"]
    findings.say(f"Chosen: {', '.join(chosen)}." if chosen else f"No strategy is chosen: {winner} stays.")
    _standings(findings, found)
    _drawings(findings, cells)
    _points(findings, cells)


def _standings(findings: Findings, found: Sequence[Standing]) -> None:
    findings.heading("Against the winner, all capacities together")
    rows = [
        [
            *(one.split, one.cost, one.strategy, 100 * one.change),
            *((100 * one.low, 100 * one.high) if one.known else (None, None)),
            100 * one.predicting,
            100 * one.with_copies,
            100 * one.hit_change,
        ]
        for one in found
    ]
    findings.table(
        "standings",
        [
            "held out",
            "cost",
            "strategy",
            "time %",
            "low",
            "high",
            "predicting %",
            "if copies cost %",
            "hit rate, points",
        ],
        rows,
    )


def _drawings(findings: Findings, cells: Sequence[Cell]) -> None:
    """Time per token against capacity, and the times by unit as arrays [capacities, units]."""
    findings.heading("Time per token against capacity, predicting included")
    for split, cost in dict.fromkeys((cell.split, cell.cost) for cell in cells):
        own = [cell for cell in cells if (cell.split, cell.cost) == (split, cost)]
        curves: dict[str, list[tuple[float, float]]] = {}
        times: dict[str, list[Array]] = {}
        for cell in own:
            curves.setdefault(cell.strategy, []).append((cell.percent, cell.us_per_token + cell.predict_ns / 1e3))
            times.setdefault(cell.strategy, []).append(cell.time_ns)
        findings.heading(f"{split}, {cost}", 3)
        findings.draw(lines(curves, "slots (% of the experts)", "time per token (us)"))
        findings.arrays |= {f"time_ns/{split}/{cost}/{name}": np.stack(values) for name, values in times.items()}


def _points(findings: Findings, cells: Sequence[Cell]) -> None:
    findings.heading("Every replay")
    findings.say(
        "'ready in time': prefetched experts that the event of the deadline asked for, and whose copy was complete by "
        "then. 'useful': prefetches that were hit at least once. 'delayed' and 'made late': demand copies that waited "
        "for a prefetch, and those that were late because of it, of all demand copies."
    )
    rows = [
        [
            *(c.split, c.cost, c.percent, c.strategy, c.hit_rate, c.us_per_token, c.predict_ns / 1e3),
            *(c.copy_bytes / c.tokens.sum() / 2**20, c.copies / c.tokens.sum()),
            *(_share(c.late, c.copies - (c.prefetches or 0)), _rate(c.prefetches, c.tokens.sum())),
            *(_share(c.in_time, c.asked), _share(c.asked, c.prefetches), _share(c.used, c.prefetches)),
            *(_share(c.delayed, c.copies - (c.prefetches or 0)), _share(c.made_late, c.copies - (c.prefetches or 0))),
            _least(c),
        ]
        for c in cells
    ]
    header = [
        *(
            "held out",
            "cost",
            "capacity %",
            "strategy",
            "hit rate",
            "us per token",
            "predicting us",
            "MiB per token",
            "copies per token",
        ),
        *("demand late", "prefetches per token", "ready in time", "asked for", "useful", "delayed", "made late"),
        "least confidence",
    ]
    findings.table("points", header, rows)


def _least(cell: Cell) -> float | str | None:
    """The least confidence of its prefetches; None: it never prefetches."""
    if cell.prefetches is None:
        return None
    return cell.least_confidence if math.isfinite(cell.least_confidence) else "off"


def _share(part: int | None, of: int | None) -> float | None:
    return part / of if part is not None and of else None


def _rate(part: int | None, of: float) -> float | None:
    return None if part is None else part / of
