"""The second sequence model: a diagonal linear state-space layer over the whole layer stack, read by a perceptron.

A token's experts of all layers, less their mean, go through a random projection; each of its channels is remembered at
five time scales (a running mean that halves every 1, 4, 16, 64 or 256 tokens), which is a linear recurrence with a
diagonal matrix. What is learnt is the read-out: a perceptron with one hidden layer from [states, this token's experts]
to the next token's experts of all layers, by cross-entropy. Further steps feed the predicted probabilities back as if
they were a token, as the reservoir does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.studies.predictors.base import before, popularity
from pyanalysis.studies.predictors.perceptron import Perceptron
from pyanalysis.studies.predictors.sequence import SequenceModel, shuffled

if TYPE_CHECKING:
    from pyanalysis.studies.routing import Routing

    Array = np.ndarray[Any, np.dtype[Any]]

HALF_LIVES = (1, 4, 16, 64, 256)  # tokens
_FORCED_ROUNDS, _SAMPLED_ROUNDS = 40, 10  # at most
_MOST_TOKENS = 20_000  # of so many rounds; more tokens are seen less often
_ROLLED = 0.5
_RATE = 2e-4
_LEAST_SHARE = 1e-6  # of popularity: its logit must be finite


class StateSpace(SequenceModel):
    """`order_lost`: fitted on the tokens in a random order, the control that must fall to popularity."""

    known = "token"

    def __init__(self, seed: int = 0, n_channels: int = 96, n_hidden: int = 256, *, order_lost: bool = False) -> None:
        self.name = "state-space-shuffled" if order_lost else "state-space"
        self._seed, self._most_channels, self._n_hidden, self._order_lost = seed, n_channels, n_hidden, order_lost
        self._decay = np.float32(0.5) ** (1 / np.array(HALF_LIVES, dtype=np.float32))[:, None]

    # --- fitting ---

    def fit(self, routing: Routing, tokens: Array) -> None:
        generator = np.random.default_rng(self._seed)
        self._share = popularity(routing, tokens)
        n_inputs, n_used = self._share.size, max(1, routing.ids.shape[2] * len(routing.layers))
        self._n_channels = min(self._most_channels, n_inputs)
        self._size = self._n_channels * len(HALF_LIVES)
        self._into = (generator.standard_normal((n_inputs, self._n_channels)) / np.sqrt(n_used)).astype(np.float32)
        # A mean over more tokens varies less: each time scale is brought to the spread of a single token.
        gain = np.sqrt((1 + self._decay) / (1 - self._decay))
        self._gain = np.repeat(gain.ravel(), self._n_channels).astype(np.float32)
        share = np.clip(self._share.ravel(), _LEAST_SHARE, 1 - _LEAST_SHARE)
        base = np.log(share / (1 - share)).astype(np.float32)
        self._readout = Perceptron(self._size + n_inputs, self._n_hidden, base, generator)
        self._states = None
        source = shuffled(routing, tokens, generator) if self._order_lost else routing
        earlier = before(source, tokens)
        targets, sources = tokens[earlier >= 0], earlier[earlier >= 0]
        if len(targets):
            self._train(source, sources, targets, generator)
        if self._order_lost:
            self._states = None

    def _train(self, routing: Routing, sources: Array, targets: Array, generator: np.random.Generator) -> None:
        """Teacher forcing, then scheduled sampling: half the samples have a predicted token for the last one."""
        earlier = before(routing, sources)

        def forced(places: Array) -> tuple[Array, Array, Array]:
            there = routing.ids[targets[places], :, :1] >= 0  # of layers that were not recorded nothing is known
            hot = routing.multi_hot(targets[places])
            counted = np.broadcast_to(there, hot.shape).reshape(len(places), -1)
            return self._features(routing, sources[places]), hot.reshape(len(places), -1), counted

        def sampled(places: Array) -> tuple[Array, Array, Array]:
            x, y, counted = forced(places)
            rolled = np.flatnonzero((generator.random(len(places)) < _ROLLED) & (earlier[places] >= 0))
            if len(rolled):
                known = earlier[places[rolled]]
                driven = self._fed_back(self._read(self._features(routing, known)), routing.ids.shape[2])
                x[rolled] = self._joined(self._advance(self._state_of(routing)[known], driven), driven)
            return x, y, counted

        n_held = len(targets) // 10
        for samples, most in ((forced, _FORCED_ROUNDS), (sampled, _SAMPLED_ROUNDS)):
            rounds = max(1, min(most, most * _MOST_TOKENS // len(targets)))
            self._readout.train(samples, len(targets), n_held=n_held, rounds=rounds, rate=_RATE, generator=generator)

    # --- states ---

    def _input(self, routing: Routing, tokens: Array) -> Array:
        """float32[n, L*E]: the token's experts less their mean."""
        driven: Array = routing.multi_hot(tokens).reshape(len(tokens), -1) - self._share.ravel()
        return driven

    def _advance(self, state: Array, driven: Array) -> Array:
        channels = driven @ self._into
        split = state.reshape(len(state), len(HALF_LIVES), -1)
        advanced: Array = self._decay * split + (1 - self._decay) * channels[:, None]
        return advanced.reshape(len(state), -1)

    def _joined(self, state: Array, driven: Array) -> Array:
        return np.concatenate([state * self._gain, driven], axis=1)

    # --- predicting ---

    def _read(self, features: Array) -> Array:
        read: Array = self._readout.probabilities(features).reshape(-1, *self._share.shape)
        return read * (self._share > 0)  # what a layer does not have

    def _fed_back(self, probabilities: Array, k: int) -> Array:
        total = np.maximum(probabilities.sum(axis=2, keepdims=True), 1e-9)
        driven: Array = (k * probabilities / total - self._share).reshape(len(probabilities), -1)
        return driven

    def n_bytes(self) -> int:
        arrays = (self._into, self._share, self._gain, self._readout.base, *self._readout.parameters)
        return sum(array.nbytes for array in arrays)

    def bytes_per_token(self, k: int) -> int:
        """Of the input weights, to the channels and to the perceptron, the rows of k experts a layer; all the rest."""
        into, into_bias, out, out_bias = self._readout.parameters
        rows = k * self._share.shape[0] * (self._n_channels + self._n_hidden) * into.itemsize
        of_states = self._size * self._n_hidden * into.itemsize
        return int(rows + of_states + into_bias.nbytes + out.nbytes + out_bias.nbytes + self._readout.base.nbytes)
