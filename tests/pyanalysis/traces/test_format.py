"""traces/FORMAT.md and the JSON schemas say what the code does."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from pyanalysis import traces
from pyanalysis.traces import metadata
from pyanalysis.traces.event import RECORDS, Event
from pyanalysis.traces.lines import LineError, check_record, parse_line
from pyanalysis.traces.table import SCHEMA
from tests.pyanalysis.traces import logs

TRACES = logs.ROOT / "traces"
FORMAT = (TRACES / "FORMAT.md").read_text()


@pytest.fixture(scope="module")
def line_schema():
    return json.loads((TRACES / "routing.schema.json").read_text())


@pytest.fixture(scope="module")
def run_schema():
    return json.loads((TRACES / "run.schema.json").read_text())


def test_schemas_are_schemas(line_schema, run_schema):
    jsonschema.Draft202012Validator.check_schema(line_schema)
    jsonschema.Draft202012Validator.check_schema(run_schema)


def worked_event() -> str:
    return re.search(r'^    (\{"type":"event".*\})$', FORMAT, re.MULTILINE)[1]


def test_worked_event_of_the_document(line_schema):
    event = Event.of(parse_line(worked_event().encode()))
    assert (event.batch_id, event.request_id, event.token_index, event.layer_id) == (12, 0, 37, 3)
    assert event.phase == "decode"
    assert event.expert_ids == [17, 4, 90, 121]
    assert event.router_weights == [0.40625, 0.25, 0.1875, 0.15625]
    assert sum(event.router_weights) == 1
    assert event.resident_experts is None
    assert event.record() == json.loads(worked_event())
    jsonschema.validate(json.loads(worked_event()), line_schema)


def test_document_lists_every_field_of_an_event():
    section = FORMAT.split("### event")[1].split("### overflow")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert listed == [f.name for f in RECORDS["event"][2:]]


def test_document_lists_every_parquet_column():
    section = FORMAT.split("## Parquet")[1].split("## npz")[0]
    patterns = re.findall(r"`([\w*]+)`", " ".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)))
    matches = [re.compile(pattern.replace("*", r"\w+")) for pattern in patterns]
    assert [name for name in SCHEMA.names if not any(m.fullmatch(name) for m in matches)] == []
    assert [m.pattern for m in matches if not any(m.fullmatch(name) for name in SCHEMA.names)] == []


@pytest.mark.parametrize("kind", RECORDS)
def test_schema_has_the_fields_of_the_code(line_schema, kind):
    schema = line_schema["$defs"][kind]
    assert list(schema["properties"]) == ["type", *(f.name for f in RECORDS[kind])]
    assert schema["required"] == ["type", *(f.name for f in RECORDS[kind] if f.required)]
    for known in RECORDS[kind]:
        field = schema["properties"][known.name]
        assert ("null" in field.get("type", ())) == known.nullable, known.name
        if known.kind in ("int32", "int64"):
            assert field["minimum"] == known.minimum, known.name


VALID = [
    logs.event(),
    logs.event(router_weights=None, batch_id=-1, top1_token=-1),
    logs.event(
        cache_hit=[True, False], admitted=[[0, 0]], evicted=[[0, 3], [1, 2]], resident_experts=7, copy_bytes=4096
    ),
    logs.event(copy_enqueued_ns=5, copy_ready_ns=9, ready_before_next_token=True, copy_duration_ns=4),
    logs.event(router_weights=[1, 0], unknown={"a": [1, None]}),
    logs.overflow(3, 12),
    logs.end(0, 0),
    {"type": "residency", "run_id": "r", "context_id": 0, "generation": 0, "full": [[0, 1]]},
    {"type": "residency", "run_id": "r", "context_id": 0, "generation": 1, "added": [], "removed": [[0, 1]]},
    {"type": "residency", "run_id": "r", "context_id": 0, "generation": 2, "added": [[0, 1, 1]], "removed": []},
    logs.event(family="chexps", evicted=[[0, 3, 1], [1, 2]]),
    {"type": "of another version", "anything": 1},
]


@pytest.mark.parametrize("record", VALID, ids=lambda r: r["type"])
def test_valid_records(line_schema, record):
    jsonschema.validate(record, line_schema)
    check_record(record)


INVALID = {
    "lacks_type": {"run_id": "r"},
    "type_is_no_text": {"type": 3},
    **{f"event_lacks_{f.name}": {k: v for k, v in logs.event().items() if k != f.name}
       for f in RECORDS["event"] if f.required},
    **{f"{f.name}_null": logs.event(**{f.name: None}) for f in RECORDS["event"] if not f.nullable},
    **{f"{f.name}_is_an_object": logs.event(**{f.name: {}}) for f in RECORDS["event"]},
    "empty_run_id": logs.event(run_id=""),
    "negative_batch": logs.event(batch_id=-2),
    "negative_token": logs.event(token_index=-1),
    "negative_id": logs.event(expert_ids=[-1, 2]),
    "id_of_64_bits": logs.event(expert_ids=[1, 2**31]),
    "fraction": logs.event(token_index=1.5),
    "true_for_a_number": logs.event(token_index=True),
    "number_for_true": logs.event(ready_before_next_token=1),
    "no_ids": logs.event(expert_ids=[], router_weights=[]),
    "unknown_phase": logs.event(phase="warmup"),
    "weight_text": logs.event(router_weights=["0.5", 0.5]),
    "hit_number": logs.event(cache_hit=[1, 0]),
    "evicted_of_four": logs.event(evicted=[[0, 1, 1, 1]]),
    "evicted_of_one": logs.event(evicted=[[0]]),
    "evicted_family_0": logs.event(evicted=[[0, 1, 0]]),
    "evicted_negative_family": logs.event(evicted=[[0, 1, -1]]),
    "evicted_family_text": logs.event(evicted=[[0, 1, "chexps"]]),
    "evicted_flat": logs.event(evicted=[0, 1]),
    "top1_of_minus_2": logs.event(top1_token=-2),
    "overflow_of_nothing": logs.overflow(0, 0),
    "overflow_lacks_batch": {k: v for k, v in logs.overflow(0, 1).items() if k != "batch_id"},
    "end_lacks_events": {k: v for k, v in logs.end().items() if k != "events"},
    "residency_of_nothing": {"type": "residency", "run_id": "r", "context_id": 0, "generation": 0},
    "residency_half": {"type": "residency", "run_id": "r", "context_id": 0, "generation": 0, "added": []},
    "a_list": [1],
}  # fmt: skip


@pytest.mark.parametrize("record", INVALID.values(), ids=INVALID.keys())
def test_invalid_records_are_refused_by_schema_and_code(line_schema, record):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(record, line_schema)
    with pytest.raises(LineError):
        check_record(record)


def test_blank_run_json_is_valid(run_schema):
    jsonschema.validate(metadata.blank("r"), run_schema)
    assert list(metadata.blank("r")) == run_schema["required"]
    assert list(metadata.blank("r")["model"]) == run_schema["$defs"]["model"]["required"]


FULL_RUN = {
    **metadata.blank("r"),
    "created": "2026-11-29T20:15:02Z",
    "model": {
        "file": "m.gguf",
        "architecture": "grovemoe",
        "quantization": "Q4_0",
        "sha256": "0" * 64,
        "fingerprint": "ab",
        "n_layers": 2,
        "n_experts": 128,
        "top_k": 8,
        "expert_bytes": [
            {"layer_id": 1, "family": "exps", "n_experts": 128, "bytes": 13824, "types": {"gate": "q4_0"}},
            {"layer_id": 1, "family": "chexps", "n_experts": 64, "bytes": 6912},
        ],
        "moe_layers": [1],
        "layers_with_output_rows_only": [1],
    },
    "contexts": [{"context_id": 1, "file": "routing-1.jsonl", "device": "MoECache1", "model": None}],
    "llama_cpp": {"ggml_version": "0.25.3", "llama_cpp_python": None},
    "cuda": {"runtime": "12.8", "driver": "570.1"},
    "gpu_names": ["H200"],
    "policy_parameters": {},
    "benchmark": {"n": 1},
}


def test_full_run_json_is_valid(run_schema):
    jsonschema.validate(FULL_RUN, run_schema)
    value = metadata.parse(TRACES, json.dumps(FULL_RUN))
    model = metadata.model_of(value, 1)
    assert metadata.experts_of(model, 1, "exps") == 128
    assert metadata.experts_of(model, 1, "chexps") == 64
    assert metadata.experts_of(model, 0, "chexps") is None


BAD_RUNS = {
    "not_json": ("{", ":1: not JSON: Expecting property name"),
    "a_list": ([], "not a run.json: it must be one JSON object"),
    "foreign": ({"name": "x"}, "not the run.json of a routing log: format must be"),
    "newer": ({**FULL_RUN, "format": {"name": "ggml_moecache routing log", "version": 2}},
              "format version 2 is newer than version 1, which this program reads; update it"),
    "version_text": ({**FULL_RUN, "format": {"name": "ggml_moecache routing log", "version": "1"}},
                     'format.version must be a whole number of at least 1, got "1"'),
    "no_run_id": ({**FULL_RUN, "run_id": ""}, 'run_id must be a string that is not empty, got ""'),
    "lacks_seed": ({k: v for k, v in FULL_RUN.items() if k != "seed"}, "lacks the field seed"),
    "model_text": ({**FULL_RUN, "model": "m.gguf"}, 'model must be an object or null, got "m.gguf"'),
    "model_lacks_top_k": ({**FULL_RUN, "model": {k: v for k, v in FULL_RUN["model"].items() if k != "top_k"}},
                          "model lacks the field top_k"),
    "n_experts_text": ({**FULL_RUN, "model": {**FULL_RUN["model"], "n_experts": "8"}},
                       'model.n_experts must be a whole number of at least 0 or null, got "8"'),
    "layers_number": ({**FULL_RUN, "model": {**FULL_RUN["model"], "moe_layers": 8}},
                      "model.moe_layers must be a list of layers or null, got 8"),
    "layout": ({**FULL_RUN, "model": {**FULL_RUN["model"], "expert_bytes": [{"layer_id": 1}]}},
               "model.expert_bytes must be a list of {layer_id, family, n_experts, bytes} or null"),
    "contexts": ({**FULL_RUN, "contexts": [{"file": "x"}]}, "contexts[0] must be an object with a context_id"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "reason"), BAD_RUNS.values(), ids=BAD_RUNS.keys())
def test_bad_run_json(tmp_path, run_schema, value, reason):
    log = logs.write(tmp_path, logs.base_log())
    run = tmp_path / "run.json"
    run.write_text(value if isinstance(value, str) else json.dumps(value))
    with pytest.raises(traces.TraceError, match=re.escape(reason)) as caught:
        traces.open_reader(log)
    assert str(caught.value).startswith(str(run))
    if not isinstance(value, str):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(value, run_schema)
