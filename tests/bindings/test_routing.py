"""The live ring, request ids and run metadata from Python; the model has 8 layers of 128 experts, top-8."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import time
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import ggml_moecache
from ggml_moecache import _plugin, errors
from ggml_moecache.routing import event_dtype

TOKENS = [100, 200, 300, 400, 500]


@pytest.fixture
def llm():
    model = ggml_moecache.load_model(live_log=True, verbose=False, n_ctx=256)
    yield model
    model.close()


def test_dtype_is_the_c_structure():
    """48 bytes of fields, then 3 ids and 3 weights; 8 bytes alignment."""
    dtype = event_dtype(72, 3)
    assert dtype.itemsize == 72
    assert dtype.fields["ids"][1] == 48
    assert dtype.fields["weights"][1] == 60


def test_events_of_a_prompt_and_a_token(llm):
    ring = ggml_moecache.RoutingRing(llm)
    assert len(ring.view()) == 0
    assert list(ring.events()) == []
    assert ring.stats() == {"n_slots": 0, "n_committed": 0, "n_lost": 0}
    llm.eval(TOKENS)
    llm.eval([600])
    events = list(ring.events())
    assert [(e.batch_id, e.layer_id, e.token_index) for e in events] == [
        *((0, layer, token) for layer in range(8) for token in range(5)),
        *((1, layer, 5) for layer in range(8)),
    ]
    assert {e.phase for e in events if e.batch_id == 0} == {"prefill"}
    assert {e.phase for e in events if e.batch_id == 1} == {"decode"}
    assert {e.request_id for e in events} == {0}
    assert all(len(set(e.expert_ids)) == 8 and max(e.expert_ids) < 128 for e in events)
    assert all(abs(sum(e.router_weights) - 1) < 1e-5 for e in events)  # normalised, so they add up to 1
    assert ring.stats() == {"n_slots": 262144, "n_committed": 48, "n_lost": 0}


def test_view_is_the_rings_memory_and_read_only(llm):
    ring = ggml_moecache.RoutingRing(llm)
    llm.eval(TOKENS)
    first, second = ring.view(), ring.view()
    assert len(first) == 40
    assert np.shares_memory(first, second)
    with pytest.raises(ValueError, match="read-only"):
        first["layer_id"] = 1
    assert first["ids"].shape == (40, 8)
    ring.release(15)
    rest = ring.view()
    assert len(rest) == 25
    assert rest["layer_id"][0] == 3
    with pytest.raises(errors.ConfigError, match=r"must be a whole number between 0 and 25\. Got 26 instead"):
        ring.release(26)
    assert len(ring.view()) == 25


def test_full_ring_counts_what_it_loses():
    model = ggml_moecache.load_model(live_log=True, log_ring_events=64, verbose=False, n_ctx=256)
    ring = ggml_moecache.RoutingRing(model)
    model.eval([*TOKENS, *TOKENS])
    assert ring.stats() == {"n_slots": 64, "n_committed": 64, "n_lost": 16}
    assert len(list(ring.events())) == 64
    model.eval([600])
    assert next(ring.events()).lost_before == 16
    model.close()


@pytest.mark.parametrize("log", ["folder", None])
def test_status_counts_while_the_run_goes_on(tmp_path, log):
    """The ring takes 64 of the 80 events of 10 tokens; for a folder the writer may have made room meanwhile."""
    where = {"live_log": True} if log is None else {"log": tmp_path / log}
    model = ggml_moecache.load_model(log_ring_events=64, verbose=False, n_ctx=256, **where)
    model.eval([*TOKENS, *TOKENS])
    (context,) = [c for c in ggml_moecache.status()["contexts"] if not c["closed"]]
    assert context["n_events"] == 80
    assert context["n_log_events"] + context["n_log_lost"] == 80
    assert context["n_log_events"] >= 64
    if log is None:
        assert (context["n_log_events"], context["n_log_lost"]) == (64, 16)
    model.close()
    (after,) = [c for c in ggml_moecache.status()["contexts"] if c["context_id"] == context["context_id"]]
    assert (after["n_log_events"], after["n_log_lost"]) == (context["n_log_events"], context["n_log_lost"])


def test_request_ids_by_hand(llm):
    ring = ggml_moecache.RoutingRing(llm)
    ggml_moecache.set_request_id(llm, 41)
    llm.eval(TOKENS[:2])
    ggml_moecache.set_request_id(llm, np.uint64(42))
    llm.eval(TOKENS[2:3])
    ggml_moecache.set_request_id(llm, None)
    llm.reset()
    llm.eval(TOKENS[:1])
    assert [(e.request_id, e.token_index) for e in ring.events() if e.layer_id == 0] == [
        (41, 0),
        (41, 1),
        (42, 2),
        (43, 0),
    ]
    for bad in (-1, 2**63, 2**64 - 1, 2**64, 1.5, "7", True):
        with pytest.raises(errors.ConfigError, match=r"request_id.* from 0 to 9223372036854775807"):
            ggml_moecache.set_request_id(llm, bad)
    message = _plugin.c_api().moecache_set_request_id(llm._moecache_context_id, 2**63)
    assert message == b"a request id must be at most 9223372036854775807. Got 9223372036854775808 instead."
    ggml_moecache.set_request_id(llm, 2**63 - 1)
    llm.eval(TOKENS[1:2])
    ggml_moecache.set_request_id(llm, None)
    llm.reset()
    llm.eval(TOKENS[:1])
    assert [e.request_id for e in ring.events() if e.layer_id == 0] == [2**63 - 1, 44]


def test_request_ids_of_a_closed_model():
    model = ggml_moecache.load_model(verbose=False, n_ctx=64)
    model.eval(TOKENS)
    model.close()
    with pytest.raises(errors.BackendError, match=r"set_request_id cannot be used: context \d+ is closed"):
        ggml_moecache.set_request_id(model, 1)


@pytest.mark.parametrize(
    ("arguments", "words"), [({"log": "folder"}, "live_log.*folder.*one consumer"), ({"log_full": "wait"}, "log_full")]
)
def test_the_live_ring_excludes_a_folder_and_waiting(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.ConfigError, match=words):
        ggml_moecache.load_model(live_log=True, verbose=False, **arguments)
    assert not list(tmp_path.iterdir())


def test_a_model_of_llama_cpp_has_no_ring():
    with pytest.raises(errors.BackendError, match="load_model"):
        ggml_moecache.RoutingRing(object())
    with pytest.raises(errors.BackendError, match="load_model"):
        ggml_moecache.set_request_id(object(), 1)


def test_log_folder_and_run_json(tmp_path):
    folder = tmp_path / "log"
    model = ggml_moecache.load_model(log=folder, verbose=False, n_ctx=256, seed=7)
    model.eval(TOKENS)
    sha256 = hashlib.sha256(ggml_moecache.embedded_model().read_bytes()).hexdigest()
    deadline = time.monotonic() + 30
    while ggml_moecache.run_metadata()["model"]["sha256"] != sha256:  # computed beside the run
        assert time.monotonic() < deadline
        time.sleep(0.01)
    model.close()
    run = json.loads((folder / "run.json").read_text())
    assert run["model"]["file"] == "tiny-qwen35moe-Q4_0.gguf"
    assert run["model"]["architecture"] == "qwen35moe"
    assert run["model"]["quantization"] == "Q4_0"
    assert run["model"]["sha256"] == sha256
    assert (run["model"]["n_layers"], run["model"]["n_experts"], run["model"]["top_k"]) == (8, 128, 8)
    assert run["seed"] == 7
    lines = (folder / "routing.jsonl").read_text().splitlines()
    assert len(lines) == 40 + 1
    with pytest.raises(errors.ConfigError, match="no field"):
        ggml_moecache.set_run_field("model.colour", "red")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"log": "x", "log_ring_events": 0}, "'log_ring_events' parameter of load_model must be .*64 to 67108864.*'0'"),
        ({"log": "x", "log_ring_events": 2**40}, "'log_ring_events' parameter of load_model must be"),
        ({"log": "x", "log_ring_events": "many"}, "'log_ring_events' parameter of load_model must be"),
        ({"log": "x", "log_full": "block"}, "'log_full' parameter of load_model must be drop or wait"),
        ({"log": 5}, r"'log' parameter of load_model must name a folder\. Got 5"),
        ({"log": ""}, r"'log' parameter of load_model must name a folder\. Got ''"),
        ({"live_log": "yes"}, r"'live_log' parameter of load_model must be True or False\. Got 'yes'"),
        ({"live_log": True, "log_top1_every": 2}, r"'log_top1_every' .* must be None with 'live_log'.* Got 2"),
        ({"log": "x", "log_top1_every": 0}, "'log_top1_every' .* at least 1"),
        ({"log": "x", "device": 5}, r"'device' parameter of load_model must be a string\. Got 5"),
        ({"log": "x", "path": 5}, r"'path' parameter of load_model must be a string\. Got 5"),
    ],
)
def test_bad_settings_of_the_log(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.ConfigError, match=message):
        ggml_moecache.load_model(verbose=False, **arguments)
    assert not list(tmp_path.iterdir())
    ggml_moecache.load_model(verbose=False, n_ctx=64).close()  # nothing of it stays


def test_a_refused_model_leaves_no_folder(tmp_path):
    with pytest.raises(errors.BackendError, match="MoECache9"):
        ggml_moecache.load_model(log=tmp_path / "a" / "b", device="MoECache9", verbose=False)
    with pytest.raises(errors.BackendError, match="could not load"):
        ggml_moecache.load_model(log=tmp_path / "a" / "b", n_ctx=2**31 - 1, verbose=False)
    assert not list(tmp_path.iterdir())


def test_run_fields_are_json():
    for bad in (float("nan"), {1, 2}):
        with pytest.raises(errors.ConfigError, match="'value' parameter of set_run_field"):
            ggml_moecache.set_run_field("benchmark", bad)


def test_metadata_of_a_live_log():
    model = ggml_moecache.load_model(live_log=True, verbose=False, n_ctx=64, seed=11)
    model.eval(TOKENS)
    run = ggml_moecache.run_metadata()
    model.close()
    assert run["model"]["file"] == "tiny-qwen35moe-Q4_0.gguf"
    assert (run["model"]["n_layers"], run["model"]["n_experts"], run["model"]["top_k"]) == (8, 128, 8)
    assert run["model"]["moe_layers"] == list(range(8))
    assert (run["seed"], run["capacity"]) == (11, "0")
    assert run["llama_cpp"]["llama_cpp_python"] == importlib.metadata.version("llama-cpp-python")
    assert run["llama_cpp"]["ggml_version"] == "0.25.3"
    assert run["llama_cpp"]["ggml_commit"]
    assert [context["file"] for context in run["contexts"]] == [None]
    schema = json.loads((Path(__file__).parents[2] / "traces" / "run.schema.json").read_text())
    jsonschema.validate(run, schema)


def test_folders_that_cannot_take_a_log(tmp_path):
    """Said before the model is loaded; a second model of this process may log into the same folder."""
    used, rest, file = tmp_path / "used", tmp_path / "rest", tmp_path / "file"
    used.mkdir()
    rest.mkdir()
    (rest / "routing.top1.jsonl").write_text("")
    (used / "run.json").write_text('{"run_id": "of another process"}')
    file.write_text("mine")
    bad = ((used, "log of another run"), (rest, "log of another run"), (file, "is a file"), (file / "x", "be made"))
    for folder, words in bad:
        with pytest.raises(errors.ConfigError, match=words):
            ggml_moecache.load_model(log=folder, verbose=False, n_ctx=64)
    with pytest.raises(errors.ConfigError, match="must name a folder"):
        ggml_moecache.load_model(log="", verbose=False, n_ctx=64)
    folder = tmp_path / "log"
    models = []
    for _ in range(2):
        models.append(ggml_moecache.load_model(log=folder, verbose=False, n_ctx=64))
        models[-1].eval(TOKENS)
    for model in models:
        model.close()
    assert len(list(folder.glob("routing*.jsonl"))) == 2
