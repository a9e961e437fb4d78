"""Session: stopped, exported, imported, gone on with. One layer, one slot, LRU over 0 1 1 0; values by hand."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError
from pyanalysis.simulation import Session, SessionCounts, SessionState
from pyanalysis.traces.errors import TraceError
from tests.pyanalysis.simulation.small import COLD, small_trace, traces
from tests.pyanalysis.simulation.test_simulate import COST

TRACE = small_trace([[[0]], [[1]], [[1]], [[0]]], 4, expert_bytes=[100])


def test_a_session_goes_on_where_another_was_exported():
    first = Session(TRACE, "lru", 1)
    first.run(until_event=2)
    assert (first.next_event, first.n_events, first.policy) == (2, 4, "lru")
    assert first.content() == [(0, "exps", 1)]
    assert first.counts() == SessionCounts(accesses=2, hits=0, admissions=2, evictions=1, copies_late=0)
    state = pickle.loads(pickle.dumps(first.export_state()))  # noqa: S301 - our own
    second = Session(TRACE, "lru", 1)
    second.import_state(state)
    assert second.next_event == 2
    second.run()
    # Token 3 finds expert 1, token 4 evicts it for 0: one hit, one admission since the import.
    assert second.counts() == SessionCounts(accesses=2, hits=1, admissions=1, evictions=1, copies_late=0)
    assert second.content() == [(0, "exps", 0)]
    first.run(3)
    assert first.counts().hits == 1  # the exported session goes on as well


def test_a_copy_in_flight_at_the_export_is_resident_after_the_import():
    """A copy takes 10 ns + 100 bytes at 1 byte/ns, a token at most 3 + 31: expert 1 is still on its way at token 3."""
    cost = dataclasses.replace(COST, copy_bandwidth_bytes_per_s=1e9)
    whole, first, second = (Session(TRACE, "lru", 1, cost) for _ in range(3))
    whole.run()
    assert (whole.counts().hits, whole.content()) == (0, [(0, "exps", 0)])
    first.run(2)
    second.import_state(first.export_state())
    second.run()
    assert (second.counts().hits, second.content()) == (1, whole.content())  # the same decisions, one hit more


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"policy": "random"}, "the state's policy is random, this session's is lru"),
        ({"slots": (2,)}, r"the state's slots is \(2,\), this session's is \(1,\)"),
        ({"per_layer": True}, "the state's per_layer is True"),
        ({"next_event": [5]}, "goes on with event 5, the trace has 4"),
        ({"content": [7]}, "content"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, reason):
    first = Session(TRACE, "lru", 1)
    first.run(2)
    state = first.export_state()
    arrays = {name: np.array(value) for name, value in change.items() if name in state.arrays}
    fields = {name: value for name, value in change.items() if name not in state.arrays}
    bad = dataclasses.replace(state, arrays={**state.arrays, **arrays}, **fields)
    session = Session(TRACE, "lru", 1)
    with pytest.raises(ConfigError, match=reason):
        session.import_state(bad)
    assert session.next_event == 0
    session.run()
    assert session.counts() == SessionCounts(accesses=4, hits=1, admissions=3, evictions=2, copies_late=0)
    with pytest.raises(ConfigError, match="a state is imported before the first event is replayed"):
        session.import_state(state)


def test_what_lies_outside_of_the_trace_is_refused():
    session = Session(TRACE, "lru", 1)
    with pytest.raises(ConfigError, match="no state to export before the first event"):
        session.export_state()
    session.run(3)
    for until in (2, 5):
        with pytest.raises(ConfigError, match=f"until_event must be from 3, the next event, to 4.*Got {until}"):
            session.run(until)


RUNNABLE = [policy for policy in (*COLD, "cold-static:order=id") if not policy.startswith("belady")]


def part_of(trace, begin, end):
    """Some of a trace's tokens, as a log of their own."""
    kept = (trace.token >= begin) & (trace.token < end)
    names = ("request", "token", "layer", "family", "phase", "batch", "ids", "line")
    parts = {name: getattr(trace, name)[kept] for name in names}
    begun = {request: trace.token[trace.request == request].min() for request in set(parts["request"].tolist())}
    # Positions within the request, as a log has them.
    parts["token"] = np.array(
        [token - begun[request] for token, request in zip(parts["token"], parts["request"], strict=True)], np.int32
    )
    return dataclasses.replace(trace, **parts)


@given(traces(), st.integers(1, 24), st.integers(0, 6), st.sampled_from(RUNNABLE), st.booleans())
@settings(max_examples=300, deadline=None)
def test_two_logs_are_one_session(trace, cut, capacity, policy, per_layer):
    """Cut at any token: the rest, replayed from the state of the first part, ends in the state of the whole."""
    n_tokens = int(trace.token.max()) + 1
    n_layers = len(np.unique(trace.layer))
    capacity = min(capacity, trace.n_experts(0, "exps") * (1 if per_layer else n_layers))
    cut = min(cut, n_tokens)
    whole, first = (Session(part_of(trace, 0, end), policy, capacity, per_layer=per_layer) for end in (n_tokens, cut))
    whole.run()
    first.run()
    hits, admissions = first.counts().hits, first.counts().admissions
    state = SessionState(**_native.parse_state(first.export_state().to_json()))
    if cut < n_tokens:
        second = Session(part_of(trace, cut, n_tokens), policy, capacity, per_layer=per_layer)
        second.import_state(state, from_start=True)
        second.run()
        hits, admissions = hits + second.counts().hits, admissions + second.counts().admissions
        state = second.export_state()
    assert (hits, admissions) == (whole.counts().hits, whole.counts().admissions)
    expected = whole.export_state()
    assert {name: array.tolist() for name, array in state.arrays.items()} == {
        name: array.tolist() for name, array in expected.arrays.items()
    }
    assert dataclasses.replace(state, arrays={}) == dataclasses.replace(expected, arrays={})


def test_a_state_file_is_written_and_read(tmp_path):
    first = Session(TRACE, "lru", 1)
    first.run(2)
    path = tmp_path / "state.json"
    first.export_state().write(path)
    read = SessionState.read(path)
    assert dataclasses.replace(read, arrays={}) == dataclasses.replace(first.export_state(), arrays={})
    assert {name: array.tolist() for name, array in read.arrays.items()} == {
        "content": [1],
        "last_use": [1, 2, 0, 0],
        "next_event": [2],
        "next_access": [2],
        "next_token": [2],
        "next_request": [1],
    }
    with pytest.raises(ConfigError, match=f"cannot read a session state from {tmp_path}: Is a directory"):
        SessionState.read(tmp_path)
    with pytest.raises(TraceError, match="does not exist"):
        first.export_state().write(tmp_path / "none" / "state.json")


def test_what_sees_the_whole_trace_goes_on_in_it_only():
    first, second = (Session(TRACE, "belady", 1) for _ in range(2))
    first.run(2)
    with pytest.raises(ConfigError, match="goes on in the same trace only"):
        second.import_state(first.export_state(), from_start=True)
    second.import_state(first.export_state())
    assert second.next_event == 2


@pytest.mark.parametrize("policy", [*RUNNABLE, "cumulative-lfu:tie=recency", "lru:admit-after=2:payback=1"])
def test_numbers_that_could_not_be_counted_on_are_refused(policy):
    """Each array of a state with its first number replaced by 2^63 - 1: one message, and the session is as it was."""
    first = Session(TRACE, policy, 2)
    first.run(3)
    state = first.export_state()
    refused = set()
    for name, array in state.arrays.items():
        if array.size == 0 or name == "generator":  # any 64 bits are a generator
            continue
        huge = np.array([2**63 - 1, *array[1:]], dtype=np.int64)
        second = Session(TRACE, policy, 2)
        with pytest.raises(ConfigError, match=rf"{name} must .*Got 9223372036854775807"):
            second.import_state(dataclasses.replace(state, arrays={**state.arrays, name: huge}), from_start=True)
        second.import_state(state)
        second.run()
        refused.add(name)
    assert {"next_event", "next_access", "next_token", "next_request"} <= refused


def test_a_token_after_the_state_s_is_refused():
    """The last halving of decayed-lfu lies before the state's next token."""
    first = Session(TRACE, "decayed-lfu:half-life=7", 1)
    first.run(2)
    state = first.export_state()
    arrays = {**state.arrays, "epoch_token": state.arrays["next_token"] + 1}
    with pytest.raises(ConfigError, match=r"epoch_token must be in \[0, 2\]. Got 3 instead"):
        Session(TRACE, "decayed-lfu:half-life=7", 1).import_state(dataclasses.replace(state, arrays=arrays))


def test_a_window_that_is_not_counted_is_refused():
    first = Session(TRACE, "windowed-lfu:window=4", 1)
    first.run(2)
    state = first.export_state()
    arrays = {**state.arrays, "counts": state.arrays["counts"] + 1}
    with pytest.raises(ConfigError, match="counts must count the uses in window_items"):
        Session(TRACE, "windowed-lfu:window=4", 1).import_state(dataclasses.replace(state, arrays=arrays))


def test_a_state_is_of_one_model():
    """Fingerprints are compared where both are known."""
    model = {**TRACE.model, "fingerprint": "00000000000000aa"}
    known = dataclasses.replace(TRACE, metadata={**(TRACE.metadata or {}), "model": model})
    first = Session(known, "lru", 1)
    first.run(2)
    state = SessionState(**_native.parse_state(first.export_state().to_json()))
    assert state.model == "00000000000000aa"
    Session(TRACE, "lru", 1).import_state(state)
    Session(known, "lru", 1).import_state(state)
    with pytest.raises(ConfigError, match="another model with the same layers and experts: its fingerprint is 0"):
        Session(known, "lru", 1).import_state(dataclasses.replace(state, model="00000000000000ab"))
