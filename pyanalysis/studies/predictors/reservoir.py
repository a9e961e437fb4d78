"""The sequence model: a recurrent reservoir over the whole layer stack with a trained linear read-out.

An echo-state network: recurrent and input weights are random and fixed, units leak at rates from one token to fifty,
the read-out is ridge regression from [state, this token's experts, 1] to the next token's experts of all layers. It is
trained in closed form with numpy. Further steps feed the predicted probabilities back as if they were a token and
leave the state behind each token as it was (SeqMoE's roll-out).

H. Jaeger, The "echo state" approach to analysing and training recurrent neural networks (2001).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.studies.predictors.base import before, popularity
from pyanalysis.studies.predictors.sequence import SequenceModel, shuffled

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyanalysis.studies.routing import Routing

    Array = np.ndarray[Any, np.dtype[Any]]

_RADIUS = 0.9
_SLOWEST = 0.02
_RIDGES = (0.3, 3.0, 30.0, 300.0, 3e3, 3e4)
_ROWS = 8192


class Reservoir(SequenceModel):
    """`order_lost`: fitted on the tokens in a random order, the control that must fall to popularity."""

    known = "token"

    def __init__(self, seed: int = 0, size: int = 384, *, order_lost: bool = False) -> None:
        self.name = "reservoir-shuffled" if order_lost else "reservoir"
        self._seed, self._size, self._order_lost = seed, size, order_lost

    # --- fitting ---

    def fit(self, routing: Routing, tokens: Array) -> None:
        generator = np.random.default_rng(self._seed)
        self._share = popularity(routing, tokens)
        self._mean = (self._share / np.maximum(self._share.sum(axis=1, keepdims=True), 1e-9)).ravel()
        n_inputs, n_layers = self._mean.size, len(routing.layers)
        scale = np.sqrt(routing.ids.shape[2] / n_layers)
        self._into = (scale * generator.standard_normal((n_inputs, self._size))).astype(np.float32)
        recurrent = generator.standard_normal((self._size, self._size)) / np.sqrt(self._size)
        self._recurrent = (_RADIUS * recurrent).astype(np.float32)  # the spectral radius of such a matrix is near 1
        self._leak = np.exp(generator.uniform(np.log(_SLOWEST), 0, self._size)).astype(np.float32)
        self._states = None
        source = shuffled(routing, tokens, generator) if self._order_lost else routing
        earlier = before(source, tokens)
        tokens, earlier = tokens[earlier >= 0], earlier[earlier >= 0]
        self._solve(source, earlier, tokens)
        if self._order_lost:
            self._states = None

    def _solve(self, routing: Routing, sources: Array, targets: Array) -> None:
        """Ridge regression; its strength is chosen on the last tenth of the pairs, then all of them are used."""
        if len(targets) == 0:
            self._readout = np.zeros((self._size + self._mean.size + 1, self._mean.size), dtype=np.float32)
            self._readout[-1] = self._share.ravel()
            return
        held = max(1, len(targets) // 10) if len(targets) > 1 else 0
        kept = len(targets) - held
        # With fewer pairs than features the matrix of pairs is the smaller one to solve.
        make = self._by_pairs if len(targets) < self._size + self._mean.size + 1 else self._by_features
        solve = make(routing, sources[:kept], targets[:kept])
        best, least = _RIDGES[-1], np.inf
        if held and kept:
            x = self._features(routing, sources[kept:][:_ROWS])
            y = self._centred(routing, targets[kept:][:_ROWS])
            for ridge in _RIDGES:
                error = float(np.mean((x @ solve(ridge) - y) ** 2))
                best, least = (ridge, error) if error < least else (best, least)
        self._readout = make(routing, sources, targets)(best)
        self._readout[-1] += self._share.ravel()

    def _by_features(self, routing: Routing, sources: Array, targets: Array) -> Callable[[float], Array]:
        """The read-out for each strength of the ridge."""
        gram, cross = self._products(routing, sources, targets)
        return lambda strength: ridge_by_features(gram, cross, strength)

    def _by_pairs(self, routing: Routing, sources: Array, targets: Array) -> Callable[[float], Array]:
        x, y = self._features(routing, sources), self._centred(routing, targets)
        return lambda strength: ridge_by_pairs(x, y, strength)

    def _products(self, routing: Routing, sources: Array, targets: Array) -> tuple[Array, Array]:
        size = self._size + self._mean.size + 1
        gram, cross = np.zeros((size, size), np.float32), np.zeros((size, self._mean.size), np.float32)
        for begin in range(0, len(targets), _ROWS):
            x = self._features(routing, sources[begin : begin + _ROWS])
            gram += x.T @ x
            cross += x.T @ self._centred(routing, targets[begin : begin + _ROWS])
        return gram, cross

    def _centred(self, routing: Routing, tokens: Array) -> Array:
        centred: Array = routing.multi_hot(tokens).reshape(len(tokens), -1) - self._share.ravel()
        return centred

    # --- states ---

    def _input(self, routing: Routing, tokens: Array) -> Array:
        """float32[n, L*E]: the token's experts, each layer summing to 1, less their mean."""
        hot = routing.multi_hot(tokens)
        hot /= np.maximum(hot.sum(axis=2, keepdims=True), 1)
        driven: Array = hot.reshape(len(tokens), -1) - self._mean
        return driven

    def _advance(self, state: Array, driven: Array) -> Array:
        advanced: Array = (1 - self._leak) * state + self._leak * np.tanh(driven @ self._into + state @ self._recurrent)
        return advanced

    def _joined(self, state: Array, driven: Array) -> Array:
        return np.concatenate([state, driven, np.ones((len(state), 1), np.float32)], axis=1)

    # --- predicting ---

    def _read(self, features: Array) -> Array:
        read: Array = np.clip((features @ self._readout).reshape(-1, *self._share.shape), 0, 1)
        return read

    def _fed_back(self, probabilities: Array, k: int) -> Array:
        del k  # each layer sums to 1
        total = np.maximum(probabilities.sum(axis=2, keepdims=True), 1e-9)
        driven: Array = (probabilities / total).reshape(len(probabilities), -1) - self._mean
        return driven

    def n_bytes(self) -> int:
        arrays = (self._into, self._recurrent, self._leak, self._readout, self._share, self._mean)
        return sum(array.nbytes for array in arrays)

    def bytes_per_token(self, k: int) -> int:
        """Read-out and recurrent weights; of the input weights the rows of k experts a layer."""
        rows = k * self._share.shape[0] * self._size * self._into.itemsize
        return int(self._readout.nbytes + self._recurrent.nbytes + rows)


def _shrinking(size: int, strength: float) -> Array:
    """The constant, last, is not shrunk."""
    shrink = np.full(size, strength, dtype=np.float64)
    shrink[-1] = 1e-6
    return shrink


def ridge_by_features(gram: Array, cross: Array, strength: float) -> Array:
    """Float32[f, o] from gram [f, f] = x.T x and cross [f, o] = x.T y."""
    shrink = np.diag(_shrinking(len(gram), strength))
    solved: Array = np.linalg.solve(gram.astype(np.float64) + shrink, cross.astype(np.float64))
    return solved.astype(np.float32)


def ridge_by_pairs(x: Array, y: Array, strength: float) -> Array:
    """The same from x [n, f] and y [n, o] by a system of n equations."""
    x = x.astype(np.float64)
    shrunk = x / _shrinking(x.shape[1], strength)
    solved: Array = shrunk.T @ np.linalg.solve(shrunk @ x.T + np.eye(len(x)), y.astype(np.float64))
    return solved.astype(np.float32)
