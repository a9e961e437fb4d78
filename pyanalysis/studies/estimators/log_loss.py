"""Log-loss of counts given contexts, on a held-out part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]


def log_loss(contexts: list[Array], own: Array, test_contexts: list[Array], test: Array, n_experts: int) -> Array:
    """float64[n]: bits of each held-out expert of `test` int[m] under counts of `own` int[n] given the contexts.

    Witten and Bell's interpolation: P(e | c1, c2) = (n(e, c1, c2) + t P(e | c1)) / (n(c1, c2) + t), t the number of
    different experts seen with (c1, c2), down to popularity with one count for each expert. Entries of -1 are passed
    over.
    """
    kept, asked = own >= 0, test >= 0
    own, test = own[kept].astype(np.int64), test[asked].astype(np.int64)
    counts = np.bincount(own, minlength=n_experts)[:n_experts] + 1.0
    chance = (counts / counts.sum())[test]
    key, test_key = np.zeros(len(own), dtype=np.int64), np.zeros(len(test), dtype=np.int64)
    for context, test_context in zip(contexts, test_contexts, strict=True):
        width = max(int(context.max(initial=-1)), int(test_context.max(initial=-1))) + 2
        key = key * width + context[kept] + 1
        test_key = test_key * width + test_context[asked] + 1
        pairs = key * n_experts + own
        both = _how_often(pairs, test_key * n_experts + test)
        alone, kinds = _how_often(key, test_key), _how_often(np.unique(pairs) // n_experts, test_key)
        chance = np.where(alone > 0, (both + kinds * chance) / np.maximum(alone + kinds, 1), chance)
    bits: Array = -np.log2(chance)
    return bits


def _how_often(values: Array, asked: Array) -> Array:
    """How often each of `asked` occurs in `values`, float64."""
    if len(values) == 0:
        return np.zeros(len(asked))
    names, counts = np.unique(values, return_counts=True)
    place = np.minimum(np.searchsorted(names, asked), len(names) - 1)
    found: Array = np.where(names[place] == asked, counts[place], 0).astype(np.float64)
    return found
