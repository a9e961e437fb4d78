"""Contents that are chosen per request: the experts of its prompt, or those of the nearest past request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.studies.strategy.base import Forecast, NotApplicableError, Plan, Scores

if TYPE_CHECKING:
    from pyanalysis.studies.predictors.activation_match import ActivationMatch
    from pyanalysis.studies.strategy.base import Context

    Array = np.ndarray[Any, np.dtype[Any]]

KNOWN_TOKENS = 16  # decoded tokens after which the nearest past request is looked up
_PATIENCE = 64  # tokens within which the link may bring what was chosen


def prefill_hot(context: Context, slots: tuple[int, ...]) -> Plan:
    """The experts that a request's prompt used most, fixed for its decode (KTransformers). Needs prompts."""
    routing = context.routing
    uses = dict(context.prompts)
    if len(uses) <= int(routing.request.max()):
        missing = int(routing.request.max()) + 1 - len(uses)
        raise NotApplicableError(f"the trace has no prompt for {missing} of {int(routing.request.max()) + 1} requests")
    lists = np.stack([uses[request] for request in range(len(uses))]).astype(np.float32)
    first = np.flatnonzero(routing.begins)
    return _placed(context, slots, first, lists, np.cumsum(routing.begins) - 1)


def prompt_conditioned(context: Context, slots: tuple[int, ...]) -> Plan:
    """The most used experts; from the KNOWN_TOKENS-th token of a request on those of the nearest past requests."""
    routing = context.routing
    match: Any = context.fitted("activation-match")
    general: Array = context.fitted("popularity").scores(routing, np.array([0]))[0]
    shape = general.shape
    known = np.flatnonzero(routing.place == KNOWN_TOKENS)
    seen = (routing.multi_hot(slice(token - KNOWN_TOKENS, token)) for token in known)
    lists = [general, *(_nearest(match, hot, shape) for hot in seen)]
    at = np.concatenate([[0], known])
    number = np.zeros(routing.n_tokens, dtype=np.int64)
    number[known] = np.arange(1, len(known) + 1)
    number = np.maximum.accumulate(number)
    number[routing.place < KNOWN_TOKENS] = 0
    back = np.flatnonzero(routing.begins)  # a new request goes back to the general list
    all_at = np.concatenate([at, back[back > 0]])
    return _placed(context, slots, np.unique(all_at), np.stack(lists), number)


def _nearest(match: ActivationMatch, hot: Array, shape: tuple[int, ...]) -> Array:
    return match.match(hot.sum(axis=0).reshape(1, -1)).reshape(shape)


def _placed(context: Context, slots: tuple[int, ...], at: Array, lists: Array, number: Array) -> Plan:
    """The plan that keeps the best of the list in force.

    lists [n, L, E], number [T] the list of each token, `at` the tokens with which a list comes into force
    """
    routing, stream = context.routing, context.stream
    n_layers, n_experts = len(routing.layers), routing.most_experts
    row = np.full(context.n_events, -1, dtype=np.int64)
    there = context.event_of >= 0
    rows = number[:, None] * n_layers + np.arange(n_layers)
    row[context.event_of[there]] = rows[there]
    items = np.concatenate([stream.first_item[layer] + np.arange(n) for layer, n in enumerate(routing.n_experts)])
    flat = np.concatenate([layer * n_experts + np.arange(n) for layer, n in enumerate(routing.n_experts)])
    layer_of = np.repeat(np.arange(n_layers), routing.n_experts)
    events, wanted, sure = [], [], []
    for token in at.tolist():
        worth = lists[number[token]].reshape(-1)[flat]
        best = _best(worth, layer_of, slots)
        # Behind the token's last layer: by then every layer has the new list's scores.
        events.append(np.full(len(best), context.event_of[token].max()))
        wanted.append(items[best])
        sure.append(worth[best])
    event, item = np.concatenate(events), np.concatenate(wanted)
    ahead = np.full(len(item), _PATIENCE * n_layers)
    forecast = Forecast.of(event, item, ahead, np.concatenate(sure), context.n_events)
    scores = Scores(lists.reshape(-1, n_experts).astype(np.float32), row)
    return Plan("scores", demand=True, order="distance", only_better=True, scores=scores, forecast=forecast)


def _best(worth: Array, layer_of: Array, slots: tuple[int, ...]) -> Array:
    """Places of the experts that fill the slots: of each layer where every layer has a budget, else of all."""
    if len(slots) == 1:
        return np.argsort(-worth, kind="stable")[: slots[0]]
    chosen = [
        np.flatnonzero(layer_of == layer)[np.argsort(-worth[layer_of == layer], kind="stable")[:n]]
        for layer, n in enumerate(slots)
    ]
    return np.concatenate(chosen)
