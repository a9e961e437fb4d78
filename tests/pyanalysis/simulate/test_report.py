"""The report: its tables by hand, a page that needs nothing else, a folder that is whole or not there."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ggml_moecache.errors import ConfigError
from pyanalysis import costs, sweep, traces
from pyanalysis.report import Sensitivity, capacities_reaching, write_report
from pyanalysis.simulation import SimulationResult

# The trace of test_command.py: two slots hold what is worked out there.
IDS = np.array([[0, 1], [0, 2], [0, 2], [1, 2]])


@pytest.fixture
def trace(tmp_path):
    np.savez(tmp_path / "t.npz", ids=IDS[:, None, :], n_experts=3)
    return traces.read_trace(tmp_path / "t.npz")


@pytest.fixture
def results(trace):
    policies = ["lru", "cumulative-lfu", "belady", "hindsight-static"]
    return sweep([trace], policies, [0, 2, "all"], costs.load("h200"), per_layer=True, timing="ideal")


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def with_rates(result: SimulationResult, rates: dict[int, int]) -> list[SimulationResult]:
    """Results whose hits of 100 accesses are given by capacity."""
    return [replace(result, capacity_experts=n, accesses=100, hits=hits) for n, hits in rates.items()]


def test_capacities_reaching(results):
    """49 % is below, 50 % is reached at 8 and not at 4: somewhere from 5 to 8."""
    curve = with_rates(results[0], {16: 90, 0: 0, 8: 50, 4: 49, 17: 95})
    found = capacities_reaching(curve, [0.49, 0.5, 0.9, 0.95, 0.96])
    assert [(one.experts, one.above) for one in found] == [(4, 0), (8, 4), (16, 8), (17, 16), (None, None)]
    assert [str(one) for one in found] == ["1 to 4", "5 to 8", "9 to 16", "17", "not reached"]


def test_tables(tmp_path, results):
    """Hits of 8 with two slots: LRU 4, LFU 3; hindsight has 0 and 2: six. With three: 5, 5, 5, 8.

    The optimum with two slots admits 0 and 1, then 2 for 1, whose next use is the last event; it hits 0, 0 2, 2, and
    does not admit 1 again, which is never used again: 4 hits, 3 copies.
    """
    write_report(tmp_path / "r", results)
    assert rows(tmp_path / "r" / "hit_rate.csv") == [
        ["experts", "lru", "cumulative-lfu", "belady", "hindsight-static"],
        ["0", "0.0", "0.0", "0.0", "0.0"],
        ["2", "0.5", "0.375", "0.5", "0.75"],
        ["3", "0.625", "0.625", "0.625", "1.0"],
    ]
    n_bytes = 1904640
    copied = rows(tmp_path / "r" / "copy_bytes.csv")
    assert copied[2] == ["2", *(str(n * n_bytes) for n in (4, 3, 3, 2))]
    assert rows(tmp_path / "r" / "targets.csv")[1] == ["lru", "1 to 2", "not reached", "not reached", "not reached"]
    assert rows(tmp_path / "r" / "layers_1.csv") == [["layer", "0", "2", "3"], ["0", "0.0", "0.5", "0.625"]]
    lines = (tmp_path / "r" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [result.row() for result in results]


def test_page_needs_nothing_beside_it(tmp_path, results):
    page = write_report(tmp_path / "r", results, notes=["Added by the report: <x>."]).read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#|data:)", page)
    assert "@import" not in page
    assert "url(" not in page.replace("url(#", "")
    assert page.count("<svg") == page.count("</svg>") == 3 + 4  # rate, bytes, time; a heat map for each policy
    assert page.count("<details>") == 3 + 4
    assert "Added by the report: &lt;x&gt;." in page
    for name in ("lru", "cumulative-lfu", "belady", "hindsight-static"):
        assert name in page


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("event-atomic", "replayed event by event."),
        ("as-run", "replayed in the ubatches of the run, as the runtime takes them."),
        ("per-access", "replayed access by access, a comparison only."),
    ],
)
def test_the_page_says_how_it_was_replayed_and_the_regime(tmp_path, results, mode, words):
    """Two experts a token, over two slots and over three."""
    write_report(tmp_path / "r", [replace(result, mode=mode) for result in results])
    page = (tmp_path / "r" / "index.html").read_text()
    assert words in page
    line = "different experts that a decoded token uses over the slots of a layer, at 2: 1.00, all: 0.67"
    assert f"Operating regime: {line}." in page


def test_same_results_give_the_same_page(tmp_path, results):
    pages = [write_report(tmp_path / name, results).read_bytes() for name in ("a", "b")]
    assert pages[0] == pages[1]


def test_two_traces_have_a_folder_each(tmp_path, results):
    other = [replace(result, trace="u.npz") for result in results]
    write_report(tmp_path / "r", [*results, *other])
    assert rows(tmp_path / "r" / "1" / "hit_rate.csv") == rows(tmp_path / "r" / "2" / "hit_rate.csv")
    assert len(rows(tmp_path / "r" / "results.csv")) == 1 + 2 * len(results)


def test_sensitivity(tmp_path, results):
    changes = [
        Sensitivity("lru", "2", "cpu_miss_ns", 0.5, 75.0, 100.0),
        Sensitivity("lru", "2", "cpu_miss_ns", 2.0, 150.0, 100.0),
    ]
    page = write_report(tmp_path / "r", results, sensitivity={results[0].trace: changes}).read_text()
    table = rows(tmp_path / "r" / "sensitivity.csv")
    assert table == [["cost", "lru at 2"], ["cpu_miss_ns x 0.5", "-0.25"], ["cpu_miss_ns x 2", "0.5"]]
    assert "<td>-25.0%</td>" in page
    assert "<td>+50.0%</td>" in page


def test_without_costs_there_are_copies_and_no_times(tmp_path, trace):
    results = sweep([trace], ["lru"], [0, 2])
    page = write_report(tmp_path / "r", results).read_text()
    assert rows(tmp_path / "r" / "copies.csv") == [["experts", "lru"], ["0", "0"], ["2", "4"]]
    assert "Time per token: no cost model was given" in page


def test_existing_folders(tmp_path, results):
    write_report(tmp_path / "r", results)
    with pytest.raises(ConfigError, match=r"r' exists already; name another folder, or say --force"):
        write_report(tmp_path / "r", results)
    write_report(tmp_path / "r", results[:3], force=True)
    assert len(rows(tmp_path / "r" / "results.csv")) == 1 + 3
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"mine' exists and is no report"):
        write_report(mine, results, force=True)
    assert (mine / "thesis.txt").read_text() == "x"


def test_failure_leaves_nothing(tmp_path, results, monkeypatch):
    def fail(*_: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr("pyanalysis.report.plots.copied", fail)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="cannot be written: disk full"):
        write_report(tmp_path / "r", results)
    assert sorted(tmp_path.iterdir()) == before
