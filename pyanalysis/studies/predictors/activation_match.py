"""MoE-Infinity's prediction: the request's activations so far against a bounded collection of past requests'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.studies.predictors.base import popularity

if TYPE_CHECKING:
    from pyanalysis.studies.routing import Routing

    Array = np.ndarray[Any, np.dtype[Any]]


class ActivationMatch:
    """The mean of the `nearest` past activation matrices (a request's uses by layer and expert).

    Nearest by cosine similarity to the matrix of the tokens before, weighted by it; popularity for the first token.

    At most `bound` matrices are kept, a seeded sample of the requests that were fitted on.
    """

    name = "activation-match"
    known = "token"

    def __init__(self, seed: int = 0, bound: int = 256, nearest: int = 8) -> None:
        self._seed, self._bound, self._nearest = seed, bound, nearest

    def fit(self, routing: Routing, tokens: Array) -> None:
        self._share = popularity(routing, tokens)
        requests, of_token = np.unique(routing.request[tokens], return_inverse=True)
        kept = np.arange(len(requests))
        if len(kept) > self._bound:
            kept = np.sort(np.random.default_rng(self._seed).choice(len(kept), self._bound, replace=False))
        rates = [routing.counts(tokens[of_token == one]).ravel() / (of_token == one).sum() for one in kept]
        self._rates = np.array(rates, dtype=np.float32)
        self._directions = self._rates / np.linalg.norm(self._rates, axis=1, keepdims=True)

    def match(self, matrices: Array) -> Array:
        """float32[n, L*E]: expected uses per token, of activation matrices [n, L*E], none of them all 0."""
        similar = (matrices / np.linalg.norm(matrices, axis=1, keepdims=True)) @ self._directions.T
        n = min(self._nearest, similar.shape[1])
        best = np.argpartition(-similar, n - 1, axis=1)[:, :n]
        weights = np.zeros_like(similar)
        np.put_along_axis(weights, best, np.maximum(np.take_along_axis(similar, best, axis=1), 1e-6), axis=1)
        weights /= weights.sum(axis=1, keepdims=True)
        found: Array = weights @ self._rates
        return found

    def scores(self, routing: Routing, tokens: Array) -> Array:
        shape = (len(routing.layers), routing.most_experts)
        scores = np.empty((len(tokens), *shape), dtype=np.float32)
        place = routing.place[tokens]
        for request in np.unique(routing.request[tokens]):
            own = np.flatnonzero(routing.request[tokens] == request)
            first = tokens[own[0]] - place[own[0]]
            earlier = np.cumsum(routing.multi_hot(slice(first, tokens[own[-1]])), axis=0)
            later = own[place[own] > 0]
            scores[own[place[own] == 0]] = self._share
            if len(later):
                matrices = earlier[place[later] - 1].reshape(len(later), -1)
                scores[later] = self.match(matrices).reshape(-1, *shape)
        return scores

    def n_bytes(self) -> int:
        return int(self._rates.nbytes + self._directions.nbytes + self._share.nbytes)

    def bytes_per_token(self, k: int) -> int:
        del k
        return int(self._directions.nbytes + min(self._nearest, len(self._rates)) * self._share.nbytes)
