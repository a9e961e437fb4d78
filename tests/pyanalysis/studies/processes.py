"""Routings made by processes whose best possible predictions are known."""

import numpy as np

from pyanalysis.studies.routing import Routing
from tests.pyanalysis.simulation.small import small_trace


def routing_of(ids, n_experts, request=None, **fields) -> Routing:
    """Of ids [tokens, layers, k], all decoded."""
    return Routing.of(small_trace(ids, n_experts, request=request, **fields), "made")


def layer_chain(n_tokens, n_layers, n_experts, kept, seed=0) -> np.ndarray:
    """Top-1; each layer's expert is a fixed permutation of the layer before's with probability `kept`, else uniform.

    Tokens are independent. Bayes recall at 1 from the layer before: kept + (1 - kept) / n_experts.
    """
    generator = np.random.default_rng(seed)
    steps = [generator.permutation(n_experts) for _ in range(n_layers)]
    ids = np.empty((n_tokens, n_layers, 1), dtype=np.int64)
    ids[:, 0, 0] = generator.integers(0, n_experts, n_tokens)
    for layer in range(1, n_layers):
        follows = generator.random(n_tokens) < kept
        ids[:, layer, 0] = np.where(
            follows, steps[layer][ids[:, layer - 1, 0]], generator.integers(0, n_experts, n_tokens)
        )
    return ids


def token_chain(n_tokens, n_layers, n_experts, kept, seed=0) -> np.ndarray:
    """Top-1; a token's expert in a layer is a cyclic permutation of the token before's with probability `kept`."""
    generator = np.random.default_rng(seed)
    ids = np.empty((n_tokens, n_layers, 1), dtype=np.int64)
    for layer in range(n_layers):
        cycle = generator.permutation(n_experts)
        step = np.empty(n_experts, dtype=np.int64)
        step[cycle] = np.roll(cycle, -1)
        ids[0, layer, 0] = 0
        for token in range(1, n_tokens):
            follows = generator.random() < kept
            ids[token, layer, 0] = step[ids[token - 1, layer, 0]] if follows else generator.integers(0, n_experts)
    return ids
