"""The cache of a loaded model from Python: figures, session out and in, reset, freeze, start from a trace."""

from __future__ import annotations

import ctypes
import json
import threading

import pytest

import ggml_moecache
from ggml_moecache import ExpertCache, _plugin, errors
from pyanalysis.simulation import Session, SessionState, simulate
from pyanalysis.traces.errors import TraceError
from tests.pyanalysis.simulation.small import small_trace

TOKENS = [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]
ROWS = 8 * 8  # of a token: top-8 in 8 layers
POLICY = "lru"


def load(**more):
    arguments = {"capacity": "25%", "policy": POLICY, "verbose": False, "n_ctx": 256, **more}
    return ggml_moecache.load_model(**arguments)


def evaluate(llm, tokens):
    """One token after the other."""
    for token in tokens:
        llm.eval([token])


@pytest.fixture(autouse=True)
def synchronous(monkeypatch):
    """Copies are waited for, so that hits do not depend on the machine."""
    monkeypatch.setenv("GGML_MOECACHE_SYNC", "1")
    monkeypatch.delenv("GGML_MOECACHE_CAPACITY", raising=False)


@pytest.fixture
def llm():
    model = load()
    yield model
    model.close()


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """The routing of all tokens, of a run without a cache."""
    folder = tmp_path_factory.mktemp("trace") / "log"
    model = ggml_moecache.load_model(capacity=0, log=folder, verbose=False, n_ctx=256)
    evaluate(model, TOKENS)
    model.close()
    return folder


def test_figures_are_the_simulators(llm, log):
    assert llm.expert_cache.stats()["hit_rate"] is None
    evaluate(llm, TOKENS)
    stats = llm.expert_cache.stats()
    simulated = simulate(log, POLICY, "25%")
    assert (stats["n_hits"], stats["n_copies"]) == (simulated.hits, simulated.admissions)
    assert stats["hit_rate"] == simulated.hits / (len(TOKENS) * ROWS)
    assert (stats["frozen"], stats["n_resident"]) == (False, 256)
    llm.close()
    assert llm.expert_cache.stats()["closed"]


def test_a_state_leaves_and_comes_back(llm, log, tmp_path):
    """By file, by value and as the simulator's own state: a second model goes on as the simulator does."""
    evaluate(llm, TOKENS[:5])
    state = llm.expert_cache.export_state(tmp_path / "state.json")
    assert state == llm.expert_cache.export_state()
    assert state == json.loads((tmp_path / "state.json").read_text())
    simulated = Session(log, POLICY, "25%")
    simulated.run(5 * 8)
    assert state["arrays"]["content"] == simulated.export_state().arrays["content"].tolist()
    assert state["arrays"]["last_use"] == simulated.export_state().arrays["last_use"].tolist()
    hits = []
    for given in (state, tmp_path / "state.json", str(tmp_path / "state.json"), simulated.export_state()):
        other = load()
        other.expert_cache.import_state(given)
        evaluate(other, [TOKENS[4]])  # what the first model computed last, at another place in the text
        hits.append(other.expert_cache.stats()["n_hits"])
        other.close()
    assert len(set(hits)) == 1
    assert hits[0] > ROWS // 2


def test_reset_freeze_unfreeze(llm):
    cache = llm.expert_cache
    evaluate(llm, TOKENS[:3])
    first = cache.export_state()
    llm.reset()
    cache.reset()
    assert cache.export_state()["arrays"]["content"] == []
    evaluate(llm, TOKENS[:3])
    assert cache.export_state() == first
    cache.freeze()
    assert cache.stats()["frozen"]
    evaluate(llm, TOKENS[3:6])
    assert cache.export_state() == first
    cache.unfreeze()
    evaluate(llm, TOKENS[6:7])
    assert not cache.stats()["frozen"]
    assert cache.export_state()["arrays"]["next_token"] == [first["arrays"]["next_token"][0] + 1]


@pytest.mark.parametrize("computed", [False, True])
def test_warm_is_the_session_after_the_trace(llm, log, computed):
    if computed:
        evaluate(llm, [7, 8])
        llm.reset()
    llm.expert_cache.warm(log)
    session = Session(log, POLICY, "25%")
    session.run()
    before = llm.expert_cache.stats()["n_hits"]
    evaluate(llm, TOKENS[:1])
    state = llm.expert_cache.export_state()
    assert state["arrays"]["next_event"] == [(len(TOKENS) + 1) * 8]
    assert llm.expert_cache.stats()["n_hits"] > before
    warmed = set(session.export_state().arrays["content"].tolist())
    assert len(warmed & set(state["arrays"]["content"])) >= 256 - ROWS


def test_warm_refuses_what_it_cannot_replay(llm, log, tmp_path):
    with pytest.raises(TraceError, match="does not exist"):
        llm.expert_cache.warm(tmp_path / "none")
    auto = load(capacity="auto")
    with pytest.raises(errors.ConfigError, match="knows its slots once something was computed"):
        auto.expert_cache.warm(log)
    auto.close()
    other = small_trace([[[0]], [[1]]], 4, expert_bytes=[100])
    evaluate(llm, TOKENS[:1])  # the cache is there, and its layers are known
    what = (
        r"another model, or of other layers.*has layer 0 \(exps\), 4 experts where this cache has layer 0 \(exps\), 128"
    )
    with pytest.raises(errors.ConfigError, match=what):
        llm.expert_cache.warm(other)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "it is no session state"),
        ({"a": {1}}, "must be one that JSON has"),
        (7, "must be the path of a state file, what export_state returned, or a SessionState. Got int"),
        ("none.json", "cannot read a session state from none.json: No such file"),
    ],
)
def test_no_state(llm, state, message):
    with pytest.raises(errors.ConfigError, match=message):
        llm.expert_cache.import_state(state)


def test_a_state_of_another_cache(llm):
    other = load(capacity="30%")
    random = load(policy="random")
    for model in (llm, other, random):
        evaluate(model, TOKENS[:1])
    with pytest.raises(errors.ConfigError, match=r"with \[307\] slots, this one has \[256\]"):
        llm.expert_cache.import_state(other.expert_cache.export_state())
    with pytest.raises(errors.ConfigError, match="is of policy random, this cache's is lru"):
        llm.expert_cache.import_state(random.expert_cache.export_state())
    other.close()
    random.close()


def test_closed_or_without_a_cache(llm):
    with pytest.raises(errors.BackendError, match="nothing to export yet"):
        llm.expert_cache.export_state()
    cache = llm.expert_cache
    evaluate(llm, TOKENS[:1])
    state = cache.export_state()
    llm.close()
    calls = (cache.reset, cache.freeze, cache.unfreeze, cache.export_state, lambda: cache.import_state(state))
    for call in calls:
        with pytest.raises(errors.BackendError, match="is closed"):
            call()
    none = load(capacity=0)
    with pytest.raises(errors.BackendError, match="has no cache: its capacity is 0"):
        none.expert_cache.reset()
    none.close()
    with pytest.raises(errors.BackendError, match="must be a model that load_model has returned"):
        ExpertCache(object())


def test_the_c_api_names_what_is_missing(llm):
    api = _plugin.c_api()
    needed = ctypes.c_size_t(7)
    assert b"there is no context 4711" in api.moecache_session_reset(4711)
    assert b"there is no context 4711" in api.moecache_session_export(4711, None, 0, ctypes.byref(needed))
    assert needed.value == 0
    for function in (api.moecache_session_import, api.moecache_session_import_file, api.moecache_session_export_file):
        assert b"Got NULL instead" in function(llm._moecache_context_id, None)
    evaluate(llm, TOKENS[:1])
    assert api.moecache_session_export(llm._moecache_context_id, None, 0, ctypes.byref(needed)) is None
    state = ctypes.create_string_buffer(needed.value)
    assert api.moecache_session_export(llm._moecache_context_id, state, 20, ctypes.byref(needed)) is None
    assert (needed.value, state.value) == (len(state), b'{"format":{"name":"')  # 19 bytes and the NUL
    assert api.moecache_session_export(llm._moecache_context_id, state, len(state), ctypes.byref(needed)) is None
    assert json.loads(state.value) == llm.expert_cache.export_state()


def test_state_files_of_load_model(tmp_path, log):
    state = tmp_path / "state.json"
    first = load(state_out=state)
    evaluate(first, TOKENS)
    exported = first.expert_cache.export_state()
    first.close()
    assert json.loads(state.read_text()) == exported
    second = load(state_in=state)
    evaluate(second, TOKENS[-1:])
    assert second.expert_cache.stats()["n_hits"] > 0
    second.close()
    session = Session(log, POLICY, "25%")
    session.import_state(SessionState.read(state))
    assert session.next_event == session.n_events


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state_in": ""}, "'state_in' parameter of load_model must name a file"),
        ({"state_out": "state.json/"}, "'state_out' parameter of load_model must name a file, no folder"),
        ({"state_out": 3}, "'state_out' parameter of load_model must name a file"),
        ({"state_in": "none.json"}, "'state_in' parameter of load_model cannot be used: cannot read a session state"),
    ],
)
def test_bad_state_files_are_refused_before_the_model_is_loaded(arguments, message):
    with pytest.raises(errors.ConfigError, match=message):
        load(**arguments)


def test_other_threads_while_the_model_computes(llm):
    """Exports, imports and resets from two threads while a third computes: every state that is seen is a whole one."""
    evaluate(llm, TOKENS[:1])
    done = threading.Event()
    problems = []

    def work(change):
        cache = llm.expert_cache
        try:
            while not done.is_set():
                state = cache.export_state()
                arrays = state["arrays"]
                content = arrays["content"]
                used = {item for item, use in enumerate(arrays["last_use"]) if use > 0}
                if not set(content) <= used or arrays["next_event"][0] % 8 != 0 or len(content) > 256:
                    problems.append(state)
                change(cache, state)
        except Exception as error:  # noqa: BLE001 - what another thread raises is lost
            problems.append(error)

    threads = [
        threading.Thread(target=work, args=(lambda cache, state: cache.import_state(state),)),
        threading.Thread(target=work, args=(lambda cache, _: cache.reset(),)),
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            evaluate(llm, TOKENS)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert llm.expert_cache.stats()["n_hits"] + llm.expert_cache.stats()["n_misses"] == 101 * ROWS
