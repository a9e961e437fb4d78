"""Comparison of logits: bit for bit, or by relative error; says where the first difference is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LogitsByStep = dict[str, npt.NDArray[np.float32]]

# DESIGN 7: within this bound where the kernels are not the same; relative to the largest logit of the row.
RELATIVE_BOUND = 1e-5


@dataclass(frozen=True)
class Difference:
    """How two sets of logits differ; `first` is (step key, output row, logit index) or None if they are equal."""

    first: tuple[str, int, int] | None
    n_different: int
    n_total: int
    max_relative: float

    @property
    def equal(self) -> bool:
        """True if every bit is the same and every logit finite."""
        return self.first is None and math.isfinite(self.max_relative)

    def __str__(self) -> str:
        if self.first is None:
            if not self.equal:
                return "logits that are not finite"
            return f"equal bit for bit ({self.n_total} logits)"
        step, row, index = self.first
        return (
            f"{self.n_different} of {self.n_total} logits differ, largest relative error {self.max_relative:.3g}, "
            f"first at step {step}, row {row}, logit {index}"
        )


def compare(expected: LogitsByStep, actual: LogitsByStep) -> Difference:
    """Compare step by step, bits first. A NaN or an infinity on either side counts as an infinite error.

    Raises ValueError if the steps or their shapes differ or there is nothing to compare.
    """
    if not expected or expected.keys() != actual.keys():
        raise ValueError(f"steps differ: {sorted(expected)} against {sorted(actual)}")
    first: tuple[str, int, int] | None = None
    n_different = n_total = 0
    max_relative = 0.0
    for step, wanted in expected.items():
        got = actual[step]
        if wanted.shape != got.shape:
            raise ValueError(f"step {step}: shape {got.shape} instead of {wanted.shape}")
        unequal = wanted.view(np.uint32) != got.view(np.uint32)
        n_total += wanted.size
        if not (np.isfinite(wanted).all() and np.isfinite(got).all()):
            max_relative = np.inf
        if not unequal.any():
            continue
        n_different += int(unequal.sum())
        if first is None:
            row, index = np.argwhere(unequal)[0]
            first = (step, int(row), int(index))
        scale = np.abs(wanted).max(axis=1, keepdims=True)
        max_relative = max(max_relative, float((np.abs(got - wanted) / scale).max()))
    return Difference(first, n_different, n_total, max_relative)
