"""What sequence models share: a state carried through each request, and the control with tokens out of order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.studies.predictors.base import before

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyanalysis.studies.routing import Routing

    Array = np.ndarray[Any, np.dtype[Any]]


class SequenceModel(ABC):
    """A state behind each token, and a read-out of the next token's experts from that state and this token's experts.

    Further steps feed what was predicted back as if it were a token. fit() of a subclass sets `_share` (float32[L, E],
    popularity) and `_size` (of a state), and `_states` to None: states of other weights.
    """

    _share: Array
    _size: int
    _states: tuple[Routing, Array] | None = None

    @abstractmethod
    def _input(self, routing: Routing, tokens: Array) -> Array:
        """float32[n, L*E]: what the tokens' experts feed into the state."""

    @abstractmethod
    def _advance(self, state: Array, driven: Array) -> Array:
        """State [n, size] behind an input [n, L*E]."""

    @abstractmethod
    def _joined(self, state: Array, driven: Array) -> Array:
        """float32[n, F]: what the read-out sees."""

    @abstractmethod
    def _read(self, features: Array) -> Array:
        """float32[n, L, E]: probabilities."""

    @abstractmethod
    def _fed_back(self, probabilities: Array, k: int) -> Array:
        """[n, L*E]: the input of a token of which only probabilities are known; it uses k experts of each layer."""

    def _state_of(self, routing: Routing) -> Array:
        """float32[T, size]: the state behind each token."""
        if self._states is None or self._states[0] is not routing:
            states = states_behind(
                routing, self._size, lambda state, tokens: self._advance(state, self._input(routing, tokens))
            )
            self._states = (routing, states)
        return self._states[1]

    def _features(self, routing: Routing, tokens: Array) -> Array:
        return self._joined(self._state_of(routing)[tokens], self._input(routing, tokens))

    def scores(self, routing: Routing, tokens: Array) -> Array:
        """See base.Predictor: popularity for the first token of a request."""
        earlier = before(routing, tokens)
        found = self._read(self._features(routing, np.maximum(earlier, 0)))
        found[earlier < 0] = self._share
        return found

    def forecast(self, routing: Routing, tokens: Array, steps: int) -> Iterator[Array]:
        """See base.MultiStep."""
        state, driven = self._state_of(routing)[tokens], self._input(routing, tokens)
        for step in range(steps):
            if step:
                state = self._advance(state, driven)
            probabilities = self._read(self._joined(state, driven))
            yield probabilities
            driven = self._fed_back(probabilities, routing.ids.shape[2])


def states_behind(routing: Routing, size: int, advance: Callable[[Array, Array], Array]) -> Array:
    """float32[T, size]: the state behind each token, 0 before the first of a request.

    `advance` takes states [n, size] and the tokens int64[n] that follow them. Requests go side by side, so that a
    step is one product.
    """
    states = np.empty((routing.n_tokens, size), dtype=np.float32)
    first = np.flatnonzero(routing.begins)
    length = np.diff(np.append(first, routing.n_tokens))
    order = np.argsort(-length, kind="stable")
    first, length = first[order], length[order]
    state = np.zeros((len(first), size), dtype=np.float32)
    for place in range(int(length[0])):
        running = int(np.searchsorted(-length, -place, side="left"))
        tokens = first[:running] + place
        state = advance(state[:running], tokens)
        states[tokens] = state
    return states


def shuffled(routing: Routing, tokens: Array, generator: np.random.Generator) -> Routing:
    """`routing` with the ids of `tokens` in a random order; the others stay."""
    ids = routing.ids.copy()
    ids[tokens] = ids[generator.permutation(tokens)]
    return replace(routing, ids=ids)
