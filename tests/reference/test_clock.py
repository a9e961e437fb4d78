"""The engine's clock against the reference's, on slow and on fast copies."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyanalysis import costs, simulate
from pyanalysis.traces import Trace
from tests.reference.clock import clocked
from tests.reference.events import events_of
from tests.reference.traces import random_trace, small_traces

# Nanoseconds that are easy to add; a copy takes 10 + 1000 / bandwidth.
BASE = dataclasses.replace(
    costs.load("h200"),
    expert_bytes=1000,
    cpu_miss_ns=40,
    cpu_event_ns=5,
    gpu_hit_ns=3,
    other_layer_ns=100,
    other_token_ns=7,
    copy_latency_ns=10,
    copy_event_ns=2,
)
BANDWIDTHS = {"fast": 1e12, "late": 8e9, "hopeless": 1e9}  # a copy: 11, 135, 1,010 ns; a layer: 100 to 225


def compare(trace: Trace, policy: str, capacity: int, bandwidth: float, *, per_layer: bool) -> None:
    _, layers = trace.columns
    column = {(layer, family): place for place, (layer, family) in enumerate(map(tuple, layers.tolist()))}
    cost = dataclasses.replace(BASE, copy_bandwidth_bytes_per_s=bandwidth)
    most = trace.model["n_experts"] * (1 if per_layer else len(layers))
    result = simulate(trace, policy, min(capacity, most), cost, per_layer=per_layer, timing="clocked", events=True)
    log = result.events
    assert log is not None
    events = events_of(trace)
    placed, admissions = [], [[] for _ in events]
    for index, event in enumerate(log.admitted_event.tolist()):
        place = column[int(log.admitted_layer[index]), int(log.admitted_family[index])]
        newcomer, victim = (place, int(log.admitted_expert[index])), None
        if log.evicted_expert[index] >= 0:
            place = column[int(log.evicted_layer[index]), int(log.evicted_family[index])]
            victim = (place, int(log.evicted_expert[index]))
        if event < 0:
            placed.append(newcomer)
        else:
            admissions[event].append((newcomer, victim))
    expected = clocked(events, admissions, placed, 1000, cost)
    begin = len(placed)
    got = [tuple(log.hit[a:b].tolist()) for a, b in zip(log.offsets, log.offsets[1:], strict=False)]
    assert got == expected.hits
    np.testing.assert_allclose(log.copy_enqueued_ns[begin:], expected.enqueued, rtol=1e-12)
    np.testing.assert_allclose(log.copy_ready_ns[begin:], expected.ready, rtol=1e-12)
    assert log.copy_ready[begin:].tolist() == expected.in_time
    assert result.copies_late == expected.in_time.count(0)
    if expected.n_decode_tokens:
        assert result.time_per_token_ns == pytest.approx(expected.decode_ns / expected.n_decode_tokens)


@pytest.mark.parametrize("per_layer", [True, False], ids=["per-layer", "global"])
@pytest.mark.parametrize("bandwidth", BANDWIDTHS.values(), ids=BANDWIDTHS)
@pytest.mark.parametrize("policy", ["lru", "cumulative-lfu", "belady", "belady-forced", "hindsight-static", "random"])
def test_random_traces(policy, bandwidth, per_layer):
    trace = random_trace(3, n_tokens=200, n_layers=3, n_experts=12, top_k=3, n_requests=2)
    compare(trace, policy, 5 if per_layer else 14, bandwidth, per_layer=per_layer)


@given(
    trace=small_traces(),
    policy=st.sampled_from(["lru", "cumulative-lfu", "lfru", "belady", "random", "cold-static"]),
    capacity=st.integers(0, 9),
    bandwidth=st.sampled_from(sorted(BANDWIDTHS.values())),
    per_layer=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_any_small_trace(trace, policy, capacity, bandwidth, per_layer):
    compare(trace, policy, capacity, bandwidth, per_layer=per_layer)
