"""`moecache decide` as a program, and the report that is committed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from ggml_moecache import _native
from pyanalysis import cli
from pyanalysis.decide.command import names_of
from tests.pyanalysis.decide.constructed import adaptive_wins, cost, static_wins

ROOT = Path(__file__).resolve().parents[3]
COMMITTED = ROOT / "traces" / "decision"


@pytest.fixture
def moecache(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["moecache", "decide", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def files(tmp_path):
    """The two constructed traces and a cost model."""
    for name, trace in (("static.npz", static_wins()), ("adaptive.npz", adaptive_wins())):
        ids = trace.ids[:, None, :]
        np.savez(tmp_path / name, ids=ids, n_experts=4, request=trace.request)
    (tmp_path / "cost.json").write_text(json.dumps(cost().to_json()))
    return tmp_path


def arguments(files, *traces):
    return (*(files / name for name in traces), "--cost", files / "cost.json", "--capacity", "25%,50%")


def test_adaptive_loses(moecache, files):
    code, out, _ = moecache(*arguments(files, "static.npz"), "--adaptive", "request-lfu")
    assert code == 0
    assert "Recommended: static.\n" in out
    # One layer of four experts, one a token: over 1 and 2 slots.
    regime = "static.npz: different experts that a decoded token uses over the slots of all layers, at 25%: 1.00"
    assert f"## Operating regime\n\n- {regime}, 50%: 0.50\n" in out
    assert out.endswith(f"The runtime's default policy is {_native.default_policy}, another one.\n")
    assert "adaptive loses against static: slower in 2 of 4 cells, faster in none" in out


@pytest.mark.parametrize("capacity", ["0", "80%,90%"])
def test_capacities_that_do_not_vote_choose_where_there_are_no_others(moecache, files, capacity):
    code, out, _ = moecache(*arguments(files, "static.npz")[:-1], capacity, "--json")
    assert code == 0
    assert json.loads(out)["recommended"] is None or capacity == "80%,90%"


def test_a_report_that_cannot_be_written_is_refused_before_the_work(moecache, files):
    (files / "file").write_text("in the way")
    code, out, err = moecache(*arguments(files, "static.npz"), "--report", files / "file" / "report")
    assert (code, out) == (2, "")
    assert err == f"moecache: error: {files / 'file' / 'report'}: cannot be written: Not a directory\n"


def test_a_reader_that_leaves_does_not_cost_the_report(files):
    """Standard output is a pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from pyanalysis import cli; cli.main()", "decide", "--report", files / "report"]
    done = subprocess.run(
        [*command, *arguments(files, "static.npz"), "--adaptive", "lru"],
        check=False,
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    os.close(writer)
    assert done.returncode == 0, done.stderr
    assert (files / "report" / "index.html").is_file()


def test_nothing_pays(moecache, files):
    (files / "cost.json").write_text(json.dumps(cost(gpu_hit_ns=1000).to_json()))
    code, out, _ = moecache(*arguments(files, "static.npz", "adaptive.npz"), "--json")
    decision = json.loads(out)
    assert (code, decision["recommended"]) == (0, "no cache")
    assert decision["groups"][0]["verdict"]["outcome"] == "nothing"
    assert decision["groups"][0]["by_trace"]["static.npz"]["policy"] == "no cache"
    names = ("trace", "step", "capacity_percent", "step_experts_over_slots", "steps_above_slots")
    regime = [tuple(row[name] for name in names) for row in decision["operating_regime"]]
    own = [("token", 25.0, 1.0, 0.0), ("token", 50.0, 0.5, 0.0)]
    assert regime == [(trace, *row) for trace in ("static.npz", "adaptive.npz") for row in own]


def test_report(moecache, files):
    report = files / "report"
    args = (*arguments(files, "static.npz", "adaptive.npz"), "--adaptive", "request-lfu,lru", "--report", report)
    code, _, err = moecache(*args)
    assert (code, err.splitlines()[-1]) == (0, f"moecache: note: wrote {report / 'index.html'}")
    text, page = (report / "README.md").read_text(), (report / "index.html").read_text()
    # The evidence and how to repeat it come before the conclusion.
    assert text.index("## Evidence") < text.index("static.npz") < text.index("moecache calibrate -m MODEL.gguf")
    assert text.index("moecache calibrate -m MODEL.gguf") < text.index("## Conclusion") < text.index("## Winners")
    command = "moecache decide static.npz adaptive.npz --cost cost.json --adaptive request-lfu,lru"
    assert f"    {command} --capacity 25%,50% --report report" in text
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#|data:)", page)
    # Of each trace: hit rate and time for two splits, frequencies.
    assert page.count("<svg") == page.count("</svg>") == 2 * 5
    assert str(files) not in text + page
    rows = [row for row in pq.read_table(report / "points.parquet").to_pylist() if row["split"] == "requests"]
    found = {(row["workload"], row["policy"], row["percent"]): row for row in rows}
    assert found["static.npz", "request-lfu", 25]["hit_rate"] == 0
    assert [found["static.npz", "static", at]["hit_rate_low"] for at in (25, 50)] == [0.5, 1]
    assert found["static.npz", "request-lfu", 0]["time_ns"] == 200
    assert found["static.npz", "hindsight-static", 25]["time_ns"] == 150.5
    assert found["adaptive.npz", "lru", 25]["time_ns"] == pytest.approx(102.98)
    code, _, err = moecache(*args)
    assert code == 2
    assert "exists already" in err
    assert moecache(*args, "--force")[0] == 0


def test_does_not_depend_on_threads(moecache, files):
    outs = [moecache(*arguments(files, "adaptive.npz"), "--json", "--workers", n)[1] for n in (1, 3)]
    assert outs[0] == outs[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--capacity", "120%"), "--capacity must be percentages from 0% to 100% by comma, got '120%'"),
        (("--capacity", "x"), "--capacity must be percentages from 0% to 100% by comma, got 'x'"),
        (("--adaptive", "belady"), "--adaptive takes policies that a runtime can run and that change. Got 'belady'"),
        (("--first-tokens", "1"), "--first-tokens must be a whole number of at least 2, got 1"),
        (("--adaptive", ""), "there is no policy ''"),
        (("--workers", "0"), "--workers must be a whole number of at least 1, got 0"),
        (("--cost", "zero.json"), "--cost zero: all times are 0, so no time follows from it"),
        (("--cost", "h200,h200"), "--cost must name cost models, each with a name of its own, got 'h200,h200'"),
        (("--cost", "nowhere"), "'nowhere' is no cost model"),
    ],
)
def test_refused_arguments(moecache, files, monkeypatch, change, message):
    monkeypatch.chdir(files)
    times = dict.fromkeys(("cpu_miss_ns", "cpu_event_ns", "gpu_hit_ns", "other_layer_ns", "other_token_ns"), 0)
    (files / "zero.json").write_text(json.dumps({**cost().to_json(), "name": "zero", **times}))
    code, out, err = moecache(*arguments(files, "static.npz"), *change)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_refused_traces(moecache, files, tmp_path):
    assert "a trace is named twice" in moecache(*arguments(files, "static.npz", "static.npz"))[2]
    assert "does not exist" in moecache(*arguments(files, "nowhere.npz"))[2]
    np.savez(tmp_path / "prompt.npz", ids=np.zeros((4, 1, 1), int), n_experts=4, phase=np.zeros(4, int))
    assert "no token was decoded" in moecache(*arguments(files, "prompt.npz"))[2]
    lines = "".join(json.dumps({"tok": token, "layers": [[0]]}) + "\n" for token in range(1, 9))
    (tmp_path / "unknown.jsonl").write_text(lines)
    assert "moecache trace convert --experts N adds it" in moecache(*arguments(files, "unknown.jsonl"))[2]


def test_names_of_traces(tmp_path):
    """As short as they can be while they differ."""
    logs = [tmp_path / "long" / "parallel-1" / "routing.jsonl", tmp_path / "other" / "parallel-1" / "routing.jsonl"]
    assert names_of(logs[:1]) == ["routing.jsonl"]
    assert names_of(logs) == ["long/parallel-1/routing.jsonl", "other/parallel-1/routing.jsonl"]


def test_help(moecache):
    code, out, _ = moecache("--help")
    assert code == 0
    examples = re.findall(r"^  moecache (decide .*)$", out, re.MULTILINE)
    assert len(examples) == 4
    for example in examples:
        cli._parser().parse_args(shlex.split(example.split("|")[0]))


# --- what is committed ----------------------------------------------------------------------------------------------


def test_committed_report_is_the_source_of_the_default_policy():
    decision = json.loads((COMMITTED / "decision.json").read_text())
    assert decision["recommended"] == _native.default_policy
    assert _native.canonical_policy(_native.default_policy) == _native.default_policy


def test_committed_report_is_small_and_names_no_place():
    files = sorted(COMMITTED.iterdir())
    assert [file.name for file in files] == ["README.md", "decision.json", "index.html", "points.parquet"]
    assert sum(file.stat().st_size for file in files) < 3_000_000
    assert not any(re.search(rb"/(tmp|work|home|root)/", file.read_bytes()) for file in files)
