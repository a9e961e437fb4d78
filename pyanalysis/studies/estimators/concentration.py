"""How unevenly experts are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, np.dtype[Any]]


def entropy_bits(counts: Array, *, corrected: bool = False) -> float:
    """Entropy of the distribution that `counts` (any shape, not all 0) are drawn from, in bits.

    Plug-in estimate; `corrected` adds Miller and Madow's (m - 1) / 2n nats, m the cells that occur, n the draws.
    """
    used = counts[counts > 0].astype(np.float64)
    n = used.sum()
    plain = float(np.log2(n) - (used @ np.log2(used)) / n)
    return plain + (len(used) - 1) / (2 * n * np.log(2)) if corrected else plain


def experts_to_cover(counts: Array, shares: Sequence[float]) -> list[int]:
    """The fewest experts whose uses are at least each share (0 to 1) of all; `counts` [n], not all 0."""
    covered = np.cumsum(np.sort(counts)[::-1])
    # Whole uses: a share of 0.5 of 5 uses needs 3 of them. The margin is for shares like 0.9 of 10, 9.000000000000002.
    needed = np.ceil(np.asarray(shares) * covered[-1] - 1e-9)
    return [int(place) + 1 for place in np.searchsorted(covered, np.maximum(needed, 1))]


def jensen_shannon_bits(one: Array, other: Array) -> float:
    """Divergence of two distributions given as counts [n], 0 (alike) to 1 (no expert in common)."""
    p, q = one / one.sum(), other / other.sum()
    return entropy_bits((p + q) / 2) - (entropy_bits(p) + entropy_bits(q)) / 2
