"""The references themselves, against published hit rates, a hand-worked trace and published random numbers."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from pyanalysis import traces
from tests.reference.events import Event, by_last_appearance, events_of
from tests.reference.online import SplitMix64
from tests.reference.replay import hit_rate, replay

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"

# The table of reference hit rates beside the shared traces, at 12.5, 25 and 50 % of a layer's experts.
PUBLISHED = {
    "kimi-linear-48b": {
        "lru": (0.584, 0.729, 0.867),
        "cumulative-lfu:tie=recency": (0.553, 0.718, 0.875),
        "belady": (0.746, 0.845, 0.910),
        "hindsight-static": (0.583, 0.765, 0.942),
    },
    "deepseek-v2-lite-law": {
        "lru": (0.333, 0.495, 0.728),
        "cumulative-lfu:tie=recency": (0.273, 0.445, 0.706),
        "belady": (0.542, 0.711, 0.882),
        "hindsight-static": (0.274, 0.447, 0.708),
    },
}
SHARES = (0.125, 0.25, 0.5)
CASES = [
    # The large trace takes a minute in plain Python: LRU at its smallest capacity always, the others with --full.
    pytest.param(
        name,
        policy,
        place,
        marks=[pytest.mark.full] if name.startswith("deepseek") and (place or policy != "lru") else [],
    )
    for name, policies in PUBLISHED.items()
    for policy in policies
    for place in range(len(SHARES))
]


@functools.cache
def loaded(path: Path) -> tuple[list[Event], dict[int, int]]:
    """(events, experts of each column)."""
    trace = traces.read_trace(path)
    return events_of(trace), dict.fromkeys(range(len(trace.columns[1])), trace.model["n_experts"])


@pytest.mark.parametrize(("name", "policy", "place"), CASES)
def test_published_hit_rates(name, policy, place):
    path = SHARED / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"the shared trace {name} is not beside this checkout")
    events, columns = loaded(path)
    slots = [round(n_experts * SHARES[place]) for n_experts in columns.values()]
    decisions, _ = replay(policy, events, slots, columns)
    assert hit_rate(decisions) == pytest.approx(PUBLISHED[name][policy][place], abs=0.0005)


def test_hand_worked_cumulative_lfu():
    """Two slots, top-2.

    event  experts  content  hits  counts after     decision
      1     0 1     -         0    0:1 1:1          admit 0 and 1, empty slots
      2     0 2     0 1       1    0:2 1:1 2:1      none: 2 is not strictly above the 1 of expert 1
      3     0 2     0 1       1    0:3 1:1 2:2      evict 1, admit 2
      4     1 2     0 2       1    0:3 1:2 2:3      none: 1 has 2, below the 3 of both
    """
    ids = [(0, 1), (0, 2), (0, 2), (1, 2)]
    events = [Event(0, token, 0, True, one) for token, one in enumerate(ids)]
    decisions, placed = replay("cumulative-lfu", events, [2], {0: 3})
    assert placed == set()
    assert [d.hits for d in decisions] == [(False, False), (True, False), (True, False), (False, True)]
    assert [d.admitted for d in decisions] == [{(0, 0), (0, 1)}, set(), {(0, 2)}, set()]
    assert [d.evicted for d in decisions] == [set(), set(), {(0, 1)}, set()]


def test_order_of_an_event_of_several_tokens():
    assert by_last_appearance([3, 1, 2, 1, 3]) == (2, 1, 3)


def test_random_numbers_are_splitmix64():
    """The first outputs for the seed 1234567, as published with the generator's reference implementations."""
    generator = SplitMix64(1234567)
    assert [generator.next() for _ in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
