"""The whole decision: verdicts of all traces together, of each trace and cost model, and with changed costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyanalysis import threads
from pyanalysis.cost import COSTS
from pyanalysis.decide.cells import cells_of, choose_adaptive, mean_losses, points_of
from pyanalysis.decide.evidence import with_cost
from pyanalysis.decide.verdict import ADAPTIVE, Cell, Verdict, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyanalysis.cost import CostModel
    from pyanalysis.decide.cells import Point
    from pyanalysis.decide.evidence import Evidence, Options

FACTORS = (0.5, 2.0)
SENSITIVITY_PERCENTS = (5.0, 10.0, 20.0, 40.0, 60.0)


@dataclass(frozen=True)
class Varied:
    """The verdict with one cost multiplied; everything else, the chosen adaptive policy too, as it was."""

    cost: str
    field: str
    factor: float
    verdict: Verdict


@dataclass(frozen=True, eq=False)
class Group:
    """Traces with the same number of sequences at once: batch 1, or several; groups are never averaged.

    adaptive   the adaptive policy that stands for all, chosen on the selection parts of the traces that vote; `losses`
               the mean loss of each
    losses_with_copies   the same if a copy, which reads the same bytes, cost the token as much as a miss: the worst
               case, where memory is what limits the CPU and it never rests
    """

    name: str
    evidences: tuple[Evidence, ...]
    adaptive: str
    losses: dict[str, float]
    losses_with_copies: dict[str, float]
    cells: tuple[Cell, ...]
    points: tuple[Point, ...]
    sensitivity: tuple[Varied, ...]

    @property
    def verdict(self) -> Verdict:
        return decide(self.cells)

    def verdict_of(self, *, workload: str | None = None, cost: str | None = None) -> Verdict:
        """Of a part of the cells."""
        return decide([c for c in self.cells if workload in (None, c.workload) and cost in (None, c.cost)])

    def policy_of(self, candidate: str | None) -> str:
        """The policy that a candidate is; a verdict recommends candidates."""
        return "no cache" if candidate is None else self.adaptive if candidate == ADAPTIVE else candidate


@dataclass(frozen=True, eq=False)
class Decision:
    """`groups`: batch 1 first. What is recommended follows from the first group."""

    options: Options
    groups: tuple[Group, ...]
    seed: int

    @property
    def recommended(self) -> str | None:
        """The policy, "no cache" if none pays, None if the evidence is too short to say."""
        first = self.groups[0]
        return None if first.verdict.outcome == "undecided" else first.policy_of(first.verdict.recommended)


def decision_of(
    evidences: Sequence[Evidence],
    options: Options,
    *,
    seed: int,
    progress: Callable[[int, int], None],
) -> Decision:
    """`progress` is called with (variations of costs computed, in all)."""
    names = sorted({evidence.group for evidence in evidences}, key=lambda name: (name != "batch 1", name))
    n_varied = len(evidences) * sum(len(_fields(options, cost.name)) for cost in options.costs) * len(FACTORS)
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        progress(done, n_varied)

    groups = []
    for name in names:
        own = [evidence for evidence in evidences if evidence.group == name]
        adaptive, losses = choose_adaptive(own, options.adaptive)
        cells = [cell for evidence in own for cell in cells_of(evidence, adaptive, seed=seed)]
        points = [point for evidence in own for point in points_of(evidence, seed=seed)]
        varied = _sensitivity(own, options, adaptive, seed, step)
        worst = mean_losses(own, options.adaptive, misses_per_copy=1)
        groups.append(Group(name, tuple(own), adaptive, losses, worst, tuple(cells), tuple(points), tuple(varied)))
    return Decision(options, tuple(groups), seed)


def _fields(options: Options, name: str) -> list[str]:
    """The costs that can be varied: a cost of 0 stays 0."""
    cost = next(cost for cost in options.costs if cost.name == name)
    return [field for field in (*COSTS, "copy_bandwidth_bytes_per_s") if getattr(cost, field)]


def _sensitivity(
    evidences: Sequence[Evidence], options: Options, adaptive: str, seed: int, step: Callable[[], None]
) -> list[Varied]:
    found = []
    with threads.pool(options.workers) as pool:
        for cost in options.costs:
            for field in _fields(options, cost.name):
                for factor in FACTORS:
                    changed = cost.scaled(field, factor)

                    def cells(evidence: Evidence, name: str = cost.name, changed: CostModel = changed) -> list[Cell]:
                        one = with_cost(evidence, name, changed, adaptive, SENSITIVITY_PERCENTS)
                        return cells_of(one, adaptive, seed=seed)

                    every: list[Cell] = []
                    for part in pool.map(cells, evidences):
                        every += part
                        step()
                    found.append(Varied(cost.name, field, factor, decide(every)))
    return found
