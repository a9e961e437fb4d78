"""`moecache calibrate` as a whole: the file it writes, what it cannot measure, and what the simulator says to that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from ggml_moecache import embedded_model
from ggml_moecache.errors import ConfigError
from pyanalysis import cost
from pyanalysis.calibrate.costs import COST_FIELDS
from pyanalysis.calibrate.report import as_text
from tests.harness.environment import process_environment
from tests.pyanalysis.traces import logs

MOECACHE = Path(sys.executable).with_name("moecache")
ROOT = Path(__file__).resolve().parents[3]


def moecache(*arguments: str, environment=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MOECACHE, *arguments], capture_output=True, text=True, timeout=300, check=False, env=environment
    )


@pytest.fixture(scope="module")
def calibrated(build, tmp_path_factory):
    out = tmp_path_factory.mktemp("calibrate") / "cost.json"
    environment = process_environment(build, capacity=None)
    result = moecache("calibrate", "--repeats", "4", "--threads", "1,2", "-o", str(out), environment=environment)
    assert result.returncode == 0, result.stderr
    return out, result.stdout


def test_the_file_is_a_cost_model(calibrated):
    """8 misses, 4 events of each, on 1 and 2 threads; the faster is what the costs are of."""
    found = json.loads(calibrated[0].read_text())
    jsonschema.validate(found, json.loads(cost.SCHEMA_PATH.read_text()))
    assert found["expert_bytes"] == 3 * 256 * 32 // 32 * 18
    assert found["cpu_miss_ns"] > 0
    times = found["calibration"]["cpu_event_ns_by_threads_and_misses"]
    assert list(times) == ["1", "2"]
    for by_misses in times.values():
        assert list(by_misses) == [str(n) for n in range(1, 9)]
        assert all(s["n"] == 4 and 0 < s["q1"] <= s["median"] <= s["q3"] for s in by_misses.values())
    fastest = min(times, key=lambda n: times[n]["8"]["median"])
    assert found["calibration"]["n_threads"] == int(fastest)
    assert f"{fastest} CPU threads" in found["description"]


def test_the_table_shows_what_the_file_holds(calibrated):
    out, text = calibrated
    assert text == as_text(json.loads(out.read_text())) + "\n"
    assert "tiny-qwen35moe-Q4_0.gguf: 8 MoE layers, 128 experts, top-8, 13,824 bytes an expert on average" in text


def test_without_a_gpu_it_says_what_is_missing(calibrated):
    found = json.loads(calibrated[0].read_text())
    if found["calibration"]["machine"]["gpu"] is not None:
        assert all(found[name] is not None for name in COST_FIELDS)
        return
    assert {name for name in COST_FIELDS if found[name] is not None} == {"cpu_miss_ns"}
    assert found["calibration"]["not_measured"] == dict.fromkeys(("hits", "copies", "decode"), "there is no GPU")
    assert "hits: not measured: there is no GPU." in found["sources"]
    assert "not measured: hits: there is no GPU" in calibrated[1]


def test_what_is_no_file_is_not_replaced(tmp_path):
    """A FIFO stands for devices: as root a test could replace one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    result = moecache("calibrate", "-o", str(pipe), "--force")
    assert (result.returncode, result.stderr) == (
        2,
        f"moecache: error: {pipe} is no regular file; name a file to write\n",
    )
    assert pipe.is_fifo()


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / "cost.json"
    result = moecache("calibrate", "-o", str(out))
    assert (result.returncode, result.stderr) == (2, f"moecache: error: {out}: cannot be written: Not a directory\n")


def test_an_existing_file_stays(calibrated):
    out, _ = calibrated
    before = out.read_bytes()
    result = moecache("calibrate", "-o", str(out))
    assert (result.returncode, result.stderr) == (2, f"moecache: error: {out} exists; --force replaces it\n")
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repeats", "3"), "--repeats must be a whole number of at least 4. Got 3 instead."),
        (("--store-mib", "0"), "--store-mib must be a whole number of at least 1. Got 0 instead."),
        (("--threads", "4,x"), "--threads must be whole numbers from 1 to 512 by comma. Got '4,x' instead."),
        (("-m", "nowhere.gguf"), "nowhere.gguf does not exist. Name a GGUF file."),
    ],
)
def test_bad_arguments(tmp_path, arguments, message):
    result = moecache("calibrate", "-o", str(tmp_path / "cost.json"), *arguments)
    assert (result.returncode, result.stderr) == (2, f"moecache: error: {message}\n")
    assert not (tmp_path / "cost.json").exists()


def test_without_the_package(build, tmp_path):
    """With no more than the standard library (-I -S: no site-packages), as on a machine that has only the plugin."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pyanalysis.calibrate.calibration import main; main()"
    out = tmp_path / "cost.json"
    options = ["--llama-bin", build.llama_bin, "--plugin", build.plugin, "-m", embedded_model(), "-o", out]
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *options, "-t", "1", "--repeats", "4"],
        capture_output=True,
        text=True,
        check=False,
        env=process_environment(build, capacity=None),
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(out.read_text())["calibration"]["n_threads"] == 1


def test_the_gpus_part_on_the_stand_in(build, tmp_path):
    """No figures of a GPU, but every step that they take: 1 to 8 hits, copies from both kinds of memory, experts."""
    out = tmp_path / "details.json"
    command = [sys.executable, "-m", "tests.pyanalysis.calibrate.standin_worker"]
    environment = process_environment(
        build, capacity="0", extra={"GGML_BACKEND_PATH": str(build.plugin), "PYTHONPATH": str(ROOT)}
    )
    result = subprocess.run(
        [*command, build.llama_bin, embedded_model(), out], capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(out.read_text())
    assert found["not_measured"] == {}
    assert list(found["gpu_event_ns_by_hits"]) == [str(n) for n in range(1, 9)]
    sizes = [4096 * 4**i for i in range(8)]
    assert [(c["n_bytes"], c["pinned"]) for c in found["copies_to_device"]] == [
        (n, pinned) for pinned in (True, False) for n in sizes
    ]
    assert found["expert_copy"]["bytes"]["median"] == 3 * 256 * 32 // 32 * 18


# --- what the simulator says ----------------------------------------------------------------------------------------


def complete() -> dict:
    return json.loads((ROOT / "pyanalysis" / "costs" / "h200.json").read_text())


def test_a_calibration_beside_the_costs_is_ignored(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({**complete(), "calibration": {"anything": [1]}}))
    assert cost.load(path).cpu_miss_ns == complete()["cpu_miss_ns"]


def test_a_file_with_nulls_is_refused(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({**complete(), "gpu_hit_ns": None, "copy_bandwidth_bytes_per_s": None}))
    words = (
        f"{path}: gpu_hit_ns, copy_bandwidth_bytes_per_s: null, which means not measured; no time follows from this "
        "file. Run moecache calibrate on the machine with the GPU, or write the figures in."
    )
    with pytest.raises(ConfigError) as caught:
        cost.load(path)
    assert str(caught.value) == words


def test_moecache_simulate_refuses_it(tmp_path):
    log = logs.write(tmp_path / "log", logs.base_log(), logs.run_json())
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({**complete(), "other_layer_ns": None}))
    result = moecache("simulate", str(log), "--policy", "lru", "--capacity", "2", "--cost", str(path))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"moecache: error: {path}: other_layer_ns: null, which means not measured")
