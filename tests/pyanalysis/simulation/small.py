"""Small traces for the tests of the simulator, and strategies that draw them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from pyanalysis.traces import Trace, metadata

# Those that start with an empty cache: what they are given before the first event no optimum has.
COLD = (
    "lru",
    "cumulative-lfu",
    "cumulative-lfu:tie=recency",
    "decayed-lfu:half-life=3",
    "windowed-lfu:window=3",
    "windowed-lfu:window=3:tie=recency",
    "lfru:weight=4",
    "request-lfu",
    "request-lfu:tie=recency",
    "interval-refresh:every=3",
    "cold-static",
    "random:seed=5",
    "belady",
    "belady:horizon=2",
    "belady-forced",
    "lru:admit-after=2",
    "cumulative-lfu:admit-after=2",
    "lru:payback=1:payback-horizon=4",
    "random:payback=1:payback-horizon=4",
    "interval-refresh:every=3:admit-after=2",
)
PLACED = ("hindsight-static", "cold-static:order=id")


def small_trace(ids, n_experts, *, phase=None, batch=None, request=None, expert_bytes=None) -> Trace:
    """Of ids [tokens, layers, k], -1 behind the last; one entry of phase (default decode), batch, request per token."""
    ids = np.asarray(ids, dtype=np.int32)
    n_tokens, n_layers, k = ids.shape
    token, layer = (a.ravel() for a in np.indices((n_tokens, n_layers)))
    if batch is not None:
        order = np.lexsort((token, layer, np.asarray(batch)[token]))
        token, layer = token[order], layer[order]
    known = metadata.blank("small")
    known["model"]["n_experts"] = n_experts
    if expert_bytes is not None:
        known["model"]["expert_bytes"] = [
            {"layer_id": i, "family": "exps", "n_experts": n_experts, "bytes": size}
            for i, size in enumerate(expert_bytes)
        ]

    def per_token(values, default):
        values = np.full(n_tokens, default) if values is None else np.asarray(values)
        return values.astype(np.int64)[token]

    return Trace(
        path=Path("small"),
        metadata=known,
        run_id="small",
        context_id=0,
        families=("exps",),
        request=per_token(request, 0),
        token=token.astype(np.int32),
        layer=layer.astype(np.int32),
        family=np.zeros(len(token), dtype=np.uint8),
        phase=per_token(phase, 1).astype(np.uint8),
        batch=per_token(batch, -1),
        ids=ids[token, layer].reshape(-1, k),
        weights=None,
        top1=None,
        line=np.arange(1, len(token) + 1),
        overflows=np.empty((0, 3), dtype=np.int64),
        n_lost=0,
        complete=True,
        notes=(),
    )


@st.composite
def traces(draw, max_experts=6, max_tokens=25, max_layers=2):
    """Traces of decode tokens, with one to three requests."""
    n_experts = draw(st.integers(1, max_experts))
    k = draw(st.integers(1, min(3, n_experts)))
    n_layers = draw(st.integers(1, max_layers))
    n_tokens = draw(st.integers(1, max_tokens))
    event = st.permutations(range(n_experts)).map(lambda order: order[:k])
    ids = [[draw(event) for _ in range(n_layers)] for _ in range(n_tokens)]
    request = sorted(draw(st.lists(st.integers(0, 2), min_size=n_tokens, max_size=n_tokens)))
    return small_trace(ids, n_experts, request=request)


def log_of(result) -> list[tuple]:
    """The decisions as comparable tuples."""
    log = result.events
    names = ("admitted_event", "admitted_layer", "admitted_expert", "evicted_layer", "evicted_expert")
    return [tuple(log.hit.tolist()), *(tuple(getattr(log, name).tolist()) for name in names)]
