"""moecache bench simulate: that it measures what it says, on a small trace; no time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ggml_moecache.errors import ConfigError
from pyanalysis import bench_simulate
from tests.pyanalysis.simulation.small import small_trace

MOECACHE = Path(sys.executable).with_name("moecache")


def small():
    return small_trace([[[token % 4, 4 + token % 3], [token % 7, 7]] for token in range(40)], 8)


def test_both_arms_run_in_every_round():
    measured = bench_simulate.measure(small(), ["25%", "4"], 3)
    assert (measured.n_events, measured.n_accesses) == (80, 160)
    assert [(p.algorithm, p.capacity_experts) for p in measured.pairs] == [
        ("LRU", 4),
        ("LRU", 4),
        ("LFU", 4),
        ("LFU", 4),
    ]
    assert all(len(pair.ours) == len(pair.theirs) == 3 for pair in measured.pairs)
    sizes = [(s.n_tokens, s.n_layers, s.n_experts, s.n_capacities) for s in measured.sweeps]
    # 33 steps over 8 experts are the capacities 0 to 8
    assert sizes == [(40, 2, 8, 9), (40, 2, 8, 9), (40, 2, 8, 1), (20, 2, 8, 9), (40, 1, 8, 9)]
    assert measured.peak_bytes > 1 << 20


def test_the_command_prints_a_table_or_json(tmp_path):
    trace = small()
    np.savez(tmp_path / "trace.npz", ids=trace.ids.reshape(40, 2, 2), n_experts=8)
    command = [MOECACHE, "bench", "simulate", tmp_path / "trace.npz", "--rounds", "1", "--capacity", "50%"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert table.startswith("160 accesses in 80 events")
    assert "| LRU | 8 |" in table
    figures = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    assert [pair["algorithm"] for pair in figures["pairs"]] == ["LRU", "LFU"]


def test_no_rounds_are_refused():
    with pytest.raises(ConfigError, match=r"'--rounds' option .* must be at least 1\. Got 0"):
        bench_simulate.measure(small(), ["25%"], 0)
