"""`moecache study`: every study on a recorded trace, what it writes, what it refuses."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ggml_moecache import _native
from pyanalysis.studies import registry
from pyanalysis.studies.strategy.table import SURE

ROOT = Path(__file__).parents[3]
TRACE = ROOT / "traces" / "tiny-long.parquet"


def study(*arguments) -> subprocess.CompletedProcess:
    code = "from pyanalysis.cli import main; main()"
    # One thread: libraries that spin on both CPUs while other tests run make seconds minutes.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, "study", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=False)


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> Path:
    """Two requests of 40 prompt and 120 decoded tokens of the recorded trace."""
    from pyanalysis.decide.parts import only_events
    from pyanalysis.traces import open_writer, read_trace

    trace = read_trace(TRACE)
    first = np.unique(trace.request)[:2]
    decoded = (trace.token >= 860) & (trace.token < 1020) & np.isin(trace.request, first)
    path = tmp_path_factory.mktemp("short") / "short.parquet"
    kept = only_events(trace, decoded)
    writer = open_writer(path)
    for table in kept.tables():
        writer.write(table)
    writer.finish(kept.metadata)
    return path


FAST = [one.name for one in registry.STUDIES if one.name not in ("strategies", "token-signal")]


@pytest.mark.parametrize("name", FAST)
def test_a_study_prints_and_writes_its_report(name, short, tmp_path):
    report = tmp_path / "report"
    done = study(name, short, "--report", report)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"# moecache study {name}")
    hit_rates = name not in ("transitions", "prediction", "regime")  # the last one has it as its own table
    assert ("## Operating regime" in done.stdout) == hit_rates
    page = (report / "index.html").read_text()
    assert page.count("<table>") >= 1
    assert page.count("<svg") >= 1
    facts = json.loads((report / "study.json").read_text())
    assert facts["study"] == name
    percents = {row["capacity_percent"] for row in facts["operating_regime"]}
    assert percents == ({25.0} if name == "frequency" else {5.0, 10.0, 15.0, 25.0, 45.0} if hit_rates else set())
    assert facts["command"] == f"moecache study {name} short.parquet --report report"
    assert facts["seconds"] > 0
    assert facts["peak_memory_mib"] > 10
    for table, rows in facts["tables"].items():
        with (report / f"{table}.csv").open() as file:
            assert len(list(csv.reader(file))) == len(rows) + 1
    with np.load(report / "data.npz") as arrays:
        assert all(arrays[key].size for key in arrays.files)
    assert f"{facts['seconds']} s" in done.stdout


def test_strategies_on_a_short_trace(short):
    names = "inter-layer-prefetch,seqmoe,prefill-hot,prefetch:predictor=cross-token:when=same-layer:order=gain"
    done = study("strategies", short, "--strategies", names, "--capacity", "10,25", "--cost", "h200", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    points = found["tables"]["points"]
    assert {row["strategy"] for row in points} >= {*names.split(","), "lru", "belady", _native.default_policy}
    belady = {(r["held out"], r["capacity %"]): r["hit rate"] for r in points if r["strategy"] == "belady-forced"}
    assert len(belady) == 4
    for row in points:
        assert 0 <= row["hit rate"] <= 1
        assert row["us per token"] > 0
        if row["strategy"] == "seqmoe":
            assert row["least confidence"] in SURE
    assert max(row["prefetches per token"] or 0 for row in points) > 0
    verdicts = {row["strategy"]: row["verdict"] for row in found["tables"]["verdicts"]}
    assert verdicts["seqmoe"].startswith("undecided")  # 120 tokens are no five units


def test_a_seed_gives_the_same_tables(short):
    one, other = (
        json.loads(study("prediction", short, "--predictors", "reservoir", "--json").stdout) for _ in range(2)
    )
    for row in (*one["tables"]["recall"], *other["tables"]["recall"]):
        del row["fit s"], row["us per token"]
    assert one["tables"] == other["tables"]


def test_the_list_has_every_study():
    done = study("--list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [one.name for one in registry.STUDIES]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["popularity", TRACE], "there is no study 'popularity'; studies: frequency,"),
        (["frequency"], "name a study and its traces"),
        (["frequency", "missing.npz"], "missing.npz: does not exist"),
        (
            ["frequency", TRACE, "--cost", "h200"],
            "study frequency does not take --cost; it takes only --seed and --tokens",
        ),
        (["prediction", TRACE, "--predictors", "oracle"], "there is no predictor 'oracle'"),
        (["strategies", TRACE, "--strategies", "oracle"], "there is no strategy 'oracle'"),
        (["regime", TRACE, "--capacity", "0"], "--capacity must be percentages above 0 up to 100"),
        # "nowhere" is not reached: options are checked before a trace is read.
        (["strategies", "nowhere", "--strategies", "oracle"], "there is no strategy 'oracle'"),
        (["strategies", "nowhere", "--strategies", "promoe,promoe"], "the strategy 'promoe' is named twice"),
        (["prediction", "nowhere", "--predictors", "oracle"], "there is no predictor 'oracle'"),
        (["prediction", "nowhere", "--predictors", "combined,combined"], "the predictor 'combined' is named twice"),
        (["strategies", "nowhere", "--cost", "h100"], "'h100' is no cost model"),
        (["strategies", "nowhere", "--capacity", "10,x"], "--capacity must be percentages above 0 up to 100"),
        (["regime", "nowhere", "--report", ""], "an empty name is given"),
        (["strategies", "nowhere", "--strategies", ""], "--strategies has an empty item"),
        (["strategies", "nowhere", "--strategies", "promoe,"], "--strategies has an empty item"),
        (["prediction", "nowhere", "--predictors", ""], "--predictors has an empty item"),
        (["strategies", "nowhere", "--cost", ""], "--cost has an empty item"),
        (["strategies", "nowhere", "--capacity", ""], "--capacity has an empty item"),
        (["regime", TRACE, "--tokens", "1"], "--tokens must be a whole number of at least 2"),
        (["frequency", TRACE, "--tokens", "500"], "no token was decoded"),
        (["token-signal", TRACE, "--tokens", "1000"], "--top1-every"),
    ],
)
def test_what_cannot_work_is_one_message(arguments, message):
    done = study(*arguments)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert message in errors[0]
    assert "nowhere" not in errors[0]
    assert "Traceback" not in done.stderr


def test_without_the_extra_the_message_names_it():
    code = "import sys; sys.modules['scipy'] = None; from pyanalysis.cli import main; main()"
    command = [sys.executable, "-c", code, "study", "prediction", str(TRACE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "pip install 'ggml-moecache[study]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_report_is_not_overwritten(short, tmp_path):
    assert study("regime", short, "--report", tmp_path / "r").returncode == 0
    done = study("regime", short, "--report", tmp_path / "r")
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert done.stdout == ""  # refused before the work
    assert study("regime", short, "--report", tmp_path / "r", "--force").returncode == 0


def test_another_sequence_beside_it_is_refused():
    trace = ROOT / "traces" / "tiny-heterogeneous-parallel-4.parquet"
    done = study("strategies", trace, "--tokens", "3000", "--cost", "h200")
    assert done.returncode == 2
    assert "one sequence at a time" in done.stderr
