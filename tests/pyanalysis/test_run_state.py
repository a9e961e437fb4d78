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
