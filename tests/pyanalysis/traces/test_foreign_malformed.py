"""Every way in which another program's trace can be bad: file, line and reason of each, and nothing written."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyanalysis import traces
from pyanalysis.traces import edit
from tests.pyanalysis.traces.test_foreign import MOE_TRACE, ROUTE_TRACE, TOKENS


def line(text: str, number: int, new: str | None) -> str:
    """`text` with line `number` replaced, or taken away if `new` is None."""
    lines = text.splitlines(keepends=True)
    lines[number - 1] = "" if new is None else new + "\n"
    return "".join(lines)


CUT = "the last line has no line end: the file was cut off; remove the line"
MOE = {
    "empty_line": (line(MOE_TRACE, 4, ""), 4, "the line is empty"),
    "cut_last_line": (MOE_TRACE[:-2], 9, CUT),
    "too_few_fields": (line(MOE_TRACE, 4, "-3,1"), 4, "a row must be pos,layer,id0,..., got 2 fields"),
    "text": (line(MOE_TRACE, 4, "-3,1,two,4"), 4, "expert id must be a whole number from 0 to 2147483647, got 'two'"),
    "hexadecimal": (line(MOE_TRACE, 4, "-3,1,0x2,4"), 4, "expert id must be a whole number"),
    "fraction": (line(MOE_TRACE, 4, "-3,1.0,2,4"), 4, "layer must be a whole number from 0 to 2147483647, got '1.0'"),
    "empty_field": (line(MOE_TRACE, 4, "-3,1,,4"), 4, "expert id must be a whole number from 0 to 2147483647, got ''"),
    "negative_id": (line(MOE_TRACE, 4, "-3,1,-1,4"), 4,
                    "expert id must be a whole number from 0 to 2147483647, got '-1'"),
    "negative_layer": (line(MOE_TRACE, 4, "-3,-1,2,4"), 4, "layer must be a whole number from 0"),
    "id_beyond_32_bits": (line(MOE_TRACE, 4, "-3,1,2147483648,4"), 4, "expert id must be a whole number"),
    "wrong_count": (line(MOE_TRACE, 4, "-3,1,2"), 4,
                    "wrong count: expert_ids has 1 ids, most events of the layer have 2"),
    "two_models": (MOE_TRACE + "2,1,0,1,2\n2,2,4,6,1\n", 10, "wrong count: expert_ids has 3 ids"),
    "repeated_id": (line(MOE_TRACE, 6, "0,1,5,5"), 6, "expert id 5 is repeated in the event"),
    "unsorted_tokens": (MOE_TRACE + "3,1,0,1\n3,2,0,1\n2,1,0,1\n2,2,0,1\n", 12,
                        "unsorted tokens: pos is 2 after 3; only 0 begins a new sequence"),
    "unsorted_prompt": (line(line(MOE_TRACE, 1, "-1,1,5,1"), 2, "-2,1,5,0"), 2,
                        "unsorted tokens: request 0, token 0, layer 1 comes after a later token"),
    "unsorted_layers": (line(line(MOE_TRACE, 6, "0,2,3,7"), 7, "0,1,5,2"), 7,
                        "unsorted layers: layer 1 of pos 0 comes after layer 2"),
    "recorded_twice": (line(MOE_TRACE, 7, "0,1,3,7"), 6,
                       "missing layers: the token at position 3 has no event of layer 2"),
    "missing_token": (line(line(MOE_TRACE, 1, "-3,1,5,0"), 1, "-3,1,5,0"), 1,
                      "missing tokens: no row of the prompt's batch has pos -2"),
    "missing_layer": (line(MOE_TRACE, 6, None), 6, "missing layers: request 0, token 3 has no event of layer 1"),
    "missing_last_layer": (line(MOE_TRACE, 7, None), 6,
                           "missing layers: the token at position 3 has no event of layer 2"),
    "cut_at_a_line": (line(MOE_TRACE, 9, None), 8, "missing layers: the token at position 4 has no event of layer 2"),
}  # fmt: skip
ROUTE = {
    "only_a_preamble": ("".join(ROUTE_TRACE.splitlines(keepends=True)[:3]), None,
                        "is truncated: it has no line turn,phase"),
    "no_row": (ROUTE_TRACE[: ROUTE_TRACE.index("0,0,0,0,0,5")], None, "is empty: it has no complete line"),
    "another_version": (ROUTE_TRACE.replace("v1", "v2"), 1, "is route_trace version 2, this program reads 1"),
    "other_columns": (line(ROUTE_TRACE, 5, "turn,phase,step,layer,slot,expert"), 5, "must be turn,phase,step"),
    "two_preambles": (ROUTE_TRACE + ROUTE_TRACE, 16, "a comment stands among the rows: two traces are mixed"),
    "two_models": (line(ROUTE_TRACE, 3, ROUTE_TRACE.splitlines()[1]), 3, "names a second model: two traces are mixed"),
    "empty_line": (line(ROUTE_TRACE, 8, ""), 8, "the line is empty"),
    "cut_last_line": (ROUTE_TRACE[:-4], 15, CUT),
    "wrong_fields": (line(ROUTE_TRACE, 8, "0,0,1,0,0,5"), 8, "a row must have 9 fields, got 6"),
    "phase": (line(ROUTE_TRACE, 8, "0,2,1,0,0,5,0.5,0,0"), 8, "phase must be a whole number from 0 to 1, got '2'"),
    "step_not_known": (line(ROUTE_TRACE, 8, "0,0,-1,0,0,5,0.5,0,0"), 8, "step must be a whole number from 0"),
    "residency": (line(ROUTE_TRACE, 8, "0,0,1,0,0,5,0.5,3,0"), 8, "residency must be a whole number from 0 to 2"),
    "weight_text": (line(ROUTE_TRACE, 8, "0,0,1,0,0,5,x,0,0"), 8, "weight must be a float32 number"),
    "weight_infinite": (line(ROUTE_TRACE, 8, "0,0,1,0,0,5,inf,0,0"), 8, "weight must be a float32 number"),
    "weight_too_large": (line(ROUTE_TRACE, 8, "0,0,1,0,0,5,1e39,0,0"), 8, "weight must be a float32 number"),
    "weight_partly_nan": (line(ROUTE_TRACE, 8, "0,0,1,0,0,5,nan,0,0"), 8,
                          "weight is nan for some experts of the event only"),
    "slot_skipped": (line(ROUTE_TRACE, 12, None), 12, "wrong count: slot is 1, this row is number 0 of its event"),
    "wrong_count": (line(ROUTE_TRACE, 13, None), 12, "wrong count: expert_ids has 1 ids, the trace's top_k is 2"),
    "id_out_of_range": (line(ROUTE_TRACE, 8, "0,0,1,0,0,8,0.5,0,0"), 8,
                        "expert id 8 is out of range: layer 0 has 8 experts"),
    "repeated_id": (line(ROUTE_TRACE, 9, "0,0,1,0,1,5,0.5,0,0"), 8, "expert id 5 is repeated in the event"),
    "unsorted_tokens": (ROUTE_TRACE + "0,1,1,0,0,1,1,0,0\n0,1,1,0,1,2,1,0,0\n", 16,
                        "unsorted tokens: step is 1 in layer 0 after a higher one of its turn"),
    "unsorted_phases": (ROUTE_TRACE + "0,0,3,0,0,1,1,0,0\n0,0,3,0,1,2,1,0,0\n", 16,
                        "unsorted phases: phase is 0 in layer 0 after a higher one"),
    "unsorted_turns": (ROUTE_TRACE.replace("0,0,0,0,", "1,0,0,0,"), 8, "unsorted turns: turn is 0 after 1"),
    "recorded_twice": (ROUTE_TRACE + "".join(ROUTE_TRACE.splitlines(keepends=True)[-2:]).replace("1,2,1", "1,2,1"), 16,
                       "wrong count: slot is 0, this row is number 2 of its event"),
    "missing_layer": (line(line(ROUTE_TRACE, 12, None), 12, None), 12,
                      "missing layers: request 0, token 2 has no event of layer 0"),
    "missing_last_layer": (line(line(ROUTE_TRACE, 14, None), 14, None), 12,
                           "missing layers: the token at step 2 has no event of layer 1"),
}  # fmt: skip
TOKEN = {
    "empty_line": (line(TOKENS, 2, ""), 2, "the line is empty"),
    "cut_last_line": (TOKENS[:-9], 3, "the last line is cut off; remove it"),
    "cut_in_the_middle": (line(TOKENS, 2, '{"tok": 2, "lay'), 2, "not JSON: "),
    "no_object": (line(TOKENS, 2, "[1, 2]"), 2, "a line must be an object with tok and layers, got [1, 2]"),
    "no_layers": (line(TOKENS, 2, '{"tok": 2}'), 2, "a line must be an object with tok and layers"),
    "tok_text": (line(TOKENS, 2, '{"tok": "2", "layers": [[3, 5], [2, 1]]}'), 2, "tok must be a whole number"),
    "tok_null": (line(TOKENS, 2, '{"tok": null, "layers": [[3, 5], [2, 1]]}'), 2, "tok must be a whole number"),
    "layers_flat": (line(TOKENS, 2, '{"tok": 2, "layers": [3, 5]}'), 2, "layers must be a list of lists"),
    "layers_empty": (line(TOKENS, 2, '{"tok": 2, "layers": []}'), 2, "layers must be a list of lists"),
    "layer_empty": (line(TOKENS, 2, '{"tok": 2, "layers": [[3, 5], []]}'), 2, "layers[1] must be expert ids from 0"),
    "negative_id": (line(TOKENS, 2, '{"tok": 2, "layers": [[3, 5], [2, -1]]}'), 2,
                    "layers[1] must be expert ids from 0"),
    "fraction": (line(TOKENS, 2, '{"tok": 2, "layers": [[3, 5], [2, 1.0]]}'), 2, "layers[1] must be expert ids from 0"),
    "id_beyond_32_bits": (line(TOKENS, 2, '{"tok": 2, "layers": [[3, 5], [2, 2147483648]]}'), 2, "layers[1] must be"),
    "wrong_count": (line(TOKENS, 2, '{"tok": 2, "layers": [[3, 5], [2]]}'), 2,
                    "wrong count: expert_ids has 1 ids, most events of the layer have 2"),
    "repeated_id": (line(TOKENS, 2, '{"tok": 2, "layers": [[3, 5], [2, 2]]}'), 2,
                    "expert id 2 is repeated in the event"),
    "missing_layer": (line(TOKENS, 2, '{"tok": 2, "layers": [[3, 5]]}'), 2,
                      "missing layers: it has 1, the lines before 2, or two models are mixed"),
    "two_models": (TOKENS + '{"tok": 2, "layers": [[1, 2], [1, 2], [1, 2]]}\n', 4,
                   "missing layers: it has 3, the lines before 2, or two models are mixed"),
    "unsorted_tokens": (TOKENS + '{"tok": 3, "layers": [[1, 2], [1, 2]]}\n{"tok": 2, "layers": [[1, 2], [1, 2]]}\n', 5,
                        "unsorted tokens: tok is 2 after 3; only 1 begins a new sequence"),
    "recorded_twice": (line(TOKENS, 2, TOKENS.splitlines()[0]), 2, "unsorted tokens: tok is 1 after 1"),
}  # fmt: skip
CASES = {
    f"{name}-{case}": value
    for name, cases in (("moe", MOE), ("route", ROUTE), ("token", TOKEN))
    for case, value in cases.items()
}


def first_problem(path: Path) -> traces.Problem:
    with pytest.raises(traces.TraceError) as caught:
        traces.read_trace(path)
    assert str(caught.value).startswith(str(path))
    return caught.value.problem


@pytest.mark.parametrize(("text", "number", "reason"), CASES.values(), ids=CASES.keys())
def test_reader_names_file_line_and_reason(tmp_path, text, number, reason):
    path = tmp_path / "trace"
    path.write_text(text)
    problem = first_problem(path)
    assert problem.path == path
    assert problem.reason.startswith(reason)
    assert problem.line == number


@pytest.mark.parametrize(("text", "number", "reason"), CASES.values(), ids=CASES.keys())
def test_nothing_is_written(tmp_path, text, number, reason):
    """Neither the log nor a part of it is left by convert."""
    path = tmp_path / "trace"
    path.write_text(text)
    for target in ("out", "out.parquet", "out.npz"):
        writer = traces.open_writer(tmp_path / target)
        with pytest.raises(traces.TraceError):
            edit.copy(path, writer)
        writer.discard()
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace"], (number, reason)


@pytest.mark.parametrize("text", [MOE_TRACE, ROUTE_TRACE, TOKENS], ids=["moe", "route", "token"])
def test_check_finds_every_bad_line(tmp_path, text):
    """Lines 2 and 4 behind the end are bad, the others are read."""
    path = tmp_path / "trace"
    path.write_text(text + "x\n" + text.splitlines()[-1].replace("1", "y") + "\n")
    n = text.count("\n")
    problems = []
    trace = traces.load_trace(traces.open_reader(path), problems.append)
    assert [problem.line for problem in problems] == [n + 1, n + 2]
    assert trace.n_events == {MOE_TRACE: 9, ROUTE_TRACE: 5, TOKENS: 6}[text]


@pytest.mark.parametrize("name", ["a", "a.csv"])
def test_empty_file(tmp_path, name):
    path = tmp_path / name
    path.touch()
    assert first_problem(path) == (path, None, "is empty")


@pytest.mark.parametrize("name", ["a", "a.csv"])
def test_file_of_no_known_format(tmp_path, name):
    path = tmp_path / name
    path.write_text("12,x,3\n")
    problem = first_problem(path)
    assert problem.line == 1
    assert problem.reason.startswith("is no trace of a known format (routing log, JSON Lines, ")
    assert problem.reason.endswith("it begins with '12,x,3'")


def test_number_of_experts_given_by_the_user(tmp_path):
    """convert --experts: the number goes into run.json, and ids are checked against it."""
    path = tmp_path / "trace"
    path.write_text(MOE_TRACE)
    edit.copy(path, traces.open_writer(tmp_path / "log"), 8)
    assert traces.read_trace(tmp_path / "log").n_experts(1, "exps") == 8
    for source, n_experts, message in (
        (path, 7, "trace:3: expert id 7 is out of range: layer 2 has 7 experts"),
        (tmp_path / "log", 9, "has 8 experts per layer, not 9"),
    ):
        writer = traces.open_writer(tmp_path / "other.npz")
        with pytest.raises(traces.TraceError, match=message):
            edit.copy(source, writer, n_experts)
        writer.discard()


DAMAGE = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=3), st.integers(0, 4)), max_size=3)


@pytest.mark.parametrize("text", [MOE_TRACE, ROUTE_TRACE, TOKENS], ids=["moe", "route", "token"])
@given(damage=DAMAGE, cut=st.just(1.0) | st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_damaged_files_give_a_trace_or_a_trace_error(text, damage, cut):
    """Bytes replaced, inserted or taken away anywhere, and the end cut off: never another exception."""
    content = text.encode()
    for place, inserted, n_removed in damage:
        at = int(place * len(content))
        content = content[:at] + inserted + content[at + n_removed :]
    content = content[: int(cut * len(content))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t")
        path.write_bytes(content)
        try:
            trace = traces.read_trace(path)
        except traces.TraceError as error:
            assert str(error).startswith(str(path))  # noqa: PT017 - either outcome is right
        else:
            assert trace.n_events <= 12
