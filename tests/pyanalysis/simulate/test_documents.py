"""What traces/EVENTS.md and pyanalysis/SIMULATE.md say of the simulator is what it does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from pyanalysis import costs, simulate, simulate_command, traces
from pyanalysis.simulation import event_file
from pyanalysis.simulation.result import RESULT_SCHEMA

ROOT = Path(__file__).resolve().parents[3]
EVENTS = (ROOT / "traces" / "EVENTS.md").read_text()
SIMULATE = (ROOT / "pyanalysis" / "SIMULATE.md").read_text()


def listed(text: str) -> list[str]:
    """The names in the first column of the tables of a document."""
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_fields_of_an_event():
    own, copies = EVENTS.split("Each object of `admitted`:")
    assert listed(own) == event_file.SCHEMA.names
    copy = event_file.SCHEMA.field("admitted").type.value_type
    assert listed(copies) == [field.name for field in copy]


def test_worked_event(tmp_path):
    """The third event of the trace that is worked out in test_command.py."""
    ids = np.array([[[0, 1]], [[0, 2]], [[0, 2]], [[1, 2]]])
    np.savez(tmp_path / "t.npz", ids=ids, n_experts=3, request=np.zeros(4, np.int64), token_index=np.arange(1, 5))
    result = simulate(traces.read_trace(tmp_path / "t.npz"), "cumulative-lfu", 2, events=True)
    [table] = event_file.tables(result)
    row = {**table.to_pylist()[2], "trace": "t.npz"}
    assert row == json.loads(re.search(r'^    (\{"trace".*\})$', EVENTS, re.MULTILINE)[1])


def test_result_fields_exist():
    section = SIMULATE.split("## Output")[1].split("## Costs")[0]
    assert set(listed(section)) <= set(RESULT_SCHEMA.names)


def test_shipped_costs_are_listed():
    section = SIMULATE.split("## Costs")[1].split("## Report")[0]
    assert listed(section) == costs.names()


@pytest.mark.parametrize("command", re.findall(r"^    moecache simulate (.*)$", SIMULATE, re.MULTILINE))
def test_commands(command, tmp_path, monkeypatch):
    """Run on made traces under the names that the document uses."""
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text("0,0,1,2\n1,0,2,39\n")
    with Path("log").open("wb") as file:
        np.savez(file, ids=np.array([[[0, 1]], [[2, 3]], [[1, 3]]]), n_experts=40)
    from pyanalysis import cli

    monkeypatch.setattr("sys.argv", ["moecache", "simulate", *command.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0


def test_costs_for_experts_of_another_size_are_named(capsys):
    """1,904,640 bytes: 7 % more or less are the two quantizations of one model, 13,824 is another model."""
    cost = costs.load("h200")

    class Trace:  # of a trace the note needs these two alone
        path = "t"
        model: dict

    for sizes, noted in (
        ([1769472, 2039808], ""),
        ([13824], "experts have 13,824 bytes"),
        ([1000, 1904640], "1,000 to"),
    ):
        Trace.model = {"expert_bytes": [{"bytes": n} for n in sizes]}
        simulate_command._note_sizes(Trace, cost)
        err = capsys.readouterr().err
        assert noted in err
        assert bool(err) == bool(noted)
