"""What a strategy is made of, and what it is made from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyanalysis.cost import CostModel
    from pyanalysis.simulation import EventStream
    from pyanalysis.studies.predictors.base import Predictor
    from pyanalysis.studies.routing import Routing

    Array = np.ndarray[Any, np.dtype[Any]]


class NotApplicableError(Exception):
    """The trace lacks what a strategy needs; the message says what."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """Candidates in the order of the events at which they appear, as core/strategies/forecast.h has them."""

    offsets: Array  # uint64[events + 1]
    items: Array  # uint32[c]
    ahead: Array  # uint32[c]
    confidence: Array  # float32[c]

    @staticmethod
    def of(event: Array, items: Array, ahead: Array, confidence: Array, n_events: int) -> Forecast:
        """`event` int[c]: where each candidate appears, in any order."""
        order = np.argsort(event, kind="stable")
        counts = np.bincount(event, minlength=n_events)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
        kinds = ((items, np.uint32), (ahead, np.uint32), (confidence, np.float32))
        return Forecast(offsets, *(np.ascontiguousarray(values[order], dtype=kind) for values, kind in kinds))


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of experts by event, as core/strategies/forecast.h has them."""

    values: Array  # float32[rows, E]
    row_of_event: Array  # int64[events], -1: the scores stay


@dataclass(frozen=True)
class Plan:
    """What is replayed. Fields as in core/strategies/strategy-simulator.h; `ranking` is its scorer.

    predict_bytes   what predicting for one token reads: the replay does not count its time, the verdict does
    """

    ranking: str = "decayed-lfu"
    half_life_tokens: float = 256.0  # that of the decision report's winner
    demand: bool = True
    order: str = "deadline"
    least_lead: int = 1
    least_confidence: float = 0.0
    only_better: bool = False
    victim_agreement: bool = False
    predict_bytes: int = 0
    scores: Scores | None = field(default=None, compare=False)
    forecast: Forecast | None = field(default=None, compare=False)

    def options(self) -> dict[str, Any]:
        names = (
            "half_life_tokens",
            "demand",
            "order",
            "least_lead",
            "least_confidence",
            "only_better",
            "victim_agreement",
        )
        return {"scorer": self.ranking, **{name: getattr(self, name) for name in names}}

    def with_confidence(self, least: float) -> Plan:
        return replace(self, least_confidence=least)

    def predicts(self, least: float) -> bool:
        """Whether anything must be predicted with this least confidence."""
        return self.scores is not None or math.isfinite(least)


@dataclass(eq=False)
class Context:
    """One trace, and what may be fitted on. Nothing but `fit` of `fit_on` may be learnt from.

    event_of  int64[T, L]: event of the replay of each decoded token and layer
    """

    routing: Routing
    stream: EventStream
    event_of: Array
    fit_on: Routing
    fit: Array
    prompts: tuple[tuple[int, Array], ...]  # (request's number in `routing`, uses int64[L, E] of its prompt)
    seed: int = 0
    foreseen: dict[str, tuple[Array, Array]] = field(default_factory=dict)  # by predictor: ranking.py
    _fitted: dict[str, Predictor] = field(default_factory=dict)

    def fitted(self, name: str) -> Predictor:
        """A predictor by its name in the table, fitted once."""
        from pyanalysis.studies.predictors.table import PREDICTORS  # noqa: PLC0415 - not every strategy predicts

        if name not in PREDICTORS:
            raise ConfigError(f"there is no predictor '{name}'; predictors: {', '.join(PREDICTORS)}")
        if name not in self._fitted:
            self._fitted[name] = PREDICTORS[name](self.seed)
            self._fitted[name].fit(self.fit_on, self.fit)
        return self._fitted[name]

    def predict_bytes(self, name: str, steps: int = 1) -> int:
        """What a fitted predictor reads for one token, each step further ahead the same again."""
        return steps * self.fitted(name).bytes_per_token(self.routing.ids.shape[2])

    @property
    def n_events(self) -> int:
        return self.stream.native.n_events

    @cached_property
    def extended(self) -> tuple[Routing, Array]:
        """(the routing with one token without experts behind each request, place in it of each of the T tokens).

        A run does not know that a request has ended: what it would prefetch for the next token is replayed too.
        """
        r = self.routing
        last = np.flatnonzero(np.append(r.begins[1:], True))
        place = np.arange(r.n_tokens) + np.searchsorted(last, np.arange(r.n_tokens), side="left")
        n = r.n_tokens + len(last)
        ids = np.full((n, *r.ids.shape[1:]), -1, dtype=r.ids.dtype)
        ids[place] = r.ids
        request = np.empty(n, dtype=r.request.dtype)
        request[place] = r.request
        request[place[last] + 1] = r.request[last]
        row = np.full((n, len(r.layers)), -1, dtype=np.int64)
        row[place] = r.row
        return replace(r, ids=ids, request=request, row=row, weights=None, top1=None), place


@dataclass(frozen=True)
class Strategy:
    """`make` may be asked again for other slots (int per budget) only where `by_capacity` says so.

    confidences   the least confidences of a prefetch that the selection part chooses among; (0,): it is as published
    gains         the same as multiples of the confidence at which a prefetch is expected to pay for its copy
                  (break_even), which is another one for each cost model; infinity: nothing is prefetched
    bound         it looks at the future: never chosen
    """

    name: str
    summary: str
    make: Callable[[Context, tuple[int, ...]], Plan]
    confidences: tuple[float, ...] = (0.0,)
    by_capacity: bool = False
    bound: bool = False
    gains: tuple[float, ...] = ()

    def tried(self, cost: CostModel) -> tuple[float, ...]:
        """The least confidences to choose among with this cost model."""
        even = break_even(cost)
        return tuple(gain * even if math.isfinite(gain) else gain for gain in self.gains) or self.confidences


def break_even(cost: CostModel) -> float:
    """Confidence at which confidence * (cpu_miss_ns - gpu_hit_ns) is copy_event_ns; infinite where a miss costs less.

    What the victim would have been worth, and that an event without any miss saves cpu_event_ns, is not in it.
    """
    gain = cost.cpu_miss_ns - cost.gpu_hit_ns
    return cost.copy_event_ns / gain if gain > 0 else math.inf
