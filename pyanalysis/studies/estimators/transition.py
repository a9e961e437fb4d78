"""First-order transitions between sets of experts: counts of pairs, probabilities, shuffled controls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]


def pair_counts(sources: Array, targets: Array, n_experts: int) -> Array:
    """int64[E, E]: how often expert j of targets [n, k] goes with expert i of sources [n, k']; -1 is no expert."""
    counts = np.zeros(n_experts * n_experts, dtype=np.int64)
    for source in sources.T:
        for target in targets.T:
            both = (source >= 0) & (target >= 0)
            counts += np.bincount(
                source[both].astype(np.int64) * n_experts + target[both], minlength=n_experts * n_experts
            )
    return counts.reshape(n_experts, n_experts)


def conditional(counts: Array, uses: Array) -> Array:
    """P(target j is used | source i is used), float64[E, E], of pair_counts and the uses [E] of the sources.

    Rows of experts that were never used are 0.
    """
    return counts / np.maximum(uses, 1)[:, None]
