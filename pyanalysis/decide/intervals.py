"""Bootstrap confidence intervals of ratios: units are drawn with replacement, the same draws for every policy.

B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993): percentile intervals, chapter 13.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

N_DRAWS = 2000
_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval; low and high are NaN where there are too few units for one."""

    low: float
    value: float
    high: float

    @property
    def known(self) -> bool:
        return not math.isnan(self.low)

    @staticmethod
    def exactly(value: float) -> Interval:
        return Interval(value, value, value)


class Bootstrap:
    """The draws of one part: how often each of its u units is drawn, [N_DRAWS, u]. None: too few units."""

    def __init__(self, n_units: int, *, enough: bool, seed: int) -> None:
        generator = np.random.Generator(np.random.PCG64(seed))
        even = np.full(n_units, 1 / n_units)
        self._draws: Array | None = generator.multinomial(n_units, even, N_DRAWS) if enough else None

    def ratio(self, over: Array, under: Array) -> Interval:
        """Sum of `over` by sum of `under`, each [u]; 0 where `under` sums to 0 (no such access, no such token)."""
        value = float(over.sum() / under.sum()) if under.sum() else 0.0
        if self._draws is None:
            return Interval(math.nan, value, math.nan)
        return self._interval(value, _safe(self._draws @ over, self._draws @ under))

    def relative(self, one: Array, other: Array) -> Interval:
        """Sum of `one` by sum of `other`, less 1: 0.02 is 2 % more."""
        ratio = self.ratio(one, other)
        return Interval(ratio.low - 1, ratio.value - 1, ratio.high - 1)

    def difference(self, one: Array, other: Array, under: Array) -> Interval:
        """Difference of two ratios over the same `under`: of hit rates, whose accesses are the same."""
        return self.ratio(one - other, under)

    @staticmethod
    def _interval(value: float, drawn: Array) -> Interval:
        low, high = np.percentile(drawn, _PERCENTILES)
        return Interval(float(low), value, float(high))


def _safe(over: Array, under: Array) -> Array:
    return np.divide(over, under, out=np.zeros(len(over)), where=under != 0)
