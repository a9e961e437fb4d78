"""How experts come back: runs of consecutive tokens, gaps between uses, uses in the next tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]


def run_lengths(hot: Array, begins: Array) -> Array:
    """Lengths of all runs, int64[runs]: tokens in a row of one request that use one expert.

    hot bool[T, E], begins bool[T]: the first token of its request.
    """
    before = np.zeros_like(hot)
    before[1:] = hot[:-1] & ~begins[1:, None]
    after = np.zeros_like(hot)
    after[:-1] = hot[1:] & ~begins[1:, None]
    first = np.argwhere((hot & ~before).T)  # expert by expert, tokens rising: pairs with `last` in order
    last = np.argwhere((hot & ~after).T)
    lengths: Array = last[:, 1] - first[:, 1] + 1
    return lengths


def gaps(hot: Array, begins: Array) -> Array:
    """Tokens from each use to the expert's next one in the same request, int64[...]; a use without a next has none."""
    request = np.cumsum(begins)
    expert, token = np.nonzero(hot.T)
    same = (expert[1:] == expert[:-1]) & (request[token[1:]] == request[token[:-1]])
    found: Array = (token[1:] - token[:-1])[same]
    return found


def uses_ahead(hot: Array, begins: Array, window: int) -> tuple[Array, Array]:
    """(uses of each expert in the next `window` tokens: int32[T, E], bool[T]: the request has so many more tokens)."""
    n = len(hot)
    total = np.zeros((n + 1, hot.shape[1]), dtype=np.int32)
    np.cumsum(hot, axis=0, dtype=np.int32, out=total[1:])
    end = np.minimum(np.arange(n) + 1 + window, n)
    request = np.cumsum(begins)
    whole = np.arange(n) + window < n
    whole[whole] = request[np.flatnonzero(whole) + window] == request[whole]
    ahead: Array = total[end] - total[1:]
    return ahead, whole


def spearman(x: Array, y: Array) -> float:
    """Rank correlation of x, y [n], ties with their mean rank; NaN if one of them is constant."""
    a, b = _mean_ranks(x), _mean_ranks(y)
    a, b = a - a.mean(), b - b.mean()
    under = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / under) if under > 0 else float("nan")


def _mean_ranks(values: Array) -> Array:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Array = (ends - (counts - 1) / 2)[place].astype(np.float64)
    return ranks
