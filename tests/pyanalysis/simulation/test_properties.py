"""What must hold for every trace: invariants of the slots, optimality, inclusion, determinism, export and import."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggml_moecache import _native
from pyanalysis import simulate, sweep
from pyanalysis.cost import CostModel
from pyanalysis.simulation import EventStream
from tests.pyanalysis.simulation.small import COLD, PLACED, log_of, small_trace, traces

capacities = st.integers(0, 6)
policies = st.sampled_from([*COLD, *PLACED])
COST = CostModel("test", "test", ("test",), 30, 20.0, 5.0, 10.0, 4.0, 1e9, 1.0, 3.0)


def at_most(stream, capacity, per_layer):
    return min(capacity, stream.columns[0][2] * (1 if per_layer else len(stream.columns)))


def experts_of_events(stream):
    offsets, items = stream.native.offsets(), stream.native.items()
    return [frozenset(items[a:b].tolist()) for a, b in itertools.pairwise(offsets.tolist())]


def best_hits(events, n_slots, *, forced):
    """Of all ways to choose the content after each event, by trying them all."""
    best = {frozenset(): 0}
    for event in events:
        following = {}
        for content, hits in best.items():
            pool = content | event
            kept = event if forced else frozenset()
            for size in range(min(n_slots, len(pool)) + 1):
                for chosen in map(frozenset, itertools.combinations(sorted(pool), size)):
                    if len(chosen & kept) < min(n_slots, len(kept)):
                        continue
                    following[chosen] = max(following.get(chosen, 0), hits + len(event & content))
        best = following
    return max(best.values())


@given(traces(max_experts=4, max_tokens=9, max_layers=1), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_belady_is_the_brute_force_optimum(trace, capacity):
    stream = EventStream.of(trace)
    n_slots = at_most(stream, capacity, per_layer=False)
    events = experts_of_events(stream)
    assert simulate(stream, "belady", n_slots).hits == best_hits(events, n_slots, forced=False)
    assert simulate(stream, "belady-forced", n_slots).hits == best_hits(events, n_slots, forced=True)


@given(traces(max_experts=3, max_tokens=5, max_layers=2), st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_belady_is_the_optimum_of_one_budget_for_all_layers(trace, capacity):
    stream = EventStream.of(trace)
    n_slots = at_most(stream, capacity, per_layer=False)
    assert simulate(stream, "belady", n_slots).hits == best_hits(experts_of_events(stream), n_slots, forced=False)


@given(traces(), capacities, st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_optimum_is_never_worse(trace, capacity, per_layer):
    stream = EventStream.of(trace)
    n_slots = at_most(stream, capacity, per_layer)
    optimum = simulate(stream, "belady", n_slots, per_layer=per_layer).hits
    for policy in COLD:
        assert simulate(stream, policy, n_slots, per_layer=per_layer).hits <= optimum, policy


@given(traces(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_one_pass_counts_what_the_simulator_counts(trace, per_layer):
    """The log makes the simulator run; without it a sweep takes one pass, and one capacity of lru a threshold."""
    stream = EventStream.of(trace)
    every = list(range(at_most(stream, 99, per_layer) + 1))
    options = {"per_layer": per_layer, "timing": "ideal", "victim_agreement": False}
    for policy in [*COLD, *PLACED]:
        swept = sweep([stream], [policy], every, COST, workers=1, **options)
        for capacity, fast in zip(every, swept, strict=True):
            slow = simulate(stream, policy, capacity, COST, events=True, **options)
            alone = simulate(stream, policy, capacity, COST, **options)
            assert fast.row() == slow.row() == alone.row(), (policy, capacity)


@given(traces(), capacities, policies, st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_slots_stay_in_order(trace, capacity, policy, per_layer, clocked):
    """After every event; a copy takes longer than most tokens here, so slots load for several events."""
    stream = EventStream.of(trace, expert_bytes=30)
    n_slots = at_most(stream, capacity, per_layer)
    options = _native.SimulationOptions()
    options.clocked = clocked
    options.costs = [20, 1, 5, 10, 3, 50, 1e9, 2]
    budgets = len(stream.columns) if per_layer else 1
    simulator = _native.Simulator.make(stream.native, per_layer, policy, 0, [n_slots] * budgets, options)
    for event in range(stream.native.n_events + 1):
        simulator.run(event)
        assert simulator.check() == ""
        held = simulator.slots()
        assert len(held) <= n_slots * budgets
        assert len({item for _, item, _ in held}) == len(held)
        assert all(state in ("loading", "resident") for _, _, state in held)


@given(traces(), policies, st.booleans())
@settings(max_examples=80, deadline=None)
def test_no_slot_and_all_slots(trace, policy, per_layer):
    stream = EventStream.of(trace)
    nothing = simulate(stream, policy, 0, per_layer=per_layer)
    assert (nothing.hits, nothing.admissions, nothing.evictions) == (0, 0, 0)
    assert nothing.cpu_fallbacks == nothing.accesses
    everything = simulate(stream, policy, "all", per_layer=per_layer)
    assert everything.evictions == 0
    distinct = len(set(stream.native.items().tolist()))
    if policy in PLACED:
        assert everything.hits == everything.accesses
    elif ":admit-after" not in policy and ":payback" not in policy and not policy.startswith("interval"):
        assert everything.hits == everything.accesses - distinct


@given(traces(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_larger_lru_cache_hits_all_that_a_smaller_one_hits(trace, per_layer):
    stream = EventStream.of(trace)
    hits = [
        simulate(stream, "lru", n, per_layer=per_layer, events=True).events.hit
        for n in range(at_most(stream, 99, per_layer) + 1)
    ]
    for smaller, larger in itertools.pairwise(hits):
        assert not (smaller & ~larger).any()


@given(traces(), capacities, policies)
@settings(max_examples=60, deadline=None)
def test_the_same_run_twice_decides_the_same(trace, capacity, policy):
    n_slots = at_most(EventStream.of(trace), capacity, per_layer=False)
    first, second = (simulate(EventStream.of(trace), policy, n_slots, events=True) for _ in range(2))
    assert log_of(first) == log_of(second)


@given(traces(), capacities, policies, st.booleans(), st.data())
@settings(max_examples=200, deadline=None)
def test_export_import_and_continue_decides_the_same(trace, capacity, policy, per_layer, data):
    stream = EventStream.of(trace)
    n_slots = at_most(stream, capacity, per_layer)
    cut = data.draw(st.integers(0, stream.native.n_events))
    options = _native.SimulationOptions()
    options.log = True

    def fresh():
        slots = [n_slots] * (len(stream.columns) if per_layer else 1)
        return _native.Simulator.make(stream.native, per_layer, policy, 0, slots, options)

    whole, first, second = fresh(), fresh(), fresh()
    whole.run(stream.native.n_events)
    first.run(cut)
    second.load(first.save())
    second.run(stream.native.n_events)
    parts = [simulator.counts().log() for simulator in (first, second)]
    expected = whole.counts().log()
    for name in ("hit", "admitted_event", "admitted", "evicted"):
        assert np.concatenate([part[name] for part in parts]).tolist() == expected[name].tolist(), name


@pytest.mark.parametrize("policy", [*COLD, *PLACED])
def test_a_state_that_is_not_this_cache_s_is_refused(policy):
    ids = [[[token % 4, (token + 1) % 4]] for token in range(12)]
    stream = EventStream.of(small_trace(ids, 4))
    options = _native.SimulationOptions()

    def fresh(slots=2):
        return _native.Simulator.make(stream.native, True, policy, 0, [slots], options)

    simulator = fresh()
    simulator.run(6)
    state = simulator.save()
    for name, array in state["arrays"].items():
        if len(array) > 1:
            bad = array[::-1] if name == "content" else array[:-1]
            with pytest.raises(ValueError, match=f"{name}|slot_order|window_items"):
                fresh().load({**state, "arrays": {**state["arrays"], name: bad}})
        lacking = {other: values for other, values in state["arrays"].items() if other != name}
        with pytest.raises(ValueError, match=f"has no array {name}"):
            fresh().load({**state, "arrays": lacking})
    with pytest.raises(ValueError, match="is of policy mru"):
        fresh().load({**state, "policy": "mru"})
    if len(state["arrays"]["content"]) > 1:
        with pytest.raises(ValueError, match="more experts than budget 0 has slots"):
            fresh(1).load(state)


@pytest.mark.parametrize("per_layer", [True, False])
def test_one_pass_and_simulator_agree_on_a_longer_trace(per_layer):
    """600 tokens, 3 layers of 16 experts, favourites that drift: windows slide, epochs pass, queues wrap."""
    draw = np.random.default_rng(11)
    weight = [1 / (1 + (np.arange(16) * 7 + step) % 16) for step in range(16)]
    ids = [
        [draw.choice(16, 4, replace=False, p=w / w.sum()) for w in (weight[token // 60], weight[3], weight[token % 16])]
        for token in range(600)
    ]
    stream = EventStream.of(small_trace(ids, 16, request=[token // 150 for token in range(600)]))
    every = [0, 1, 3, 4, 8, 15, 16] if per_layer else [0, 1, 5, 12, 30, 48]
    for policy in [*COLD, *PLACED, "decayed-lfu", "lfru", "windowed-lfu:window=100"]:
        swept = sweep([stream], [policy], every, per_layer=per_layer, victim_agreement=False, workers=1)
        for capacity, fast in zip(every, swept, strict=True):
            slow = simulate(stream, policy, capacity, per_layer=per_layer, events=True)
            alone = simulate(stream, policy, capacity, per_layer=per_layer)
            assert alone.row() == slow.row(), (policy, capacity)
            assert fast.row() == {**slow.row(), "victim_agreement": None}, (policy, capacity)
