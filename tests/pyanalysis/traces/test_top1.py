"""The file of top1 tokens beside a log, and what readers make of both: every value by hand on the base log."""

from __future__ import annotations

import json
import re

import jsonschema
import numpy as np
import pytest

from pyanalysis import traces
from pyanalysis.traces import edit, jsonl, merge, summary
from tests.pyanalysis.traces import logs
from tests.pyanalysis.traces.logs import RUN, end, event, overflow


def line(batch, layer, rows, tokens, **changes):
    base = {"type": "top1", "run_id": RUN, "context_id": 0, "batch_id": batch, "layer_id": layer}
    return {**base, "rows": rows, "tokens": tokens, **changes}


def end_of(n_tokens, **changes):
    return {"type": "end", "run_id": RUN, "context_id": 0, "n_tokens": n_tokens, **changes}


# Every second token of the base log, 0, 2 and 4, in both layers; token 10 * layer + position.
BASE = [
    line(0, 0, [0, 2], [0, 2]),
    line(0, 1, [0, 2], [10, 12]),
    line(2, 0, [0], [4]),
    line(2, 1, [0], [14]),
    end_of(6),
]
# The base log goes ubatch by ubatch, in it layer by layer: tokens 0 1 2 0 1 2, 3 3, 4 4.
EXPECTED = [0, -1, 2, 10, -1, 12, -1, -1, 4, 14]


def write(folder, beside=BASE, log=None, run=None):
    path = logs.write(folder, logs.base_log() if log is None else log, run)
    text = beside if isinstance(beside, str) else logs.text_of(beside)
    path.with_name("routing.top1.jsonl").write_text(text)
    return path


@pytest.mark.parametrize("chunk_bytes", [8 << 20, 700, 1])
def test_tokens_find_their_events(tmp_path, monkeypatch, chunk_bytes):
    """Also where the events of one layer lie in several chunks."""
    monkeypatch.setattr(jsonl, "_CHUNK_BYTES", chunk_bytes)
    trace = traces.read_trace(write(tmp_path))
    assert trace.top1.tolist() == EXPECTED
    assert trace.notes == ()
    assert [e.top1_token for e in traces.read_events(tmp_path)] == EXPECTED


def test_rows_count_within_layer_and_family_whatever_the_request(tmp_path):
    """Two requests with the same positions in one ubatch, two families: row 1 is the second request's token."""
    place = {"batch_id": 0, "phase": "prefill", "token_index": 0}
    log = [
        event(**place, layer_id=layer, request_id=request, family=family)
        for layer in (0, 1)
        for family in ("exps", "chexps")
        for request in (0, 1)
    ]
    path = write(tmp_path, [line(0, 0, [1], [5]), line(0, 1, [0, 1], [6, 7]), end_of(3)], [*log, end(8)])
    assert traces.read_trace(path).top1.tolist() == [-1, 5, -1, 5, 6, 7, 6, 7]


@pytest.mark.parametrize("chunk_bytes", [8 << 20, 1])
def test_behind_a_gap_rows_are_not_known(tmp_path, monkeypatch, chunk_bytes):
    """Lost: layer 0 of token 1. The rest of ubatch 0 counts as not sampled; ubatch 2 is whole."""
    monkeypatch.setattr(jsonl, "_CHUNK_BYTES", chunk_bytes)
    events = logs.base_events()
    log = [events[0], overflow(0, 1), *events[2:], end(9, 1)]
    trace = traces.read_trace(write(tmp_path, log=log))
    assert trace.top1.tolist() == [0, -1, -1, -1, -1, -1, -1, 4, 14]
    assert trace.notes == (
        "routing.top1.jsonl: 4 events behind lost ones have no top1_token: their rows are not known",
        "1 events (10.0%) were lost: what follows from this trace is not its run's",
    )


def test_killed_processes(tmp_path):
    """Both files end where they end: the log before ubatch 2, the tokens in the middle of their last line."""
    text = logs.text_of(BASE[:3]) + json.dumps(BASE[3])[:40]
    trace = traces.read_trace(write(tmp_path, text, logs.base_events()[:8]))
    assert trace.top1.tolist() == EXPECTED[:8]
    assert trace.notes[:2] == (
        "routing.top1.jsonl: line 4 is cut off and left out",
        "routing.top1.jsonl: no end record: top1_token may be missing on the last tokens",
    )


def test_a_file_without_tokens(tmp_path):
    trace = traces.read_trace(write(tmp_path, [end_of(0)]))
    assert trace.top1.tolist() == [-1] * 10


def test_what_tools_write_has_the_column(tmp_path):
    source = write(tmp_path / "in", run={**logs.run_json(), "top1_every": 2, "timings": False})
    for name in ("a.parquet", "a.npz", "a"):
        edit.copy(source, traces.open_writer(tmp_path / name))
        trace = traces.read_trace(tmp_path / name)
        assert sorted(zip(trace.token.tolist(), trace.layer.tolist(), trace.top1.tolist(), strict=True)) == sorted(
            (e["token_index"], e["layer_id"], t) for e, t in zip(logs.base_events(), EXPECTED, strict=True)
        )
        assert trace.metadata["timings"] is False
    assert not (tmp_path / "a" / "routing.top1.jsonl").exists()
    edit.cut(source, traces.open_writer(tmp_path / "cut"), edit.Selection(layers=frozenset([1])))
    assert traces.read_trace(tmp_path / "cut").top1.tolist() == [10, -1, 12, -1, 14]


def test_a_replaced_log_takes_its_tokens_with_it(tmp_path):
    """convert onto itself: the events then have the column, and nothing stands beside them."""
    source = write(tmp_path)
    edit.copy(source, traces.open_writer(tmp_path, force=True))
    assert [r["top1_token"] for r in logs.records_in(source)[:-1]] == EXPECTED
    assert not (tmp_path / "routing.top1.jsonl").exists()
    assert traces.read_trace(source).top1.tolist() == EXPECTED


def test_merged_runs_have_no_timings_if_one_has_none(tmp_path):
    one = write(tmp_path / "one", run={**logs.run_json(), "top1_every": 2, "timings": False})
    other = logs.write(tmp_path / "other", logs.base_log())
    merge.merge([one, other], traces.open_writer(tmp_path / "both"))
    trace = traces.read_trace(tmp_path / "both")
    assert trace.top1.tolist() == [*EXPECTED, *[-1] * 10]
    assert trace.metadata["timings"] is False


def test_summary_says_that_there_are_no_timings(tmp_path):
    path = write(tmp_path, run={**logs.run_json(), "top1_every": 2, "timings": False})
    found = summary.summarize(traces.read_trace(path))
    assert (found.n_top1_events, found.timings) == (6, False)
    text = summary.as_text(found)
    assert "\ntop1      recorded on 6 events\n" in text
    assert "\ntimings   none: the run's graphs were cut to record top1_token\n" in text
    plain = summary.summarize(traces.read_trace(logs.write(tmp_path / "plain", logs.base_log())))
    assert (plain.n_top1_events, plain.timings) == (None, True)
    assert "timings" not in summary.as_text(plain)


# name: (content of routing.top1.jsonl, line or None, reason)
BAD = {
    "text": ("mine\n", 1, "not JSON"),
    "binary": ("\0\0\n", 1, "not JSON"),
    "list": ("[1]\n", 1, "is no record of top1 tokens: type must be top1 or end"),
    "event": ([event()], 1, "is no record of top1 tokens"),
    "no_run": ([line(0, 0, [0], [1], run_id=None)], 1, "run_id must be a string, got null"),
    "negative_layer": ([line(0, -1, [0], [1])], 1, "layer_id must be a whole number of at least 0, got -1"),
    "huge_batch": ([line(2**63, 0, [0], [1])], 1, "batch_id must be a whole number of at least 0"),
    "true_for_a_number": ([line(0, 0, [0], [1], context_id=True)], 1, "context_id must be a whole number"),
    "rows_number": ([line(0, 0, 0, [1])], 1, "rows must be a list of whole numbers of at least 0, got 0"),
    "negative_token": ([line(0, 0, [0], [-1])], 1, "tokens must be a list of whole numbers of at least 0, got [-1]"),
    "unequal": ([BASE[0], line(0, 1, [0, 1], [1])], 2, "rows has 2 entries, tokens has 1"),
    "twice": ([BASE[0], line(0, 0, [2], [3])], None, "row 2 of layer 0 in ubatch 0 is recorded twice"),
    "two_runs": ([BASE[0], line(0, 1, [0], [1], run_id="b")], 2, "is of run 'b', context 0; the lines before are of"),
    "other_run": ([{**r, "run_id": "b"} for r in BASE], None, "run_id is 'b', that of the log is 'run-1'"),
    "other_context": ([{**r, "context_id": 1} for r in BASE], None, "context_id is 1, that of the log is 0"),
    "behind_the_end": ([*BASE, BASE[0]], 6, "stands after the end record"),
    "wrong_count": ([*BASE[:-1], end_of(7)], 5, "the end record counts 7 tokens, the file has 6"),
    "no_such_row": ([line(0, 0, [3], [1])], None,
                    "1 tokens have no event in the log; the first is row 3 of layer 0 in ubatch 0"),
    "no_such_layer": ([line(1, 2, [0], [1])], None, "the first is row 0 of layer 2 in ubatch 1"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "number", "reason"), BAD.values(), ids=BAD.keys())
def test_malformed_files(tmp_path, content, number, reason):
    path = write(tmp_path, content)
    beside = path.with_name("routing.top1.jsonl")
    with pytest.raises(traces.TraceError, match=re.escape(reason)) as caught:
        traces.read_trace(path)
    assert caught.value.problem.path == beside
    assert caught.value.problem.line == number


def test_tokens_beside_a_log_that_has_them(tmp_path):
    log = [{**e, "top1_token": 1} for e in logs.base_events()]
    with pytest.raises(traces.TraceError, match="stands beside a log whose events have top1_token already"):
        traces.read_trace(write(tmp_path, log=[*log, end()]))


def test_document_and_test_lines_are_those_of_the_schema():
    schema = json.loads((logs.ROOT / "traces" / "top1.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    document = (logs.ROOT / "traces" / "FORMAT.md").read_text()
    (shown,) = re.findall(r'^    (\{"type":"top1".*\})$', document, re.MULTILINE)
    for record in [json.loads(shown), *BASE]:
        jsonschema.validate(record, schema)
    for content, _, _ in (BAD[name] for name in ("negative_layer", "true_for_a_number", "rows_number", "event")):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(content[0], schema)


def test_the_values_are_int64(tmp_path):
    assert traces.read_trace(write(tmp_path)).top1.dtype == np.int64
