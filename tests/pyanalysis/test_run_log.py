"""`moecache run --log`, `moecache bench log`, and what becomes of a log whose process is killed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ggml_moecache import embedded_model, llama_bin_dir
from ggml_moecache.errors import ConfigError
from pyanalysis import bench_log, run
from pyanalysis.llama_bench import BenchError
from pyanalysis.traces import read_trace
from tests.models.generate import model_path

MOECACHE = Path(sys.executable).with_name("moecache")


def moecache(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [MOECACHE, *arguments]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=180, check=False
    )


def test_run_logs_a_whole_request(tmp_path):
    """6 tokens of prompt and 4 generated ones, of which the last is not computed: 9 tokens in 8 layers of top-8."""
    folder = tmp_path / "log"
    arguments = ("-p", "SQLite is a library that", "-n", "4", "--temp", "0", "-s", "5", "--log", str(folder))
    result = moecache("run", *arguments)
    assert result.returncode == 0, result.stderr
    trace = read_trace(folder)
    assert len(trace.layer) == (6 + 3) * 8
    assert set(trace.request) == {0}
    run_json = json.loads((folder / "run.json").read_text())
    described = run_json["model"]
    assert described["sha256"] == hashlib.sha256(embedded_model().read_bytes()).hexdigest()
    assert (described["architecture"], described["quantization"]) == ("qwen35moe", "Q4_0")
    assert run_json["seed"] == 5
    llama_cpp = run_json["llama_cpp"]
    program = llama_bin_dir() / "llama-completion"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert f"(build {llama_cpp['build']}, commit {llama_cpp['commit']})" in version.stdout + version.stderr
    assert llama_cpp["llama_cpp_python"] is None
    shown = moecache("trace", "check", str(folder))
    assert shown.returncode == 0, shown.stdout + shown.stderr

    again = moecache("run", *arguments)
    assert again.returncode == 2
    assert again.stderr.splitlines()[-1].startswith(f"moecache: error: {folder} holds the log of another run")


def test_run_records_top1_tokens(tmp_path):
    """6 tokens of prompt and 6 generated ones, of which the last is not computed; 0, 4 and 8 are sampled."""
    folder = tmp_path / "log"
    arguments = ("-p", "SQLite is a library that", "-n", "6", "--temp", "0")
    result = moecache("run", *arguments, "--log", str(folder), "--top1-every", "4")
    assert result.returncode == 0, result.stderr
    assert "moecache: top1_token is recorded for one token in 4: this run gives no timings" in result.stderr
    stock = moecache("run", *arguments)
    assert result.stdout.strip() == stock.stdout.strip()
    trace = read_trace(folder)
    assert sorted(set(trace.token[trace.top1 >= 0])) == [0, 4, 8]
    assert (trace.top1 >= 0).sum() == 3 * 8
    described = json.loads((folder / "run.json").read_text())
    assert (described["top1_every"], described["timings"]) == (4, False)
    assert described["model"]["sha256"] == hashlib.sha256(embedded_model().read_bytes()).hexdigest()
    shown = moecache("trace", "show", str(folder))
    assert "top1      recorded on 24 events\ntimings   none" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--top1-every", "4"), "--top1-every needs --log DIR"),
        (("--top1-every", "x", "--log", "new"), "--top1-every must be a whole number of at least 1. Got 'x' instead."),
        (("--top1-every", "0", "--log", "new"), "Got '0' instead."),
        (("--top1-every=4", "--log", "new", "--show-command"), "--top1-every excludes --show-command"),
        (("--top1-every=4", "--log", "new", "-fa", "off"), "-fa cannot be used. A stock program has no eval callback"),
        (("--top1-every=4", "--log", "new", "-n", "0"), "-n must be a number of tokens, or -1"),
        (("--top1-every=4", "--log", "new", "-n"), "-n needs a value"),
        (("--top1-every=4", "--log", "new", "-c", "8", "-p", "SQLite is a library that you may use for free" * 3),
         "tokens, more than -c 8 leaves room for; raise -c"),
    ],
)  # fmt: skip
def test_bad_arguments_of_top1_every(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = moecache("run", *(() if "-p" in arguments else ("-p", "x")), *arguments)
    assert result.returncode == 2
    (error,) = [text for text in result.stderr.splitlines() if "error" in text]
    assert error.startswith("moecache: error: ")
    assert words in error


def test_a_log_folder_that_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    result = moecache("run", "-p", "x", "--log", str(path))
    assert result.returncode == 2
    assert f"moecache: error: {path} is a file, not a folder" in result.stderr
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--log", ""), "--log needs a value"),
        (("--log=",), "--log needs a value"),
        (("--log", "file/log"), "file/log cannot be made for the log: Not a directory."),
        (("--log", "/proc/log"), "/proc/log cannot be made for the log: No such file or directory."),
    ],
)
def test_bad_log_folders(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    result = moecache("run", "-p", "x", "-n", "1", *arguments)
    assert result.returncode == 2
    assert f"moecache: error: {words}" in result.stderr.splitlines()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_without_a_log_is_an_error(tmp_path):
    """A dense model: it runs, and there is nothing to log."""
    folder = tmp_path / "log"
    model = ("-m", str(model_path("dense", "F32")))
    result = moecache("run", *model, "-p", "x", "-n", "1", "--log", str(folder))
    assert result.returncode == 1
    said = f"moecache: error: no log was written to {folder}: no expert was computed on the device"
    assert said in result.stderr.splitlines()
    lens = moecache("run", *model, "-p", "x", "-n", "1", "--log", str(tmp_path / "lens"), "--top1-every", "2")
    assert lens.returncode == 1
    assert said.replace(str(folder), str(tmp_path / "lens")) in lens.stderr.splitlines()


def test_a_run_without_a_log_leaves_no_folder(tmp_path):
    """The CPU computes the experts, the plugin none."""
    result = moecache("run", "--device", "none", "-p", "x", "-n", "1", "--log", str(tmp_path / "a" / "log"))
    assert result.returncode == 1
    assert "no expert was computed on the device" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [(), ("--top1-every", "2")])
def test_a_disk_without_room_for_run_json_is_named_as_the_reason(tmp_path, options):
    """A limit on the length of files stands for a disk with room for 1000 bytes: run.json has more."""
    folder = tmp_path / "log"
    command = [MOECACHE, "run", "-p", "SQLite is a library that", "-n", "2", "--temp", "0", "--log", folder, *options]
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert result.returncode == 1, result.stderr
    assert f"log_file: cannot write {folder}/run.json: File too large" in result.stderr
    assert result.stderr.splitlines()[-1] == (
        f"moecache: error: no log was written to {folder}: run.json could not be written, "
        "the log_file line above says why"
    )
    assert "no expert was computed" not in result.stderr


def test_a_disk_that_cannot_be_written_at_all_is_named_as_the_reason(tmp_path, monkeypatch, capsys):
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run.tempfile, "TemporaryFile", full)
    assert run.finish_log(tmp_path / "log", embedded_model(), 0) == 1
    assert capsys.readouterr().err == (
        f"moecache: error: no log was written to {tmp_path / 'log'}: {tmp_path} cannot be written: "
        "No space left on device\n"
    )


@pytest.mark.parametrize(
    ("options", "seed"),
    [
        ([], None),
        (["-s", "7"], 7),
        (["--seed", "0"], 0),
        (["-s", "7", "-n", "3", "--seed", "9"], 9),
        (["-s", "-1"], None),
        (["-s", "4294967295"], None),
        (["-s", "-2"], 2**32 - 2),  # llama.cpp keeps 32 bits
        (["-s"], None),
        (["-s", "x"], None),
    ],
)
def test_seed_of_the_options(options, seed):
    assert run.seed_of(options) == seed


def test_run_json_that_cannot_be_completed_is_one_error(tmp_path, monkeypatch):
    """As on a full disk: what the plugin has written stays."""
    (tmp_path / "run.json").write_text('{"model": null}')

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match=r"run\.json could not be completed: No space left"):
        run.describe_log(tmp_path, embedded_model())
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").read_text() == '{"model": null}'


def test_a_killed_process_leaves_complete_lines(tmp_path):
    """SIGKILL while it generates: every line of the file is whole, only the end record is missing."""
    folder = tmp_path / "log"
    process = subprocess.Popen(
        [MOECACHE, "run", "-p", "SQLite", "-n", "4000", "-c", "4096", "--ignore-eos", "--log", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    log = folder / "routing.jsonl"
    deadline = time.monotonic() + 60
    while not (log.is_file() and log.stat().st_size > 100_000):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    lines = log.read_text().split("\n")
    events = [json.loads(line) for line in lines[:-1]]
    assert lines[-1] == ""
    assert {event["type"] for event in events} == {"event"}
    assert len(read_trace(folder).layer) == len(events)


def test_bench_log_compares_both_arms():
    result = moecache("bench", "log", "--rounds", "1", "--options", "-p 0 -n 8 -r 1 -t 1", "--json")
    assert result.returncode == 0, result.stderr
    (one,) = json.loads(result.stdout)
    assert set(one["off"]) == set(one["on"]) == {"tg8"}
    assert one["n_events"] == (8 + 1) * 8  # 8 tokens and one of llama-bench's warm-up, 8 layers
    assert one["n_lost"] == 0
    refused = moecache("bench", "log", "--rounds", "0")
    assert refused.returncode == 2
    assert "must be at least 1. Got 0 instead." in refused.stderr


def test_bench_log_keeps_the_settings_of_the_shell(monkeypatch, tmp_path):
    """Without the shell's GGML_MOECACHE_STANDIN there is no device here; its log would be written in both arms."""
    monkeypatch.setenv("GGML_MOECACHE_STANDIN", "1")
    monkeypatch.setenv("GGML_MOECACHE_LOG", str(tmp_path / "mine"))
    result = moecache("bench", "log", "--rounds", "1", "--options", "-p 0 -n 2 -r 1 -t 1", "--json")
    assert result.returncode == 0, result.stderr
    (one,) = json.loads(result.stdout)
    assert one["n_events"] == (2 + 1) * 8  # 2 tokens and one of llama-bench's warm-up, 8 layers
    assert not (tmp_path / "mine").exists()


def test_the_table_shows_the_cost_in_percent():
    """90 instead of 100 and 95 instead of 100 tokens per second: 10 % and 5 %, median 7.5 %."""
    rounds = [
        bench_log.Round({"tg8": 100.0}, {"tg8": 90.0}, 10, 1, 200.0),
        bench_log.Round({"tg8": 100.0}, {"tg8": 95.0}, 10, 0, 100.0),
    ]
    _, figures, events = bench_log.table(rounds).splitlines()
    assert figures.split() == ["tg8", "100.0", "92.5", "7.50%", "5.00%", "10.00%"]
    assert events == "events 20, lost 1, 150 ns per event on the inference path"


def test_a_failing_llama_bench_is_one_error(tmp_path):
    result = moecache("bench", "log", "--rounds", "1", "--options=--no-such-option")
    assert result.returncode == 2
    assert "moecache: error: " in result.stderr
    assert "ended with status" in result.stderr
    program = tmp_path / "llama-bench"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(BenchError, match="ended with status 1"):
        bench_log.run_bench(bench_log.Setup(tmp_path, tmp_path / "p", tmp_path / "m"), None, tmp_path / "s")
