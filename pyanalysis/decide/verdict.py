"""From numbers to the decision. Nothing here knows traces, policies or files; the rules were fixed before any result.

The cells that decide are those with an interval and a capacity of 5 to 60 % of the experts. In this order:

1. nothing      in no cell is any candidate faster than capacity 0 (the whole interval is below): caching does not pay.
2. equivalent   in every cell adaptive takes at most 2 % more time per token than the best static set known in hindsight
                and hits at most 1 point less (the whole intervals are within): no static set is worth a profile.
3. static       a runnable static candidate is in no cell more than 2 % slower than adaptive and in one more than 2 %
                faster (whole intervals): adaptive loses.
4. adaptive     against every static candidate the other way round: adaptive wins.
5. neither      anything else: the conclusion differs from cell to cell, or lies within the margins or the noise.

With `neither` the recommendation is adaptive if it is nowhere more than 2 % slower than the fastest candidate (it
needs no profile), else the candidate whose largest loss against the fastest one is the smallest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyanalysis.decide.intervals import Interval

TIME_MARGIN = 0.02
HIT_MARGIN = 0.01
CAPACITIES = (5.0, 60.0)  # per cent of the experts, both included
ADAPTIVE = "adaptive"
NOTHING = "nothing"
TIE = "tie"


@dataclass(frozen=True)
class Cell:
    """One workload, split, cost model and capacity. Times per token of the held-out part, relative: 0.02 is 2 % more.

    saved         of each candidate: its time against that of capacity 0
    bound_time    adaptive against the best static set of the held-out part itself
    bound_hits    likewise the hit rate, a difference: -0.01 is one point less
    against       adaptive against each runnable static candidate
    """

    workload: str
    split: str
    cost: str
    percent: float  # capacity, of the experts
    saved: Mapping[str, Interval]
    bound_time: Interval
    bound_hits: Interval
    against: Mapping[str, Interval]

    @property
    def votes(self) -> bool:
        return CAPACITIES[0] <= self.percent <= CAPACITIES[1] and self.bound_time.known

    @property
    def pays(self) -> bool:
        """Some candidate is faster than capacity 0, the noise included."""
        return any(interval.high < 0 for interval in self.saved.values())

    @property
    def is_equivalent(self) -> bool:
        return self.bound_time.high <= TIME_MARGIN and self.bound_hits.low >= -HIT_MARGIN

    @property
    def winner(self) -> str:
        """`nothing`: no candidate beats capacity 0; the fastest one, if adaptive wins or loses for sure; else `tie`."""
        if all(interval.value >= 0 for interval in self.saved.values()):
            return NOTHING
        if all(faster(interval) for interval in self.against.values()):
            return ADAPTIVE
        best = min(self.saved, key=lambda name: self.saved[name].value)
        return best if best != ADAPTIVE and slower(self.against[best]) else TIE

    def loss(self, candidate: str) -> float:
        """Time of a candidate against the fastest one, 0 for the fastest."""
        times = {name: 1 + interval.value for name, interval in self.saved.items()}
        return times[candidate] / min(times.values()) - 1


@dataclass(frozen=True)
class Verdict:
    """`outcome` is one of the five above, or `undecided`: no cell votes."""

    outcome: str
    recommended: str | None  # a candidate; None: no cache, or no evidence
    reason: str
    n_cells: int
    n_paying: int
    n_equivalent: int
    losses: Mapping[str, float]  # of each candidate the largest


def slower(interval: Interval) -> bool:
    """More than the margin, the whole interval."""
    return interval.low > TIME_MARGIN


def faster(interval: Interval) -> bool:
    return interval.high < -TIME_MARGIN


def decide(cells: Sequence[Cell]) -> Verdict:
    """The verdict of all cells that vote. All of them must have the same candidates."""
    voting = [cell for cell in cells if cell.votes]
    if not voting:
        reason = "no trace is long enough for intervals at capacities of 5 to 60 %"
        return Verdict("undecided", None, reason, 0, 0, 0, {})
    losses = {name: max(cell.loss(name) for cell in voting) for name in voting[0].saved}
    outcome, recommended, reason = _outcome(voting, losses)
    return Verdict(
        outcome,
        recommended,
        reason,
        len(voting),
        sum(cell.pays for cell in voting),
        sum(cell.is_equivalent for cell in voting),
        losses,
    )


def _outcome(voting: Sequence[Cell], losses: Mapping[str, float]) -> tuple[str, str | None, str]:
    if not any(cell.pays for cell in voting):
        return NOTHING, None, "at no capacity is any policy faster than the CPU alone"
    if all(cell.is_equivalent for cell in voting):
        return "equivalent", ADAPTIVE, "adaptive is within the margins of the best static set at every capacity"
    statics = list(voting[0].against)
    beats = {name: [faster(cell.against[name]) for cell in voting] for name in statics}
    loses = {name: [slower(cell.against[name]) for cell in voting] for name in statics}
    winners = [name for name in statics if any(loses[name]) and not any(beats[name])]
    if winners:
        best = min(winners, key=lambda name: losses[name])
        where = f"slower in {sum(loses[best])} of {len(voting)} cells, faster in none"
        return "static", best, f"adaptive loses against {best}: {where}"
    if all(any(beats[name]) and not any(loses[name]) for name in statics):
        where = ", ".join(f"{name} in {sum(beats[name])}" for name in statics)
        return ADAPTIVE, ADAPTIVE, f"adaptive is faster than {where} of {len(voting)} cells, slower in none"
    if losses[ADAPTIVE] <= TIME_MARGIN:
        return "neither", ADAPTIVE, "no difference beyond the margin in one direction; adaptive needs no profile"
    best = min(losses, key=lambda name: losses[name])
    return "neither", best, f"the conclusion differs from cell to cell; {best} loses at most {losses[best]:.1%}"


def flips(cells: Sequence[Cell]) -> list[str]:
    """Where the winner changes as the capacity rises, one line for each workload, split and cost model that has any."""
    lines = []
    for key in dict.fromkeys((cell.workload, cell.split, cell.cost) for cell in cells):
        own = sorted(
            (c for c in cells if (c.workload, c.split, c.cost) == key and c.percent > 0), key=lambda c: c.percent
        )
        runs: list[tuple[str, float, float]] = []
        for cell in own:
            if runs and runs[-1][0] == cell.winner:
                runs[-1] = (cell.winner, runs[-1][1], cell.percent)
            else:
                runs.append((cell.winner, cell.percent, cell.percent))
        if len(runs) > 1:
            shown = ", ".join(f"{name} {_span(low, high)}" for name, low, high in runs)
            lines.append(f"{key[0]}, held-out {key[1]}, {key[2]}: {shown}")
    return lines


def _span(low: float, high: float) -> str:
    return f"at {low:g} %" if low == high else f"from {low:g} to {high:g} %"
