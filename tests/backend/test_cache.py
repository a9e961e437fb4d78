"""The cache at run time, on the stand-in: what it decides, copies and computes.

The stand-in's device multiplies with the CPU's kernels, so whatever is cached, the logits are stock's bit for bit: a
row of a slot that holds another expert, or that was read too early, would show. Decisions are compared with those of
the simulator, which runs the same policies, on the log of the same run.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyanalysis.simulation import simulate
from pyanalysis.traces import read_trace
from tests.harness.environment import Build, reference_device
from tests.harness.exact import assert_as_stock
from tests.harness.plan import ModelOptions, Plan, Scenario, Step, decode
from tests.harness.runner import Result, RunFailed, run_moecache
from tests.harness.scenarios import STANDARD, token_stream
from tests.models.tokenizer import embedded_model

pytestmark = pytest.mark.skipif(
    reference_device() is not None, reason="decisions and bits on the stand-in; scripts/gpu measures the cache on a GPU"
)

N_LAYERS, N_EXPERTS, TOP_K = 8, 128, 8  # of the embedded model
EXPERT_BYTES = 13824
POLICIES = (
    "cumulative-lfu",
    "cumulative-lfu:tie=recency",
    "lru",
    "decayed-lfu:half-life=50",
    "windowed-lfu:window=64",
    "lfru",
    "interval-refresh:every=32",
    "random:seed=3",
    "cold-static",
    "cumulative-lfu:admit-after=2",
)


def one_by_one(n_token: int, seed: int = 5) -> Plan:
    tokens = token_stream(n_token, seed=seed)
    steps = tuple(decode([token], start=position) for position, token in enumerate(tokens))
    return Plan(ModelOptions(str(embedded_model())), (Scenario("one-by-one", steps),))


def run(build: Build, plan: Plan, capacity: str, **environment: str) -> tuple[Result, dict[str, Any]]:
    result = run_moecache(build, plan, capacity=capacity, environment=environment)
    assert result.status is not None
    return result, next(context for context in result.status["contexts"] if context["state"] != "idle")


@pytest.mark.parametrize(("capacity", "per_layer"), [("25%", "0"), ("5%", "1"), ("100", "0")])
@pytest.mark.parametrize("policy", POLICIES)
def test_decisions_are_the_simulators(build: Build, tmp_path: Path, policy: str, capacity: str, per_layer: str) -> None:
    settings = {
        "GGML_MOECACHE_POLICY": policy,
        "GGML_MOECACHE_PER_LAYER": per_layer,
        "GGML_MOECACHE_SYNC": "1",
        "GGML_MOECACHE_LOG": str(tmp_path / "log"),
    }
    _, context = run(build, one_by_one(60), capacity, **settings)
    simulated = simulate(read_trace(tmp_path / "log"), policy, capacity, per_layer=per_layer == "1")
    assert context["n_hits"] == simulated.hits
    assert context["n_hits"] + context["n_misses"] == 60 * N_LAYERS * TOP_K
    assert context["n_copies"] == simulated.admissions
    assert context["n_evictions"] == simulated.evictions
    assert context["n_copies_late"] == 0
    assert context["policy"] == policy


def several_requests(*, together: bool = False) -> Plan:
    """Four requests after one another, of 12 prompt tokens (40 once, which pass the cache by) and 10 more each; the
    third is gone on with after it was interrupted by the fourth. `together`: each with a KV stream of its own."""
    tokens = token_stream(400, seed=9)
    steps: list[Step] = []

    def more(first: int, n_tokens: int, at: int, sequence: int) -> None:
        steps.extend(decode([tokens[first + place]], start=at + place, sequence=sequence) for place in range(n_tokens))

    for sequence, prompt in enumerate((12, 40, 12)):
        steps.append(decode(tokens[100 * sequence : 100 * sequence + prompt], sequence=sequence))
        more(100 * sequence + prompt, 10, prompt, sequence)
    steps.append(decode(tokens[300:312], sequence=3))
    more(312, 5, 12, 3)
    more(222, 5, 22, 2)
    more(317, 5, 17, 3)
    scenario = Scenario("requests", tuple(steps), n_seq_max=4, kv_unified=not together)
    return Plan(ModelOptions(str(embedded_model())), (scenario,))


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("policy", ["request-lfu", "request-lfu:tie=recency"])
def test_request_lfu_knows_the_requests_of_the_log(build: Build, tmp_path: Path, policy: str, together: bool) -> None:
    """With the log the simulator says what was to be decided; without it the same is decided. A prompt that passes the
    cache by is no event, so it is left out of what the simulator sees."""
    settings = {"GGML_MOECACHE_POLICY": policy, "GGML_MOECACHE_SYNC": "1"}
    plan = several_requests(together=together)
    _, context = run(build, plan, "15%", **settings, GGML_MOECACHE_LOG=str(tmp_path / "log"))
    _, without = run(build, plan, "15%", **settings)
    for name in ("n_hits", "n_misses", "n_copies", "n_evictions"):
        assert without[name] == context[name]
    trace = read_trace(tmp_path / "log")
    assert len(np.unique(trace.request)) == 4
    lines = [json.loads(line) for line in (tmp_path / "log" / "routing.jsonl").read_text().splitlines()]
    logged = [line for line in lines if line["type"] == "event"]
    cached = np.array([bool(line["cache_hit"]) for line in logged])
    assert (~cached).sum() == 40 * N_LAYERS
    names = ("request", "token", "layer", "family", "phase", "batch", "ids", "line")
    kept = dataclasses.replace(trace, weights=None, **{name: getattr(trace, name)[cached] for name in names})
    simulated = simulate(kept, policy, "15%")
    assert (context["n_copies"], context["n_evictions"]) == (simulated.admissions, simulated.evictions)
    lifelong = simulate(kept, policy.replace("request", "cumulative"), "15%")
    assert lifelong.admissions != simulated.admissions, "the requests make no difference here"


@pytest.mark.parametrize("n_gpu_layers", [3, 6])
def test_requests_are_known_behind_layers_of_the_cpu(build: Build, tmp_path: Path, n_gpu_layers: int) -> None:
    """The CPU computes the first layers of each ubatch; the requests of the others are those of the log."""
    plan = several_requests()
    model = dataclasses.replace(plan.model, n_gpu_layers=n_gpu_layers)
    plan = dataclasses.replace(plan, model=model)
    settings = {"GGML_MOECACHE_POLICY": "request-lfu", "GGML_MOECACHE_SYNC": "1"}
    _, context = run(build, plan, "15%", **settings)
    run(build, plan, "15%", **settings, GGML_MOECACHE_LOG=str(tmp_path / "log"))
    trace = read_trace(tmp_path / "log")
    assert len(np.unique(trace.request)) == 4
    assert len(np.unique(trace.layer)) == n_gpu_layers - 1
    lines = [json.loads(line) for line in (tmp_path / "log" / "routing.jsonl").read_text().splitlines()]
    cached = np.array([bool(line["cache_hit"]) for line in lines if line["type"] == "event"])
    names = ("request", "token", "layer", "family", "phase", "batch", "ids", "line")
    kept = dataclasses.replace(trace, weights=None, **{name: getattr(trace, name)[cached] for name in names})
    simulated = simulate(kept, "request-lfu", "15%")
    assert (context["n_copies"], context["n_evictions"]) == (simulated.admissions, simulated.evictions)


@pytest.mark.parametrize("policy", ["cumulative-lfu", "lru", "random:seed=3", "interval-refresh:every=16"])
def test_the_log_replays_exactly(build: Build, tmp_path: Path, policy: str) -> None:
    """Every event's hits, admissions and evictions, in order, and the fate of its copies: as the simulator has them."""
    settings = {
        "GGML_MOECACHE_POLICY": policy,
        "GGML_MOECACHE_SYNC": "1",
        "GGML_MOECACHE_LOG": str(tmp_path / "log"),
    }
    _, context = run(build, one_by_one(50), "15%", **settings)
    events = [json.loads(line) for line in (tmp_path / "log" / "routing.jsonl").read_text().splitlines()]
    logged = [event for event in events if event["type"] == "event"]
    assert len(logged) == 50 * N_LAYERS
    replay = simulate(read_trace(tmp_path / "log"), policy, "15%", events=True).events
    assert replay is not None
    by_event: dict[int, list[int]] = {}
    for index, event in enumerate(replay.admitted_event.tolist()):
        by_event.setdefault(event, []).append(index)
    for index, event in enumerate(logged):
        assert event["cache_hit"] == replay.hit[replay.offsets[index] : replay.offsets[index + 1]].tolist()
        decisions = by_event.get(index, [])
        assert event["admitted"] == [[replay.admitted_layer[d], replay.admitted_expert[d]] for d in decisions]
        evicted = [
            [replay.evicted_layer[d], replay.evicted_expert[d]] for d in decisions if replay.evicted_layer[d] >= 0
        ]
        assert event["evicted"] == evicted
        assert (event["copy_bytes"] > 0) == bool(decisions)
        # Not told: there was no next token, or every copy lost its slot before it (to another layer's expert).
        told = [replay.copy_ready[d] == 1 for d in decisions if replay.copy_ready[d] >= 0]
        assert event["ready_before_next_token"] == (all(told) if told else None)
        if told:
            assert event["copy_enqueued_ns"] < event["copy_ready_ns"]
            assert event["copy_duration_ns"] > 0
        assert (event["cpu_duration_ns"] is not None) == (not all(event["cache_hit"]))
        assert (event["cuda_duration_ns"] is not None) == any(event["cache_hit"])
    assert sum(event["copy_bytes"] for event in logged) == context["copy_bytes"]
    generations = [event["resident_experts"] for event in logged]
    assert generations == sorted(generations)


def joint_batches() -> Plan:
    """Two sequences decoded together, beside them verification batches of 2 to 33 tokens; one prompt of 40."""
    first, second = token_stream(400, seed=31), token_stream(60, seed=32)
    steps = [decode(first[:40], start=0, sequence=0, outputs="last"), decode(second[:9], start=0, sequence=1)]
    place = 40
    for index in range(9, 50):
        steps.append(
            Step(
                "decode",
                tokens=(first[place], second[index]),
                positions=(place, index),
                sequences=(0, 1),
                outputs=(1, 1),
            )
        )
        place += 1
        size = (2, 5, 33, 1, 32, 3, 8)[index % 7] if index % 5 == 0 else 0
        if size:
            steps.append(decode(first[place : place + size], start=place))
            place += size
    return Plan(ModelOptions(str(embedded_model())), (Scenario("joint", tuple(steps), n_seq_max=2),))


@pytest.mark.parametrize("policy", ["cumulative-lfu", "lru", "decayed-lfu:half-life=20"])
def test_ubatches_of_several_tokens_replay_exactly(build: Build, tmp_path: Path, policy: str) -> None:
    """All tokens of a ubatch are one event, which the simulator takes as such in the mode "as-run"."""
    settings = {
        "GGML_MOECACHE_POLICY": policy,
        "GGML_MOECACHE_SYNC": "1",
        "GGML_MOECACHE_LOG": str(tmp_path / "log"),
    }
    run(build, joint_batches(), "20%", **settings)
    result = simulate(read_trace(tmp_path / "log"), policy, "20%", mode="as-run", events=True)
    replay = result.events
    assert replay is not None
    lines = [json.loads(line) for line in (tmp_path / "log" / "routing.jsonl").read_text().splitlines()]
    ubatches: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for line in lines:
        if line["type"] == "event":
            ubatches.setdefault((line["batch_id"], line["layer_id"]), []).append(line)
    cached = [rows for rows in ubatches.values() if len(rows) <= 32]
    passed_by = [rows for rows in ubatches.values() if len(rows) > 32]
    assert len(cached) == result.n_events
    assert sum(map(len, passed_by)) == N_LAYERS * result.n_tokens_passed_by == N_LAYERS * (40 + 33)
    assert all(row["cache_hit"] == [] and row["resident_experts"] is None for rows in passed_by for row in rows)
    decisions: dict[int, list[int]] = {}
    for index, event in enumerate(replay.admitted_event.tolist()):
        decisions.setdefault(event, []).append(index)
    for index, rows in enumerate(cached):
        part = slice(replay.offsets[index], replay.offsets[index + 1])
        hits = dict(zip(replay.ids[part].tolist(), replay.hit[part].tolist(), strict=True))
        for row in rows:
            assert row["cache_hit"] == [hits[expert] for expert in row["expert_ids"]]
        made = decisions.get(index, [])
        assert rows[-1]["admitted"] == [[replay.admitted_layer[d], replay.admitted_expert[d]] for d in made]
        evicted = [[replay.evicted_layer[d], replay.evicted_expert[d]] for d in made if replay.evicted_layer[d] >= 0]
        assert rows[-1]["evicted"] == evicted
        assert all(row["admitted"] == [] for row in rows[:-1])


def test_copies_are_enqueued_before_the_next_layer(build: Build, tmp_path: Path) -> None:
    """By the log's own times: after the decision of their layer, before that of the next; late ones are marked."""
    settings = {
        "GGML_MOECACHE_POLICY": "lru",
        "GGML_MOECACHE_STANDIN_COPY_DELAY_US": "20000",
        "GGML_MOECACHE_LOG": str(tmp_path / "log"),
    }
    _, context = run(build, one_by_one(20), "15%", **settings)
    lines = [json.loads(line) for line in (tmp_path / "log" / "routing.jsonl").read_text().splitlines()]
    logged = [line for line in lines if line["type"] == "event"]
    enqueued = [event["copy_enqueued_ns"] for event in logged if event["copy_enqueued_ns"] is not None]
    assert enqueued == sorted(enqueued)
    assert len(enqueued) > N_LAYERS
    late = [event for event in logged if event["ready_before_next_token"] is False]
    assert late
    assert all(event["copy_ready_ns"] is None for event in late)
    assert context["n_copies_late"] >= len(late)


@pytest.mark.parametrize("capacity", ["1", "9", "25%", "60%", "1023"])
def test_any_capacity_computes_what_stock_computes(build: Build, capacity: str) -> None:
    """LRU changes the slots at every event; batches of up to 33 tokens, two sequences, several ubatches."""
    plan = Plan(ModelOptions(str(embedded_model())), STANDARD)
    result, context = run(build, plan, capacity, GGML_MOECACHE_POLICY="lru")
    assert context["n_whole_blocks"] == 0
    assert_as_stock(build, plan, result.logits(), capacity=capacity)


@pytest.mark.parametrize("delay_us", [20000, 100000])
def test_copies_under_way_are_waited_for_by_nobody(build: Build, delay_us: int) -> None:
    """A copy that takes longer than a token is late, its expert is the CPU's meanwhile; logits are stock's."""
    plan = one_by_one(40)
    result, context = run(
        build, plan, "25%", GGML_MOECACHE_POLICY="lru", GGML_MOECACHE_STANDIN_COPY_DELAY_US=str(delay_us)
    )
    _, at_once = run(build, plan, "25%", GGML_MOECACHE_POLICY="lru", GGML_MOECACHE_SYNC="1")
    assert context["n_copies"] == at_once["n_copies"], "decisions do not depend on the speed of copies"
    assert context["n_evictions"] == at_once["n_evictions"]
    assert context["n_hits"] < at_once["n_hits"]
    assert context["n_copies_late"] > 0
    assert_as_stock(build, plan, result.logits(), capacity="25%")


def test_synchronous_runs_are_alike(build: Build) -> None:
    plan = one_by_one(30)
    settings = {"GGML_MOECACHE_POLICY": "lru", "GGML_MOECACHE_SYNC": "1"}
    (first, first_context), (second, second_context) = (run(build, plan, "10%", **settings) for _ in range(2))
    for step, logits in first.logits().items():
        np.testing.assert_array_equal(logits.view(np.uint32), second.logits()[step].view(np.uint32))
    counters = ("n_hits", "n_misses", "n_copies", "n_evictions", "copy_bytes")
    assert [first_context[name] for name in counters] == [second_context[name] for name in counters]


def test_repeated_hits_copy_nothing(build: Build) -> None:
    """One token in two contexts of one process, each with a cache of its own that is cold at first: all misses, each a
    copy. The first context goes on with the same token: what it meets again is there."""
    token = token_stream(1)[0]
    repeated = Scenario("repeated", (decode([token], start=0), Step("remove", end=-1), decode([token], start=0)))
    once = Scenario("once", (decode([token], start=0),))
    result, _ = run(build, Plan(ModelOptions(str(embedded_model())), (repeated, once)), "50%", GGML_MOECACHE_SYNC="1")
    assert result.status is not None
    counts = [
        (context["n_hits"], context["n_misses"], context["n_copies"])
        for context in result.status["contexts"]
        if context["state"] != "idle"
    ]
    rows = N_LAYERS * TOP_K
    assert counts == [(rows, rows, rows), (0, rows, rows)]


@pytest.mark.parametrize(("capacity", "device_mib"), [("90%", "24"), ("100%", "20"), ("800", "20"), ("12MiB", "20")])
def test_a_device_without_room_gets_as_many_slots_as_fit(build: Build, capacity: str, device_mib: str) -> None:
    """By the figures of its line: what is left holds no further slot."""
    plan = one_by_one(4)
    result, context = run(build, plan, capacity, GGML_MOECACHE_DEVICE_MIB=device_mib, MOECACHE_REQUIRE="")
    assert (context["state"], context["fallbacks"]) == ("active", ["fewer_slots"])
    needed, free = re.findall(r"needs ([\d.]+) MiB on MoECache0, ([\d.]+) MiB are free", result.log)[0]
    assert float(needed) > float(free)
    place_bytes = N_LAYERS * 32 * TOP_K * 4  # of each layer for 32 tokens
    left = float(free) * 2**20 - context["resident_bytes"] - place_bytes
    rounding = 0.05 * 2**20
    assert -rounding <= left < 2 * EXPERT_BYTES + rounding  # two: padding behind the last slots
    assert context["n_resident"] == context["resident_bytes"] // EXPERT_BYTES - TOP_K
    with pytest.raises(RunFailed, match=f"MOECACHE_REQUIRE=1: fewer_slots: capacity {capacity} needs"):
        run(build, plan, capacity, GGML_MOECACHE_DEVICE_MIB=device_mib)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("GGML_MOECACHE_CAPACITY", "101%", "must be a number of experts, a share like 25%"),
        ("GGML_MOECACHE_CAPACITY", "-1", "must be a number of experts"),
        ("GGML_MOECACHE_CAPACITY", "2GB", "must be a number of experts"),
        ("GGML_MOECACHE_POLICY", "belady", "needs to see the whole trace"),
        ("GGML_MOECACHE_POLICY", "lru:half-life=3", "GGML_MOECACHE_POLICY"),
        ("GGML_MOECACHE_POLICY", "lrru", "GGML_MOECACHE_POLICY"),
        ("GGML_MOECACHE_RESERVE_MIB", "x", "GGML_MOECACHE_RESERVE_MIB must be a whole number"),
    ],
)
def test_bad_settings_are_named(build: Build, name: str, value: str, message: str) -> None:
    with pytest.raises(RunFailed, match=message):
        run(build, one_by_one(1), "25%", **{name: value})


def test_more_experts_than_there_are_is_no_cache(build: Build) -> None:
    _, context = run(build, one_by_one(2), "1025", MOECACHE_REQUIRE="")
    assert (context["state"], context["reason"]) == ("inactive", "no_cache")
    assert context["detail"] == "capacity must be at most the 1024 experts of all layers. Got 1025 instead."
    assert context["n_misses"] == 2 * N_LAYERS * TOP_K
