"""What the tokens of a run tell about its worth as a trace: repetition, and prompts that begin alike.

A model that loops chooses the same experts again and again: false locality. Prompts of one template share their first
tokens, and so their routing.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NGRAM_TOKENS = 8


def repeated_ngrams(tokens: Sequence[int], n: int = NGRAM_TOKENS) -> tuple[int, int]:
    """(runs of n tokens that occurred before in `tokens`, all runs of n tokens); (0, 0) for fewer than n tokens."""
    n_all = max(len(tokens) - n + 1, 0)
    distinct = {tuple(tokens[at : at + n]) for at in range(n_all)}
    return n_all - len(distinct), n_all


@dataclass(frozen=True)
class Repetition:
    """Share of 8-grams of generated tokens that occurred before in the same request.

    `rate`: over all requests together; `by_request`: of each; None where no request, or this one, has 8 tokens.
    """

    rate: float | None
    by_request: tuple[float | None, ...]

    @staticmethod
    def of(generated: Sequence[Sequence[int]]) -> Repetition:
        counts = [repeated_ngrams(tokens) for tokens in generated]
        total = sum(n for _, n in counts)
        rate = sum(repeated for repeated, _ in counts) / total if total else None
        return Repetition(rate, tuple(repeated / n if n else None for repeated, n in counts))


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@dataclass(frozen=True)
class SharedPrefixes:
    """Prompts that begin with the same tokens; `n_special` tokens that the tokenizer puts before each do not count.

    longest  tokens of the longest prefix that two prompts have in common
    n_tokens tokens of prompts that lie in a prefix shared with some other prompt
    share    n_tokens of all tokens of the prompts; None: there are none
    """

    longest: int
    n_tokens: int
    share: float | None

    @staticmethod
    def of(prompts: Sequence[Sequence[int]], n_special: int = 0) -> SharedPrefixes:
        """In the sorted order of the prompts the longest prefix of each is the one with a neighbour."""
        ordered = sorted(tuple(tokens[n_special:]) for tokens in prompts)
        with_next = [_common_prefix(a, b) for a, b in itertools.pairwise(ordered)]
        longest = [max(pair) for pair in zip([0, *with_next], [*with_next, 0], strict=True)] if ordered else []
        n_all = sum(map(len, ordered))
        n_shared = sum(longest)
        return SharedPrefixes(max(longest, default=0), n_shared, n_shared / n_all if n_all else None)
