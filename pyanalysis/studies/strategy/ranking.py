"""Scores for the ranking: what stays in the cache by what is expected of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.studies.predictors.base import chunks, popularity
from pyanalysis.studies.strategy.base import NotApplicableError, Scores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyanalysis.studies.routing import Routing
    from pyanalysis.studies.strategy.base import Context

    Array = np.ndarray[Any, np.dtype[Any]]

DECAY = 0.5
STEPS = 8
_REMEMBERS = 0.9  # of the router weights of the token before


def retention(context: Context, predictor: str) -> Scores:
    """Probabilistic Belady: sum_j DECAY^j p_j / sum_j DECAY^j over the next STEPS tokens, at every event."""
    return _by_event(context, _foreseen(context, predictor)[0])


def first_predicted(context: Context, predictor: str) -> Scores:
    """Belady with predicted steps: the sooner a step whose k likeliest hold the expert, the higher; then last use."""
    return _by_event(context, _foreseen(context, predictor)[1])


def _foreseen(context: Context, predictor: str) -> tuple[Array, Array]:
    """(retention, first predicted step), float32[T, L, E] each; kept, since both come from one costly forecast."""
    if predictor not in context.foreseen:
        routing = context.routing
        shape = (routing.n_tokens, len(routing.layers), routing.most_experts)
        kept, first = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        weights = DECAY ** np.arange(1, STEPS + 1)
        weights /= weights.sum()
        k = min(routing.ids.shape[2], routing.most_experts)
        for tokens, forecast in _forecasts(context, predictor):
            for step, p in enumerate(forecast, 1):
                kept[tokens] += np.float32(weights[step - 1]) * p
                best = np.argpartition(-p, k - 1, axis=2)[..., :k]
                now = np.take_along_axis(first[tokens], best, axis=2)
                soonest = first[tokens]
                np.put_along_axis(soonest, best, np.where(now > 0, now, STEPS + 1 - step), axis=2)
                first[tokens] = soonest
        context.foreseen[predictor] = kept, first
    return context.foreseen[predictor]


def router_weights(context: Context) -> Scores:
    """HybriMoE's cache score: router weights of past tokens, each token's counting 0.9 of the next one's."""
    routing = context.routing
    if routing.weights is None:
        raise NotApplicableError("the trace has no router weights")
    scores = np.zeros((routing.n_tokens, len(routing.layers), routing.most_experts + 1), dtype=np.float32)
    ids = np.where(routing.ids < 0, routing.most_experts, routing.ids).astype(np.int64)
    total = np.maximum(np.nansum(routing.weights, axis=2, keepdims=True), 1e-9)
    np.put_along_axis(scores, ids, np.nan_to_num(routing.weights / total), axis=2)
    for token in range(1, routing.n_tokens):  # the session goes on over requests, as the cache does
        scores[token] = (1 - _REMEMBERS) * scores[token] + _REMEMBERS * scores[token - 1]
    return _by_event(context, scores[..., :-1])


def next_use(context: Context) -> Scores:
    """The negative of the predicted tokens until the next use (predictors/next_use.py)."""
    from pyanalysis.studies.predictors.next_use import NextUse  # noqa: PLC0415 - needs scikit-learn

    model = NextUse(context.seed)
    model.fit(context.fit_on, context.fit)
    return _by_event(context, -model.gaps(context.routing))


def _forecasts(context: Context, predictor: str) -> Iterator[tuple[Array, Iterable[Array]]]:
    """(tokens, [n, L, E] for each of the next STEPS tokens): what is known at the token's event in each layer.

    A predictor of the same layer may look at the token itself. One over the whole layer stack knows the token only when
    its last layer has run, so it forecasts from the token before, one step further.
    """
    routing = context.routing
    fitted: Any = context.fitted(predictor)
    share = popularity(context.fit_on, context.fit)
    for tokens in chunks(routing, np.arange(routing.n_tokens)):
        if predictor in ("cross-token", "popularity"):
            yield tokens, fitted.forecast(routing, tokens, STEPS)
        else:
            yield tokens, _from_before(fitted, routing, tokens, share)


def _from_before(fitted: Any, routing: Routing, tokens: Array, share: Array) -> Iterator[Array]:  # noqa: ANN401
    forecast = fitted.forecast(routing, np.maximum(tokens - 1, 0), STEPS + 1)
    next(forecast)  # the token itself
    for p in forecast:
        p[routing.begins[tokens]] = share  # nothing came before
        yield p


def _by_event(context: Context, values: Array) -> Scores:
    """`values` [T, L, E] as rows, each in force from the event of its token and layer on."""
    row = np.full(context.n_events, -1, dtype=np.int64)
    there = context.event_of >= 0
    row[context.event_of[there]] = np.arange(there.size)[there.ravel()]
    return Scores(np.ascontiguousarray(values.reshape(-1, values.shape[2]), dtype=np.float32), row)
