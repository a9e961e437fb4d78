"""What sequence models share: a state carried through each request, and the control with tokens out of order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyanalysis.studies.routing import Routing

    Array = np.ndarray[Any, np.dtype[Any]]


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
