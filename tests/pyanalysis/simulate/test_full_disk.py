"""Outputs that end early. A file system that takes no more bytes: one line, and nothing half written stays."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.pyanalysis.traces import logs

# The process's limit of the size of a file stands for a full disk; both fail in the middle of a write.
PROGRAM = """
import resource, signal, sys
from pyanalysis.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
sys.argv = ["moecache", "simulate", *sys.argv[1:]]
main()
"""
OUTPUTS = {
    "table": ["--out", "OUT/results.txt"],
    "csv": ["-o", "csv", "--out", "OUT/results.csv"],
    "parquet": ["-o", "parquet", "--out", "OUT/results.parquet"],
    "events": ["--events", "OUT/events.jsonl"],
    "events as parquet": ["--events", "OUT/events.parquet"],
    "report": ["--report", "OUT/report"],
    "state": ["--state-out", "OUT/state.json"],
}


def test_a_reader_that_leaves_does_not_cost_the_report(tmp_path):
    """Standard output is a pipe that nobody reads any more."""
    log = logs.write(tmp_path, logs.base_log())
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from pyanalysis.cli import main; main()", "simulate", str(log)]
    options = ["--policy", "lru", "--capacity", "2", "--report", str(tmp_path / "report")]
    done = subprocess.run([*command, *options], check=False, stdout=writer, stderr=subprocess.PIPE, cwd=logs.ROOT)
    os.close(writer)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report" / "index.html").is_file()


@pytest.mark.parametrize("options", OUTPUTS.values(), ids=OUTPUTS)
def test_one_line_and_nothing_half_written(tmp_path, options):
    log = logs.write(tmp_path, logs.base_log())
    out = tmp_path / "out"
    out.mkdir()
    options = [option.replace("OUT", str(out)) for option in options]
    command = [sys.executable, "-c", PROGRAM, str(log), "--policy", "lru", "--capacity", "2", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=logs.ROOT)
    assert done.returncode == 2
    problems = [line for line in done.stderr.splitlines() if not line.startswith("moecache: note:")]
    assert len(problems) == 1, done.stderr
    assert problems[0].startswith("moecache: error: ")
    assert options[-1] in problems[0]
    assert problems[0].endswith("cannot be written: File too large")
    assert list(out.iterdir()) == []
