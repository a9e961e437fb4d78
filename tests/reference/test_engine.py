"""The engine decides event by event what the references decide."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyanalysis import simulate, sweep
from pyanalysis.simulation import SimulationResult
from pyanalysis.traces import Trace
from tests.reference.events import events_of
from tests.reference.replay import Decision, replay
from tests.reference.traces import random_trace, small_traces, trace_of

POLICIES = [
    "lru",
    "cumulative-lfu",
    "cumulative-lfu:tie=recency",
    "decayed-lfu:half-life=2",
    "decayed-lfu:half-life=7",
    "windowed-lfu:window=3",
    "windowed-lfu:window=3:tie=recency",
    "windowed-lfu:window=50",
    "lfru:weight=1",
    "lfru:weight=40",
    "request-lfu",
    "request-lfu:tie=recency",
    "interval-refresh:every=4",
    "interval-refresh:every=1",
    "cold-static",
    "cold-static:order=id",
    "hindsight-static",
    "random:seed=5",
    "belady",
    "belady:horizon=1",
    "belady:horizon=8",
    "belady-forced",
]
FILTERS = ["admit-after=2", "payback=1:payback-horizon=8", "admit-after=3:payback=0.5:payback-horizon=16"]
UNFILTERED = {"cold-static", "cold-static:order=id", "hindsight-static", "belady-forced"}
FILTERED = [f"{policy}:{options}" for policy in POLICIES if policy not in UNFILTERED for options in FILTERS]


def decisions_of(result: SimulationResult, columns: dict[tuple[int, int], int]) -> tuple[list[Decision], frozenset]:
    """The engine's decisions in the form of the references; `columns`: (layer, family) to column."""
    log = result.events
    assert log is not None
    admitted = [set() for _ in range(len(log.row) + 1)]  # the last: before the first event
    evicted = [set() for _ in range(len(log.row) + 1)]
    for index, event in enumerate(log.admitted_event.tolist()):
        key = columns[int(log.admitted_layer[index]), int(log.admitted_family[index])]
        admitted[event].add((key, int(log.admitted_expert[index])))
        if log.evicted_expert[index] >= 0:
            key = columns[int(log.evicted_layer[index]), int(log.evicted_family[index])]
            evicted[event].add((key, int(log.evicted_expert[index])))
    hits = [tuple(log.hit[begin:end].tolist()) for begin, end in itertools.pairwise(log.offsets.tolist())]
    decisions = [Decision(h, frozenset(a), frozenset(e)) for h, a, e in zip(hits, admitted, evicted, strict=False)]
    assert not evicted[-1]
    return decisions, frozenset(admitted[-1])


def compare(trace: Trace, policy: str, capacity: int, *, per_layer: bool, batch_size: int = 512) -> None:
    _, layers = trace.columns
    n_experts = dict.fromkeys(range(len(layers)), trace.model["n_experts"])
    most = trace.model["n_experts"] * (1 if per_layer else len(layers))
    slots = [min(capacity, most)] * (len(layers) if per_layer else 1)
    events = events_of(trace, batch_size)
    expected, placed = replay(policy, events, slots, n_experts)
    result = simulate(trace, policy, slots[0], per_layer=per_layer, batch_size=batch_size, events=True)
    columns = {(layer, family): column for column, (layer, family) in enumerate(map(tuple, layers.tolist()))}
    got, got_placed = decisions_of(result, columns)
    assert [tuple(ids) for ids in ids_of(result)] == [event.ids for event in events]
    assert got_placed == placed
    for index, (mine, theirs) in enumerate(zip(expected, got, strict=True)):
        assert theirs == mine, f"event {index}: {events[index]}"
    assert result.hits == sum(sum(decision.hits) for decision in expected)
    assert result.accesses == sum(len(decision.hits) for decision in expected)
    # A placed expert counts as admitted; one that leaves and comes back within an event cannot be.
    assert result.admissions == len(placed) + sum(len(decision.admitted) for decision in expected)
    assert result.evictions == sum(len(decision.evicted) for decision in expected)
    judged = simulate(trace, policy, slots[0], per_layer=per_layer, batch_size=batch_size, victim_agreement=True)
    assert counts_of(judged) == counts_of(result)
    if result.evictions:
        assert judged.victim_agreement == sum(decision.agreed for decision in expected) / result.evictions
    else:
        assert judged.victim_agreement is None
    # Without the log of events the engine may take a shorter way, and a sweep yet another.
    counts = counts_of(result)
    assert counts_of(simulate(trace, policy, slots[0], per_layer=per_layer, batch_size=batch_size)) == counts
    around = sorted({max(slots[0] - 1, 0), slots[0], min(slots[0] + 1, most)})
    swept = sweep([trace], [policy], around, per_layer=per_layer, batch_size=batch_size)
    assert counts_of(swept[around.index(slots[0])]) == counts


def counts_of(result: SimulationResult) -> tuple:
    decode = (result.decode_accesses, result.decode_hits)
    return (result.accesses, result.hits, *decode, result.admissions, result.evictions, result.copies, result.layers)


def ids_of(result: SimulationResult) -> list[list[int]]:
    log = result.events
    assert log is not None
    return [log.ids[begin:end].tolist() for begin, end in itertools.pairwise(log.offsets.tolist())]


@pytest.mark.parametrize("per_layer", [True, False], ids=["per-layer", "global"])
@pytest.mark.parametrize("capacity", [1, 3, 6])
@pytest.mark.parametrize("policy", POLICIES)
def test_random_traces(policy, capacity, per_layer):
    trace = random_trace(capacity, n_tokens=160, n_layers=3, n_experts=12, top_k=3, n_requests=4)
    compare(trace, policy, capacity if per_layer else 3 * capacity - 1, per_layer=per_layer)


@pytest.mark.parametrize("policy", FILTERED)
def test_filters_on_random_traces(policy):
    trace = random_trace(9, n_tokens=120, n_layers=2, n_experts=10, top_k=3, n_requests=3)
    compare(trace, policy, 4, per_layer=True)
    compare(trace, policy, 7, per_layer=False)


@pytest.mark.parametrize("policy", POLICIES)
@given(trace=small_traces(), capacity=st.integers(0, 18), per_layer=st.booleans(), batch_size=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_any_small_trace(policy, trace, capacity, per_layer, batch_size):
    compare(trace, policy, capacity, per_layer=per_layer, batch_size=batch_size)


@given(
    policy=st.sampled_from(FILTERED),
    trace=small_traces(),
    capacity=st.integers(0, 18),
    per_layer=st.booleans(),
    batch_size=st.integers(1, 4),
)
@settings(max_examples=400, deadline=None)
def test_any_small_trace_with_filters(policy, trace, capacity, per_layer, batch_size):
    compare(trace, policy, capacity, per_layer=per_layer, batch_size=batch_size)


def test_filtered_election():
    """One slot, an election every 2 tokens, an expert enters at its second use.

    The election at token 4 knows the uses since that at token 2: 3 and 4, once each. 3 comes first, but this was its
    only use, so it is passed over; 4 has its second use and takes the empty slot.
    """
    trace = trace_of([(0, -1, 1, [[expert]]) for expert in (2, 4, 1, 3, 4)], 5)
    result = simulate(trace, "interval-refresh:every=2:admit-after=2", 1, per_layer=True, events=True)
    decisions, _ = decisions_of(result, {(0, 0): 0})
    assert [decision.admitted for decision in decisions] == [set(), set(), set(), set(), {(0, 4)}]


def test_static_from_a_file(tmp_path):
    """The first C of each budget in the order of the file, whether the layers have budgets of their own or one."""
    order = [(1, 3), (0, 2), (1, 0), (0, 5), (0, 1), (1, 4)]
    path = tmp_path / "static.csv"
    path.write_text("layer,expert\n" + "".join(f"{layer},{expert}\n" for layer, expert in order))
    trace = random_trace(2, n_tokens=40, n_layers=2, n_experts=6, top_k=2)
    columns = {(0, 0): 0, (1, 0): 1}
    for capacity, per_layer, slots in ((2, True, [2, 2]), (4, False, [4]), ([3, 1], True, [3, 1])):
        expected, placed = replay("static:file=x", events_of(trace), slots, {0: 6, 1: 6}, order)
        result = simulate(trace, f"static:file={path}", capacity, per_layer=per_layer, events=True)
        assert decisions_of(result, columns) == (expected, placed)


def test_a_budget_of_its_own_for_each_layer():
    trace = random_trace(4, n_tokens=80, n_layers=3, n_experts=8, top_k=2)
    columns = {(layer, 0): layer for layer in range(3)}
    for policy in ("lru", "cumulative-lfu", "belady", "random:seed=1"):
        expected, placed = replay(policy, events_of(trace), [1, 0, 5], dict.fromkeys(range(3), 8))
        result = simulate(trace, policy, [1, 0, 5], per_layer=True, events=True)
        assert decisions_of(result, columns) == (expected, placed)
