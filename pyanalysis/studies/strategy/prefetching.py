"""Candidates for prefetching out of any predictor: its k + 3 most probable experts of each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.studies.predictors.base import chunks
from pyanalysis.studies.strategy.base import Forecast

if TYPE_CHECKING:
    from pyanalysis.studies.routing import Routing
    from pyanalysis.studies.strategy.base import Context

    Array = np.ndarray[Any, np.dtype[Any]]

EXTRA = 3  # candidates of a layer beyond its top-k, as SeqMoE takes them
# When the experts of (token t, layer l) become candidates:
WHEN = {
    "layer": "after the layer before, same token: 1 event ahead",
    "same-layer": "after the same layer of the token before: L events ahead",
    "token": "after the last layer of the token before: l + 1 events ahead",
}


def forecast_of(context: Context, predictor: str, when: str) -> Forecast:
    """The forecast of a predictor that is fitted on the context's part; `when` is one of WHEN."""
    routing, place = context.extended
    fitted = context.fitted(predictor)
    n_layers = len(routing.layers)
    event_of = np.full((routing.n_tokens, n_layers), -1, dtype=np.int64)
    event_of[place] = context.event_of
    sources = _sources(event_of, routing.begins, when)
    if when == "layer":
        sources[~np.isin(np.arange(routing.n_tokens), place)] = -1  # what follows a request has no layers
    ahead = {"layer": np.ones(n_layers), "same-layer": np.full(n_layers, n_layers), "token": np.arange(1, n_layers + 1)}
    parts: list[tuple[Array, Array, Array, Array]] = []
    for tokens in chunks(routing, np.arange(routing.n_tokens)):
        scores = fitted.scores(routing, tokens)
        best = best_of(scores, routing)
        confidence = np.take_along_axis(scores, best, axis=2)
        source = np.broadcast_to(sources[tokens][..., None], best.shape)
        exists = best < routing.n_experts[:, None]
        kept = (source >= 0) & exists & (confidence > 0)
        item = best + context.stream.first_item[:-1, None]
        steps = np.broadcast_to(ahead[when].astype(np.int64)[:, None], best.shape)
        parts.append((source[kept], item[kept], steps[kept], confidence[kept]))
    event, items, steps, sure = (np.concatenate(values) for values in zip(*parts, strict=True))
    return Forecast.of(event, items, steps, sure, context.n_events)


def best_of(scores: Array, routing: Routing) -> Array:
    """int64[n, L, k + EXTRA]: the experts with the highest of `scores` [n, L, E], in no order."""
    n_best = min(routing.ids.shape[2] + EXTRA, routing.most_experts)
    best: Array = np.argpartition(-scores, n_best - 1, axis=2)[..., :n_best]
    return best


def _sources(event_of: Array, begins: Array, when: str) -> Array:
    """int64[T, L]: the event at which the experts of each token and layer become candidates, -1: never."""
    sources = np.full_like(event_of, -1)
    if when == "layer":
        sources[:, 1:] = event_of[:, :-1]
        return sources
    earlier = event_of[:-1] if when == "same-layer" else np.repeat(event_of[:-1, -1:], event_of.shape[1], axis=1)
    sources[1:] = np.where(begins[1:, None], -1, earlier)
    return sources
