"""Repetition and shared prefixes, counted by hand; the latter also against all pairs."""

from __future__ import annotations

import itertools
import random

import pytest

from pyanalysis.record.text_report import Repetition, SharedPrefixes, repeated_ngrams


@pytest.mark.parametrize(
    ("tokens", "n", "expected"),
    [
        ([1, 2, 3, 1, 2, 3], 2, (2, 5)),  # 12 23 31 12 23: the last two occurred before
        ([7, 7, 7, 7], 2, (2, 3)),  # 77 77 77
        ([1, 2, 3], 3, (0, 1)),
        ([1, 2], 3, (0, 0)),
    ],
)
def test_repeated_ngrams(tokens, n, expected):
    assert repeated_ngrams(tokens, n) == expected


def test_repetition_is_within_a_request():
    """Ten tokens have three 8-grams. The loop of one token repeats two of three; equal requests do not count."""
    loop, text = [5] * 10, list(range(10))
    found = Repetition.of([loop, text, text, [1, 2]])
    assert found.by_request == (2 / 3, 0.0, 0.0, None)
    assert found.rate == 2 / 9
    assert Repetition.of([]).rate is None


def test_shared_prefixes_by_hand():
    """a and b share [1, 2], c and a share [1]: 2 + 2 + 1 of 9 tokens; d is alone."""
    a, b, c, d = [1, 2, 3], [1, 2, 4], [1, 9], [8]
    assert SharedPrefixes.of([a, d, b, c]) == SharedPrefixes(2, 5, 5 / 9)


def test_the_tokenizers_own_tokens_do_not_count():
    assert SharedPrefixes.of([[0, 1, 2], [0, 3, 4]], n_special=1) == SharedPrefixes(0, 0, 0.0)
    assert SharedPrefixes.of([[0, 1, 2], [0, 3, 4]]) == SharedPrefixes(1, 2, 2 / 6)


def test_equal_prompts_are_shared_whole():
    assert SharedPrefixes.of([[1, 2], [1, 2]]) == SharedPrefixes(2, 4, 1.0)
    assert SharedPrefixes.of([[1, 2]]) == SharedPrefixes(0, 0, 0.0)
    assert SharedPrefixes.of([]) == SharedPrefixes(0, 0, None)


@pytest.mark.parametrize("seed", range(5))
def test_shared_prefixes_against_all_pairs(seed):
    generator = random.Random(seed)  # noqa: S311 - repeatable
    prompts = [[generator.randrange(2) for _ in range(generator.randrange(1, 9))] for _ in range(12)]

    def common(a, b):
        return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))

    longest = [max(common(a, b) for j, b in enumerate(prompts) if j != i) for i, a in enumerate(prompts)]
    found = SharedPrefixes.of(prompts)
    assert (found.longest, found.n_tokens) == (max(longest), sum(longest))
