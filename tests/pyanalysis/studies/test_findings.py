"""Tables of a study: stable names, one table for all traces; plots without lines."""

from __future__ import annotations

import csv
import json
import re
import warnings

import pytest

from pyanalysis.report.plots import lines
from pyanalysis.studies import reuse, semantics, transitions
from pyanalysis.studies.findings import Findings
from pyanalysis.studies.plots import bars
from pyanalysis.studies.registry import Request
from tests.pyanalysis.simulation.small import small_trace
from tests.pyanalysis.studies.test_measurements import random_ids


def test_parts_of_traces_are_one_table(tmp_path):
    findings = Findings("made")
    findings.table("runs", ["layer", "mean"], [[0, 1.5]], trace="a")
    findings.table("gap", ["x"], [[1]])
    findings.table("runs", ["layer", "mean"], [[0, None], [1, 2.0]], trace="b")
    assert json.loads(findings.as_json({}))["tables"] == {
        "runs": [
            {"trace": "a", "layer": 0, "mean": 1.5},
            {"trace": "b", "layer": 0, "mean": None},
            {"trace": "b", "layer": 1, "mean": 2.0},
        ],
        "gap": [{"x": 1}],
    }
    findings.write(tmp_path, {})
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["trace", "layer", "mean"], ["a", "0", "1.5"], ["b", "0", ""], ["b", "1", "2.0"]]
    assert findings.as_markdown().count("| layer | mean |") == 2  # each under its trace's heading


@pytest.mark.parametrize(
    ("header", "trace", "message"),
    [
        (["layer", "mean"], "a", "is there already"),
        (["layer", "mean"], None, "is there already"),
        (["layer", "layer"], "b", "columns without a name of their own"),
        (["layer", ""], "b", "columns without a name of their own"),
        (["layer"], "b", "as long as its header"),
    ],
)
def test_a_table_that_could_not_be_told_apart_is_an_error(header, trace, message):
    findings = Findings("made")
    findings.table("runs", ["layer", "mean"], [[0, 1.5]], trace="a")
    with pytest.raises(ValueError, match=message):
        findings.table("runs", header, [[0, 1.5]], trace=trace)


@pytest.mark.parametrize("study", [reuse, transitions, semantics])
def test_names_do_not_depend_on_how_many_traces_there_are(study):
    one, other = (small_trace(random_ids(60, seed=seed), 6) for seed in (0, 1))
    alone = study.run(Request((("one", one),), percents=(50.0,)))
    both = study.run(Request((("one", one), ("other", other)), percents=(50.0,)))
    names = [[table.name for table in findings.tables()] for findings in (alone, both)]
    assert names[0] == names[1]
    assert not any(re.search(r"\d", name) for name in names[0])
    for table in both.tables():
        column = table.header.index("trace") if "trace" in table.header else table.header.index("held out")
        assert {str(row[column]).split(",")[0] for row in table.rows} == {"one", "other"}


@pytest.mark.parametrize("curves", [{}, {"lru": []}, {"_hidden": [(0, 1), (1, 2)]}])
def test_a_plot_without_a_legend_warns_of_nothing(curves):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = lines(curves, "x", "y")
        assert bars({}, [], "x", "y").startswith("<svg")
    assert ("nothing to draw" in svg) == ("_hidden" not in curves)
