"""How many of a token's experts are among the best-scored ones, and log-loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, np.dtype[Any]]


def found_in_best(scores: Array, ids: Array, sizes: Sequence[int]) -> tuple[Array, Array]:
    """(experts found among the best n for each n of sizes: int64[len(sizes), L], experts asked for: int64[L]).

    scores float[T, L, E]; of equal scores the lower expert is better. ids int[T, L, k], -1: no expert.
    """
    asked = ids >= 0
    safe = np.where(asked, ids, 0).astype(np.int64)
    own = np.take_along_axis(scores, safe, axis=2)
    # Place of an expert = number of experts that are better; k comparisons of E instead of a sort.
    place = np.empty(ids.shape, dtype=np.int64)
    lower = np.arange(scores.shape[2])
    for i in range(ids.shape[2]):
        mine = own[..., i : i + 1]
        better = (scores > mine) | ((scores == mine) & (lower < safe[..., i : i + 1]))
        place[..., i] = better.sum(axis=2)
    found = np.stack([((place < n) & asked).sum(axis=(0, 2)) for n in sizes])
    return found, asked.sum(axis=(0, 2))
