"""Every way in which a trace can be bad: file, line and reason of each, and nothing written."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyanalysis import traces
from pyanalysis.traces import edit
from tests.pyanalysis.traces import logs
from tests.pyanalysis.traces.logs import end, event, line_of, overflow


def changed(line: int, **changes) -> list:
    """The base log with fields of one line changed."""
    log = logs.base_log()
    log[line - 1] = {**log[line - 1], **changes}
    return log


def without(*lines: int) -> list:
    """The base log without some events; the end record counts what is left."""
    left = [record for number, record in enumerate(logs.base_events(), 1) if number not in lines]
    return [*left, end(len(left))]


def replaced(line: int, text: str) -> str:
    lines = logs.text_of(logs.base_log()).splitlines(keepends=True)
    lines[line - 1] = text + "\n"
    return "".join(lines)


TEXT = logs.text_of(logs.base_log())
EVENTS_TEXT = logs.text_of(logs.base_events())

# name: (content of routing.jsonl, line or None, reason)
LINES = {
    "empty_file": ("", None, "is empty: it has no complete line"),
    "only_a_cut_line": (TEXT[:50], None, "is empty: it has no complete line"),
    "foreign_text": ("Once upon a time\n" + TEXT, 1, "not JSON: Expecting value at column 1"),
    "foreign_binary": (b"GGUF\x03\x00\x00\x00\xff\xfe\n" * 9, 1, "not UTF-8: invalid start byte at byte 9"),
    "foreign_records": ('{"tokens":0,"layers":[[1,2]]}\n', 1, "not a record of a routing log: it lacks the field type"),
    "json_but_no_object": (replaced(4, "[1, 2]"), 4, "not a record: a line must be one JSON object"),
    "empty_line": (replaced(4, ""), 4, "the line is empty"),
    "cut_in_the_middle": (replaced(4, TEXT[:60]), 4, "not JSON: Expecting ',' delimiter at column 61"),
    "two_records_in_a_line": (TEXT.replace("\n", "", 1), 1, "not JSON: Extra data"),
    "nan": (TEXT.replace("0.75", "NaN", 1), 1, "not JSON: NaN is no number"),
    "nul_bytes": (EVENTS_TEXT.encode() + b"\0" * 20 + b"\n", 11, "not JSON: Expecting value at column 1"),
    "duplicate_field": (TEXT.replace('"batch_id":0', '"batch_id":0,"batch_id":0', 1), 1,
                        'the field "batch_id" stands there twice'),
    "missing_field": (TEXT.replace('"copy_ready_ns":null,', "", 1), 1, "event lacks the field copy_ready_ns"),
    "spaced_and_missing": (logs.text_of(logs.base_events()) + json.dumps({**event(), "batch_id": None}) + "\n", 11,
                           "batch_id must be a whole number of at least -1, got null"),
    "fraction": (changed(2, layer_id=1.0), 2, "layer_id must be a whole number of at least 0, got 1.0"),
    "text_for_number": (changed(2, layer_id="1"), 2, 'layer_id must be a whole number of at least 0, got "1"'),
    "negative_id": (changed(2, expert_ids=[0, -2]), 2, "expert_ids must be a list of whole numbers of at least 0"),
    "unknown_phase": (changed(2, phase="x"), 2, 'phase must be "prefill" or "decode", got "x"'),
    "weight_too_large": (changed(2, router_weights=[1e39, 0]), 2, "router_weights must be a list of float32 numbers"),
    "number_beyond_json": (TEXT.replace('"batch_id":0', '"more":1e999,"batch_id":0', 1), 1, "a number is too large"),
    "number_without_end": (TEXT.replace('"batch_id":0', '"batch_id":' + "9" * 5000, 1), 1, "not a record: "),
    "weights_of_another_length": (changed(3, router_weights=[1.0]), 3,
                                  "router_weights has 1 entries, expert_ids has 2"),
    "hits_of_another_length": (changed(3, cache_hit=[True]), 3, "cache_hit has 1 entries, expert_ids has 2"),
    "two_runs": (changed(5, run_id="run-2"), 5,
                 "run_id is 'run-2', but 'run-1' on the lines before: two runs are mixed in one file"),
    "two_contexts": (changed(5, context_id=1), 5,
                     "context_id is 1, but 0 on the lines before: two contexts are mixed in one file"),
    "unsorted_ubatches": (changed(9, batch_id=0), 9, "batch_id is 0 after 1: events are not in order"),
    "line_after_end": ([*logs.base_log(), event(batch_id=3)], 12, "stands after the end record"),
    "cut_line_after_end": (TEXT + '{"type":"ev', 12, "not JSON: Unterminated string"),
    "end_counts_too_few": ([*logs.base_events(), end(9)], 11, "the end record counts 9 events, the file has 10"),
    "end_counts_too_many": ([*logs.base_events()[:9], end(10)], 10, "the end record counts 10 events, the file has 9"),
    "end_counts_fewer_lost": ([*logs.base_events(), overflow(3, 5), end(10, 4)], 12,
                              "the end record counts 4 lost events, the overflow lines 5"),
}  # fmt: skip

EVENTS = {
    "run_of_another": ([{**r, "run_id": "run-2"} for r in logs.base_log()], None,
                       "run_id is 'run-2', run.json's is 'run-1': log and run.json are of two runs"),
    "wrong_count": (changed(4, expert_ids=[1], router_weights=[1]), 4,
                    "wrong count: expert_ids has 1 ids, the trace's top_k is 2"),
    "two_models": ([*logs.base_events()[:6], *[{**e, "expert_ids": [0, 1, 2], "router_weights": None}
                                               for e in logs.base_events()[6:]], end()], 7,
                   "wrong count: expert_ids has 3 ids, the trace's top_k is 2"),
    "id_out_of_range": (changed(6, expert_ids=[0, 5]), 6, "expert id 5 is out of range: layer 1 has 5 experts"),
    "repeated_id": (changed(6, expert_ids=[3, 3]), 6, "expert id 3 is repeated in the event"),
    "unsorted_tokens": ([logs.base_log()[i] for i in (1, 0, *range(2, 11))], 2,
                        "unsorted tokens: request 0, token 0, layer 0 comes after a later token of its ubatch"),
    "recorded_twice": (changed(line_of(1, 1), token_index=0, expert_ids=[2, 3]), line_of(1, 1),
                       "request 0, token 0, layer 1 of ubatch 0 is recorded twice"),
    "missing_layer": (without(line_of(3, 1)), line_of(3, 0),
                      "missing layers: request 0, token 3 has no event of layer 1"),
    "missing_first_layer": (without(line_of(4, 0)), line_of(4, 1) - 1,
                            "missing layers: request 0, token 4 has no event of layer 0"),
    "decode_of_first_token": (changed(1, phase="decode"), 1,
                              "phase is decode, but request 0, token 0, layer 0 is the first token"),
    "decode_in_a_prompt": (changed(2, phase="decode"), 2,
                           "phase is decode, but another event of request 0 in ubatch 0 says prefill"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "line", "reason"), {**LINES, **EVENTS}.values(), ids={**LINES, **EVENTS}.keys())
def test_reader_names_file_line_and_reason(tmp_path, content, line, reason):
    log = logs.write(tmp_path, content)
    with pytest.raises(traces.TraceError) as caught:
        traces.read_trace(log)
    problem = caught.value.problem
    assert (problem.path, problem.line) == (log, line)
    assert problem.reason.startswith(reason)
    assert str(caught.value).startswith(f"{log}:{line}: " if line else f"{log}: ")


@pytest.mark.parametrize(("content", "line", "reason"), {**LINES, **EVENTS}.values(), ids={**LINES, **EVENTS}.keys())
def test_check_goes_on_after_a_problem(tmp_path, content, line, reason):
    """The same problem is the first that check reports, and no other part of the log is blamed before it."""
    log = logs.write(tmp_path, content)
    problems = []
    traces.check_trace(traces.load_trace(traces.open_reader(log), problems.append), problems.append)
    assert (problems[0].path, problems[0].line) == (log, line)
    assert problems[0].reason.startswith(reason)


def test_check_finds_every_bad_line(tmp_path):
    lines = logs.text_of(logs.base_log()).splitlines()
    lines[1] = "x"
    lines[5] = lines[5].replace('"layer_id":1', '"layer_id":-1')
    log = logs.write(tmp_path, "\n".join(lines) + "\n")
    problems = []
    traces.load_trace(traces.open_reader(log), problems.append)
    assert [problem.line for problem in problems] == [2, 6, 11]
    assert problems[2].reason == "the end record counts 10 events, the file has 8"


def test_wrong_count_without_run_json(tmp_path):
    log = logs.write(tmp_path, EVENTS["wrong_count"][0])
    (tmp_path / "run.json").unlink()
    with pytest.raises(
        traces.TraceError, match="4: wrong count: expert_ids has 1 ids, most events of the layer have 2"
    ):
        traces.read_trace(log)


# --- not malformed --------------------------------------------------------------------------------------------------


def test_log_of_a_killed_process_is_read_up_to_its_last_complete_line(tmp_path):
    log = logs.write(tmp_path, EVENTS_TEXT + EVENTS_TEXT[:70])
    trace = traces.read_trace(log)
    assert trace.n_events == 10
    assert not trace.complete
    assert trace.notes == (
        "line 11 is cut off and left out",
        "no end record: the process was killed or still runs, or the disk was full",
    )


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_log_cut_at_any_place_is_readable(tmp_path, cut):
    kept = len(EVENTS_TEXT) * cut // 40
    whole_lines = EVENTS_TEXT[: kept + 1].count("\n")  # a line is complete without its line end too
    log = logs.write(tmp_path, EVENTS_TEXT[:kept])
    if whole_lines == 0:
        with pytest.raises(traces.TraceError, match="is empty"):
            traces.read_trace(log)
    else:
        assert traces.read_trace(log).n_events == whole_lines


def test_complete_last_line_without_line_end_counts(tmp_path):
    trace = traces.read_trace(logs.write(tmp_path, TEXT.removesuffix("\n")))
    assert trace.complete
    assert trace.n_events == 10


def test_windows_line_ends_and_spaces_are_json(tmp_path):
    text = "".join(json.dumps(record) + "\r\n" for record in logs.base_log())
    assert traces.read_trace(logs.write(tmp_path, text)).n_events == 10


def test_unknown_types_are_counted(tmp_path):
    foreign = {"type": "temperature", "celsius": 40}
    trace = traces.read_trace(logs.write(tmp_path, [foreign, *logs.base_events(), foreign, {"type": "x"}, end()]))
    assert trace.n_events == 10
    assert trace.notes == ("lines of unknown types skipped: 2 of type temperature, 1 of type x",)


def test_lost_events_excuse_missing_layers_of_their_ubatches_only(tmp_path):
    events = logs.base_events()
    lost_in_1 = [*events[:7], overflow(1, 1), *events[8:], end(9, 1)]
    trace = traces.read_trace(logs.write(tmp_path / "a", lost_in_1))
    assert trace.n_lost == 1
    assert trace.overflows.tolist() == [[7, 1, 1]]
    # The same gap, but the overflow is said to be in the prompt, before the first event.
    elsewhere = [overflow(0, 1), *events[:7], *events[8:], end(9, 1)]
    with pytest.raises(traces.TraceError, match="request 0, token 3 has no event of layer 1"):
        traces.read_trace(logs.write(tmp_path / "b", elsewhere))


def test_last_ubatch_of_a_cut_log_may_lack_layers(tmp_path):
    assert traces.read_trace(logs.write(tmp_path / "a", logs.base_events()[:9])).n_events == 9
    with pytest.raises(traces.TraceError, match="token 3 has no event of layer 1"):
        traces.read_trace(logs.write(tmp_path / "b", [e for i, e in enumerate(logs.base_events()) if i != 7]))


def test_layers_with_output_rows_only_may_lack_tokens(tmp_path):
    content = without(line_of(0, 1), line_of(1, 1))
    run = logs.run_json(layers_with_output_rows_only=[1])
    assert traces.read_trace(logs.write(tmp_path / "said", content, run)).n_events == 8
    run = logs.run_json(layers_with_output_rows_only=None)  # not known: may be true of the last layer
    assert traces.read_trace(logs.write(tmp_path / "unknown", content, run)).n_events == 8
    with pytest.raises(traces.TraceError, match="missing layers: request 0, token 0 has no event of layer 1"):
        traces.read_trace(logs.write(tmp_path / "all", content))


def test_adjugate_experts_may_repeat(tmp_path):
    content = [{**e, "family": "chexps", "expert_ids": [2, 2]} for e in logs.base_events()]
    assert traces.read_trace(logs.write(tmp_path, [*content, end()])).families == ("chexps",)


def test_position_computed_again_is_another_token(tmp_path):
    again = [event(batch_id=3, layer_id=layer, expert_ids=[2, 3]) for layer in (0, 1)]
    trace = traces.read_trace(logs.write(tmp_path, [*logs.base_events(), *again, end(12)]))
    assert len(trace.tokens) == 6


# --- files of other formats -----------------------------------------------------------------------------------------


@pytest.fixture
def parquet(tmp_path):
    log = logs.write(tmp_path, logs.base_log())
    path = tmp_path / "log.parquet"
    writer = traces.open_writer(path)
    reader = traces.open_reader(log)
    for chunk in reader.chunks(lambda problem: pytest.fail(str(problem))):
        writer.write(chunk.table)
    writer.finish(reader.metadata)
    return path


def test_parquet_truncated(parquet):
    parquet.write_bytes(parquet.read_bytes()[:-10])
    with pytest.raises(traces.TraceError, match=r"log\.parquet: is no Parquet file, or a truncated one"):
        traces.read_trace(parquet)


def test_parquet_of_something_else(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(traces.TraceError, match=r"x\.parquet: is no routing log: it has no column type"):
        traces.read_trace(path)


def test_parquet_with_another_column_type(parquet):
    table = pq.read_table(parquet)
    index = table.schema.get_field_index("layer_id")
    pq.write_table(table.set_column(index, "layer_id", table["layer_id"].cast(pa.int64())), parquet)
    with pytest.raises(traces.TraceError, match="the column layer_id has type int64, not int32"):
        traces.read_trace(parquet)


def test_parquet_with_other_items_in_a_list(parquet):
    """Where all lists are empty there are none; one that is not would be read as something else."""
    table = pq.read_table(parquet)
    index = table.schema.get_field_index("admitted")
    lists = table["admitted"].to_pylist()
    assert not any(lists)
    pq.write_table(
        table.set_column(index, "admitted", pa.array(lists, pa.list_(pa.int32()))), parquet.with_name("e.parquet")
    )
    read = traces.read_trace(parquet.with_name("e.parquet"))
    assert (read.ids == traces.read_trace(parquet).ids).all()
    with_one = [[7] if row == 3 else one for row, one in enumerate(lists)]
    pq.write_table(table.set_column(index, "admitted", pa.array(with_one, pa.list_(pa.int32()))), parquet)
    with pytest.raises(traces.TraceError, match=r"the column admitted has type list<.*: int32>, not list<.*list<"):
        traces.read_trace(parquet)


def test_parquet_with_a_bad_row(parquet):
    table = pq.read_table(parquet)
    index = table.schema.get_field_index("phase")
    phases = table["phase"].to_pylist()
    phases[6] = "x"
    pq.write_table(table.set_column(index, "phase", pa.array(phases)), parquet)
    with pytest.raises(traces.TraceError, match=r'log\.parquet:7: phase must be "prefill" or "decode", got "x"'):
        traces.read_trace(parquet)


IDS = np.array([[[0, 1], [2, 3]], [[1, 2], [0, 3]]])
NPZ = {
    "no_ids": ({"n_experts": 4}, "is no trace: it has no array ids"),
    "no_n_experts": ({"ids": IDS}, "is no trace: it has no array n_experts"),
    "flat_ids": ({"ids": IDS[0], "n_experts": 4}, "ids must be whole numbers of shape [tokens, layers, top_k]"),
    "float_ids": ({"ids": IDS * 1.0, "n_experts": 4}, "ids must be whole numbers of shape"),
    "no_token": ({"ids": IDS[:0], "n_experts": 4}, "is empty: ids has no token"),
    "weights_shape": ({"ids": IDS, "n_experts": 4, "weights": np.ones((2, 2))}, "weights must have shape [2, 2, 2]"),
    "weights_infinite": ({"ids": IDS, "n_experts": 4, "weights": np.where(IDS == 3, np.inf, 1)},
                         "weights[0, 1, 1] is not finite"),
    "phase_2": ({"ids": IDS, "n_experts": 4, "phase": np.array([0, 2])}, "phase must be 0 (prefill) or 1 (decode)"),
    "sequences": ({"ids": IDS, "n_experts": 4, "seq_offsets": np.array([0, 1])}, "seq_offsets must rise from 0 to 2"),
    "sequences_fall": ({"ids": IDS, "n_experts": 4, "seq_offsets": np.array([0, 2, 1, 2])}, "seq_offsets must rise"),
    "layer_twice": ({"ids": IDS, "n_experts": 4, "layers": np.array([3, 3])},
                    "layers has layer 3 twice, in columns 0 and 1"),
    "hole_within": ({"ids": np.where(IDS == 2, -1, IDS), "n_experts": 4},
                    "ids[0, 1, 0] is -1 (not recorded), but an id"),
    "id_out_of_range": ({"ids": IDS, "n_experts": 3}, r"ids[0, 1, 1] is 3, out of range: n_experts is 3"),
    "repeated_id": ({"ids": IDS * 0, "n_experts": 4}, r"ids[0, 0, 1] is 0, which stands before it in the event"),
}  # fmt: skip


@pytest.mark.parametrize(("arrays", "reason"), NPZ.values(), ids=NPZ.keys())
def test_npz(tmp_path, arrays, reason):
    path = tmp_path / "t.npz"
    np.savez(path, **arrays)
    with pytest.raises(traces.TraceError) as caught:
        traces.read_trace(path)
    assert caught.value.problem.path == path
    assert caught.value.problem.reason.startswith(reason)


def test_npz_foreign(tmp_path):
    """numpy would take such a file for a pickle and tell how to load it unsafely."""
    path = tmp_path / "t.npz"
    path.write_bytes(b"GGUF" * 20)
    with pytest.raises(traces.TraceError) as caught:
        traces.open_reader(path)
    assert str(caught.value) == f"{path}: is no numpy archive, or a truncated one"


def test_npz_truncated(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, ids=IDS, n_experts=4)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(traces.TraceError, match=r"t\.npz: is no numpy archive, or a truncated one"):
        traces.read_trace(path)


def test_missing_paths(tmp_path):
    with pytest.raises(traces.TraceError, match=r"nothing\.jsonl: does not exist"):
        traces.read_trace(tmp_path / "nothing.jsonl")
    with pytest.raises(traces.TraceError, match=r"holds no routing\.jsonl; name"):
        traces.read_trace(tmp_path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(traces.TraceError, match=r"a\.txt: is empty"):
        traces.read_trace(tmp_path / "a.txt")


def test_directory_of_several_logs_is_not_read_in_part(tmp_path):
    log = logs.write(tmp_path, logs.base_log())
    (tmp_path / "routing-1.jsonl").write_bytes(log.read_bytes())
    with pytest.raises(traces.TraceError, match=r"holds 2 logs \(routing\.jsonl, routing-1\.jsonl\): name one of them"):
        traces.read_trace(tmp_path)


# --- damage at random -----------------------------------------------------------------------------------------------


def sample(suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        log = logs.write(Path(folder, "in"), logs.base_log())
        path = Path(folder, f"t{suffix}")
        edit.copy(log, traces.open_writer(path))
        return path.read_bytes()


SAMPLES = {suffix: sample(suffix) for suffix in (".jsonl", ".parquet", ".npz")}
DAMAGE = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=3), st.integers(0, 4)), max_size=3)


@pytest.mark.parametrize("suffix", SAMPLES)
@given(damage=DAMAGE, cut=st.just(1.0) | st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_damaged_files_give_a_trace_or_a_trace_error(suffix, damage, cut):
    """Bytes replaced, inserted or taken away anywhere, and the end cut off: never another exception."""
    content = SAMPLES[suffix]
    for place, inserted, n_removed in damage:
        at = int(place * len(content))
        content = content[:at] + inserted + content[at + n_removed :]
    content = content[: int(cut * len(content))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"t{suffix}")
        path.write_bytes(content)
        try:
            trace = traces.read_trace(path)
        except traces.TraceError as error:
            assert str(error).startswith(str(path))  # noqa: PT017 - either outcome is right
        else:
            assert trace.n_events <= 10
