"""Small traces for the comparison of engine and references, and what both make of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from pyanalysis.traces import Trace, metadata
from pyanalysis.traces.foreign import Columns


def trace_of(tokens: list[tuple[int, int, int, list[list[int]]]], n_experts: int) -> Trace:
    """A trace of (request, batch, phase, ids of each layer), a request's tokens from 0; batch -1: not recorded."""
    rows = []
    place: dict[int, int] = {}
    for request, batch, phase, layers in tokens:
        token = place[request] = place.get(request, -1) + 1
        rows += [(request, token, layer, phase, batch, ids) for layer, ids in enumerate(layers)]
    if rows and rows[0][4] >= 0:  # as a log: ubatch by ubatch, in it layer by layer
        rows.sort(key=lambda row: (row[4], row[2], row[0], row[1]))
    request, token, layer, phase, batch, ids = (np.array(column) for column in zip(*rows, strict=True))
    about = metadata.blank("made")
    about["model"].update(n_experts=n_experts, top_k=ids.shape[1])
    columns = Columns(request, token, layer, phase, batch, ids, line=np.arange(1, len(rows) + 1))
    return columns.trace(Path("made"), about)


def random_trace(seed: int, *, n_tokens: int, n_layers: int, n_experts: int, top_k: int, n_requests: int = 1) -> Trace:
    """Decoded tokens whose experts come from a skewed distribution that drifts, so that policies differ."""
    generator = np.random.default_rng(seed)
    tokens = []
    for token in range(n_tokens):
        request = token * n_requests // n_tokens
        layers = []
        for layer in range(n_layers):
            skew = 1.0 / (1 + (np.arange(n_experts) + layer + 3 * (token // 40)) % n_experts)
            layers.append(generator.choice(n_experts, top_k, replace=False, p=skew / skew.sum()).tolist())
        tokens.append((request, -1, 1, layers))
    return trace_of(tokens, n_experts)


@st.composite
def small_traces(draw) -> Trace:
    """One to three layers, top-1 to top-3 of up to six experts; prompts in batches, decoded tokens, in all requests."""
    n_experts = draw(st.integers(2, 6))
    top_k = draw(st.integers(1, min(3, n_experts)))
    n_layers = draw(st.integers(1, 3))
    ids = st.lists(st.integers(0, n_experts - 1), min_size=top_k, max_size=top_k, unique=True)
    layers = st.lists(ids, min_size=n_layers, max_size=n_layers)
    recorded = draw(st.booleans())
    tokens = []
    batch = 0
    for request in range(draw(st.integers(1, 3))):
        for n_prompt in draw(st.lists(st.integers(1, 4), max_size=2)):
            tokens += [(request, batch, 0, draw(layers)) for _ in range(n_prompt)]
            batch += 1
        for _ in range(draw(st.integers(0 if tokens and tokens[-1][0] == request else 1, 8))):
            tokens.append((request, batch, 1, draw(layers)))
            batch += 1
    if not recorded:
        tokens = [(request, -1, phase, one) for request, _, phase, one in tokens]
    return trace_of(tokens, n_experts)
