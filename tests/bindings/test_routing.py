"""The live ring, request ids and run metadata from Python; the model has 8 layers of 128 experts, top-8."""

from __future__ import annotations

import hashlib
import json
import time

import numpy as np
import pytest

import ggml_moecache
from ggml_moecache import errors
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
    with pytest.raises(errors.ConfigError, match=r"must be between 0 and 25\. Got 26 instead"):
        ring.release(26)
    assert len(ring.view()) == 25


def test_ring_outlives_its_model():
    model = ggml_moecache.load_model(live_log=True, verbose=False, n_ctx=256)
    ring = ggml_moecache.RoutingRing(model)
    model.eval(TOKENS)
    view = ring.view()
    model.close()
    del model
    assert view["token_index"].tolist() == list(range(5)) * 8
    assert len(list(ring.events())) == 40
    ring.close()
    ring.close()


def test_full_ring_counts_what_it_loses():
    model = ggml_moecache.load_model(live_log=True, log_ring_events=64, verbose=False, n_ctx=256)
    ring = ggml_moecache.RoutingRing(model)
    model.eval([*TOKENS, *TOKENS])
    assert ring.stats() == {"n_slots": 64, "n_committed": 64, "n_lost": 16}
    assert len(list(ring.events())) == 64
    model.eval([600])
    assert next(ring.events()).lost_before == 16
    model.close()


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
    for bad in (-1, 2**64 - 1, 2**64, 1.5, "7", True):
        with pytest.raises(errors.ConfigError, match="request_id"):
            ggml_moecache.set_request_id(llm, bad)


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
        ({"log": "x", "log_ring_events": 0}, "GGML_MOECACHE_LOG_RING_EVENTS must be"),
        ({"log": "x", "log_ring_events": 2**40}, "GGML_MOECACHE_LOG_RING_EVENTS must be"),
        ({"log": "x", "log_full": "block"}, "GGML_MOECACHE_LOG_FULL must be drop or wait"),
    ],
)
def test_bad_settings_of_the_log(arguments, message):
    with pytest.raises(errors.ConfigError, match=message):
        ggml_moecache.load_model(verbose=False, **arguments)
    ggml_moecache.load_model(verbose=False, n_ctx=64).close()  # nothing of it stays


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
