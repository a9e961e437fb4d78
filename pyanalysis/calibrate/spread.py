"""Repeated measurements: median and quartiles, and the straight line through medians."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Spread:
    """Of `n` values: median, lower and upper quartile (of the values included, as numpy's default)."""

    median: float
    q1: float
    q3: float
    n: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return Spread(values[0], values[0], values[0], 1)
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, q1, q3, len(values))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Line:
    """y = fixed + x * slope, by least squares."""

    fixed: float
    slope: float

    @staticmethod
    def through(points: Sequence[tuple[float, float]]) -> Line:
        """One point is a line through the origin."""
        if len(points) == 1:
            return Line(0.0, points[0][1] / points[0][0])
        slope, fixed = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
        return Line(fixed, slope)
