"""Ctrl-C: status 130 and nothing half-written, also when it is pressed again while the first one is dealt with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pyanalysis import interrupt, threads

MOECACHE = Path(sys.executable).with_name("moecache")
TRACE = Path(__file__).resolve().parents[2] / "traces" / "tiny-long.parquet"


def pressed(monkeypatch, *seconds: float) -> list[bool]:
    """For each press at that time: whether it raises."""
    handler = interrupt._Handler()
    found = []
    for now in seconds:
        monkeypatch.setattr(interrupt.time, "monotonic", lambda now=now: now)
        try:
            handler(signal.SIGINT, None)
        except KeyboardInterrupt:
            found.append(True)
        else:
            found.append(False)
    return found


def test_presses_that_follow_at_once_do_nothing_later_ones_do(monkeypatch):
    assert pressed(monkeypatch, 100, 100, 101.9, 102.1, 103, 105) == [True, False, False, True, False, True]
    assert pressed(monkeypatch, 0) == [True]  # a machine that has just been started


def test_the_handler_is_there_in_the_body_only():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    inside = []
    with pytest.raises(ZeroDivisionError), interrupt.handled():
        inside += [signal.getsignal(signal.SIGINT), 1 / 0]
    with interrupt.handled():
        inside.append(signal.getsignal(signal.SIGINT))
    assert [type(one) for one in inside] == [interrupt._Handler]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_signal_stays_ignored():
    """As a shell leaves it to what it runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt.handled():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_pool_that_is_left_by_an_error_does_not_wait():
    begun, go_on, done = threading.Event(), threading.Event(), []

    def job() -> None:
        begun.set()
        go_on.wait()
        done.append(1)

    futures = []

    def interrupted() -> None:
        with threads.pool(1) as pool:
            futures.extend([pool.submit(job), pool.submit(done.append, 2)])
            begun.wait()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == []  # the job still runs
    assert futures[1].cancelled()
    go_on.set()


def test_a_pool_that_is_left_otherwise_waits():
    done = []
    with threads.pool(2) as pool:
        for number in range(10):
            pool.submit(done.append, number)
    assert sorted(done) == list(range(10))


@pytest.mark.parametrize("n_presses", [1, 3])
def test_a_study_whose_replays_run_ends_with_130(tmp_path, n_presses):
    """Its threads are in C++ then; the interpreter must not be torn down under them (that aborted, status 134)."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [MOECACHE, "study", "strategies", TRACE, "--cost", "h200", "--report", tmp_path / "report"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    for line in process.stderr:
        if line.endswith(": policies\n"):  # their replays begin
            break
    for _ in range(n_presses):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert "terminate" not in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
