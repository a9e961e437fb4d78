"""The least confidence of a prefetch, chosen on the later half of the selection part by a predictor of the earlier one.

A predictor is surer of what it was fitted on than of what comes; chosen there, the least confidence would be too low.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.decide.parts import Part

if TYPE_CHECKING:
    from pyanalysis.studies.splits import Split

    Array = np.ndarray[Any, np.dtype[Any]]


def halves(split: Split) -> tuple[Array, Array]:
    """(tokens to fit on, tokens to choose on), int64 and rising, of `split.fit`.

    Held-out requests: the first half of the requests and the others. Else, and where there is one request only, the
    first half of each request's tokens and the rest. Where neither leaves both, all tokens are both.
    """
    request, place = split.fit_on.request[split.fit], split.fit_on.place[split.fit]
    numbers = np.unique(request)
    if split.held_out == "requests" and len(numbers) > 1:
        first = request < numbers[len(numbers) // 2]
    else:
        first = place < np.bincount(request)[request] // 2
    if not first.any():
        return split.fit, split.fit
    return split.fit[first], split.fit[~first]


def part_of(event_of: Array, tokens: Array) -> Part:
    """The events of `tokens` as one unit; `event_of` int64[T, L]."""
    events = np.sort(event_of[tokens].ravel())
    return Part(events, np.zeros(len(events), dtype=np.int64), np.array([len(tokens)]), "tokens to choose on")
