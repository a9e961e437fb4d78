"""Confidences as probabilities: what a prefetch is worth follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.isotonic import IsotonicRegression

from pyanalysis.studies.predictors.base import chunks
from pyanalysis.studies.predictors.table import PREDICTORS
from pyanalysis.studies.strategy.prefetching import best_of

if TYPE_CHECKING:
    from pyanalysis.studies.routing import Routing

    Array = np.ndarray[Any, np.dtype[Any]]


def calibration_of(predictor: str, routing: Routing, tokens: Array, seed: int) -> IsotonicRegression:
    """A rising function from what a predictor fitted on `tokens` says to how often it is right.

    Isotonic regression over the candidates of the last quarter of `tokens` (int64[n], rising), as a predictor of that
    name gives them that was fitted on the other three quarters.
    """
    n_fitted = max(1, 3 * len(tokens) // 4)
    inner = PREDICTORS[predictor](seed)
    inner.fit(routing, tokens[:n_fitted])
    said, right = [np.zeros(1)], [np.zeros(1)]  # what is never used is never right
    for part in chunks(routing, tokens[n_fitted:]):
        scores = inner.scores(routing, part)
        best = best_of(scores, routing)
        used = np.take_along_axis(routing.multi_hot(part), best, axis=2)
        said.append(np.take_along_axis(scores, best, axis=2).ravel())
        right.append(used.ravel())
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    fitted.fit(np.concatenate(said).astype(np.float64), np.concatenate(right).astype(np.float64))
    return fitted
