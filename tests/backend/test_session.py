"""The session of a context's cache: exported, imported, reset, frozen; through the C API and through files.

On the stand-in, in sync mode: decisions and logits are then the same bits in every run.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyanalysis.simulation import Session, SessionState
from pyanalysis.traces import Trace, read_trace
from tests.backend.test_cache import N_EXPERTS, N_LAYERS, TOP_K, one_by_one, run
from tests.harness.environment import Build, process_environment, reference_device
from tests.harness.plan import ModelOptions, Plan, Scenario, Step, decode
from tests.harness.runner import RunFailed, run_reference
from tests.harness.scenarios import token_stream
from tests.models.tokenizer import embedded_model

pytestmark = pytest.mark.skipif(
    reference_device() is not None, reason="decisions and bits on the stand-in; scripts/gpu measures the cache on a GPU"
)

HALF = 25  # tokens
POLICIES = (
    "cumulative-lfu:tie=recency",
    "lru",
    "decayed-lfu:half-life=7",
    "windowed-lfu:window=16",
    "lfru",
    "request-lfu",
    "interval-refresh:every=16",
    "random:seed=3",
    "cold-static",
    "cold-static:order=id",
    "lru:admit-after=2:payback=1",
)
Event = dict[str, Any]


def plan_of(*steps: Step) -> Plan:
    return Plan(ModelOptions(str(embedded_model())), (Scenario("session", steps),))


def session(action: str, path: Path | str = "", *, context: int = 0, expected: str = "", on: bool = True) -> Step:
    return Step(f"{action}-session", path=str(path), context=context, expected=expected, scale=float(on))


def tokens_of(first: int, last: int, *, context: int = 0) -> list[Step]:
    """Single tokens of the stream that one_by_one() has too, at their positions."""
    tokens = token_stream(2 * HALF, seed=5)
    return [decode([tokens[place]], start=place, context=context) for place in range(first, last)]


def settings(log: Path | None = None, policy: str = "lru", **more: str) -> dict[str, str]:
    named = {} if log is None else {"GGML_MOECACHE_LOG": str(log)}
    return {"GGML_MOECACHE_POLICY": policy, "GGML_MOECACHE_SYNC": "1", **named, **more}


def events_of(file: Path) -> list[Event]:
    """What was decided at each event: experts, hits, who came and who left."""
    names = ("layer_id", "expert_ids", "cache_hit", "admitted", "evicted")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [{name: line[name] for name in names} for line in lines if line["type"] == "event"]


def second_log(log: Path) -> Path:
    (found,) = log.glob("routing-*.jsonl")
    return found


def part_of(trace: Trace, kept: np.ndarray) -> Trace:
    """Some of the events."""
    names = ("request", "token", "layer", "family", "phase", "batch", "ids", "line")
    parts = {name: getattr(trace, name)[kept] for name in names}
    return dataclasses.replace(trace, weights=None, **parts)


def assert_same_bits(logits: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(logits) == len(expected)
    for one, other in zip(logits, expected, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_export_import_continue(build: Build, tmp_path: Path, policy: str, used_before: bool) -> None:
    """Half of a text in one context, the rest in another: decisions and logits of a run that was not interrupted."""
    whole, _ = run(build, one_by_one(2 * HALF), "15%", **settings(tmp_path / "whole", policy))
    other = token_stream(9, seed=77)
    before = [decode([other[place]], start=place, context=1) for place in range(9)] if used_before else []
    parts, _ = run(
        build,
        plan_of(
            *tokens_of(0, HALF),
            Step("save"),
            session("export", tmp_path / "state.json"),
            *before,
            Step("load", context=1, target=0),
            session("import", tmp_path / "state.json", context=1),
            *tokens_of(HALF, 2 * HALF, context=1),
        ),
        "15%",
        **settings(tmp_path / "parts", policy),
    )
    expected = events_of(tmp_path / "whole" / "routing.jsonl")
    assert events_of(tmp_path / "parts" / "routing.jsonl") == expected[: HALF * N_LAYERS]
    assert events_of(second_log(tmp_path / "parts"))[len(before) * N_LAYERS :] == expected[HALF * N_LAYERS :]
    assert_same_bits(list(parts.logits().values())[-HALF:], list(whole.logits().values())[-HALF:])
    assert read_trace(tmp_path / "parts" / "routing.jsonl").notes == ()
    (note,) = read_trace(second_log(tmp_path / "parts")).notes
    assert "(1 times): a replay decides otherwise" in note


@pytest.mark.parametrize("policy", ["lru", "decayed-lfu:half-life=7", "cold-static:order=id"])
def test_reset_begins_anew(build: Build, tmp_path: Path, policy: str) -> None:
    """After a reset the same text meets the same decisions as at the beginning; counts of the status go on."""
    steps = (*tokens_of(0, HALF), Step("remove", start=0, end=-1), session("reset"), *tokens_of(0, HALF))
    _, context = run(build, plan_of(*steps), "15%", **settings(tmp_path / "log", policy))
    events = events_of(tmp_path / "log" / "routing.jsonl")
    assert events[: HALF * N_LAYERS] == events[HALF * N_LAYERS :]
    assert context["n_hits"] + context["n_misses"] == 2 * HALF * N_LAYERS * TOP_K
    (note,) = read_trace(tmp_path / "log").notes
    assert "reset or frozen (1 times): a replay decides otherwise" in note


def test_a_frozen_session_stands_still(build: Build, tmp_path: Path) -> None:
    """No admission while it is frozen, hits go on; the state before and after is the same; then it goes on from there:
    with the decisions of the text without its frozen part."""
    first, second, third = 20, 10, 20
    _, _ = run(
        build,
        plan_of(
            *tokens_of(0, first),
            session("freeze"),
            session("export", tmp_path / "before.json"),
            *tokens_of(first, first + second),
            session("export", tmp_path / "after.json"),
            session("freeze", on=False),
            *tokens_of(first + second, first + second + third),
        ),
        "15%",
        **settings(tmp_path / "log", "decayed-lfu:half-life=7"),
    )
    assert (tmp_path / "before.json").read_text() == (tmp_path / "after.json").read_text()
    events = events_of(tmp_path / "log" / "routing.jsonl")
    begin, end = first * N_LAYERS, (first + second) * N_LAYERS
    content = set(json.loads((tmp_path / "before.json").read_text())["arrays"]["content"])
    for event in events[begin:end]:
        assert event["admitted"] == event["evicted"] == []
        held = [event["layer_id"] * N_EXPERTS + expert in content for expert in event["expert_ids"]]
        assert [bool(hit) for hit in event["cache_hit"]] == held
    assert any(any(event["cache_hit"]) for event in events[begin:end])
    assert any(event["admitted"] for event in events[end:])
    trace = read_trace(tmp_path / "log")
    kept = [index for index in range(len(events)) if not begin <= index < end]
    simulated = Session(part_of(trace, np.array(kept)), "decayed-lfu:half-life=7", "15%")
    simulated.run()
    layers = json.loads((tmp_path / "before.json").read_text())["columns"]
    assert len(layers) == N_LAYERS
    assert simulated.counts().admissions == sum(len(event["admitted"]) for event in events)
    hits = sum(sum(events[index]["cache_hit"]) for index in kept)
    assert simulated.counts().hits == hits


@pytest.mark.parametrize("delay_us", [0, 20000])
def test_weights_are_right_whatever_changes_hands(build: Build, tmp_path: Path, delay_us: int) -> None:
    """Resets, imports and freezes between tokens while copies are under way that nobody waits for: logits are stock's,
    so no row was computed with another expert's weights or with a half copied one."""
    early, late = tmp_path / "early.json", tmp_path / "late.json"
    changes = {
        3: [session("export", early)],
        8: [session("export", late), session("import", early)],
        9: [session("import", late)],
        10: [session("reset"), session("import", late), session("import", early)],
        12: [session("freeze"), session("import", late)],
        15: [session("freeze", on=False), session("reset")],
        17: [session("import", late)],
    }
    steps = [step for place in range(20) for step in (*changes.get(place, ()), *tokens_of(place, place + 1))]
    result, context = run(
        build,
        plan_of(*steps),
        "15%",
        GGML_MOECACHE_POLICY="lru",
        GGML_MOECACHE_STANDIN_COPY_DELAY_US=str(delay_us),
    )
    stock = run_reference(build, plan_of(*tokens_of(0, 20)), capacity="15%").logits()
    assert_same_bits(list(result.logits().values()), list(stock.values()))
    assert context["n_copies"] > 4 * 100
    # A token enqueues 64 copies and more: 1.3 s of them with the delay, so that many are late on any machine.
    assert context["n_hits" if delay_us == 0 else "n_copies_late"] > 0


def test_frozen_from_the_start_admits_nothing(build: Build) -> None:
    _, context = run(build, plan_of(session("freeze"), *tokens_of(0, 5)), "15%", **settings())
    assert (context["n_hits"], context["n_copies"], context["frozen"]) == (0, 0, True)


@pytest.mark.parametrize("policy", ["lru", "decayed-lfu:half-life=7", "request-lfu", "random:seed=3"])
def test_a_state_of_the_simulator_starts_the_runtime(build: Build, tmp_path: Path, policy: str) -> None:
    """The simulator replays half of a log and writes its state; a cache that starts from it decides what the simulator
    decides next."""
    run(build, one_by_one(2 * HALF), "15%", **settings(tmp_path / "whole", policy))
    simulated = Session(read_trace(tmp_path / "whole"), policy, "15%")
    simulated.run(HALF * N_LAYERS)
    simulated.export_state().write(tmp_path / "state.json")
    before = simulated.counts()
    simulated.run()
    run(
        build,
        plan_of(
            *tokens_of(0, HALF, context=0),
            Step("save"),
            Step("load", context=1, target=0),
            session("import", tmp_path / "state.json", context=1),
            *tokens_of(HALF, 2 * HALF, context=1),
        ),
        "15%",
        **settings(tmp_path / "parts", policy),
    )
    events = events_of(second_log(tmp_path / "parts"))
    assert events == events_of(tmp_path / "whole" / "routing.jsonl")[HALF * N_LAYERS :]
    assert sum(map(len, (event["admitted"] for event in events))) == simulated.counts().admissions - before.admissions
    assert sum(sum(event["cache_hit"]) for event in events) == simulated.counts().hits - before.hits


def test_a_state_of_the_runtime_starts_the_simulator(build: Build, tmp_path: Path) -> None:
    """The other way round: a session of the simulator goes on in a log that begins where the state was exported."""
    run(
        build,
        plan_of(*tokens_of(0, HALF), session("export", tmp_path / "state.json")),
        "15%",
        **settings(None, "decayed-lfu:half-life=7"),
    )
    run(build, one_by_one(2 * HALF), "15%", **settings(tmp_path / "whole", "decayed-lfu:half-life=7"))
    trace = read_trace(tmp_path / "whole")
    whole = Session(trace, "decayed-lfu:half-life=7", "15%")
    whole.run()
    rest = Session(part_of(trace, np.arange(HALF * N_LAYERS, 2 * HALF * N_LAYERS)), "decayed-lfu:half-life=7", "15%")
    rest.import_state(SessionState.read(tmp_path / "state.json"), from_start=True)
    rest.run()
    assert rest.content() == whole.content()
    events = events_of(tmp_path / "whole" / "routing.jsonl")[HALF * N_LAYERS :]
    assert rest.counts().hits == sum(sum(event["cache_hit"]) for event in events)
    assert rest.counts().admissions == sum(len(event["admitted"]) for event in events)


def test_state_files_of_stock_programs(build: Build, tmp_path: Path) -> None:
    """STATE_OUT of one process is STATE_IN of the next: the first token's experts are there already."""
    state = tmp_path / "state.json"
    _, first = run(build, one_by_one(HALF), "15%", **settings(GGML_MOECACHE_STATE_OUT=str(state)))
    assert json.loads(state.read_text())["arrays"]["next_event"] == [HALF * N_LAYERS]
    n_held = len(json.loads(state.read_text())["arrays"]["content"])
    last = plan_of(decode([token_stream(2 * HALF, seed=5)[HALF - 1]], start=0))
    _, second = run(build, last, "15%", **settings(GGML_MOECACHE_STATE_IN=str(state)))
    assert first["fallbacks"] == second["fallbacks"] == []
    assert second["n_hits"] > 0
    assert second["n_copies"] - n_held <= second["n_misses"]
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_each_open_context_has_a_state_file_of_its_own(build: Build, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    steps = [decode([token], start=0, context=context) for context, token in ((0, 9), (1, 10), (2, 11))]
    run(build, plan_of(*steps), "50%", **settings(GGML_MOECACHE_STATE_OUT=str(state)))
    files = [state, tmp_path / "state.json.1", tmp_path / "state.json.2"]
    contents = [json.loads(file.read_text())["arrays"]["content"] for file in files]
    assert [len(content) for content in contents] == [N_LAYERS * TOP_K] * 3
    # A fourth number does not exist: that context reads the file itself.
    again = [decode([token], start=0, context=context) for context, token in ((0, 9), (1, 10), (2, 11), (3, 9))]
    result, _ = run(build, plan_of(*again), "50%", **settings(GGML_MOECACHE_STATE_IN=str(state)))
    assert result.status is not None
    assert [(one["n_hits"], one["n_misses"]) for one in result.status["contexts"]] == [(N_LAYERS * TOP_K, 0)] * 4


def bad_states(folder: Path, good: str) -> dict[str, tuple[Path, str]]:
    """Files that cannot be used, each with what is said of it."""

    def file(name: str, text: str) -> Path:
        path = folder / f"{name}.json"
        path.write_text(text)
        return path

    state = json.loads(good)
    other = {
        "policy": {"policy": "random"},
        "slots": {"slots": [155]},
        "per-layer": {"per_layer": True},
        "layers": {"columns": state["columns"][1:]},
        "experts": {"columns": [{**one, "n_experts": 64} for one in state["columns"]]},
        "version": {"format": {**state["format"], "version": 2}},
        "no-array": {"arrays": {k: v for k, v in state["arrays"].items() if k != "last_use"}},
        "content": {"arrays": {**state["arrays"], "content": [0, 0]}},
        "too-much": {"arrays": {**state["arrays"], "content": list(range(155))}},
        "fraction": {"arrays": {**state["arrays"], "content": [0.5]}},
        "clock": {"arrays": {**state["arrays"], "next_token": [-1]}},
        "huge": {"arrays": {**state["arrays"], "last_use": [2**63 - 1, *state["arrays"]["last_use"][1:]]}},
        "fingerprint": {"model": "0123456789abcdef"},
    }
    changed = {name: file(name, json.dumps({**state, **change})) for name, change in other.items()}
    return {
        "missing": (folder / "missing.json", "No such file"),
        "directory": (folder, "Is a directory"),
        "empty": (file("empty", ""), "it is no JSON: line 1: the text ends early"),
        "truncated": (file("truncated", good[: len(good) // 2]), "it is no JSON: line 1: the text ends early"),
        "foreign": (file("foreign", '{"model": "other"}'), "it is no session state"),
        "binary": (file("binary", "\x00\x01GGUF"), "it is no JSON: line 1: a value was expected"),
        "policy": (changed["policy"], "the session state is of policy random, this cache's is lru"),
        "slots": (changed["slots"], "of a cache with [155] slots, this one has [154]"),
        "per-layer": (changed["per-layer"], "slots for each layer"),
        "layers": (
            changed["layers"],
            "or of other layers on the device: it has layer 1 (exps), 128 experts of 13824 bytes where",
        ),
        "experts": (changed["experts"], "64 experts of 13824 bytes where this cache has layer 0 (exps), 128 experts"),
        "version": (changed["version"], "another version than 1"),
        "no-array": (changed["no-array"], "the session state has no array last_use"),
        "content": (changed["content"], "must rise, each expert once"),
        "too-much": (changed["too-much"], "has more experts than budget 0 has slots (154)"),
        "fraction": (changed["fraction"], "must be a list of whole numbers of 64 bits"),
        "clock": (changed["clock"], "next_token must be in [0,"),
        "huge": (changed["huge"], "last_use must be in [0, 2305843009213693951]. Got 9223372036854775807"),
        "fingerprint": (changed["fingerprint"], "another model with the same layers and experts: its fingerprint is"),
    }


@pytest.fixture(scope="module")
def good_state(build: Build, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("state") / "good.json"
    run(build, plan_of(*tokens_of(0, 5)), "15%", **settings(GGML_MOECACHE_STATE_OUT=str(path)))
    return path.read_text()


def test_a_state_that_does_not_fit_changes_nothing(build: Build, tmp_path: Path, good_state: str) -> None:
    """Every bad file is refused in the middle of a run, whose decisions are those of a run without."""
    bad = bad_states(tmp_path, good_state)
    imports = [session("import", path, expected=what) for path, what in bad.values()]
    run(build, one_by_one(2 * HALF), "15%", **settings(tmp_path / "whole"))
    steps = (*tokens_of(0, HALF), *imports, *tokens_of(HALF, 2 * HALF))
    run(build, plan_of(*steps), "15%", **settings(tmp_path / "log"))
    assert events_of(tmp_path / "log" / "routing.jsonl") == events_of(tmp_path / "whole" / "routing.jsonl")


@pytest.mark.parametrize("name", ["missing", "directory", "truncated", "foreign", "slots", "content"])
def test_a_bad_state_file_is_one_line_and_a_cold_start(
    build: Build, tmp_path: Path, good_state: str, name: str
) -> None:
    path, what = bad_states(tmp_path, good_state)[name]
    result, context = run(
        build, plan_of(*tokens_of(0, 1)), "15%", **settings(GGML_MOECACHE_STATE_IN=str(path), MOECACHE_REQUIRE="")
    )
    lines = [line for line in result.log.splitlines() if "state_in" in line]
    assert len(lines) == 1
    assert str(path) in lines[0]
    assert what in lines[0]
    assert (context["state"], context["fallbacks"]) == ("active", ["state_in"])
    assert (context["n_hits"], context["n_copies"]) == (0, N_LAYERS * TOP_K)
    with pytest.raises(RunFailed, match="MOECACHE_REQUIRE=1: state_in: "):
        run(build, plan_of(*tokens_of(0, 1)), "15%", **settings(GGML_MOECACHE_STATE_IN=str(path)))


def test_a_state_file_that_was_refused_is_not_lost(build: Build, tmp_path: Path, good_state: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(good_state)
    both = {"GGML_MOECACHE_STATE_IN": str(state), "GGML_MOECACHE_STATE_OUT": str(state), "MOECACHE_REQUIRE": ""}
    result, _ = run(build, plan_of(*tokens_of(0, 1)), "20%", **settings(**both))
    assert (tmp_path / "state.json.refused").read_text() == good_state
    assert json.loads(state.read_text())["slots"] == [205]
    assert "kept as" in result.log


def test_a_state_file_that_cannot_be_written_is_one_line(build: Build, tmp_path: Path) -> None:
    path = tmp_path / "none" / "state.json"
    named = {"GGML_MOECACHE_STATE_OUT": str(path), "MOECACHE_REQUIRE": ""}
    result, context = run(build, plan_of(*tokens_of(0, 1)), "15%", **settings(**named))
    (line,) = [line for line in result.log.splitlines() if "state_out" in line]
    assert line.startswith(f"moecache: state_out: cannot write {path}: No such file or directory - ")
    assert context["fallbacks"] == ["state_out"]


TWO_CONTEXTS = """
import sys
import ggml_moecache
arguments = dict(state_in=sys.argv[1], policy="lru", n_ctx=64, verbose=False)
first = ggml_moecache.load_model(capacity="15%", **arguments)
second = ggml_moecache.load_model(capacity="20%", **arguments)
for llm in (first, second):
    llm.eval([4])
    print(llm.expert_cache.stats()["fallbacks"], llm.expert_cache.stats()["n_hits"] > 0)
"""


def test_a_state_of_the_first_context_is_not_required_of_the_second(
    build: Build, tmp_path: Path, good_state: str
) -> None:
    """A draft model beside its target: FILE is the target's, there is no FILE.1: the draft starts cold and says so."""
    state = tmp_path / "state.json"
    state.write_text(good_state)
    done = subprocess.run(
        [sys.executable, "-c", TWO_CONTEXTS, str(state)],
        env=process_environment(build, capacity="0"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[] True", "[] False"]
    (line,) = [line for line in done.stderr.splitlines() if "starts cold" in line]
    assert "[154] slots, this one has [205]" in line
    assert line.endswith(f"it has no {state}.1")


def test_a_context_that_ends_before_its_cache_says_what_it_did_not_use(build: Build, tmp_path: Path) -> None:
    """Capacity auto makes the cache at the second graph; here there is one graph."""
    named = {
        "GGML_MOECACHE_STATE_IN": str(tmp_path / "in"),
        "GGML_MOECACHE_STATE_OUT": str(tmp_path / "out"),
        "MOECACHE_REQUIRE": "",
    }
    result, context = run(build, plan_of(*tokens_of(0, 1)), "auto", **settings(**named))
    assert context["fallbacks"] == ["state_in", "state_out"]
    assert result.log.count("there is no cache yet, capacity auto makes it at the second graph") == 2


LOST_ON_THE_WAY = """
import shutil, sys
import ggml_moecache
folder = sys.argv[1]
llm = ggml_moecache.load_model(capacity="15%", state_out=folder + "/state.json", n_ctx=64, verbose=True)
llm.create_completion("SQLite", max_tokens=2)
shutil.rmtree(folder)
llm.close()
print("closed")
"""


def test_a_state_that_is_lost_at_the_end_ends_a_process_that_requires_it(build: Build, tmp_path: Path) -> None:
    """Its folder is there when the cache is made, and gone when the context closes: no computation is left to fail."""
    for required, status in (("", 0), ("1", 1)):
        folder = tmp_path / "folder"
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", LOST_ON_THE_WAY, str(folder)],
            env=process_environment(build, capacity="15%", extra={"MOECACHE_REQUIRE": required}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stdout) == (status, "closed\n"), done.stderr
        assert f"state_out: cannot write {folder}/state.json: No such file or directory" in done.stderr


@pytest.mark.parametrize("capacity", ["0", "all"])
def test_without_slots_there_is_no_session(build: Build, tmp_path: Path, capacity: str) -> None:
    expected = f"has no cache: its capacity is {capacity}"
    actions = [session(action, tmp_path / "x", expected=expected) for action in ("reset", "freeze", "export")]
    named = {"GGML_MOECACHE_STATE_OUT": str(tmp_path / "y"), "MOECACHE_REQUIRE": ""}
    _, context = run(build, plan_of(*tokens_of(0, 1), *actions), capacity, **named)
    assert context["fallbacks"] == ["state_out"]
    assert list(tmp_path.iterdir()) == []


def test_before_the_first_graph(build: Build, tmp_path: Path, good_state: str) -> None:
    """Nothing to export; a state waits, and a reset takes it back, and the file of the settings with it."""
    path = tmp_path / "good.json"
    path.write_text(good_state)
    _, context = run(
        build,
        plan_of(
            session("export", tmp_path / "x", expected="nothing to export yet"),
            session("import", path),
            session("reset"),
            *tokens_of(4, 5),
        ),
        "15%",
        **settings(GGML_MOECACHE_STATE_IN=str(path)),
    )
    assert (context["n_hits"], context["fallbacks"]) == (0, [])
