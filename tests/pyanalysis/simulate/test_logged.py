"""What a log tells of its run's cache: replayed by `moecache simulate --mode as-run` where nothing else is said."""

from __future__ import annotations

import json
import sys

import pytest

from pyanalysis import cli, simulate
from pyanalysis.simulation.logged import LoggedCache, cache_of, regime_of
from pyanalysis.traces import read_trace
from tests.pyanalysis.traces import logs

CONTEXT = {"context_id": 0, "file": "routing.jsonl", "device": "MoECache0", "capacity": "50%", "model": None}


def written(folder, *, records=None, **changes):
    """The base log of a run with a cache; `changes` of its run.json."""
    run = {**logs.run_json(), "capacity": "50%", "policy": "lru", "contexts": [CONTEXT]}
    run["policy_parameters"] = {"n_slots": 6, "per_layer": True, "sync": True}
    return logs.write(folder, records or logs.base_log(), {**run, **changes})


@pytest.fixture
def as_run(monkeypatch, capsys):
    """Run `moecache simulate ... --mode as-run --json`; returns (status, rows, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["moecache", "simulate", *map(str, arguments), "--mode", "as-run", "--json"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code, json.loads(out or "null"), err

    return run


def test_the_logs_own_cache_is_replayed(tmp_path, as_run):
    log = written(tmp_path)
    status, [row], err = as_run(log)
    assert status == 0
    assert err == f"moecache: note: {log}: replayed with --policy lru --capacity 50% --per-layer, the log's own\n"
    assert (row["policy"], row["capacity"], row["slots"]) == ("lru", "50%", [3, 3])
    assert row["hits"] == simulate(log, "lru", 3, per_layer=True, mode="as-run").hits


def test_what_is_said_wins(tmp_path, as_run):
    log = written(tmp_path)
    _, [row], err = as_run(log, "--policy", "random")
    assert (row["policy"], row["slots"]) == ("random", [3, 3])
    assert "replayed with --capacity 50% --per-layer, the log's own" in err
    _, [row], err = as_run(log, "--capacity", "4")  # a capacity that is said is of all layers, as it is elsewhere
    assert (row["policy"], row["slots"]) == ("lru", [4])
    assert "replayed with --policy lru, the log's own" in err
    _, [row], err = as_run(log, "--policy", "lru", "--capacity", "4")
    assert err == ""


def test_each_of_several_logs_has_its_own(tmp_path, as_run):
    one = written(tmp_path / "a")
    other = written(tmp_path / "b", policy="cumulative-lfu", contexts=[{**CONTEXT, "capacity": "2"}])
    status, rows, _ = as_run(one, other)
    assert status == 0
    assert [(row["policy"], row["capacity"]) for row in rows] == [("lru", "50%"), ("cumulative-lfu", "2")]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, LoggedCache("lru", "50%", per_layer=True)),
        ({"contexts": []}, LoggedCache("lru", "50%", per_layer=True)),
        ({"policy": None}, None),
        ({"policy_parameters": None}, LoggedCache("lru", "50%", per_layer=False)),
        ({"contexts": [{**CONTEXT, "capacity": "0"}]}, None),
        ({"contexts": [{**CONTEXT, "capacity": "auto"}]}, None),  # of each layer another number
        (
            {"contexts": [{**CONTEXT, "capacity": "auto"}], "policy_parameters": {"n_slots": 6, "per_layer": False}},
            LoggedCache("lru", "6", per_layer=False),
        ),
        (
            {"contexts": [{**CONTEXT, "capacity": "auto"}] * 2, "policy_parameters": {"n_slots": 6}},
            None,  # of which of them are the slots?
        ),
    ],
)
def test_what_run_json_tells(tmp_path, changes, found):
    assert cache_of(read_trace(written(tmp_path, **changes))) == found


def test_a_policy_of_another_version_is_one_line(tmp_path, as_run):
    status, _, err = as_run(written(tmp_path, policy="clairvoyant"))
    assert status == 2
    assert err.splitlines()[-1].startswith("moecache: error: there is no policy 'clairvoyant'")


def test_the_regime_of_the_run(tmp_path):
    """Tokens 3 and 4 are decoded, two experts a layer, in a ubatch each: 2 of 3 slots."""
    found = regime_of(read_trace(written(tmp_path)))
    assert str(found) == "different experts that a ubatch uses over the slots of a layer, at 50%: 0.67"
    assert found.as_json() == {
        "capacity": "50%",
        "per_layer": True,
        "step": "ubatch",
        "step_experts_over_slots": pytest.approx(2 / 3),
        "steps_above_slots": 0.0,
        "lossy": False,
    }


def test_the_regime_of_a_log_that_lost_events_says_so(tmp_path):
    """The events that are there are the same."""
    records = [*logs.base_events(), logs.overflow(3, 5), logs.end(10, 5)]
    found = regime_of(read_trace(written(tmp_path, records=records)))
    whole = "different experts that a ubatch uses over the slots of a layer, at 50%: 0.67"
    assert str(found) == f"{whole} (of what the log still has: events were lost)"
    assert found.as_json()["lossy"] is True


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": None},
        {"model": {**logs.run_json()["model"], "n_experts": None}},
    ],
    ids=["no cache", "experts unknown"],
)
def test_no_regime_where_the_log_does_not_tell(tmp_path, changes):
    assert regime_of(read_trace(written(tmp_path, **changes))) is None
