"""Traces of other programs: what a small file of each format becomes, worked out by hand, and what is kept of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pyanalysis import traces
from pyanalysis.traces import edit

# A prompt of three tokens in ubatches of two and one, two tokens decoded; layers 1 and 2. In each ubatch the last layer
# has only the row whose logits are wanted. Positions of the prompt: batches of 2 and 1.
MOE_TRACE = """\
-2,1,5,0
-1,1,5,1
-1,2,7,3
-3,1,2,4
-3,2,3,1
0,1,5,2
0,2,3,7
1,1,0,1
1,2,4,6
"""
MOE_EVENTS = [
    # batch, request, token, layer, phase, ids, line
    (0, 0, 0, 1, 0, [5, 0], 1),
    (0, 0, 1, 1, 0, [5, 1], 2),
    (0, 0, 1, 2, 0, [7, 3], 3),
    (1, 0, 2, 1, 0, [2, 4], 4),
    (1, 0, 2, 2, 0, [3, 1], 5),
    (2, 0, 3, 1, 1, [5, 2], 6),
    (2, 0, 3, 2, 1, [3, 7], 7),
    (3, 0, 4, 1, 1, [0, 1], 8),
    (3, 0, 4, 2, 1, [4, 6], 9),
]
ROUTE_TRACE = """\
# route_trace v1
# model=/models/a b.gguf arch=qwen3moe n_layer=2 n_expert=8 n_expert_used=2
# layer=0 expert_bytes=1000 dense_bytes=7
# layer=1 expert_bytes=2000 dense_bytes=7
turn,phase,step,layer,slot,expert,weight,residency,expert_bytes
0,0,0,0,0,5,0.75,0,1000
0,0,0,0,1,1,0.25,0,1000
0,0,1,0,0,5,0.5,0,0
0,0,1,0,1,2,0.5,0,1000
0,0,1,1,0,7,nan,0,2000
0,0,1,1,1,3,nan,0,2000
0,1,2,0,0,1,0.625,1,0
0,1,2,0,1,5,0.375,2,0
0,1,2,1,0,3,1,1,0
0,1,2,1,1,0,0,0,2000
"""
# In the prompt the last layer sees only the last token. Token by token:
ROUTE_EVENTS = [
    (-1, 0, 0, 0, 0, [5, 1], 6),
    (-1, 0, 1, 0, 0, [5, 2], 8),
    (-1, 0, 1, 1, 0, [7, 3], 10),
    (-1, 0, 2, 0, 1, [1, 5], 12),
    (-1, 0, 2, 1, 1, [3, 0], 14),
]
NAN = float("nan")
ROUTE_WEIGHTS = [[0.75, 0.25], [0.5, 0.5], [NAN, NAN], [0.625, 0.375], [1, 0]]
TOKENS = """\
{"tok": 1, "layers": [[3, 4], [0, 2]]}
{"tok": 2, "layers": [[3, 5], [2, 1]]}
{"tok": 1, "layers": [[4, 3], [0, 1]]}
"""
TOKEN_EVENTS = [
    (-1, 0, 1, 0, 1, [3, 4], 1),
    (-1, 0, 1, 1, 1, [0, 2], 1),
    (-1, 0, 2, 0, 1, [3, 5], 2),
    (-1, 0, 2, 1, 1, [2, 1], 2),
    (-1, 1, 1, 0, 1, [4, 3], 3),
    (-1, 1, 1, 1, 1, [0, 1], 3),
]
FILES = {
    "llama-moe-trace": (MOE_TRACE, MOE_EVENTS),
    "route_trace": (ROUTE_TRACE, ROUTE_EVENTS),
    "tokens": (TOKENS, TOKEN_EVENTS),
}


def write(folder: Path, text: str, name: str = "trace.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def events(trace: traces.Trace) -> list[tuple]:
    columns = (trace.batch, trace.request, trace.token, trace.layer, trace.phase, trace.ids, trace.line)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES.keys())
def test_events(tmp_path, text, expected):
    """Recognised by content: the name says nothing."""
    trace = traces.read_trace(write(tmp_path, text))
    assert events(trace) == expected
    assert trace.complete
    assert trace.n_lost == 0
    assert trace.run_id == "trace"


@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES.keys())
def test_windows_line_ends(tmp_path, text, expected):
    path = tmp_path / "t"
    path.write_bytes(text.replace("\n", "\r\n").encode())
    assert events(traces.read_trace(path)) == expected


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.npz", "a.parquet", "a"])
@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES.keys())
def test_name_does_not_matter(tmp_path, text, expected, name):
    assert events(traces.read_trace(write(tmp_path, text, name))) == expected


@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES.keys())
def test_slow_way_reads_what_the_fast_way_reads(tmp_path, text, expected, monkeypatch):
    """Line by line, as a block with a bad line is read."""
    path = write(tmp_path, text)
    reader = type(traces.open_reader(path))
    monkeypatch.setattr(reader, "_fast", lambda *_: None)
    trace = traces.read_trace(path)
    assert events(trace) == expected
    if text is ROUTE_TRACE:
        np.testing.assert_array_equal(trace.weights, np.array(ROUTE_WEIGHTS, np.float32))


@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES.keys())
def test_small_blocks_read_the_same(tmp_path, text, expected, monkeypatch):
    """Rows of one event, and the ubatches, may be parted by the end of a block."""
    monkeypatch.setattr("pyanalysis.traces.foreign._BLOCK_BYTES", 45)
    assert events(traces.read_trace(write(tmp_path, text))) == expected


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".npz"])
@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES.keys())
def test_converted_to_a_log_it_has_the_same_events(tmp_path, text, expected, suffix):
    target = tmp_path / f"log{suffix}"
    edit.copy(write(tmp_path, text), traces.open_writer(target))
    trace = traces.read_trace(target)
    assert sorted(row[:-1] for row in events(trace)) == sorted(row[:-1] for row in expected)
    assert trace.complete
    if text is ROUTE_TRACE:
        assert trace.model["architecture"] == "qwen3moe"
        order = np.lexsort((trace.layer, trace.token))
        np.testing.assert_array_equal(trace.weights[order], np.array(ROUTE_WEIGHTS, np.float32))


def test_cut_shuffle_and_merge_take_foreign_traces(tmp_path):
    one = write(tmp_path, TOKENS, "one")
    other = write(tmp_path, TOKENS.replace("[3, 4]", "[6, 4]"), "other")
    edit.cut(one, traces.open_writer(tmp_path / "cut.npz"), edit.Selection(requests=(1, None)))
    assert events(traces.read_trace(tmp_path / "cut.npz"))[0][:-1] == TOKEN_EVENTS[4][:-1]
    edit.shuffle(one, traces.open_writer(tmp_path / "shuffled.npz"), 3)
    shuffled = traces.read_trace(tmp_path / "shuffled.npz").ids.tolist()
    assert sorted(shuffled) == sorted(row[5] for row in TOKEN_EVENTS)
    from pyanalysis.traces import merge

    merge.merge([one, other], traces.open_writer(tmp_path / "both.npz"))
    both = traces.read_trace(tmp_path / "both.npz")
    assert both.request.tolist() == [0] * 4 + [1] * 2 + [2] * 4 + [3] * 2
    assert both.ids[6].tolist() == [6, 4]


# --- llama-moe-trace ------------------------------------------------------------------------------------------------


def test_moe_trace_with_header(tmp_path):
    trace = traces.read_trace(write(tmp_path, "pos,layer,id0,id1\n" + MOE_TRACE))
    assert events(trace) == [(*row[:-1], row[-1] + 1) for row in MOE_EVENTS]


def test_moe_trace_ubatches_of_one_batch_repeat_positions(tmp_path):
    """A batch of four in ubatches of two: both have -2 and -1."""
    text = "-2,0,1\n-1,0,2\n-2,1,1\n-1,1,2\n-2,0,3\n-1,0,4\n-1,1,4\n0,0,1\n0,1,1\n"
    trace = traces.read_trace(write(tmp_path, text))
    assert trace.batch.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2]
    assert trace.token.tolist() == [0, 1, 0, 1, 2, 3, 3, 4, 4]


def test_moe_trace_of_one_layer(tmp_path):
    text = "-2,3,1\n-1,3,2\n-3,3,1\n0,3,4\n1,3,4\n"
    trace = traces.read_trace(write(tmp_path, text))
    assert trace.batch.tolist() == [0, 0, 1, 2, 3]
    assert trace.token.tolist() == [0, 1, 2, 3, 4]


def test_moe_trace_of_two_sequences(tmp_path):
    text = "-1,0,1\n0,0,2\n1,0,2\n-2,0,1\n-1,0,3\n0,0,2\n"
    trace = traces.read_trace(write(tmp_path, text))
    assert trace.request.tolist() == [0, 0, 0, 1, 1, 1]
    assert trace.token.tolist() == [0, 1, 2, 0, 1, 2]
    assert trace.batch.tolist() == [0, 1, 2, 3, 3, 4]


def test_moe_trace_without_prompts_has_no_ubatches(tmp_path):
    trace = traces.read_trace(write(tmp_path, "0,0,1\n1,0,2\n0,0,2\n1,0,1\n"))
    assert trace.request.tolist() == [0, 0, 1, 1]
    assert trace.token.tolist() == [0, 1, 0, 1]
    assert trace.batch.tolist() == [-1] * 4
    assert "a sequence has no prompt, its positions count from its first decoded token" in trace.notes


# --- route_trace ----------------------------------------------------------------------------------------------------


def test_route_trace_metadata_and_weights(tmp_path):
    trace = traces.read_trace(write(tmp_path, ROUTE_TRACE))
    assert trace.model["file"] == "/models/a b.gguf"
    assert (trace.model["n_layers"], trace.model["n_experts"], trace.model["top_k"]) == (2, 8, 2)
    assert [(e["layer_id"], e["n_experts"], e["bytes"]) for e in trace.model["expert_bytes"]] == [
        (0, 8, 1000),
        (1, 8, 2000),
    ]
    np.testing.assert_array_equal(trace.weights, np.array(ROUTE_WEIGHTS, np.float32))
    assert "residency, expert_bytes and dropped, of the cache that wrote the file, are left out" in trace.notes


def test_route_trace_with_dropped_column(tmp_path):
    head, rows = ROUTE_TRACE.split("expert_bytes\n")
    text = head + "expert_bytes,dropped\n" + "".join(row + ",1\n" for row in rows.splitlines())
    assert events(traces.read_trace(write(tmp_path, text))) == ROUTE_EVENTS


def test_route_trace_turns_are_requests(tmp_path):
    more = "1,1,3,0,0,4,1,1,0\n1,1,3,0,1,5,0,1,0\n1,1,3,1,0,4,1,1,0\n1,1,3,1,1,5,0,1,0\n"
    trace = traces.read_trace(write(tmp_path, ROUTE_TRACE + more))
    assert trace.request.tolist() == [0] * 5 + [1] * 2
    assert trace.token.tolist()[-2:] == [3, 3]


def test_route_trace_without_weights_has_none(tmp_path):
    text = "\n".join(line if line[0] in "#t" else ",".join([*line.split(",")[:6], "nan", "0", "0"])
                     for line in ROUTE_TRACE.splitlines()) + "\n"  # fmt: skip
    assert traces.read_trace(write(tmp_path, text)).weights is None


# --- tokens ---------------------------------------------------------------------------------------------------------


def test_tokens_with_unknown_fields(tmp_path):
    text = "".join(json.dumps({**json.loads(line), "t_ms": 3}) + "\n" for line in TOKENS.splitlines())
    trace = traces.read_trace(write(tmp_path, text))
    assert events(trace) == TOKEN_EVENTS
    assert "unknown fields are left out: t_ms" in trace.notes


def test_tokens_whole_last_line_needs_no_line_end(tmp_path):
    assert events(traces.read_trace(write(tmp_path, TOKENS.rstrip("\n")))) == TOKEN_EVENTS


def test_log_is_not_taken_for_tokens(tmp_path):
    """A routing log's first line has a type; one with fields tok and layers beside it stays a log."""
    trace = traces.read_trace(write(tmp_path, '{"type":"x","tok":1,"layers":[]}\n', "t.jsonl"))
    assert trace.n_events == 0
    assert "lines of unknown types skipped: 1 of type x" in trace.notes


# --- numpy archives of other projects -------------------------------------------------------------------------------


def test_npz_events_that_are_not_recorded_count_as_lost(tmp_path):
    ids = np.array([[[0, 1], [2, 3]], [[-1, -1], [0, 3]], [[1, 2], [0, 2]]])
    path = tmp_path / "t.npz"
    np.savez(path, ids=ids, n_experts=4)
    trace = traces.read_trace(path)
    assert trace.n_events == 5
    assert trace.n_lost == 1
    assert "1 events are not recorded (-1) and count as lost" in trace.notes
    edit.copy(path, traces.open_writer(tmp_path / "log.jsonl"))
    assert traces.read_trace(tmp_path / "log.jsonl").n_lost == 1


def test_npz_sequences_phase_and_layers(tmp_path):
    ids = np.array([[[0, 1]], [[2, 1]], [[3, 0]]])
    path = tmp_path / "t.npz"
    np.savez(path, ids=ids.astype(np.int8), n_experts=4, seq_offsets=[0, 2, 3], phase=[0, 1, 1], layers=[7],
             weights=np.full(ids.shape, 0.5, np.float16))  # fmt: skip
    trace = traces.read_trace(path)
    assert events(trace) == [(-1, 0, 0, 7, 0, [0, 1], 1), (-1, 0, 1, 7, 1, [2, 1], 2), (-1, 1, 0, 7, 1, [3, 0], 3)]
    assert trace.weights.tolist() == [[0.5, 0.5]] * 3
    assert trace.n_experts(7, "exps") == 4


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES.keys())
def test_every_tool_takes_them(tmp_path, monkeypatch, capsys, text, expected):
    monkeypatch.chdir(tmp_path)
    from pyanalysis import cli

    write(tmp_path, text, "t.csv")

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["moecache", "trace", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, capsys.readouterr().out

    status, out = run("show", "t.csv", "--json")
    assert status == 0
    assert json.loads(out)[0]["n_events"] == len(expected)
    status, out = run("check", "t.csv", "--json")
    assert (status, json.loads(out)["valid"]) == (0, True)
    tools = (["convert", "t.csv", "a.jsonl"], ["cut", "t.csv", "b.jsonl", "--requests", "0"])
    for command in (*tools, ["shuffle", "t.csv", "c.jsonl", "--seed", "1"], ["merge", "t.csv", "a.jsonl", "d.jsonl"]):
        assert run(*command)[0] == 0, command
        assert run("check", command[3 if command[0] == "merge" else 2])[0] == 0
    assert traces.read_trace("d.jsonl").n_events == 2 * len(expected)
    write(tmp_path, text + "x\n", "bad.csv")
    assert run("check", "bad.csv")[0] == 1
    assert run("convert", "bad.csv", "e.jsonl") == (2, "")
    assert not Path("e.jsonl").exists()
