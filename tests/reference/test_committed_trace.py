"""A trace in traces/ replays to exact counts, which the plain-Python references have computed.

Of tiny-long, the first request: 900 prompt tokens (two ubatches, so 16 union events) and its decoded tokens, with 256
slots for 8 layers of 128 experts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pyanalysis import simulate, traces
from tests.reference.events import events_of
from tests.reference.replay import replay

TRACE = Path(__file__).resolve().parents[2] / "traces" / "tiny-long.parquet"
N_SLOTS = 256
# accesses, hits, admissions, evictions
OF_256_TOKENS = {
    "cumulative-lfu": (17906, 12537, 776, 520),
    "lru": (17906, 11230, 6676, 6420),
    "decayed-lfu:half-life=64": (17906, 12693, 1486, 1230),
    "windowed-lfu:window=256": (17906, 12518, 795, 539),
}
OF_THE_REQUEST = {  # by the reference too, once: it takes 20 s
    "cumulative-lfu": (132530, 104245, 1062, 806),
    "lru": (132530, 92168, 40362, 40106),
}


@pytest.fixture(scope="module")
def request_0():
    trace = traces.read_trace(TRACE)
    return part_of(trace, trace.request == 0)


def part_of(trace, keep):
    names = ("request", "token", "layer", "family", "phase", "batch", "ids", "line", "weights")
    return replace(trace, **{name: getattr(trace, name)[keep] for name in names})


def counts_of(result):
    return result.accesses, result.hits, result.admissions, result.evictions


@pytest.mark.parametrize("policy", OF_256_TOKENS)
def test_reference_and_engine(request_0, policy):
    trace = part_of(request_0, request_0.token < 900 + 256)
    events = events_of(trace)
    assert len(events) == 16 + 256 * 8
    decisions, _ = replay(policy, events, [N_SLOTS], dict.fromkeys(range(8), 128))
    hits = [hit for decision in decisions for hit in decision.hits]
    changes = (sum(len(d.admitted) for d in decisions), sum(len(d.evicted) for d in decisions))
    assert (len(hits), sum(hits), *changes) == OF_256_TOKENS[policy]
    assert counts_of(simulate(trace, policy, N_SLOTS)) == OF_256_TOKENS[policy]


@pytest.mark.parametrize("policy", OF_THE_REQUEST)
def test_engine_on_the_whole_request(request_0, policy):
    assert counts_of(simulate(request_0, policy, N_SLOTS)) == OF_THE_REQUEST[policy]
