"""Bootstrap intervals against a textbook case and against exact ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyanalysis.decide.intervals import Bootstrap


def test_units_that_are_all_alike_have_no_spread():
    ratio = Bootstrap(20, enough=True, seed=0).ratio(np.full(20, 3), np.full(20, 4))
    assert (ratio.low, ratio.value, ratio.high) == (0.75, 0.75, 0.75)


def test_interval_of_a_proportion():
    """Half of 400 units are 1: the standard error of the mean is 0.5 / 20, the 95 % interval 0.5 +- 1.96 x 0.025."""
    ratio = Bootstrap(400, enough=True, seed=1).ratio(np.arange(400) % 2, np.ones(400))
    assert ratio.value == 0.5
    assert ratio.low == pytest.approx(0.451, abs=0.004)
    assert ratio.high == pytest.approx(0.549, abs=0.004)


def test_differences_are_paired():
    """Units differ by a factor of 1,000, the two policies always by 10 %: the ratio is known exactly."""
    times = np.logspace(0, 3, 30)
    relative = Bootstrap(30, enough=True, seed=2).relative(1.1 * times, times)
    assert (relative.low, relative.value, relative.high) == pytest.approx((0.1, 0.1, 0.1))


def test_difference_of_rates():
    difference = Bootstrap(30, enough=True, seed=3).difference(np.full(30, 6), np.full(30, 8), np.full(30, 10))
    assert (difference.low, difference.value, difference.high) == pytest.approx((-0.2, -0.2, -0.2))


def test_too_few_units():
    ratio = Bootstrap(4, enough=False, seed=0).ratio(np.array([1, 0, 1, 0]), np.ones(4))
    assert ratio.value == 0.5
    assert math.isnan(ratio.low)
    assert not ratio.known


def test_seed():
    values = np.arange(50)
    one, same, other = (Bootstrap(50, enough=True, seed=s).ratio(values, np.ones(50)) for s in (7, 7, 8))
    assert one == same != other
