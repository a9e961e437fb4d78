"""Predictors that count: popularity, last token, first-order transitions between layers and tokens, and both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.studies.estimators.transition import conditional, pair_counts
from pyanalysis.studies.predictors.base import before, ids_of, layer_before, popularity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyanalysis.studies.routing import Routing

    Array = np.ndarray[Any, np.dtype[Any]]


class Popularity:
    """The share of tokens that used the expert."""

    name = "popularity"
    known = "token"

    def fit(self, routing: Routing, tokens: Array) -> None:
        self._share = popularity(routing, tokens)

    def scores(self, routing: Routing, tokens: Array) -> Array:
        del routing
        repeated: Array = np.repeat(self._share[None], len(tokens), axis=0)
        return repeated

    def forecast(self, routing: Routing, tokens: Array, steps: int) -> Iterator[Array]:
        for _ in range(steps):
            yield self.scores(routing, tokens)

    def n_bytes(self) -> int:
        return int(self._share.nbytes)

    def bytes_per_token(self, k: int) -> int:
        del k
        return int(self._share.nbytes)


class LastToken:
    """The experts of the token before, with the share of them that a layer uses again; the rest by popularity."""

    name = "last-token"
    known = "token"

    def fit(self, routing: Routing, tokens: Array) -> None:
        self._share = popularity(routing, tokens)
        hot = routing.multi_hot(tokens, bool)
        earlier = before(routing, tokens)
        last = routing.multi_hot(np.maximum(earlier, 0), bool) & (earlier >= 0)[:, None, None]
        self._again = ((hot & last).sum(axis=(0, 2)) / np.maximum(last.sum(axis=(0, 2)), 1)).astype(np.float32)

    def scores(self, routing: Routing, tokens: Array) -> Array:
        earlier = before(routing, tokens)
        last = routing.multi_hot(np.maximum(earlier, 0)) * (earlier >= 0)[:, None, None]
        rest = (1 - self._again[:, None]) * self._share
        # All of the last token's experts come first: that is what this predictor is.
        first = np.maximum(self._again[:, None], rest.max() + 1e-6) + 1e-6 * self._share
        scores: Array = np.where(last > 0, np.minimum(first, 1), rest)
        return scores

    def n_bytes(self) -> int:
        return int(self._share.nbytes + self._again.nbytes)

    def bytes_per_token(self, k: int) -> int:
        del k
        return self.n_bytes()


class _Transition:
    """Mean over the source experts i of P(expert j | i); popularity where there is no source."""

    def __init__(self) -> None:
        self._share: Array = np.empty(0, np.float32)
        self._given: dict[int, Array] = {}  # lag: float32[L, E, E]

    def _learn(self, routing: Routing, sources: Array, targets: Array) -> Array:
        """sources, targets [n, L, k] ids."""
        tables = []
        for layer in range(len(routing.layers)):
            one, other = sources[:, layer], targets[:, layer]
            uses = np.bincount(one[one >= 0], minlength=routing.most_experts)
            table = conditional(pair_counts(one, other, routing.most_experts), uses)
            # As many tokens' worth of popularity as 1: an expert that was seen little says little.
            table = (table * uses[:, None] + self._share[layer]) / (uses[:, None] + 1)
            tables.append(table.astype(np.float32))
        return np.stack(tables)

    def _mean(self, table: Array, sources: Array) -> Array:
        scores = np.empty((len(sources), len(table), table.shape[2]), dtype=np.float32)
        for layer, given in enumerate(table):
            padded = np.concatenate([given, np.zeros((1, given.shape[1]), np.float32)])
            ids = sources[:, layer].astype(np.int64)
            known = (ids >= 0).sum(axis=1)
            total = sum(padded[ids[:, i]] for i in range(ids.shape[1]))  # id -1 is the row of zeros
            scores[:, layer] = np.where(known[:, None] > 0, total / np.maximum(known, 1)[:, None], self._share[layer])
        return scores

    def n_bytes(self) -> int:
        return int(self._share.nbytes + sum(table.nbytes for table in self._given.values()))

    def bytes_per_token(self, k: int) -> int:
        return int(k * self._share.nbytes)  # k rows of E of each layer's table


class InterLayer(_Transition):
    """First order between layers: the experts of the layer before, same token. The first layer: popularity."""

    name = "inter-layer"
    known = "layer"

    def fit(self, routing: Routing, tokens: Array) -> None:
        self._share = popularity(routing, tokens)
        self._given = {1: self._learn(routing, layer_before(routing.ids[tokens]), routing.ids[tokens])}

    def scores(self, routing: Routing, tokens: Array) -> Array:
        return self._mean(self._given[1], layer_before(routing.ids[tokens]))


class CrossToken(_Transition):
    """First order between tokens: the same layer's experts of the token before.

    Further ahead: those j tokens before, each distance with a table of its own.
    """

    name = "cross-token"
    known = "token"
    _MOST_STEPS = 8

    def fit(self, routing: Routing, tokens: Array) -> None:
        self._share = popularity(routing, tokens)
        targets = routing.ids[tokens]
        self._given = {
            lag: self._learn(routing, ids_of(routing, before(routing, tokens, lag)), targets)
            for lag in range(1, self._MOST_STEPS + 1)
        }

    def scores(self, routing: Routing, tokens: Array) -> Array:
        return self._mean(self._given[1], ids_of(routing, before(routing, tokens)))

    def forecast(self, routing: Routing, tokens: Array, steps: int) -> Iterator[Array]:
        """REQUIRES: at most 8 steps."""
        for lag in range(1, steps + 1):
            yield self._mean(self._given[lag], routing.ids[tokens])


class Combined:
    """Inter-layer and cross-token as if they were independent given the expert: the product of both over popularity."""

    name = "combined"
    known = "layer"

    def __init__(self) -> None:
        self._layer, self._token = InterLayer(), CrossToken()
        self._share: Array = np.empty(0, np.float32)

    def fit(self, routing: Routing, tokens: Array) -> None:
        self._layer.fit(routing, tokens)
        self._token.fit(routing, tokens)
        self._share = popularity(routing, tokens)

    def scores(self, routing: Routing, tokens: Array) -> Array:
        product = self._layer.scores(routing, tokens)
        product *= self._token.scores(routing, tokens)
        product /= np.maximum(self._share, 1e-9)
        total = product.sum(axis=2, keepdims=True)
        product *= routing.ids.shape[2] / np.maximum(total, 1e-9)  # k experts are used, so probabilities sum to k
        return np.minimum(product, 1, out=product)

    def n_bytes(self) -> int:
        return int(self._layer.n_bytes() + self._token.n_bytes() + self._share.nbytes)

    def bytes_per_token(self, k: int) -> int:
        return int((2 * k + 1) * self._share.nbytes)
