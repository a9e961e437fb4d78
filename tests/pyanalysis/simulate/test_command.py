"""`moecache simulate` as a program, on a trace that is worked out by hand.

One layer, top-2, two slots, cumulative LFU, copies there at the next token:

    token  experts  content  hits  counts after     decision
      1      0 1    -         0    0:1 1:1          admit 0 and 1
      2      0 2    0 1       1    0:2 1:1 2:1      none: 2 is not strictly above 1
      3      0 2    0 1       1    0:3 1:1 2:2      evict 1, admit 2
      4      1 2    0 2       1    0:3 1:2 2:3      none

3 hits of 8, 3 admissions, 1 eviction. LRU: 1 | hit 0, admit 2 for 1 | hits 0 2 | hit 2, admit 1 for 0: 4 hits, 4
admissions, 2 evictions.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pyanalysis import cli
from tests.pyanalysis.traces import logs

IDS = [[0, 1], [0, 2], [0, 2], [1, 2]]
TRACE = "".join(json.dumps({"tok": token, "layers": [ids]}) + "\n" for token, ids in enumerate(IDS, 1))
COST = {
    "format": {"name": "ggml_moecache cost model", "version": 1},
    "name": "hand",
    "description": "numbers that are easy to add",
    "sources": ["made for a test"],
    "expert_bytes": 1000,
    "cpu_miss_ns": 1000,
    "cpu_event_ns": 100,
    "gpu_hit_ns": 10,
    "other_layer_ns": 5000,
    "other_token_ns": 50,
    "copy_latency_ns": 0,
    "copy_bandwidth_bytes_per_s": 1e12,
}
# Event 1: 5000 + 100 + 2 * 1000; events 2 to 4, one hit and one miss: 5000 + max(10, 1100). Each token 50 on top.
LFU_TIME_NS = (7100 + 3 * 6100) / 4 + 50
NOTE_LINES = 3  # what the format does not record, and that the number of experts is not known


@pytest.fixture
def simulate(capfdbinary, monkeypatch, tmp_path):
    """Run `moecache simulate ...` in tmp_path, where t.jsonl and cost.json are; returns (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    Path("t.jsonl").write_text(TRACE)
    Path("cost.json").write_text(json.dumps(COST))

    def run(*arguments: str) -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "argv", ["moecache", "simulate", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out = capfdbinary.readouterr()
        return ended.value.code, out.out, out.err.decode()

    return run


def test_jsonl(simulate):
    status, out, err = simulate("t.jsonl", "--policy", "lru,cumulative-lfu", "--capacity", "0,2,all", "-o", "jsonl")
    assert status == 0
    assert err.count("moecache: note: ") == NOTE_LINES
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(r["policy"], r["capacity"], r["capacity_experts"]) for r in rows] == [
        *(("lru", "0", 0), ("lru", "2", 2), ("lru", "all", 3)),
        *(("cumulative-lfu", "0", 0), ("cumulative-lfu", "2", 2), ("cumulative-lfu", "all", 3)),
    ]
    lfu = rows[4]
    expected = {"trace": "t.jsonl", "hits": 3, "accesses": 8, "hit_rate": 3 / 8, "admissions": 3, "evictions": 1}
    expected |= {"copies": 3, "copy_bytes": None, "copies_late": 0, "cpu_fallbacks": 5, "time_per_token_ns": None}
    assert {name: lfu[name] for name in expected} == expected
    assert [(r["hits"], r["admissions"], r["evictions"]) for r in rows[:3]] == [(0, 0, 0), (4, 4, 2), (5, 3, 0)]
    regime = [(r["step"], r["step_experts_over_slots"], r["steps_above_slots"]) for r in rows[3:]]
    assert regime == [("token", None, None), ("token", 1.0, 0.0), ("token", pytest.approx(2 / 3), 0.0)]
    assert lfu["layers"] == [{"layer": 0, "family": "exps", "accesses": 8, "hits": 3, "hit_rate": 3 / 8}]


def test_table(simulate):
    status, out, _ = simulate("t.jsonl", "--policy", "cumulative-lfu", "--capacity", "2", "--cost", "cost.json")
    assert status == 0
    lines = out.decode().splitlines()
    assert lines[0] == (
        "t.jsonl: 4 tokens (4 decode), 4 events; experts of all layers together, clocked timing, costs of hand"
    )
    assert lines[1] == "different experts that a decoded token uses over the slots of all layers, at 2: 1.00"
    header, row = (re.split(r"\s{2,}", line) for line in lines[3:])
    cells = dict(zip(header, row, strict=True))
    assert cells == {
        "policy": "cumulative-lfu",
        "capacity": "2",
        "experts": "2",
        "hit rate": "0.3750",
        "decode": "0.3750",
        "admissions": "3",
        "evictions": "1",
        "copies": "3",
        "copied MiB": "0.0",
        "late": "0",
        "CPU fallbacks": "5",
        # Token 3 evicts expert 1, which token 4 uses; the optimum's victim is 0, which is never used again.
        "victims": "0.0%",
        "us/token": f"{LFU_TIME_NS / 1000:.1f}",
        "t/s": f"{1e9 / LFU_TIME_NS:,.1f}",
    }


def test_csv_of_two_traces_has_one_header(simulate):
    Path("u.jsonl").write_text(TRACE)
    status, out, _ = simulate("t.jsonl", "u.jsonl", "--policy", "lru", "--capacity", "2", "-o", "csv")
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(out.decode())))
    assert [(row["trace"], row["hits"], row["cost"]) for row in rows] == [("t.jsonl", "4", ""), ("u.jsonl", "4", "")]


def test_json(simulate):
    status, out, _ = simulate("t.jsonl", "--policy", "lru", "--capacity", "1:3", "--json")
    assert status == 0
    assert [(row["capacity_experts"], row["hits"]) for row in json.loads(out)] == [(1, 2), (2, 4)]


def test_parquet_to_stdout_and_to_a_file(simulate):
    arguments = ("t.jsonl", "--policy", "lru,belady", "--capacity", "2", "-o", "parquet")
    status, out, _ = simulate(*arguments)
    assert status == 0
    assert pq.read_table(io.BytesIO(out))["hits"].to_pylist() == [4, 4]
    status, out, _ = simulate(*arguments, "--out", "r.parquet")
    assert (status, out) == (0, b"")
    assert pq.read_table("r.parquet")["policy"].to_pylist() == ["lru", "belady"]
    assert (
        simulate(*arguments, "--out", "r.parquet")[2].splitlines()[-1].startswith("moecache: error: r.parquet: exists")
    )
    assert simulate(*arguments, "--out", "r.parquet", "--force")[0] == 0


def test_costs_give_times(simulate):
    arguments = ("t.jsonl", "--policy", "cumulative-lfu", "--capacity", "2", "--cost", "cost.json", "-o", "jsonl")
    for timing in ([], ["--timing", "ideal"]):  # copies of 1 ns are always there in time
        row = json.loads(simulate(*arguments, *timing)[1])
        assert row["timing"] == (timing[-1] if timing else "clocked")
        assert row["time_per_token_ns"] == pytest.approx(LFU_TIME_NS)
        assert row["tokens_per_s"] == pytest.approx(1e9 / LFU_TIME_NS)
        assert row["copy_bytes"] == 3000


def test_events(simulate):
    """Both policies in one file; what each event decided, as in the table above."""
    status, _, _ = simulate(
        "t.jsonl", "--policy", "cumulative-lfu,hindsight-static", "--capacity", "2", "--events", "e.jsonl"
    )
    assert status == 0
    rows = [json.loads(line) for line in Path("e.jsonl").read_text().splitlines()]
    lfu = [row for row in rows if row["policy"] == "cumulative-lfu"]
    assert [row["event"] for row in lfu] == [0, 1, 2, 3]
    assert [row["token_index"] for row in lfu] == [1, 2, 3, 4]
    assert [row["expert_ids"] for row in lfu] == [[0, 1], [0, 2], [0, 2], [1, 2]]
    assert [row["cache_hit"] for row in lfu] == [[False, False], [True, False], [True, False], [False, True]]
    assert [[one["expert"] for one in row["admitted"]] for row in lfu] == [[0, 1], [], [2], []]
    assert [[one["evicted"] for one in row["admitted"]] for row in lfu][2] == [
        {"layer": 0, "family": "exps", "expert": 1}
    ]
    # Experts 0 and 2 are used three times each; they are there before the first event, which is event -1.
    static = [row for row in rows if row["policy"] == "hindsight-static"]
    assert static[0]["event"] == -1
    assert static[0]["layer_id"] is None
    assert [one["expert"] for one in static[0]["admitted"]] == [0, 2]
    assert [row["cache_hit"] for row in static[1:]] == [[True, False], [True, True], [True, True], [False, True]]


def test_events_as_parquet_are_the_same(simulate):
    arguments = ("t.jsonl", "--policy", "lru", "--capacity", "2", "--cost", "cost.json", "--events")
    assert simulate(*arguments, "e.jsonl")[0] == 0
    assert simulate(*arguments, "e.parquet")[0] == 0
    assert pq.read_table("e.parquet").to_pylist() == [
        json.loads(line) for line in Path("e.jsonl").read_text().splitlines()
    ]


def test_percentages_and_per_layer_budgets(simulate):
    """Of five experts 50 % is 2.5, which rounds up to 3; 1 % is at least 1."""
    ids = np.array([[0, 1], [0, 2], [0, 2]])
    np.savez("two.npz", ids=np.stack([ids, ids], axis=1), n_experts=5)
    arguments = ("two.npz", "--policy", "lru", "--per-layer", "-o", "jsonl", "--capacity")
    rows = [json.loads(line) for line in simulate(*arguments, "50%,1%,2+0,all")[1].splitlines()]
    assert [row["slots"] for row in rows] == [[3, 3], [1, 1], [2, 0], [5, 5]]
    assert [[layer["hits"] for layer in row["layers"]] for row in rows][2] == [3, 0]


BAD = {
    "no_policy": (["t.jsonl", "--capacity", "1"], "moecache simulate needs --policy"),
    "no_capacity": (["t.jsonl", "--policy", "lru"], "moecache simulate needs --capacity"),
    "no_trace": (["--policy", "lru", "--capacity", "1"], "moecache simulate needs a TRACE"),
    "no_policy_as_run": (["t.jsonl", "--mode", "as-run"],
                         "t.jsonl: does not tell the policy and capacity of a cache; say --policy and --capacity"),
    "empty_as_run": (["t.jsonl", "--mode", "as-run", "--policy", ""], "moecache simulate needs --policy"),
    "out_is_a_folder": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--out", "x.jsonl/"],
                        "'x.jsonl/' is the name of a folder, and a file is to be written"),
    "events_is_a_folder": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--events", "x.jsonl/"],
                           "'x.jsonl/' is the name of a folder"),
    "state_is_a_folder": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--state-out", "x.json/"],
                          "'x.json/' is the name of a folder"),
    "report_has_no_name": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--report", ""], "an empty name is given"),
    "out_has_no_name": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--out", ""], "an empty name is given"),
    "policy_empty": (["t.jsonl", "--policy", ",", "--capacity", "1"], "policies has an empty item"),
    "policy_twice": (["t.jsonl", "--policy", "lru, lru:admit-after=1", "--capacity", "1"],
                     "policies has 'lru' and 'lru:admit-after=1', which are the same policy"),
    "seed_too_large": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--seed", str(2**63)],
                       "--seed must be a whole number from 0 to 2^63 - 1, got 9223372036854775808"),
    "wild_id": (["wild.jsonl", "--policy", "lru", "--capacity", "1"],
                "wild.jsonl:1: expert id 65536 is out of range: the number of experts is not known, and ids must be"),
    "repeated_key": (["twice.jsonl", "--policy", "lru", "--capacity", "1"],
                     'twice.jsonl:2: the field "tok" stands there twice'),
    "same_file": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--out", "x.jsonl", "--events", "./x.jsonl"],
                  "--out and --events name the same file, 'x.jsonl'"),
    "no_folder": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--out", "no/such/x.jsonl"],
                  "the folder no/such does not exist; make it first"),
    "targets_as_csv": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--targets", "50%", "-o", "csv"],
                       "--targets is printed with -o table and -o jsonl"),
    "unknown_policy": (["t.jsonl", "--policy", "lru,mru", "--capacity", "1"], "there is no policy 'mru'"),
    "unknown_parameter": (["t.jsonl", "--policy", "lru:x=1", "--capacity", "1"], "policy lru"),
    "capacity_text": (["t.jsonl", "--policy", "lru", "--capacity", "some"], "capacity"),
    "capacity_too_large": (["t.jsonl", "--policy", "lru", "--capacity", "120%"], "capacity"),
    "capacity_empty": (["t.jsonl", "--policy", "lru", "--capacity", "1,,2"], "capacity has an empty item"),
    "range_empty": (["t.jsonl", "--policy", "lru", "--capacity", "4:4"], "capacity: the range '4:4' is empty"),
    "range_step_0": (["t.jsonl", "--policy", "lru", "--capacity", "1:4:0"], "capacity: the range '1:4:0' is empty"),
    "range_text": (["t.jsonl", "--policy", "lru", "--capacity", "1:x"], "capacity: '1:x' must be a range A:B"),
    "budgets_text": (["t.jsonl", "--policy", "lru", "--capacity", "1+x"], "capacity: '1+x' must be whole numbers"),
    "no_such_cost": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--cost", "h100"], "'h100' is no cost model"),
    "clocked_without_cost": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--timing", "clocked"],
                             "clocked timing needs a cost model"),
    "two_forms": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--json", "-o", "csv"], "--json and -o csv"),
    "events_suffix": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--events", "e.txt"], "--events needs a file"),
    "report_is_a_file": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--report", "cost.json"],
                         "--report 'cost.json' exists and is no report"),
    "batch_size": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--batch-size", "0"], "--batch-size must be a"),
    "target": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--targets", "120%"], "--targets must be hit rates"),
    "targets_empty": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--targets", ""],
                      "--targets must be hit rates"),
    "cost_empty": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--cost", ""], "a cost model has no name"),
    "scheduler_empty": (["t.jsonl", "--policy", "lru", "--capacity", "1", "--scheduler", ""],
                        "--scheduler needs the address of a Dask scheduler"),
    "missing_trace": (["none.jsonl", "--policy", "lru", "--capacity", "1"], "none.jsonl: does not exist"),
    "bad_trace": (["bad.jsonl", "--policy", "lru", "--capacity", "1"], "bad.jsonl:2: expert id 1 is repeated"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_give_one_line_and_leave_nothing(simulate, arguments, message):
    Path("bad.jsonl").write_text('{"tok":0,"layers":[[0,1]]}\n{"tok":1,"layers":[[1,1]]}\n')
    Path("twice.jsonl").write_text('{"tok":0,"layers":[[0,1]]}\n{"tok":1,"tok":2,"layers":[[1,2]]}\n')
    Path("wild.jsonl").write_text('{"tok":0,"layers":[[65536,1]]}\n')
    before = sorted(Path().iterdir())
    status, out, err = simulate(*arguments)
    assert (status, out) == (2, b"")
    errors = [line for line in err.splitlines() if not line.startswith("moecache: note: ")]
    assert len(errors) == 1
    assert errors[0].startswith("moecache: error: ")
    assert message in errors[0]
    assert sorted(Path().iterdir()) == before


def test_failure_in_the_second_trace_keeps_what_is_printed_and_writes_no_file(simulate):
    Path("bad.jsonl").write_text("{}\n")
    arguments = ("--policy", "lru", "--capacity", "2", "-o", "jsonl")
    status, out, _ = simulate("t.jsonl", "bad.jsonl", *arguments)
    assert status == 2
    assert [json.loads(line)["hits"] for line in out.splitlines()] == [4]
    status, out, _ = simulate("t.jsonl", "bad.jsonl", *arguments, "--out", "r.jsonl", "--events", "e.parquet")
    assert status == 2
    assert sorted(path.name for path in Path().iterdir()) == ["bad.jsonl", "cost.json", "t.jsonl"]


def test_targets_are_the_smallest_of_all_capacities(simulate):
    """LRU hits 0, 2, 4, 5 of 8 with 0 to 3 slots. Interval refresh has no one pass, so 0 and 3 alone are simulated;
    with three slots nothing is ever evicted, and it hits what LRU hits."""
    arguments = ("--policy", "lru,interval-refresh:every=99", "--capacity", "0,3", "--targets", "25%,0.5,90%")
    status, out, _ = simulate("t.jsonl", *arguments, "-o", "jsonl")
    assert status == 0
    rows = [row for line in out.splitlines() if "target_hit_rate" in (row := json.loads(line))]
    assert [
        (r["policy"][:3], r["target_hit_rate"], r["capacity_experts"], r["hit_rate"], r["exact"]) for r in rows
    ] == [
        *(("lru", 0.25, 1, 2 / 8, True), ("lru", 0.5, 2, 4 / 8, True), ("lru", 0.9, None, None, True)),
        *(("int", 0.25, 3, 5 / 8, False), ("int", 0.5, 3, 5 / 8, False), ("int", 0.9, None, None, False)),
    ]
    out = simulate("t.jsonl", *arguments)[1].decode()
    lines = [
        re.split(r"\s{2,}", line) for line in out.split("smallest capacity that reaches a hit rate:")[1].splitlines()
    ]
    assert lines[2] == ["policy", "found among", "target", "experts", "hit rate"]
    assert lines[4] == ["lru", "every capacity", "50.0%", "2", "0.5000"]
    assert lines[8] == ["interval-refresh:every=99", "those simulated", "90.0%", "none", "-"]
    every = ("--policy", "interval-refresh:every=99", "--capacity", "0:4", "--targets", "25%", "-o", "jsonl")
    assert json.loads(simulate("t.jsonl", *every)[1].splitlines()[-1])["exact"] is True


def test_victim_agreement_is_reported_unless_it_is_left_out(simulate):
    arguments = ("t.jsonl", "--policy", "lru,cumulative-lfu", "--capacity", "2", "-o", "jsonl")
    rows = [json.loads(line) for line in simulate(*arguments)[1].splitlines()]
    # LRU evicts 1 at token 2 (next used at 4; 0 at 3) and 0 at token 4 (never again): both are the farthest.
    assert [row["victim_agreement"] for row in rows] == [1.0, 0.0]
    rows = [json.loads(line) for line in simulate(*arguments, "--no-victim-agreement")[1].splitlines()]
    assert [row["victim_agreement"] for row in rows] == [None, None]


@pytest.mark.parametrize("form", ["table", "csv", "jsonl", "parquet"])
def test_a_full_disk_behind_stdout_is_one_message(tmp_path, form):
    (tmp_path / "t.jsonl").write_text(TRACE)
    command = [sys.executable, "-c", "from pyanalysis.cli import main; main()", "simulate", "t.jsonl"]
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [*command, "--policy", "lru", "--capacity", "2", "-o", form],
            cwd=tmp_path,
            env={"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert result.returncode == 2
    errors = [line for line in result.stderr.splitlines() if not line.startswith(b"moecache: note: ")]
    assert errors == [
        b"moecache: error: stdout cannot be written: No space left on device; what was to be printed is incomplete"
    ]


def test_per_access_says_that_it_has_no_times(simulate):
    arguments = ("t.jsonl", "--policy", "lru", "--capacity", "2", "-o", "jsonl", "--mode", "per-access")
    status, out, err = simulate(*arguments, "--cost", "cost.json")
    assert status == 0
    assert json.loads(out)["time_per_token_ns"] is None
    assert "note: t.jsonl: per-access replay is a comparison of hit rates and has no times" in err
    assert "has no times" not in simulate(*arguments)[2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("layer,expert\n", "s.csv: names no expert: there is no line after the header"),
        (None, "s.csv: cannot be read: No such file or directory"),
        ("folder", "s.csv: cannot be read: Is a directory"),
    ],
)
def test_a_static_file_that_names_nothing_is_refused(simulate, text, reason):
    if text == "folder":
        Path("s.csv").mkdir()
    elif text:
        Path("s.csv").write_text(text)
    status, out, err = simulate("t.jsonl", "--policy", "static:file=s.csv", "--capacity", "1")
    assert (status, out) == (2, b"")
    assert reason in err.splitlines()[-1]


def test_list_policies(simulate):
    status, out, _ = simulate("--list-policies")
    assert status == 0
    names = re.findall(r"^(\S+)(?: \(\+\))?  ", out.decode(), re.MULTILINE)
    assert set(names) == {
        *("cumulative-lfu", "lru", "decayed-lfu", "windowed-lfu", "lfru", "request-lfu", "interval-refresh"),
        *("static", "cold-static", "hindsight-static", "random", "belady", "belady-forced", "lfu"),
    }
    assert "    tie  " in out.decode()


def test_help_has_examples_that_work(simulate):
    status, out, _ = simulate("--help")
    assert status == 0
    events = [
        logs.event(batch_id=t, token_index=t, layer_id=layer, expert_ids=ids, phase="decode" if t else "prefill")
        for t in range(40)
        for layer, ids in enumerate([[t % 5, 5 + t % 3], [0, t % 7 + 1]])
    ]
    run = {**logs.run_json(n_experts=256), "policy": "lru", "capacity": "25%", "policy_parameters": {"per_layer": True}}
    logs.write(Path("log"), [*events, logs.end(len(events))], run)
    examples = re.findall(r"^  moecache simulate (.*)$", out.decode(), re.MULTILINE)
    assert len(examples) == 8
    for example in examples:
        status, _, err = simulate(*shlex.split(example.split("|")[0]))
        assert status == 0, err
    assert Path("report/index.html").exists()
    assert Path("optimum.parquet").exists()


def test_progress_is_shown_on_a_terminal_only(tmp_path):
    (tmp_path / "t.jsonl").write_text(TRACE)
    command = [sys.executable, "-c", "from pyanalysis.cli import main; main()", "simulate", "t.jsonl"]
    result = subprocess.run(
        [*command, "--policy", "lru", "--capacity", "2"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        capture_output=True,
        check=True,
    )
    assert b"\x1b" not in result.stderr
    assert all(line.startswith(b"moecache: note: ") for line in result.stderr.splitlines())


def test_report_without_its_extra(simulate, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("pyanalysis.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, out, err = simulate("t.jsonl", "--policy", "lru", "--capacity", "1", "--report", "r")
    assert (status, out) == (2, b"")
    assert err == "moecache: error: --report needs the extra 'report': pip install 'ggml-moecache[report]'\n"


def test_report_has_the_optimum_the_static_line_and_the_sensitivity(simulate):
    """At two slots, the middle of 0, 2 and all. LFU takes 7100 + 3 * 6100 there, and 4 * 50 on top: 25,600.

    Halving cpu_miss_ns takes 1000 off the first event and 500 off each other: 2,500 of 25,600.
    """
    arguments = (
        "t.jsonl",
        "--policy",
        "cumulative-lfu",
        "--capacity",
        "0,2,all",
        "--cost",
        "cost.json",
        "--report",
        "r",
    )
    status, out, _ = simulate(*arguments, "-o", "jsonl")
    assert status == 0
    assert [json.loads(line)["policy"] for line in out.splitlines()] == ["cumulative-lfu"] * 3
    with Path("r/hit_rate.csv").open(newline="") as file:
        assert next(csv.reader(file)) == ["experts", "cumulative-lfu", "belady", "hindsight-static"]
    with Path("r/sensitivity.csv").open(newline="") as file:
        rows = {row[0]: row[1] for row in csv.reader(file)}
    assert float(rows["cpu_miss_ns x 0.5"]) == pytest.approx(-2500 / 25600)
    assert float(rows["other_layer_ns x 2"]) == pytest.approx(4 * 5000 / 25600)
    assert "copy_latency_ns x 2" not in rows  # it is 0
    assert "Added by the report: belady, hindsight-static." in Path("r/index.html").read_text()


def test_the_state_after_a_trace(simulate):
    """Of the trace above: 0 and 2 are resident, with the counts of the last line; the next token is the fifth."""
    status, _, errors = simulate("t.jsonl", "--policy", "cumulative-lfu", "--capacity", "2", "--state-out", "s.json")
    assert (status, errors.count("\n")) == (0, NOTE_LINES)
    assert json.loads(Path("s.json").read_text()) == {
        "format": {"name": "ggml_moecache session state", "version": 1},
        "policy": "cumulative-lfu",
        "per_layer": False,
        "slots": [2],
        "columns": [{"layer_id": 0, "family": "exps", "n_experts": 3, "expert_bytes": 0}],
        "arrays": {
            "content": [0, 2],
            "counts": [3, 2, 3],
            "next_event": [4],
            "next_access": [8],
            "next_token": [4],
            "next_request": [1],
        },
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "lru,random", "--capacity", "2"), "the state of one policy. Got 2; name one"),
        (("--policy", "lru", "--capacity", "1,2"), "the state of one capacity. Got 2; name one"),
        (("t.jsonl", "--policy", "lru", "--capacity", "2"), "the state of one trace. Got 2; name one"),
        (("--policy", "belady", "--capacity", "2"), "and policy belady sees the trace beforehand: none can run it"),
        (("--policy", "lru", "--capacity", "2", "--mode", "per-access"), "--mode must be event-atomic. Got per-access"),
        (("--policy", "lru", "--capacity", "2", "--out", "s.json"), "--out and --state-out name the same file"),
    ],
)
def test_what_is_no_state_is_refused(simulate, arguments, message):
    status, _, errors = simulate("t.jsonl", *arguments, "--state-out", "s.json")
    assert status == 2
    assert message in errors
    assert not Path("s.json").exists()


def test_a_state_file_is_replaced_with_force_only(simulate):
    Path("s.json").write_text("mine")
    arguments = ("t.jsonl", "--policy", "lru", "--capacity", "2", "--state-out", "s.json")
    status, _, errors = simulate(*arguments)
    assert (status, Path("s.json").read_text()) == (2, "mine")
    assert "s.json: exists already; name another file, or say --force" in errors
    assert simulate(*arguments, "--force")[0] == 0
    assert json.loads(Path("s.json").read_text())["policy"] == "lru"
