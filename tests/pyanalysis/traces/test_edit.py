"""cut, merge and shuffle: what they keep, what they change, and that a log stays valid."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyanalysis import traces
from pyanalysis.traces import edit, jsonl, merge
from tests.pyanalysis.traces import logs
from tests.pyanalysis.traces.logs import end, event, overflow

FOREIGN = {"type": "foreign", "run_id": "x", "content": [1, {"a": None}]}


def cut(tmp_path, content, run=None, **selection):
    log = logs.write(tmp_path / "in", content, run)
    edit.cut(log, traces.open_writer(tmp_path / "out"), edit.Selection(**selection))
    out = tmp_path / "out" / "routing.jsonl"
    traces.read_trace(out)  # valid
    return logs.records_in(out)


def keys(records):
    return [(r["token_index"], r["layer_id"]) for r in records if r["type"] == "event"]


# --- cut ------------------------------------------------------------------------------------------------------------


def test_cut_by_tokens(tmp_path):
    out = cut(tmp_path, logs.base_log(), tokens=(1, 4))
    assert keys(out) == [(1, 0), (2, 0), (1, 1), (2, 1), (3, 0), (3, 1)]
    assert out[-1] == end(6)


def test_cut_by_layers(tmp_path):
    out = cut(tmp_path, logs.base_log(), layers=frozenset([1, 9]))
    assert keys(out) == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["model"]["moe_layers"] == [1]
    assert run["edits"] == [{"tool": "cut", "layers": [1, 9]}]


def test_cut_by_phase_and_open_end(tmp_path):
    assert keys(cut(tmp_path, logs.base_log(), phase="decode", tokens=(4, None))) == [(4, 0), (4, 1)]


def test_cut_by_requests(tmp_path):
    requests = [
        event(batch_id=i, request_id=i, token_index=0, phase="prefill", layer_id=layer)
        for i in range(4)
        for layer in (0, 1)
    ]
    out = cut(tmp_path, [*requests, end(8)], requests=(1, 3))
    assert [r["request_id"] for r in out[:-1]] == [1, 1, 2, 2]


def test_cut_leaves_out_the_weights(tmp_path):
    """Every other field of every line stays; run.json says it, and the log is valid."""
    out = cut(tmp_path, logs.base_log(), weights=False)
    without = [{**r, "router_weights": None} if r["type"] == "event" else r for r in logs.base_log()]
    assert out == without
    assert json.loads((tmp_path / "out" / "run.json").read_text())["edits"] == [{"tool": "cut", "weights": False}]
    assert traces.read_trace(tmp_path / "out").weights is None


def test_cut_keeps_what_it_does_not_know_and_losses(tmp_path):
    events = [{**e, "extra": {"x": e["token_index"]}} for e in logs.base_events()]
    content = [FOREIGN, *events[:6], overflow(0, 4), *events[6:], end(10, 4)]
    out = cut(tmp_path, content, tokens=(4, 5))
    assert out == [FOREIGN, overflow(0, 4), events[8], events[9], end(2, 4)]


def test_cut_of_an_incomplete_log_stays_incomplete(tmp_path):
    assert keys(cut(tmp_path, logs.base_events(), tokens=(3, 5))) == [(3, 0), (3, 1), (4, 0), (4, 1)]
    assert not traces.read_trace(tmp_path / "out").complete


def test_cut_to_nothing_is_refused_and_writes_nothing(tmp_path):
    log = logs.write(tmp_path / "in", logs.base_log())
    writer = traces.open_writer(tmp_path / "out")
    with pytest.raises(traces.TraceError, match="nothing is left: none of 10 events is selected"):
        edit.cut(log, writer, edit.Selection(tokens=(7, None)))
    writer.discard()
    assert not (tmp_path / "out").exists()


# --- merge ----------------------------------------------------------------------------------------------------------


def of_layer(layer: int, context: int) -> list:
    return [{**e, "context_id": context} for e in logs.base_events() if e["layer_id"] == layer]


def merged(tmp_path, *contents, runs=None):
    sources = [logs.write(tmp_path / str(i), content, runs and runs[i]) for i, content in enumerate(contents)]
    writer = traces.open_writer(tmp_path / "out")
    try:
        merge.merge(sources, writer)
    except traces.TraceError:
        writer.discard()
        raise
    return logs.records_in(tmp_path / "out" / "routing.jsonl")


def test_merge_of_two_devices_gives_the_log_of_one(tmp_path):
    second, first = [*of_layer(1, 4), end(5, context_id=4)], [*of_layer(0, 0), end(5)]
    out = merged(tmp_path, first, second)
    assert out == logs.base_log()
    assert json.loads((tmp_path / "out" / "run.json").read_text())["edits"] == [{"tool": "merge", "contexts": [0, 4]}]


def test_merge_of_devices_keeps_losses_in_place(tmp_path):
    second = of_layer(1, 1)
    first = [*of_layer(0, 0), end(5)]
    lossy = [*second[:3], FOREIGN, overflow(1, 1, context_id=1), second[4], end(4, 1, context_id=1)]
    out = merged(tmp_path, first, lossy)
    events = logs.base_events()
    assert out == [*events[:7], events[8], FOREIGN, overflow(1, 1), events[9], end(9, 1)]
    assert traces.read_trace(tmp_path / "out").n_lost == 1


def test_merge_of_a_cut_device(tmp_path):
    """One device's log ends earlier: its last ubatch and those after it are not compared."""
    out = merged(tmp_path, [*of_layer(0, 0), end(5)], of_layer(1, 1)[:4])
    assert [r["type"] for r in out] == ["event"] * 9


def test_contexts_of_other_tokens_are_no_devices(tmp_path):
    other = [{**e, "token_index": e["token_index"] + (e["batch_id"] == 2)} for e in of_layer(1, 1)]
    with pytest.raises(traces.TraceError, match=r"1/routing\.jsonl: has other tokens in ubatch 2 than routing\.jsonl"):
        merged(tmp_path, [*of_layer(0, 0), end(5)], [*other, end(5, context_id=1)])


def test_merge_of_runs_counts_requests_and_ubatches_on(tmp_path):
    other = [{**r, "run_id": "run-2"} for r in logs.base_log()]
    second = {**logs.run_json(), "run_id": "run-2", "seed": 3}
    out = merged(tmp_path, logs.base_log(), other, runs=[logs.run_json(), second])
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["run_id"].startswith("merged-")
    assert {r["run_id"] for r in out} == {run["run_id"]}
    expected = [
        {**e, "run_id": run["run_id"], "request_id": i, "batch_id": e["batch_id"] + 3 * i}
        for i in (0, 1)
        for e in logs.base_events()
    ]
    assert out == [*expected, end(20, run_id=run["run_id"])]
    assert run["model"] == logs.run_json()["model"]
    assert run["seed"] is None  # they differ
    assert [r["run_id"] for r in run["edits"][0]["runs"]] == ["run-1", "run-2"]
    assert traces.read_trace(tmp_path / "out").n_events == 20


def test_merge_puts_cut_parts_together_again(tmp_path):
    log = logs.write(tmp_path / "in", logs.base_log())
    for name, tokens in (("a", (0, 3)), ("b", (3, None))):
        edit.cut(log, traces.open_writer(tmp_path / name), edit.Selection(tokens=tokens))
    merge.merge([tmp_path / "a", tmp_path / "b"], traces.open_writer(tmp_path / "out"))
    events = [r for r in logs.records_in(tmp_path / "out" / "routing.jsonl") if r["type"] == "event"]
    assert [e["expert_ids"] for e in events] == [e["expert_ids"] for e in logs.base_events()]


def layout(layer, n_experts=5):
    return {"layer_id": layer, "family": "exps", "n_experts": n_experts, "bytes": 64}


def test_merge_puts_layers_of_a_cut_log_together_again(tmp_path):
    """Both parts have all the lines that are no events, so these, and the loss, count once."""
    events = logs.base_events()
    content = [*events[:7], FOREIGN, overflow(1, 1), *events[8:], end(9, 1)]
    run = logs.run_json(expert_bytes=[layout(0), layout(1)])
    log = logs.write(tmp_path / "in", content, run)
    for layer in (0, 1):
        edit.cut(log, traces.open_writer(tmp_path / str(layer)), edit.Selection(layers=frozenset([layer])))
    merge.merge([tmp_path / "1", tmp_path / "0"], traces.open_writer(tmp_path / "out"))
    out = logs.records_in(tmp_path / "out" / "routing.jsonl")
    assert [r for r in out if r["type"] == "event"] == [*events[:7], *events[8:]]
    assert [r for r in out if r["type"] != "event"] == [FOREIGN, overflow(1, 1), end(9, 1)]
    metadata = json.loads((tmp_path / "out" / "run.json").read_text())
    assert metadata["model"] == run["model"]
    problems = []
    traces.check_layers_of_run([traces.read_trace(tmp_path / "out")], problems.append)
    assert problems == []


def test_merge_of_devices_has_the_layers_of_both(tmp_path):
    """Two devices of one context: run.json has a model of each, with its own layers and fingerprint."""
    models = [
        {
            **logs.run_json(moe_layers=[layer], expert_bytes=[layout(layer, 4 + layer)], n_layers=layer + 1)["model"],
            "fingerprint": f"f{layer}",
            "n_experts": 4 + layer,
            "layers_with_output_rows_only": [layer] if layer else [],
        }
        for layer in (0, 1)
    ]
    contexts = [
        {"context_id": 0, "file": "routing.jsonl", "model": None},
        {"context_id": 4, "file": "routing-4.jsonl", "model": models[1]},
        {"context_id": 6, "file": "routing-6.jsonl", "model": models[1]},
    ]
    run = {**logs.run_json(), "model": models[0], "contexts": contexts}
    # Layer 0 of this device has 4 experts, and the base log no larger id there.
    merged(tmp_path, [*of_layer(0, 0), end(5)], [*of_layer(1, 4), end(5, context_id=4)], runs=[run, run])
    metadata = json.loads((tmp_path / "out" / "run.json").read_text())
    assert metadata["model"]["moe_layers"] == [0, 1]
    assert metadata["model"]["expert_bytes"] == [layout(0, 4), layout(1, 5)]
    assert metadata["model"]["layers_with_output_rows_only"] == [1]
    assert (metadata["model"]["n_experts"], metadata["model"]["n_layers"]) == (5, 2)
    assert metadata["model"]["fingerprint"] is None
    assert [context["model"] for context in metadata["contexts"]] == [None, None, models[1]]
    problems = []
    traces.check_layers_of_run([traces.read_trace(tmp_path / "out")], problems.append)
    assert problems == []


def test_parts_that_lost_different_events_are_not_of_one_log(tmp_path):
    first, second = [*of_layer(0, 0), end(5)], [*of_layer(1, 0)[:4], overflow(2, 1), end(4, 1)]
    with pytest.raises(traces.TraceError, match=r"lost 1 events, .* 0: they are not parts of one log"):
        merged(tmp_path, first, second)


def test_request_ids_that_cannot_be_counted_on(tmp_path):
    runs = [logs.run_json(), {**logs.run_json(), "run_id": "run-2"}]
    first = [{**r, "request_id": 2**63 - 2} if r["type"] == "event" else r for r in logs.base_log()]
    second = [{**r, "run_id": "run-2"} for r in logs.base_log()]
    out = merged(tmp_path, first, second, runs=runs)
    assert {r["request_id"] for r in out if r["type"] == "event"} == {2**63 - 2, 2**63 - 1}
    second = [{**r, "request_id": 1} if r["type"] == "event" else r for r in second]
    (tmp_path / "more").mkdir()
    with pytest.raises(traces.TraceError, match=r"1/routing\.jsonl: its request ids, counted on .* do not fit 63"):
        merged(tmp_path / "more", first, second, runs=runs)


BAD_MERGES = {
    "other_model": ({"n_experts": 8}, [{**r, "run_id": "run-2"} for r in logs.base_log()],
                    "two models: n_experts is 8, that of .* is 5"),
    "other_architecture": ({"architecture": "b"}, [{**r, "run_id": "run-2"} for r in logs.base_log()],
                           "two models: architecture is b, that of .* is a"),
    "other_layers": ({"moe_layers": None}, [*[{**e, "run_id": "run-2", "layer_id": e["layer_id"] + 1}
                                              for e in logs.base_events()], end(run_id="run-2")],
                     r"has other layers than .* \(layer 0, 2\): cut both to the same layers"),
    "no_events": ({}, [end(0, run_id="run-2")], "has no event: nothing to merge"),
}  # fmt: skip


@pytest.mark.parametrize(("model", "content", "reason"), BAD_MERGES.values(), ids=BAD_MERGES.keys())
def test_merge_refuses(tmp_path, model, content, reason):
    first = logs.run_json(architecture="a")
    second = {**logs.run_json(**{"architecture": "a", **model}), "run_id": "run-2"}
    with pytest.raises(traces.TraceError, match=reason) as caught:
        merged(tmp_path, logs.base_log(), content, runs=[first, second])
    assert caught.value.problem.path == tmp_path / "1" / "routing.jsonl"


# --- shuffle --------------------------------------------------------------------------------------------------------


def shuffled(folder, content, seed, run=None):
    log = logs.write(folder / "in", content, run)
    edit.shuffle(log, traces.open_writer(folder / str(seed)), seed)
    return logs.records_in(folder / str(seed) / "routing.jsonl")


def decisions(records, layer):
    events = [r for r in records if r["type"] == "event" and r["layer_id"] == layer]
    return [tuple(r["expert_ids"]) for r in sorted(events, key=lambda r: r["token_index"])]


def test_shuffle_moves_tokens_alike_in_each_layer(tmp_path):
    """Ids that name their token and layer: after the shuffle each layer has the same order of tokens."""
    content = [{**e, "expert_ids": [e["token_index"], 100 + e["layer_id"]]} for e in logs.base_events()]
    run = logs.run_json(n_experts=128)
    seen = set()
    for seed in range(20):
        out = shuffled(tmp_path / f"s{seed}", [*content, end()], seed, run)
        order = [ids[0] for ids in decisions(out, 0)]
        assert sorted(order) == [0, 1, 2, 3, 4]
        assert decisions(out, 0) == [(token, 100) for token in order]
        assert decisions(out, 1) == [(token, 101) for token in order]
        seen.add(tuple(order))
    assert len(seen) > 10  # of 120 orders


def test_shuffle_keeps_places(tmp_path):
    out = shuffled(tmp_path, logs.base_log(), 1)
    moving = ("expert_ids", "router_weights")
    places = [{k: v for k, v in r.items() if k not in moving} for r in logs.base_log()]
    assert [{k: v for k, v in r.items() if k not in moving} for r in out] == places
    assert json.loads((tmp_path / "1" / "run.json").read_text())["edits"] == [{"tool": "shuffle", "seed": 1}]
    traces.read_trace(tmp_path / "1")


def test_shuffle_is_reproducible(tmp_path):
    one = shuffled(tmp_path / "a", logs.base_log(), 5)
    assert one == shuffled(tmp_path / "b", logs.base_log(), 5)


def test_shuffle_stays_within_requests(tmp_path):
    second = [{**e, "request_id": 1, "batch_id": e["batch_id"] + 3, "expert_ids": [4, 3]} for e in logs.base_events()]
    out = shuffled(tmp_path, [*logs.base_events(), *second, end(20)], 3)
    assert {tuple(r["expert_ids"]) for r in out if r.get("request_id") == 1} == {(4, 3)}
    assert Counter(decisions([r for r in out if r.get("request_id") == 0], 0)) == Counter(map(tuple, logs.IDS[0]))


def test_shuffle_empties_the_cache_fields(tmp_path):
    cached = [
        {**e, "cache_hit": [True, False], "resident_experts": 3, "admitted": [[0, 0]], "evicted": [[0, 1]],
         "copy_bytes": 9, "copy_enqueued_ns": 1, "copy_ready_ns": 2, "ready_before_next_token": True,
         "copy_duration_ns": 1, "cpu_duration_ns": 5, "cuda_duration_ns": 6}
        for e in logs.base_events()
    ]  # fmt: skip
    residency = {"type": "residency", "run_id": "run-1", "context_id": 0, "generation": 3, "full": [[0, 1]]}
    out = shuffled(tmp_path, [residency, FOREIGN, *cached, end()], 1)
    plain = shuffled(tmp_path / "plain", [FOREIGN, *logs.base_log()], 1)
    assert out == plain


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=2, unique=True), min_size=1, max_size=12),
    st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_shuffle_is_a_permutation(tmp_path_factory, ids, seed):
    content = [
        event(batch_id=i, token_index=i + 1, expert_ids=row, router_weights=[1.0 + row[0], 0.5])
        for i, row in enumerate(ids)
    ]
    run = logs.run_json(moe_layers=[0])
    out = shuffled(tmp_path_factory.mktemp("shuffle"), [*content, end(len(content))], seed, run)
    assert Counter(decisions(out, 0)) == Counter(map(tuple, ids))
    assert all(r["router_weights"][0] == 1.0 + r["expert_ids"][0] for r in out[:-1])  # weights go with their ids


@pytest.mark.parametrize("chunk_bytes", [300, 1000, 5000])
def test_merge_of_devices_read_in_many_chunks(tmp_path, monkeypatch, chunk_bytes):
    """Chunks end anywhere, within an ubatch too: the merged log is in order all the same."""
    monkeypatch.setattr(jsonl, "_CHUNK_BYTES", chunk_bytes)
    events = [
        event(batch_id=i, token_index=1 + i, layer_id=layer, expert_ids=[i % 5, (i + layer + 1) % 5])
        for i in range(20)
        for layer in (0, 1)
    ]
    devices = [
        [e if layer == 0 else {**e, "context_id": 1} for e in events if e["layer_id"] == layer] for layer in (0, 1)
    ]
    devices[1][10:10] = [overflow(10, 2, context_id=1), FOREIGN]
    out = merged(tmp_path, [*devices[0], end(20)], [*devices[1], end(20, 2, context_id=1)])
    assert out == [*events[:21], overflow(10, 2), FOREIGN, *events[21:], end(40, 2)]


def test_log_that_grows_while_it_is_read_is_refused(tmp_path):
    log = logs.write(tmp_path / "in", logs.base_events()[:6])
    trace = traces.read_trace(log)
    log.write_text(logs.text_of(logs.base_events()))
    with pytest.raises(traces.TraceError, match="has changed while it was read"):
        list(edit.lines_again(trace))


def test_merge_of_layers_without_ubatches(tmp_path, monkeypatch):
    """Where ubatches are not recorded the layers come together token by token."""
    monkeypatch.setattr(jsonl, "_CHUNK_BYTES", 1000)
    content = [
        event(batch_id=-1, request_id=request, token_index=token, layer_id=layer)
        for request in (0, 1)
        for token in range(6)
        for layer in (0, 1)
    ]
    log = logs.write(tmp_path / "in", [*content, end(24)])
    for layer in (0, 1):
        writer = traces.open_writer(tmp_path / str(layer))
        edit.cut(log, writer, edit.Selection(layers=frozenset([layer])))
    merge.merge([tmp_path / "1", tmp_path / "0"], traces.open_writer(tmp_path / "out"))
    assert logs.records_in(tmp_path / "out" / "routing.jsonl") == [*content, end(24)]


def test_merge_of_a_log_with_itself(tmp_path):
    log = logs.write(tmp_path, logs.base_log())
    writer = traces.open_writer(tmp_path / "out")
    with pytest.raises(traces.TraceError, match="is named twice: merge needs different logs"):
        merge.merge([log, tmp_path / ".." / tmp_path.name / "routing.jsonl"], writer)
    writer.discard()
