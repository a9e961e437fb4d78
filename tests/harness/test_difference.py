"""The comparison of logits itself."""

from __future__ import annotations

import numpy as np
import pytest

from tests.harness.difference import compare


def _logits(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def test_equal_bits() -> None:
    difference = compare({"s/0": _logits([1, 2], [3, 4])}, {"s/0": _logits([1, 2], [3, 4])})
    assert difference.equal
    assert str(difference) == "equal bit for bit (4 logits)"


def test_first_difference_is_named() -> None:
    """Relative to the largest logit of the row: 0.5 of 4."""
    expected = {"s/0": _logits([1, 2], [3, 4]), "s/1": _logits([5, 6])}
    actual = {"s/0": _logits([1, 2], [3.5, 4]), "s/1": _logits([5, 7])}
    difference = compare(expected, actual)
    assert difference.first == ("s/0", 1, 0)
    assert difference.n_different == 2
    assert difference.max_relative == pytest.approx(1 / 6)


def test_signed_zero_is_a_difference() -> None:
    assert not compare({"s/0": _logits([0.0, 1])}, {"s/0": _logits([-0.0, 1])}).equal


def test_nan_is_an_infinite_error() -> None:
    """Equal NaNs are equal bits, yet no result to be content with."""
    difference = compare({"s/0": _logits([np.nan, 1])}, {"s/0": _logits([np.nan, 1])})
    assert difference.max_relative == np.inf
    assert not difference.equal


@pytest.mark.parametrize("actual", [{}, {"s/1": _logits([1, 2])}, {"s/0": _logits([1, 2, 3])}])
def test_other_steps_or_shapes_are_refused(actual: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"steps differ|shape"):
        compare({"s/0": _logits([1, 2])}, actual)
