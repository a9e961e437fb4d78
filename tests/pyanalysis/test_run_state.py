"""`moecache run` with a session: kept for the next run, or made of a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ggml_moecache.errors import ConfigError
from pyanalysis import run
from pyanalysis.simulation import Session, SessionState, simulate
from pyanalysis.simulation.warm import state_after
from tests.pyanalysis.traces import logs

MOECACHE = Path(sys.executable).with_name("moecache")
TEXT = ("-p", "SQLite is a library that", "-n", "24", "--temp", "0", "-t", "2", "--no-warmup")
CACHE = ("--capacity", "25%", "--policy", "lru")


def moecache(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GGML_", "LLAMA_ARG_", "LLAMA_CPP_LIB_PATH"))}
    synchronous = {"GGML_MOECACHE_SYNC": "1", **environment}
    return subprocess.run(
        [MOECACHE, *arguments], env={**clean, **synchronous}, capture_output=True, text=True, check=False
    )


def figures(folder: Path, *arguments: str) -> dict[str, object]:
    """The status of a run, which must succeed."""
    done = moecache("run", *TEXT, *CACHE, *arguments, GGML_MOECACHE_STATUS=str(folder / "status.json"))
    assert done.returncode == 0, done.stderr
    (context,) = json.loads((folder / "status.json").read_text())["contexts"]
    return context


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """The routing of the text, and the figures of a run that starts cold."""
    folder = tmp_path_factory.mktemp("run")
    figures(folder, "--log", str(folder / "log"))
    return folder / "log"


def test_a_state_is_kept_for_the_next_run(tmp_path, log):
    """The second run starts where the first one ended, so its first tokens are no misses as a whole."""
    state = str(tmp_path / "state.json")
    cold = figures(tmp_path, "--state-out", state)
    assert cold["n_hits"] == simulate(log, "lru", "25%").hits
    ended = SessionState.read(state)
    again = figures(tmp_path, "--state-in", state, "--state-out", state)
    session = Session(log, "lru", "25%")
    session.import_state(ended, from_start=True)
    session.run()
    # (The prompt is one event: its hits are rows at run time, experts in the simulator.)
    assert again["n_copies"] == len(ended.arrays["content"]) + session.counts().admissions
    assert again["n_evictions"] == session.counts().evictions
    assert again["n_hits"] > cold["n_hits"]
    assert again["fallbacks"] == []
    n_events = session.n_events
    assert SessionState.read(state).arrays["next_event"].tolist() == [2 * n_events]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.json", "status.json"]


def test_warm_and_simulate_make_the_same_beginning(tmp_path, log):
    warmed = figures(tmp_path, "--warm", str(log))
    state = tmp_path / "made.json"
    made = moecache("simulate", str(log), "--policy", "lru", "--capacity", "25%", "--state-out", str(state))
    assert made.returncode == 0, made.stderr
    started = figures(tmp_path, "--state-in", str(state))
    assert started["n_hits"] == warmed["n_hits"] > simulate(log, "lru", "25%").hits
    assert warmed["fallbacks"] == started["fallbacks"] == []


def test_the_session_reaches_the_run_with_top1(tmp_path, log):
    """That one is llama-cpp-python's: policy and state are load_model's arguments."""
    state = tmp_path / "state.json"
    options = ("-p", "SQLite is", "-n", "4", "--temp", "0", "--log", str(tmp_path / "log"), "--top1-every", "4")
    done = moecache("run", *options, *CACHE, "--warm", str(log), "--state-out", str(state))
    assert done.returncode == 0, done.stderr
    assert SessionState.read(state).policy == "lru"
    assert SessionState.read(state).arrays["next_event"][0] > Session(log, "lru", "25%").n_events


def test_warm_and_state_in_are_two_beginnings():
    with pytest.raises(ConfigError, match="--warm and --state-in are two beginnings"):
        run.parse(["--warm", "log", "--state-in", "s.json"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--state-in", "none.json"), "cannot read a session state from none.json: No such file or directory"),
        (("--warm", "none"), "none: does not exist"),
        (("--state-out", "kept.json/"), "'kept.json/' is the name of a folder, and a file is to be written"),
        (("--warm", "LOG", "--capacity", "all"), "--warm needs a capacity between 0 and all"),
        (("--warm", "LOG", "--capacity", "auto"), "Got 'auto' instead."),
        (("--warm", "LOG", "--policy", "lrru"), "there is no policy 'lrru'"),
    ],
)
def test_what_cannot_work_is_one_line(log, options, message):
    done = moecache("run", *TEXT, *CACHE, *(str(log) if option == "LOG" else option for option in options))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("moecache: error: ")
    assert message in line


# A log has two layers of five experts, of which a lossy one may keep the first alone.
LOSSY = [
    *(logs.event(batch_id=i, token_index=i, phase="decode" if i else "prefill") for i in range(3)),
    *(logs.overflow(2, 1864), logs.end(3, 1864)),
]


@pytest.mark.parametrize("command", ["run --warm", "simulate", "Python"])
def test_a_trace_that_lost_a_layer_is_no_beginning(tmp_path, command):
    log = str(logs.write(tmp_path, LOSSY))
    lost = "the trace lost 1,864 events, and 1 of the model's 2 MoE layers have none left"
    if command == "Python":
        with pytest.raises(ConfigError, match=lost):
            state_after(log, "lru", [2, 2])
        return
    words = ("run", "--warm", log) if command == "run --warm" else ("simulate", log, "--state-out", f"{log}.json")
    done = moecache(*words, *CACHE)
    assert done.returncode == 2
    *notes, line = done.stderr.splitlines()
    assert all(note.startswith("moecache: note: ") for note in notes)
    assert line.startswith(f"moecache: error: {log}: {lost}, so it gives no state for a cache; record it again with a ")
    assert "GGML_MOECACHE_LOG_RING_EVENTS" in line
    assert not Path(f"{log}.json").exists()


def test_a_trace_that_lost_events_of_every_layer_is_a_beginning_and_is_said(tmp_path, log):
    """Its last ubatches are cut away, as a full ring does."""
    lossy = tmp_path / "lossy"
    lines = [json.loads(line) for line in (log / "routing.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["type"] == "event" and line["batch_id"] < 3]
    names = {name: kept[0][name] for name in ("run_id", "context_id")}
    records = [*kept, {**logs.overflow(3, 77), **names}, {**logs.end(len(kept), 77), **names}]
    logs.write(lossy, records, json.loads((log / "run.json").read_text()))
    done = moecache("run", *TEXT, *CACHE, "--warm", str(lossy))
    assert done.returncode == 0, done.stderr
    assert "routing.jsonl: 77 events (" in done.stderr
    assert "moecache: inactive" not in done.stderr


def test_one_devices_log_has_not_every_layer(tmp_path):
    """With several devices run.json names the layers of all of them."""
    contexts = [{"context_id": i, "file": f"routing-{i}.jsonl", "model": None} for i in (0, 1)]
    trace = logs.write(tmp_path, LOSSY, {**logs.run_json(), "contexts": contexts})
    assert state_after(trace, "lru", 2).slots == (2,)
