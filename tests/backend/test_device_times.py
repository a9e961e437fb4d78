"""The log's times of a GPU: when copies were done, how long they and the hits took."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.harness.environment import Build, reference_device
from tests.harness.plan import ModelOptions, Plan, Scenario, decode
from tests.harness.routing_log import run_logged
from tests.harness.scenarios import token_stream
from tests.models.tokenizer import embedded_model

pytestmark = pytest.mark.skipif(reference_device() is None, reason="needs a GPU: scripts/gpu/test")

N_TOKENS, N_LAYERS = 60, 8  # layers of the embedded model
RESOLUTION_NS = 2000  # CUDA's events have a resolution of 0.5 us, and an event has two groups of copies at most
FASTEST_LINK = 1000  # bytes per ns, above any link between CPU and GPU


@pytest.fixture(params=["0", "1"], ids=["asynchronous", "synchronous"])
def events(build: Build, tmp_path: Path, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Single tokens with LRU: copies at nearly every event."""
    steps = tuple(decode([token], start=i) for i, token in enumerate(token_stream(N_TOKENS, seed=5)))
    plan = Plan(ModelOptions(str(embedded_model())), (Scenario("one-by-one", steps),))
    settings = {"GGML_MOECACHE_POLICY": "lru", "GGML_MOECACHE_SYNC": request.param}
    _, log = run_logged(build, plan, tmp_path / "log", "25%", **settings)
    assert len(log.events) == N_TOKENS * N_LAYERS
    return log.events


def test_copies_that_were_in_time_have_their_times(events: list[dict[str, Any]]) -> None:
    """Done after they were enqueued, by at least as long as they took; of late ones nothing is told."""
    ready = [event for event in events if event["ready_before_next_token"]]
    assert len(ready) > N_LAYERS * N_TOKENS // 2
    for event in ready:
        assert event["copy_bytes"] > 0
        assert event["copy_duration_ns"] >= event["copy_bytes"] / FASTEST_LINK
        assert event["copy_ready_ns"] - event["copy_enqueued_ns"] >= event["copy_duration_ns"] - RESOLUTION_NS
    for event in events:
        if not event["ready_before_next_token"]:
            assert event["copy_ready_ns"] is None
            assert event["copy_duration_ns"] is None


def test_copies_are_done_in_the_order_of_their_events(events: list[dict[str, Any]]) -> None:
    """One stream carries them all. Clocks are tied anew for every token, each time late by another wake-up."""
    for token in range(N_TOKENS):
        ready = [event["copy_ready_ns"] for event in events[token * N_LAYERS : (token + 1) * N_LAYERS]]
        known = [ns for ns in ready if ns is not None]
        assert all(later > earlier - 1_000_000 for earlier, later in itertools.pairwise(known))


def test_the_hits_of_every_event_have_a_time(events: list[dict[str, Any]]) -> None:
    """Also those of the last token; none where the CPU computed all. Layers follow one another on the GPU."""
    for event in events:
        assert (event["cuda_duration_ns"] is not None) == any(event["cache_hit"])
        assert (event["cpu_duration_ns"] is not None) == (not all(event["cache_hit"]))
    enqueued = [event["copy_enqueued_ns"] for event in events if event["copy_enqueued_ns"] is not None]
    on_the_gpu = sum(event["cuda_duration_ns"] or 0 for event in events[: N_LAYERS * (N_TOKENS - 1)])
    assert 0 < on_the_gpu < enqueued[-1] - enqueued[0]
