"""The contract of predictors, and what several of them share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyanalysis.studies.routing import Routing

    Array = np.ndarray[Any, np.dtype[Any]]

_SCORES_AT_ONCE = 8_000_000  # 32 MB of float32


class Predictor(Protocol):
    """Fitted once, asked for any tokens of any routing with the same layers and experts.

    known   what a prediction for (token t, layer l) may look at: "token" the tokens before t of its request (the
            lead time is a whole token), "layer" also the layers before l of t itself (the lead time is one layer)
    """

    name: str
    known: str

    def fit(self, routing: Routing, tokens: Array) -> None:
        """Learn from these tokens (int64[n], rising) and what came before them in their requests."""

    def scores(self, routing: Routing, tokens: Array) -> Array:
        """float32[n, L, E]: estimated probability that the token uses the expert.

        Nothing of the token but what `known` allows is looked at.
        """

    def n_bytes(self) -> int:
        """Size of what was learnt."""

    def bytes_per_token(self, k: int) -> int:
        """Bytes of what was learnt that predicting all layers of one token reads, with top-k routing."""


class MultiStep(Predictor, Protocol):
    """A predictor that also sees further ahead than the next token."""

    def forecast(self, routing: Routing, tokens: Array, steps: int) -> Iterator[Array]:
        """For each step j from 1: float32[n, L, E], the probability that the j-th token behind uses the expert.

        Everything up to and including each of `tokens` is known.
        """


def chunks(routing: Routing, tokens: Array) -> Iterator[Array]:
    """`tokens` in parts whose scores fit in memory."""
    size = max(1, _SCORES_AT_ONCE // (len(routing.layers) * routing.most_experts))
    for begin in range(0, len(tokens), size):
        yield tokens[begin : begin + size]


def popularity(routing: Routing, tokens: Array) -> Array:
    """float32[L, E]: share of `tokens` that use the expert, with half a use added to each so that none is 0."""
    counts = routing.counts(tokens) + 0.5
    valid = np.arange(routing.most_experts) < routing.n_experts[:, None]
    return np.where(valid, counts / (len(tokens) + 1.0), 0).astype(np.float32)


def before(routing: Routing, tokens: Array, lag: int = 1) -> Array:
    """int64[n]: the token `lag` before each in its request, -1: there is none."""
    return np.where(routing.place[tokens] >= lag, tokens - lag, -1)


def ids_of(routing: Routing, tokens: Array) -> Array:
    """int16[n, L, k]: ids of tokens, all -1 where the token is -1."""
    return np.where((tokens >= 0)[:, None, None], routing.ids[np.maximum(tokens, 0)], -1)


def layer_before(ids: Array) -> Array:
    """[n, L, k]: those of the layer before, -1 in the first."""
    return np.concatenate([np.full_like(ids[:, :1], -1), ids[:, :-1]], axis=1)
