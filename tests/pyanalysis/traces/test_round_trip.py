"""What is written is read back: any log through every format, with every field."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyanalysis import traces
from pyanalysis.traces import edit, jsonl
from pyanalysis.traces.event import RECORDS
from pyanalysis.traces.lines import parse_line
from pyanalysis.traces.table import SCHEMA, is_valid, json_lines, records_of, table_of
from tests.pyanalysis.traces import logs

INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(0, 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
EXPERT = st.tuples(INT32, INT32) | st.tuples(INT32, INT32, st.integers(1, 2**31 - 1))
EXPERTS = st.lists(EXPERT.map(list), max_size=3)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
VALUES = {
    "text": TEXT,
    "phase": st.sampled_from(["prefill", "decode"]),
    "int32": INT32,
    "int64": INT64,
    "flag": st.booleans(),
    "ids": st.lists(INT32, max_size=4),
    "weights": st.lists(FLOAT32, max_size=4),
    "flags": st.lists(st.booleans(), max_size=4),
    "experts": EXPERTS,
}
KNOWN_NAMES = {"type", *(f.name for known in RECORDS.values() for f in known)}


@st.composite
def records(draw) -> dict:
    """Any valid line, with unknown fields now and then, or one of an unknown type."""
    kind = draw(st.sampled_from([*RECORDS, "event", "event", "foreign"]))
    unknown = draw(st.dictionaries(TEXT.filter(lambda name: name not in KNOWN_NAMES), JSON, max_size=2))
    if kind == "foreign":
        return {"type": "foreign", **unknown}
    record = {"type": kind}
    for known in RECORDS[kind]:
        if known.required or draw(st.booleans()):
            low = st.integers(known.minimum, 2**31 - 1)
            value = low if known.kind in ("int32", "int64") and known.minimum else VALUES[known.kind]
            record[known.name] = draw(st.none() | value if known.nullable else value)
    if kind == "residency" and "full" not in record:
        record |= {"added": draw(EXPERTS), "removed": draw(EXPERTS)}
    if kind == "event":
        k = draw(st.integers(1, 4))
        record["expert_ids"] = draw(st.lists(INT32, min_size=k, max_size=k))
        record["router_weights"] = draw(st.none() | st.lists(FLOAT32, min_size=k, max_size=k))
        record["cache_hit"] = draw(st.just([]) | st.lists(st.booleans(), min_size=k, max_size=k))
    return {**record, **unknown}


def bits(record: dict) -> dict:
    """`record` with its weights as float32 bits, so that -0.0 and 0.0 differ."""
    weights = record.get("router_weights")
    if record["type"] != "event" or weights is None:
        return record
    return {**record, "router_weights": np.array(weights, np.float32).tobytes()}


def same(one: list[dict], other: list[dict]) -> bool:
    return list(map(bits, one)) == list(map(bits, other))


@given(st.lists(records(), max_size=8))
@settings(max_examples=150, deadline=None)
def test_records_survive_the_table_and_its_text(some):
    table = table_of(some)
    assert table.schema == SCHEMA
    assert same(records_of(table), some)
    lines = json_lines(table).split(b"\n")
    assert lines.pop() == b""
    assert same([parse_line(line) for line in lines], some)


@given(st.lists(records(), min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_the_fast_way_reads_what_the_slow_way_reads(some):
    """A block that Arrow's parser accepts gives the table that the lines one by one give."""
    block = logs.text_of(some).encode()
    fast = jsonl._parse_block(block)
    foreign = any(r["type"] == "foreign" or set(r) - KNOWN_NAMES for r in some)
    # A string that begins with a colon looks like one field more, so its block is read line by line.
    slow_text = any(
        isinstance(v, str) and (v.startswith(":") or '":' in v or "\ufeff" in v) for r in some for v in r.values()
    )
    assert (fast is None) == foreign or slow_text
    if fast is not None:
        assert fast.equals(table_of(parse_line(line) for line in block.splitlines()))
        assert is_valid(fast)


@given(st.lists(records(), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_parquet_keeps_every_line(some):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.parquet")
        writer = traces.open_writer(path)
        writer.write(table_of(some))
        writer.finish(logs.run_json())
        reader = traces.open_reader(path)
        back = [record for chunk in reader.chunks(pytest.fail) for record in records_of(chunk.table)]
    assert same(back, some)
    assert reader.metadata == logs.run_json()


BROKEN = st.sampled_from([None, -3, 1.5, "x", [], [1, -1], [[1]], {}, True, 2**31, 2**63, [0.5, None], ""])


@given(st.lists(records(), min_size=1, max_size=3), st.data())
@settings(max_examples=200, deadline=None)
def test_the_fast_way_accepts_nothing_that_the_slow_way_refuses(some, data):
    index = data.draw(st.integers(0, len(some) - 1))
    name = data.draw(st.sampled_from(sorted(KNOWN_NAMES)))
    some[index] = {**some[index], name: data.draw(BROKEN)}
    if data.draw(st.booleans()):
        some[index].pop(data.draw(st.sampled_from(sorted(some[index]))))
    block = logs.text_of(some).encode()
    fast = jsonl._parse_block(block)
    if fast is not None:
        assert fast.equals(table_of(parse_line(line) for line in block.splitlines()))


def test_fast_way_takes_the_log_of_the_plugin():
    """Both fast ways: without a cache the constant end of the lines is not parsed, with one it is."""
    plain = logs.text_of(logs.base_events()).encode()
    assert jsonl._NO_CACHE in plain
    table = jsonl._parse_block(plain)
    assert records_of(table) == logs.base_events()
    cached = [
        {**e, "cache_hit": [True, False], "resident_experts": 3, "admitted": [[0, 0]]} for e in logs.base_events()
    ]
    assert records_of(jsonl._parse_block(logs.text_of(cached).encode())) == cached


def test_text_is_that_of_the_plugin():
    """Same order of fields, no spaces: a log comes back from Parquet as the plugin wrote it."""
    text = logs.text_of(logs.base_log()).replace("0.75", "0.703125")
    assert json_lines(table_of(parse_line(line.encode()) for line in text.splitlines())).decode() == text


# --- traces ---------------------------------------------------------------------------------------------------------


def convert(source, target):
    writer = traces.open_writer(target)
    notes = edit.copy(source, writer)
    return [*notes, *writer.notes]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".npz"])
def test_base_log_through_each_format_and_back(tmp_path, suffix):
    log = logs.write(tmp_path / "in", logs.base_log())
    between = tmp_path / f"t{suffix}"
    assert convert(log, between) == []
    assert convert(between, tmp_path / "out") == []
    assert (tmp_path / "out" / "routing.jsonl").read_bytes() == log.read_bytes()
    assert json.loads((tmp_path / "out" / "run.json").read_text()) == logs.run_json()


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".npz"])
def test_columns(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    convert(logs.write(tmp_path / "in", logs.base_log()), path)
    trace = traces.read_trace(path)
    assert trace.families == ("exps",)
    assert trace.batch.tolist() == [0] * 6 + [1, 1, 2, 2]
    assert trace.token.tolist() == [0, 1, 2, 0, 1, 2, 3, 3, 4, 4]
    assert trace.layer.tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 0, 1]
    assert trace.phase.tolist() == [0] * 6 + [1] * 4
    assert trace.request.tolist() == [0] * 10
    assert trace.ids.dtype == np.int32
    assert trace.ids[:3].tolist() == logs.IDS[0][:3]
    assert trace.weights.dtype == np.float32
    assert trace.weights.tolist() == [[0.75, 0.25]] * 10
    assert trace.top1 is None
    assert trace.line.tolist() == list(range(1, 11))
    assert (trace.n_events, trace.n_lost, trace.complete, trace.run_id) == (10, 0, True, "run-1")
    assert trace.metadata == logs.run_json()
    assert [e.record() for e in trace.events()] == logs.base_events()
    assert [e.record() for e in traces.read_events(path)] == logs.base_events()


def test_columns_of_uneven_events(tmp_path):
    """Two families with another top-k, weights of some events only, top1 of some."""
    events = [
        logs.event(top1_token=77),
        logs.event(family="chexps", expert_ids=[2], router_weights=None),
    ]
    trace = traces.read_trace(logs.write(tmp_path, events))
    assert trace.families == ("exps", "chexps")
    assert trace.ids.tolist() == [[1, 0], [2, -1]]
    assert np.array_equal(trace.weights, [[0.75, 0.25], [np.nan, np.nan]], equal_nan=True)
    assert trace.top1.tolist() == [77, -1]
    back = [e.record() for e in trace.events()]
    assert back[1] == {**events[1], "top1_token": -1}
    assert back[0] == events[0]


def test_losses_through_each_format(tmp_path):
    events = logs.base_events()
    log = logs.write(tmp_path / "in", [*events[:7], logs.overflow(1, 3), *events[8:], logs.end(9, 5)])
    for suffix in (".parquet", ".npz"):
        convert(log, tmp_path / f"t{suffix}")
        trace = traces.read_trace(tmp_path / f"t{suffix}")
        assert (trace.n_lost, trace.n_events, trace.complete) == (5, 9, True)


def test_npz_says_what_it_leaves_out(tmp_path):
    cached = [{**e, "cache_hit": [True, False], "resident_experts": 3} for e in logs.base_events()]
    foreign = {"type": "foreign"}
    log = logs.write(tmp_path / "in", [foreign, *cached, logs.end()])
    notes = convert(log, tmp_path / "t.npz")
    assert notes[-1].startswith("npz holds routing decisions only: 11 lines lose cache fields, residency, ")


def test_npz_of_another_project(tmp_path):
    """Only ids and n_experts are needed; sequences become requests."""
    ids = np.array([[[0, 1], [2, 3]], [[1, 0], [3, 4]], [[4, 2], [-1, -1]]], dtype=np.int8)
    path = tmp_path / "t.npz"
    np.savez(path, ids=ids, n_experts=5, seq_offsets=[0, 2, 3], layers=[3, 7])
    trace = traces.read_trace(path)
    assert trace.request.tolist() == [0, 0, 0, 0, 1]
    assert trace.token.tolist() == [0, 0, 1, 1, 0]
    assert trace.layer.tolist() == [3, 7, 3, 7, 3]
    assert trace.ids.tolist() == [[0, 1], [2, 3], [1, 0], [3, 4], [4, 2]]
    assert trace.batch.tolist() == [-1] * 5
    assert trace.phase.tolist() == [1] * 5
    assert trace.weights is None
    assert trace.n_experts(3, "exps") == 5
    assert "no run.json in the archive" in trace.notes[0]


def test_npz_arrays(tmp_path):
    convert(logs.write(tmp_path / "in", logs.base_log()), tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    assert arrays["ids"].tolist() == [[logs.IDS[0][t], logs.IDS[1][t]] for t in range(5)]
    assert arrays["layers"].tolist() == [0, 1]
    assert arrays["families"].tolist() == ["exps", "exps"]
    assert arrays["batch"].tolist() == logs.BATCH
    assert arrays["token_index"].tolist() == [0, 1, 2, 3, 4]
    assert arrays["phase"].tolist() == [0, 0, 0, 1, 1]
    assert arrays["n_experts"] == 5
    assert json.loads(str(arrays["run"])) == logs.run_json()


def test_parquet_is_readable_without_us(tmp_path):
    convert(logs.write(tmp_path / "in", logs.base_log()), tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    assert table["expert_ids"].to_pylist()[:3] == logs.IDS[0][:3]
    assert table["type"].to_pylist() == ["event"] * 10 + ["end"]
    stored = pq.ParquetFile(tmp_path / "t.parquet").metadata.metadata[b"ggml_moecache.run"]
    assert json.loads(stored) == logs.run_json()


def test_the_example_of_the_document_reads_a_parquet_file(tmp_path, monkeypatch):
    convert(logs.write(tmp_path / "in", logs.base_log()), tmp_path / "routing.parquet")
    section = (logs.ROOT / "traces" / "FORMAT.md").read_text().split("## Parquet")[1].split("\n| ")[0]
    example = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(example, names)  # noqa: S102 - our own document
    assert names["run"] == logs.run_json()
    assert names["table"].column_names == ["layer_id", "token_index", "expert_ids"]
    assert names["table"]["expert_ids"].to_pylist()[:3] == logs.IDS[0][:3]
    assert len(names["table"]) == 10


def test_many_chunks(tmp_path, monkeypatch):
    """A log that is read in many blocks: lines and overflows keep their places."""
    monkeypatch.setattr(jsonl, "_CHUNK_BYTES", 1000)
    events = [logs.event(batch_id=i, token_index=i + 1, expert_ids=[i % 5, (i + 1) % 5]) for i in range(60)]
    content = [*events[:30], logs.overflow(30, 2), *events[30:], logs.end(60, 2)]
    run = logs.run_json(moe_layers=[0])
    log = logs.write(tmp_path, content, run)
    trace = traces.read_trace(log)
    assert [e.record() for e in trace.events()] == events
    assert trace.line.tolist() == [*range(1, 31), *range(32, 62)]
    assert trace.overflows.tolist() == [[30, 30, 2]]
    log.write_text(log.read_text().replace('"batch_id":47', '"batch_id":"47"'))
    with pytest.raises(traces.TraceError, match=r"routing\.jsonl:49: batch_id must be"):
        traces.read_trace(log)
