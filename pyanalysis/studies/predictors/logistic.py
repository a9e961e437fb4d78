"""Logistic regression: each expert's probability from the experts of the layer before and of the token before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.special import expit

from pyanalysis.studies.predictors.base import before, ids_of, layer_before, popularity

if TYPE_CHECKING:
    from pyanalysis.studies.routing import Routing

    Array = np.ndarray[Any, np.dtype[Any]]

_BATCH = 1024
_EPOCHS = 8
_RATE = 0.02
_DECAYS = (0.9, 0.999)
_RIDGE = 1e-5


class Logistic:
    """One model per layer, 2 E binary features, E outputs, fitted by Adam on batches of tokens in a seeded order."""

    name = "logistic"
    known = "layer"

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def fit(self, routing: Routing, tokens: Array) -> None:
        generator = np.random.default_rng(self._seed)
        share = popularity(routing, tokens)
        hot_ids = routing.ids[tokens]
        self._weights, self._bias = [], np.log(np.maximum(share, 1e-7) / np.maximum(1 - share, 1e-7))
        for layer, features in enumerate(self._features(routing, tokens)):
            hot = np.zeros((len(tokens), routing.most_experts + 1), dtype=np.float32)
            np.put_along_axis(
                hot, np.where(hot_ids[:, layer] < 0, routing.most_experts, hot_ids[:, layer]).astype(int), 1, 1
            )
            self._weights.append(self._descend(features, hot[:, :-1], self._bias[layer], generator))

    @staticmethod
    def _descend(features: Any, hot: Array, bias: Array, generator: np.random.Generator) -> Array:  # noqa: ANN401 - scipy has no types
        weights = np.zeros((features.shape[1], hot.shape[1]), dtype=np.float32)
        first, second = np.zeros_like(weights), np.zeros_like(weights)
        step = 0
        for epoch in range(_EPOCHS):
            rate = _RATE * 0.5 ** (epoch / 2)
            order = generator.permutation(len(hot))
            for begin in range(0, len(order), _BATCH):
                step += 1
                part = order[begin : begin + _BATCH]
                x = features[part]
                slope = x.T @ (expit(x @ weights + bias) - hot[part]) / len(part) + _RIDGE * weights
                first = _DECAYS[0] * first + (1 - _DECAYS[0]) * slope
                second = _DECAYS[1] * second + (1 - _DECAYS[1]) * slope**2
                mean, spread = first / (1 - _DECAYS[0] ** step), second / (1 - _DECAYS[1] ** step)
                weights -= rate * mean / (np.sqrt(spread) + 1e-8)
        return weights

    @staticmethod
    def _features(routing: Routing, tokens: Array) -> list[Any]:
        n, n_experts = len(tokens), routing.most_experts
        both = np.concatenate(
            [layer_before(routing.ids[tokens]), ids_of(routing, before(routing, tokens))], axis=2
        ).astype(np.int64)
        shift = np.where(np.arange(both.shape[2]) < routing.ids.shape[2], 0, n_experts)
        result = []
        for layer in range(both.shape[1]):
            used = both[:, layer] >= 0
            columns = (both[:, layer] + shift)[used]
            ends = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
            ones = np.ones(len(columns), dtype=np.float32)
            result.append(sparse.csr_matrix((ones, columns, ends), shape=(n, 2 * n_experts)))
        return result

    def scores(self, routing: Routing, tokens: Array) -> Array:
        found = [
            expit(features @ weights + bias)
            for features, weights, bias in zip(self._features(routing, tokens), self._weights, self._bias, strict=True)
        ]
        return np.stack(found, axis=1).astype(np.float32)

    def n_bytes(self) -> int:
        return int(self._bias.nbytes) + sum(w.nbytes for w in self._weights)

    def bytes_per_token(self, k: int) -> int:
        return int(self._bias.nbytes) + sum(int(2 * k * w.shape[1] * w.itemsize) for w in self._weights)
