"""The residency lines of a cached run's log: the snapshot of every event, rebuilt from them, explains its hits."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.backend.test_cache import N_EXPERTS, N_LAYERS, POLICIES, joint_batches, one_by_one, run, several_requests
from tests.backend.test_session import HALF, plan_of, session, tokens_of
from tests.harness.environment import Build, reference_device
from tests.harness.plan import ModelOptions, Plan, Scenario, Step, decode
from tests.harness.residency import Line, assert_hits_are_those_of_the_sets, events_with_sets, experts_of
from tests.harness.scenarios import token_stream
from tests.models.generate import model_path
from tests.models.tokenizer import embedded_model

pytestmark = pytest.mark.skipif(
    reference_device() is not None, reason="on the stand-in; the log's way is the same on a GPU"
)


def lines_of(file: Path) -> list[Line]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def logged(build: Build, plan: Plan, folder: Path, capacity: str, policy: str = "lru", **more: str) -> list[Line]:
    run(build, plan, capacity, GGML_MOECACHE_POLICY=policy, GGML_MOECACHE_LOG=str(folder), **more)
    return lines_of(folder / "routing.jsonl")


def of_type(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if line["type"] == kind]


@pytest.mark.parametrize("delay_us", ["0", "15000"])
@pytest.mark.parametrize("policy", [*POLICIES, "cold-static:order=id"])
def test_every_event_hits_what_its_snapshot_has(build: Build, tmp_path: Path, policy: str, delay_us: str) -> None:
    """With copies in time and with late ones. A new generation is told once, in front of its first event."""
    more = {"GGML_MOECACHE_STANDIN_COPY_DELAY_US": delay_us} if delay_us != "0" else {"GGML_MOECACHE_SYNC": "1"}
    lines = logged(build, one_by_one(40), tmp_path / "log", "15%", policy, **more)
    assert assert_hits_are_those_of_the_sets(lines) == (40 * N_LAYERS, 0)
    told = [line["generation"] for line in of_type(lines, "residency")]
    assert told == sorted({event["resident_experts"] for event in of_type(lines, "event")})
    sizes = [len(resident or ()) for _, resident in events_with_sets(lines)]
    assert max(sizes) <= round(0.15 * N_LAYERS * N_EXPERTS) + 1
    if delay_us == "0":  # on a fast machine a policy that changes much may see none of the late ones
        assert max(sizes) > 0


def test_a_cold_cache_begins_with_an_empty_set(build: Build, tmp_path: Path) -> None:
    lines = logged(build, one_by_one(2), tmp_path / "log", "15%", GGML_MOECACHE_SYNC="1")
    first, *later = of_type(lines, "residency")
    assert lines[0] == first
    assert (first["generation"], first["full"]) == (0, [])
    assert len(first) == 5
    # Of the second token each layer shows what the first one's copies brought: 8 experts.
    assert [len(line["added"]) for line in later] == [8] * N_LAYERS
    assert [line["removed"] for line in later] == [[]] * N_LAYERS


def test_a_static_set_is_told_once(build: Build, tmp_path: Path) -> None:
    """Placed before the first event: one line with all of it, experts 0 to 153 in the order of (layer, expert)."""
    lines = logged(build, one_by_one(5), tmp_path / "log", "154", "cold-static:order=id")
    (only,) = of_type(lines, "residency")
    assert len(only["full"]) == 154
    assert assert_hits_are_those_of_the_sets(lines) == (5 * N_LAYERS, 0)


def test_the_full_set_comes_every_1000_generations(build: Build, tmp_path: Path) -> None:
    """lru with few slots changes the snapshot by up to 16 experts an event; the rules are checked line by line."""
    lines = logged(build, one_by_one(60), tmp_path / "log", "10%", GGML_MOECACHE_SYNC="1")
    assert assert_hits_are_those_of_the_sets(lines) == (60 * N_LAYERS, 0)
    full = [line["generation"] for line in of_type(lines, "residency") if "full" in line]
    assert full[0] == 0
    assert len(full) > 3
    assert max(event["resident_experts"] for event in of_type(lines, "event")) - full[-1] < 1000


@pytest.mark.parametrize("plan", [joint_batches, several_requests], ids=["joint", "requests"])
@pytest.mark.parametrize("policy", ["lru", "decayed-lfu:half-life=20"])
def test_ubatches_of_several_tokens_share_a_snapshot(
    build: Build, tmp_path: Path, policy: str, plan: Callable[[], Plan]
) -> None:
    """Two sequences together, drafts, prompts; those of more than 32 tokens pass the cache by and have no set."""
    lines = logged(build, plan(), tmp_path / "log", "20%", policy)
    events = of_type(lines, "event")
    passed_by = [event for event in events if event["resident_experts"] is None]
    assert passed_by
    assert assert_hits_are_those_of_the_sets(lines) == (len(events) - len(passed_by), 0)


@pytest.mark.parametrize("full", ["drop", "wait"])
@pytest.mark.parametrize("policy", ["lru", "cold-static:order=id"])
def test_no_change_is_lost_with_a_full_ring(build: Build, tmp_path: Path, policy: str, full: str) -> None:
    """A ring of 64 slots for ubatches of 256 events, and for sets of 900 experts, which take 113 slots: where events
    are dropped a set may be told late, never wrong; who waits loses nothing."""
    tokens = token_stream(200, seed=6)
    steps = [decode(tokens[start : start + 32], start=start) for start in (0, 32, 64, 96)]
    steps += [decode([tokens[place]], start=place) for place in range(128, 160)]
    plan = Plan(embedded(), (Scenario("batches", tuple(steps)),))
    more = {"GGML_MOECACHE_LOG_RING_EVENTS": "64", "GGML_MOECACHE_LOG_FULL": full}
    more["MOECACHE_REQUIRE"] = "1" if full == "wait" else ""
    lines = logged(build, plan, tmp_path / "log", "900", policy, **more)
    n_lost = lines[-1]["lost_events"]
    known, unknown = assert_hits_are_those_of_the_sets(lines)
    assert known + unknown + n_lost == 160 * N_LAYERS
    assert known >= 30 * N_LAYERS  # of the single tokens at least those of the end
    assert (n_lost > 0) == (full == "drop")
    if full == "wait":
        assert unknown == 0


def embedded() -> ModelOptions:
    return ModelOptions(str(embedded_model()))


@pytest.mark.parametrize("per_layer", ["0", "1"])
def test_families_of_a_layer_are_told_apart(build: Build, tmp_path: Path, per_layer: str) -> None:
    """GroveMoE: experts of the second family have a third number; both families' sets explain their hits."""
    tokens = [(7 * place + 3) % 60 + 1 for place in range(40)]
    steps = [decode(tokens[:12]), *(decode([tokens[place]], start=place) for place in range(12, 40))]
    plan = Plan(ModelOptions(str(model_path("grovemoe", "Q4_0"))), (Scenario("grove", tuple(steps)),))
    more = {"GGML_MOECACHE_SYNC": "1", "GGML_MOECACHE_PER_LAYER": per_layer}
    lines = logged(build, plan, tmp_path / "log", "40%", **more)
    events = of_type(lines, "event")
    assert assert_hits_are_those_of_the_sets(lines) == (len(events), 0)
    shown = [item for line in of_type(lines, "residency") for name in ("full", "added") for item in line.get(name, [])]
    assert {len(item) for item in shown} == {2, 3}
    assert {item[2] for item in shown if len(item) == 3} == {1}
    for family in ("exps", "chexps"):
        assert any(any(event["cache_hit"]) for event in events if event["family"] == family)
    # Who gave up a slot had one, by (layer, expert, family), and is not in the next snapshot.
    evictions, content = 0, set()
    known = list(events_with_sets(lines))
    for (event, _), (_, after) in pairwise(known):
        left = experts_of(event["evicted"])
        evictions += len(left)
        assert left <= content
        assert not left & (after or set())
        content = (content - left) | experts_of(event["admitted"])
    assert evictions > 0
    assert any(len(item) == 3 for event in events for item in event["evicted"])


@pytest.mark.parametrize("delay_us", ["0", "15000"])
def test_sessions_that_change_in_the_middle(build: Build, tmp_path: Path, delay_us: str) -> None:
    """Import, reset and freeze change the set between two graphs, or leave it alone; the lines follow."""
    state = tmp_path / "state.json"
    steps = (
        *tokens_of(0, 10),
        session("export", state),
        *tokens_of(10, HALF),
        Step("remove", start=0, end=-1),
        session("reset"),
        *tokens_of(0, 12),
        session("import", state),
        *tokens_of(12, 20),
        session("freeze"),
        *tokens_of(20, HALF),
        session("freeze", on=False),
        *tokens_of(HALF, HALF + 5),
    )
    more = {"GGML_MOECACHE_STANDIN_COPY_DELAY_US": delay_us} if delay_us != "0" else {"GGML_MOECACHE_SYNC": "1"}
    lines = logged(build, plan_of(*steps), tmp_path / "log", "15%", **more)
    n_events = len(of_type(lines, "event"))
    assert n_events == (HALF + HALF + 5) * N_LAYERS
    assert assert_hits_are_those_of_the_sets(lines) == (n_events, 0)
    if delay_us == "0":
        frozen = [resident for event, resident in events_with_sets(lines)][-(HALF - 20 + 5) * N_LAYERS : -5 * N_LAYERS]
        assert frozen[N_LAYERS:]
        assert all(resident == frozen[N_LAYERS] for resident in frozen[N_LAYERS:])
