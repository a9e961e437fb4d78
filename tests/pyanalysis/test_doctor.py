"""`moecache doctor`: the facts of machine and model, and the verdict for each situation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_moecache
from ggml_moecache import _native
from ggml_moecache.gguf_file import read_model
from pyanalysis import doctor
from tests.bindings.gguf_files import write_moe

MOECACHE = Path(sys.executable).with_name("moecache")


def machine(**changes):
    base = {
        "ggml_version": "0.25.3",
        "llama_ggml_version": "0.25.3",
        "refusal": None,
        "reason": "none",
        "settings": {},
        "has_gpu": False,
        "devices": [{"name": "MoECache0", "free_mib": 16}],
        "host_memory_mib": {"total": 1000, "available": 900},
    }
    return {**base, **changes}


def model(experts_bytes: int, weights_bytes: int):
    return {"experts_bytes": experts_bytes, "weights_bytes": weights_bytes}


MIB = 1 << 20
ALL = {"GGML_MOECACHE_CAPACITY": "all"}


@pytest.mark.parametrize(
    ("where", "what", "state", "reason", "text"),
    [
        (machine(), model(8 * MIB, 12 * MIB), "active", "none", "all fits: 12.0 MiB of weights, 16 MiB free"),
        (machine(), model(8 * MIB, 20 * MIB), "active", "none", "all does not fit: 20.0 MiB of weights"),
        (machine(settings=ALL), model(8 * MIB, 12 * MIB), "active", "none", "8.0 MiB of experts in host memory"),
        (machine(settings=ALL), model(8 * MIB, 20 * MIB), "active", "no_room", "all does not fit"),
        (machine(), model(0, 12 * MIB), "inactive", "no_expert_tensors", "dense"),
        (machine(devices=[]), model(8, 8), "inactive", "no_gpu", "no MoECache device"),
        (machine(devices=[], has_gpu=True), model(8, 8), "inactive", "unsupported_gpu", "no MoECache device"),
        (machine(refusal="r", reason="ggml_version"), model(8, 8), "inactive", "ggml_version", "r"),
    ],
    ids=["fits", "too-large", "all", "no-room", "dense", "no-gpu", "other-gpu", "refused"],
)
def test_verdict(where, what, state, reason, text):
    verdict = doctor.judge(where, what)
    assert (verdict.state, verdict.reason) == (state, reason)
    assert text in verdict.text


def test_verdicts_use_codes_of_the_table():
    """Each code that doctor names stands in the plugin's table."""
    codes = {r.name for r in _native.reasons()}
    assert {"none", "no_room", "no_expert_tensors", "no_gpu", "unsupported_gpu", "ggml_version"} <= codes


def test_model_by_hand(tmp_path):
    """2 layers x 4 experts x 24,576 bytes; two norms of 128 bytes come on top."""
    facts = doctor.describe_model(read_model(write_moe(tmp_path / "moe.gguf")))
    assert (facts["n_layers"], facts["n_moe_layers"], facts["n_experts"], facts["n_experts_used"]) == (2, 2, 4, 2)
    assert facts["expert_types"] == {"F32": 6}
    assert (facts["expert_bytes_min"], facts["expert_bytes_max"]) == (24_576, 24_576)
    assert (facts["experts_bytes"], facts["weights_bytes"]) == (196_608, 196_864)


def run_doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MOECACHE, "doctor", *arguments], capture_output=True, text=True, check=False)


def test_json_of_this_machine():
    result = run_doctor("--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["version"] == ggml_moecache.__version__
    assert report["llama_ggml_version"] == report["ggml_version"] == "0.25.3"
    assert report["backend_path"] == str(ggml_moecache.backend_path())
    assert report["llama_bin_dir"] == str(ggml_moecache.llama_bin_dir())
    names = [d["name"] for d in report["devices"]]
    assert {"CPU", "MoECache0"} <= set(names)
    assert all(d["total_mib"] > 0 for d in report["devices"])
    assert report["model"]["architecture"] == "qwen35moe"
    assert report["verdict"]["state"] == "active"


def test_text_of_this_machine():
    result = run_doctor()
    assert result.returncode == 0, result.stderr
    lines = dict(line.split(None, 1) for line in result.stdout.splitlines() if not line.startswith("expert "))
    assert lines["experts"] == "128 in each of 8 layers, top-8"
    assert "expert size        13.5 KiB; all experts 13.5 MiB" in result.stdout
    assert lines["verdict"].startswith("active: 13.5 MiB of experts in host memory")


def test_dense_model(tmp_path):
    result = run_doctor("-m", str(write_moe(tmp_path / "dense.gguf", dense=True)))
    assert result.returncode == 0
    assert "verdict            inactive: no_expert_tensors: the model is dense" in result.stdout


def test_refusal_of_the_plugin(monkeypatch):
    """The plugin's own line, with its code, whatever asked for it."""
    monkeypatch.setenv("GGML_MOECACHE_DEVICE_MIB", "x")
    report = json.loads(run_doctor("--json").stdout)
    assert (report["verdict"]["state"], report["verdict"]["reason"]) == ("inactive", "bad_config")
    assert "GGML_MOECACHE_DEVICE_MIB must be" in report["verdict"]["text"]
    assert report["settings"] == {"GGML_MOECACHE_DEVICE_MIB": "x"}


def test_missing_model():
    result = run_doctor("-m", "none.gguf", "--json")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "moecache: error: none.gguf does not exist. Name a GGUF file.\n"


def test_broken_build_is_reported_not_raised(monkeypatch, tmp_path):
    (tmp_path / "libllama.so").write_bytes(b"no library")
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    report = doctor.describe_machine()
    assert report["devices"] == []
    assert f"the llama.cpp build in {tmp_path} cannot be used" in report["refusal"]


def test_a_cache_that_is_required_is_not_required_of_the_doctor():
    """The processes that look at devices use no cache, and say why there is none instead of failing."""
    answers = []
    for required, capacity in (("0", "25%"), ("1", "25%"), ("1", "120%")):
        environment = {**os.environ, "MOECACHE_REQUIRE": required, "GGML_MOECACHE_CAPACITY": capacity}
        done = subprocess.run(
            [MOECACHE, "doctor", "--json"], env=environment, capture_output=True, text=True, check=False
        )
        answers.append((done.returncode, json.loads(done.stdout)))
    (status, plain), (required_status, required), (_, refused) = answers
    assert status == required_status == 0
    assert "MoECache0" in [device["name"] for device in required["devices"]]
    assert plain["devices"][0]["name"] == required["devices"][0]["name"]
    assert (plain["reason"], required["reason"], refused["reason"]) == ("none", "none", "bad_config")
