"""Copies and the log of a cache, on the stand-in: when they are visible, when they are late, what a full ring loses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.environment import Build, reference_device
from tests.harness.exact import assert_as_stock
from tests.harness.plan import ModelOptions, Plan, Scenario, decode
from tests.harness.routing_log import Log, run_logged
from tests.harness.scenarios import token_stream
from tests.models.tokenizer import embedded_model

pytestmark = pytest.mark.skipif(reference_device() is not None, reason="the stand-in's copies can be slowed down")

N_LAYERS, TOP_K = 8, 8  # of the embedded model


def one_by_one(n_token: int) -> Plan:
    steps = tuple(decode([token], start=position) for position, token in enumerate(token_stream(n_token, seed=5)))
    return Plan(ModelOptions(str(embedded_model())), (Scenario("one-by-one", steps),))


def logged(build: Build, folder: Path, n_token: int, capacity: str, **environment: str) -> tuple[dict[str, Any], Log]:
    """Run as stock, with a log; the context's figures."""
    plan = one_by_one(n_token)
    result, log = run_logged(build, plan, folder, capacity, **environment)
    assert_as_stock(build, plan, result.logits(), capacity=capacity)
    assert result.status is not None
    return next(context for context in result.status["contexts"] if context["state"] != "idle"), log


@pytest.mark.parametrize("policy", ["lru", "cumulative-lfu", "random:seed=7"])
def test_an_admitted_expert_is_visible_at_the_next_token_and_not_before(
    build: Build, tmp_path: Path, policy: str
) -> None:
    """A set per layer, kept here from what the log says was admitted and evicted, is what every event hit."""
    settings = {"GGML_MOECACHE_POLICY": policy, "GGML_MOECACHE_SYNC": "1"}
    figures, log = logged(build, tmp_path / "log", 60, "10%", **settings)
    resident: set[tuple[int, int]] = set()
    n_next_token = 0
    for event in log.events:
        layer = event["layer_id"]
        held = [(layer, expert) in resident for expert in event["expert_ids"]]
        assert event["cache_hit"] == held
        evicted = {tuple(pair) for pair in event["evicted"]}
        admitted = {tuple(pair) for pair in event["admitted"]}
        assert evicted <= resident
        assert not admitted & resident
        n_next_token += sum(held)
        resident = (resident - evicted) | admitted
        assert len(resident) <= 102  # 10 % of 1024
        assert event["ready_before_next_token"] is not False
    assert n_next_token == figures["n_hits"] > 100


@pytest.mark.parametrize(
    ("slow", "in_time"),
    [
        ({"GGML_MOECACHE_STANDIN_COPY_DELAY_US": "0"}, True),
        ({"GGML_MOECACHE_STANDIN_COPY_DELAY_US": "200000"}, False),  # one copy alone takes longer than a token
        ({"GGML_MOECACHE_STANDIN_COPY_MIB_S": "1"}, False),  # 13 ms a copy, 64 copies a token
    ],
    ids=["at once", "delay", "bandwidth"],
)
def test_an_expert_under_way_is_the_cpu_s(build: Build, tmp_path: Path, slow: dict[str, str], in_time: bool) -> None:
    """Late copies are marked and counted, and their experts miss until they are there; no wrong bit meanwhile."""
    figures, log = logged(build, tmp_path / "log", 12, "50%", GGML_MOECACHE_POLICY="lru", **slow)
    late = [event for event in log.events if event["ready_before_next_token"] is False]
    ready = [event for event in log.events if event["ready_before_next_token"] is True]
    assert len(ready if in_time else late) > N_LAYERS
    assert all(event["copy_enqueued_ns"] < event["copy_ready_ns"] for event in ready)
    if not in_time:
        assert figures["n_copies_late"] > 0
        admitted = {tuple(pair) for event in log.events[:N_LAYERS] for pair in event["admitted"]}
        second = log.events[N_LAYERS : 2 * N_LAYERS]
        wanted = [
            hit
            for event in second
            for expert, hit in zip(event["expert_ids"], event["cache_hit"], strict=True)
            if (event["layer_id"], expert) in admitted
        ]
        assert wanted, "the second token meets no expert of the first: this run tests nothing"
        assert not all(wanted)


BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with the tests, however they end


def test_the_log_is_complete_under_load(build: Build, tmp_path: Path) -> None:
    """Eight busy processes beside the run: every event is there, with what the cache did, and nothing was lost."""
    load = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(8)]
    try:
        figures, log = logged(
            build, tmp_path / "log", 40, "20%", GGML_MOECACHE_POLICY="lru", GGML_MOECACHE_LOG_RING_EVENTS="1024"
        )
    finally:
        for process in load:
            process.kill()
            process.wait()
    places = [(event["token_index"], event["layer_id"]) for event in log.events]
    assert places == [(token, layer) for token in range(40) for layer in range(N_LAYERS)]
    assert sum(sum(event["cache_hit"]) for event in log.events) == figures["n_hits"]
    assert sum(len(event["admitted"]) for event in log.events) == figures["n_copies"]
    assert sum(len(event["evicted"]) for event in log.events) == figures["n_evictions"]
    assert (figures["n_log_events"], figures["n_log_lost"]) == (len(log.events), 0)


def test_a_full_ring_is_told_with_a_cache_too(build: Build, tmp_path: Path) -> None:
    """Batches of 32 tokens make 256 events at once for a ring of 64, which also holds their decisions: what is lost is
    counted in the log, the status and at exit, and the sum is right."""
    tokens = token_stream(64, seed=6)
    steps = tuple(decode(tokens[start : start + 32], start=start) for start in (0, 32))
    plan = Plan(ModelOptions(str(embedded_model())), (Scenario("batches", steps),))
    settings = {"GGML_MOECACHE_POLICY": "lru", "GGML_MOECACHE_LOG_RING_EVENTS": "64", "MOECACHE_REQUIRE": ""}
    result, log = run_logged(build, plan, tmp_path / "log", "30%", **settings)
    assert_as_stock(build, plan, result.logits(), capacity="30%")
    assert result.status is not None
    figures = next(context for context in result.status["contexts"] if context["state"] != "idle")
    end = next(line for line in log.others if line["type"] == "end")
    assert end["events"] == len(log.events) == figures["n_log_events"]
    assert end["lost_events"] == figures["n_log_lost"] > 0
    assert end["events"] + end["lost_events"] == 64 * N_LAYERS
    assert f"{end['lost_events']} lost" in result.log
