"""The operating regime: the experts that a decoding step needs over the slots that there are (arXiv 2608.07911).

Above 1 no policy can hold what a single step asks for, and policies hardly differ; far below 1 there is room for
history. A hit rate says little without it, so it is printed wherever hit rates at a capacity are.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyanalysis.traces import Trace

    Array = np.ndarray[Any, np.dtype[Any]]

_MOST_CELLS = 1 << 24  # (step, layer, expert) marked at once: 16 MiB


@dataclass(frozen=True)
class Regime:
    """At one capacity. `mean`: of a step's experts over the slots; `above`: share of the steps with more than 1."""

    mean: float
    above: float

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" (above 1 in {self.above:.1%})" if self.above else "")


@dataclass(frozen=True, eq=False)
class Steps:
    """The decoding steps of a trace.

    A step is one decoding ubatch where the trace tells all of them, else one decoded token.

    by_layer   int64[steps, layers]: different experts that all tokens of the step ask for, of each layer (and family)
    unit       "ubatch" or "token"
    """

    by_layer: Array
    unit: str

    @staticmethod
    def of(trace: Trace) -> Steps:
        column, layers = trace.columns
        known = bool((trace.batch >= 0).all())
        decoded = np.flatnonzero(trace.phase == 1)
        step = np.unique(trace.batch[decoded] if known else trace.tokens.of_event[decoded], return_inverse=True)[1]
        ids = trace.ids[decoded]
        n_steps, n_experts = int(step.max(initial=-1)) + 1, int(ids.max(initial=0)) + 1
        by_layer = np.zeros((n_steps, len(layers)), dtype=np.int64)
        at_once = max(1, _MOST_CELLS // (len(layers) * n_experts))
        order = np.argsort(step, kind="stable")
        bounds = np.searchsorted(step[order], np.arange(0, n_steps + at_once, at_once))
        for part, (begin, end) in enumerate(itertools.pairwise(bounds.tolist())):
            rows, first = order[begin:end], part * at_once
            used = np.zeros((min(at_once, n_steps - first), len(layers), n_experts), dtype=bool)
            there = ids[rows] >= 0
            row = np.broadcast_to(rows[:, None], there.shape)[there]
            used[step[row] - first, column[decoded[row]], ids[rows][there]] = True
            by_layer[first : first + len(used)] = used.sum(axis=2)
        return Steps(by_layer, "ubatch" if known else "token")

    @property
    def total(self) -> Array:
        """int64[steps]: of all layers."""
        total: Array = self.by_layer.sum(axis=1)
        return total

    def over(self, slots: Sequence[int], *, per_layer: bool) -> Regime | None:
        """Over the `slots` of each budget, as slots_of() gives them: layer by layer with per_layer, else of all layers.

        None: no token was decoded, or there are no slots (with per_layer: in some layer).
        """
        held = np.asarray(slots, dtype=np.int64)
        if not per_layer:
            held = held.sum(keepdims=True)
        if len(self.by_layer) == 0 or not held.all():
            return None
        share = (self.by_layer if per_layer else self.total[:, None]) / held
        return Regime(float(share.mean()), float((share > 1).mean()))


def line(unit: str, at: Iterable[tuple[str, Regime | None]], *, per_layer: bool) -> str:
    """One line for people; `at`: capacities as they were asked for, with their regimes. "" where nothing is known."""
    shown = ", ".join(f"{capacity}: {regime}" for capacity, regime in at if regime is not None)
    step = "ubatch" if unit == "ubatch" else "decoded token"
    budget = "a layer" if per_layer else "all layers"
    return f"different experts that a {step} uses over the slots of {budget}, at {shown}" if shown else ""
