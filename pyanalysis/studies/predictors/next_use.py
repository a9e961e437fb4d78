"""How many tokens until an expert is used next, by gradient-boosted trees over its past: a rule for eviction."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from pyanalysis.studies.predictors.base import popularity

if TYPE_CHECKING:
    from pyanalysis.studies.routing import Routing

    Array = np.ndarray[Any, np.dtype[Any]]

FARTHEST = 512  # tokens; what is not used within them counts as used then
_HALF_LIVES = (8, 32, 128)
_TREES = 40


class NextUse:
    """Fitted on a seeded sample of (token, layer, expert).

    Features, all known at the token's event in the layer: tokens since the last use, the gap before it, uses that halve
    every 8, 32 and 128 tokens, popularity, the layer.
    """

    def __init__(self, seed: int = 0, samples: int = 120_000) -> None:
        self._seed, self._samples = seed, samples

    def fit(self, routing: Routing, tokens: Array) -> None:
        generator = np.random.default_rng(self._seed)
        self._share = popularity(routing, tokens)
        own = replace(routing, ids=routing.ids[tokens], request=routing.request[tokens], row=routing.row[tokens])
        # What comes behind the last token is not known: tokens near it would all seem to have far next uses.
        n_rows = len(tokens) - min(FARTHEST, len(tokens) // 4)
        per_layer = max(1, self._samples // len(routing.layers))
        features, targets = [], []
        for layer in range(len(routing.layers)):
            gap = np.log2(1 + gaps_ahead(_hot(own, layer))).astype(np.float32)
            rows = generator.integers(0, n_rows, per_layer)
            experts = generator.integers(0, routing.n_experts[layer], per_layer)
            features.append(self._features(own, layer)[rows, experts])
            targets.append(gap[rows, experts])
        self._model = HistGradientBoostingRegressor(
            max_iter=_TREES, max_leaf_nodes=31, learning_rate=0.2, early_stopping=False, random_state=self._seed
        )
        self._model.fit(np.concatenate(features), np.concatenate(targets))

    def gaps(self, routing: Routing) -> Array:
        """float32[T, L, E]: binary logarithm of 1 + the predicted tokens until the next use."""
        found = np.empty((routing.n_tokens, len(routing.layers), routing.most_experts), dtype=np.float32)
        for layer in range(len(routing.layers)):
            x = self._features(routing, layer)
            found[:, layer] = self._model.predict(x.reshape(-1, x.shape[2])).reshape(x.shape[:2])
        return found

    def _features(self, routing: Routing, layer: int) -> Array:
        """float32[T, E, 7]. The session goes on over requests, as a cache does."""
        hot = _hot(routing, layer)
        n, n_experts = hot.shape
        at = np.arange(n)[:, None]
        last = np.maximum.accumulate(np.where(hot, at, -FARTHEST), axis=0)
        before = np.vstack([np.full((1, n_experts), -FARTHEST), last[:-1]])
        gap_at_use = np.where(hot, np.minimum(at - before, FARTHEST), 0)
        place = np.maximum.accumulate(np.where(hot, at, 0), axis=0)
        gap = np.take_along_axis(gap_at_use, place, axis=0)
        columns = [np.minimum(at - last, FARTHEST), np.where(gap > 0, gap, FARTHEST)]
        columns += [_decayed(hot, half_life) for half_life in _HALF_LIVES]
        columns += [np.broadcast_to(self._share[layer], hot.shape), np.full(hot.shape, layer)]
        return np.stack([np.asarray(c, dtype=np.float32) for c in columns], axis=2)


def _hot(routing: Routing, layer: int) -> Array:
    ids = routing.ids[:, layer].astype(np.int64)
    hot = np.zeros((len(ids), routing.most_experts + 1), dtype=bool)
    np.put_along_axis(hot, np.where(ids < 0, routing.most_experts, ids), values=True, axis=1)
    return hot[:, :-1]


def gaps_ahead(hot: Array) -> Array:
    """int64[T, E]: tokens until the next use of each expert, at most FARTHEST. `hot` bool[T, E]."""
    n = len(hot)
    at = np.arange(n)[:, None]
    nearest = np.minimum.accumulate(np.where(hot, at, n + FARTHEST)[::-1], axis=0)[::-1]
    later = np.vstack([nearest[1:], np.full((1, hot.shape[1]), n + FARTHEST)])
    gaps: Array = np.minimum(later - at, FARTHEST)
    return gaps


def _decayed(hot: Array, half_life: int) -> Array:
    from scipy.signal import lfilter  # noqa: PLC0415 - for this model only

    filtered: Array = lfilter([1.0], [1.0, -(0.5 ** (1 / half_life))], hot.astype(np.float64), axis=0)
    return filtered
