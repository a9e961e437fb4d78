"""The rules, on numbers alone."""

from __future__ import annotations

import math

import pytest

from pyanalysis.decide.intervals import Interval
from pyanalysis.decide.verdict import Cell, decide, flips


def cell(percent=20.0, *, saved=(-0.3, -0.3, -0.3), bound=0.0, hits=0.0, static=0.0, cold=0.0, width=0.0, workload="w"):
    """`saved` of adaptive, static, cold-static; every interval reaches `width` to both sides."""

    def around(value):
        return Interval(value - width, value, value + width)

    names = ("adaptive", "static", "cold-static")
    return Cell(
        workload=workload,
        split="requests",
        cost="c",
        percent=percent,
        saved={name: around(value) for name, value in zip(names, saved, strict=True)},
        bound_time=around(bound),
        bound_hits=around(hits),
        against={"static": around(static), "cold-static": around(cold)},
    )


def test_equivalent_up_to_the_margins():
    verdict = decide([cell(bound=0.02, hits=-0.01), cell(60.0), cell(5.0)])
    assert (verdict.outcome, verdict.recommended, verdict.n_cells) == ("equivalent", "adaptive", 3)
    assert verdict.n_equivalent == verdict.n_paying == 3


@pytest.mark.parametrize("bad", [cell(bound=0.0201), cell(hits=-0.0101), cell(bound=0.015, width=0.006)])
def test_not_equivalent_beyond_a_margin_or_within_the_noise(bad):
    verdict = decide([cell(), bad])
    assert verdict.outcome == "neither"
    assert verdict.recommended == "adaptive"  # nowhere slower than the others
    assert verdict.n_equivalent == 1


def test_better_than_hindsight_is_equivalent():
    assert decide([cell(bound=-0.5, hits=0.3)]).outcome == "equivalent"


def test_only_capacities_of_5_to_60_percent_vote():
    outside = [cell(4.9, saved=(0, 0, 0)), cell(60.1, bound=1.0)]
    assert decide([*outside, cell()]).outcome == "equivalent"
    assert decide(outside).outcome == "undecided"
    assert decide(outside).recommended is None


def test_cells_without_an_interval_do_not_vote():
    unknown = cell(width=math.nan, bound=1.0)
    assert decide([unknown]).outcome == "undecided"
    assert decide([unknown, cell()]).n_cells == 1


def test_nothing_pays():
    """Adaptive equals the best static set, and both are no faster than the CPU alone."""
    verdict = decide([cell(saved=(0.0, 0.1, 0.0)), cell(saved=(0.2, 0.1, 0.0))])
    assert (verdict.outcome, verdict.recommended, verdict.n_paying) == ("nothing", None, 0)


def test_faster_than_nothing_within_the_noise_does_not_pay():
    assert decide([cell(saved=(-0.01, -0.01, -0.01), width=0.01)]).outcome == "nothing"
    assert decide([cell(saved=(-0.011, -0.01, -0.01), width=0.01)]).n_paying == 1


def test_static_wins():
    """Slower than static in one cell, equal in the other: 0.9 / 0.8 - 1 = 12.5 % is the largest loss."""
    worse = cell(saved=(-0.1, -0.2, -0.1), bound=0.13, static=0.125)
    verdict = decide([cell(), worse])
    assert (verdict.outcome, verdict.recommended) == ("static", "static")
    assert verdict.losses == pytest.approx({"adaptive": 0.125, "static": 0, "cold-static": 0.125})
    assert "slower in 1 of 2 cells" in verdict.reason


def test_the_better_static_candidate_is_recommended():
    worse = cell(saved=(-0.1, -0.2, -0.3), bound=0.3, static=0.125, cold=0.28)
    assert decide([worse]).recommended == "cold-static"


def test_adaptive_wins_only_against_every_candidate():
    ahead = cell(saved=(-0.3, -0.2, -0.1), bound=0.1, static=-0.125, cold=-0.22)
    assert decide([ahead, cell()]).outcome == "adaptive"
    assert decide([cell(saved=(-0.3, -0.3, -0.1), bound=0.1, cold=-0.22)]).outcome == "neither"


def test_a_conclusion_that_differs_goes_to_the_smallest_largest_loss():
    """Adaptive 1.25 times as slow in one cell, static 1.5 times in the other."""
    first = cell(saved=(0.0, -0.2, 0.5), bound=0.25, static=0.25, cold=-0.33)
    second = cell(saved=(-0.4, -0.1, -0.1), bound=-0.1, static=-0.33, cold=-0.33)
    verdict = decide([first, second])
    assert (verdict.outcome, verdict.recommended) == ("neither", "adaptive")
    assert verdict.losses == pytest.approx({"adaptive": 0.25, "static": 0.5, "cold-static": 0.875})
    assert "differs from cell to cell" in verdict.reason


def test_winners_and_where_they_flip():
    cells = [
        cell(0.0, saved=(0, 0, 0)),  # nothing has a slot: no winner to speak of
        cell(1.0, saved=(0.1, 0.0, 0.2)),
        cell(2.0, saved=(-0.1, -0.2, 0.0), static=0.125, cold=-0.1),
        cell(5.0, saved=(-0.1, -0.2, 0.0), static=0.125, cold=-0.1),
        cell(10.0, saved=(-0.2, -0.2, -0.1)),
        cell(20.0, saved=(-0.3, -0.2, -0.1), static=-0.125, cold=-0.22),
    ]
    assert [one.winner for one in cells[1:]] == ["nothing", "static", "static", "tie", "adaptive"]
    assert flips(cells) == [
        "w, held-out requests, c: nothing at 1 %, static from 2 to 5 %, tie at 10 %, adaptive at 20 %"
    ]
    assert flips(cells[2:4]) == []
