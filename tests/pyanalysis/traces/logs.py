"""Small logs for the tests: the base log is written out here so that every expected value can be worked out by eye.

One request, layers 0 and 1, five experts of which expert 4 is never used, top-2. Ubatch 0 is the prompt.

    token  phase    ubatch  layer 0  layer 1
      0    prefill    0     0 1      2 3
      1    prefill    0     0 2      2 3
      2    prefill    0     0 1      3 2
      3    decode     1     1 0      0 1
      4    decode     2     3 2      0 2
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyanalysis.traces import metadata

RUN = "run-1"
IDS = {
    0: [[0, 1], [0, 2], [0, 1], [1, 0], [3, 2]],
    1: [[2, 3], [2, 3], [3, 2], [0, 1], [0, 2]],
}
BATCH = [0, 0, 0, 1, 2]
ROOT = Path(__file__).resolve().parents[3]


def event(**changes: Any) -> dict[str, Any]:
    """A valid event of the base run (token 3 of layer 0), with `changes`."""
    base = {
        "type": "event",
        "run_id": RUN,
        "context_id": 0,
        "batch_id": 1,
        "request_id": 0,
        "token_index": 3,
        "layer_id": 0,
        "family": "exps",
        "phase": "decode",
        "expert_ids": [1, 0],
        "router_weights": [0.75, 0.25],
        "resident_experts": None,
        "cache_hit": [],
        "admitted": [],
        "evicted": [],
        "copy_enqueued_ns": None,
        "copy_ready_ns": None,
        "ready_before_next_token": None,
        "copy_bytes": 0,
        "copy_duration_ns": None,
        "cpu_duration_ns": None,
        "cuda_duration_ns": None,
    }
    return {**base, **changes}


def line_of(token: int, layer: int) -> int:
    """Line of the base log, from 1: ubatch by ubatch, in it layer by layer."""
    return 1 + layer * 3 + token if token < 3 else 7 + (token - 3) * 2 + layer


def base_events() -> list[dict[str, Any]]:
    events = [
        event(
            batch_id=BATCH[token],
            token_index=token,
            layer_id=layer,
            phase="prefill" if token < 3 else "decode",
            expert_ids=ids[token],
        )
        for layer, ids in IDS.items()
        for token in range(5)
    ]
    return sorted(events, key=lambda e: (e["batch_id"], e["layer_id"], e["token_index"]))


def end(events: int = 10, lost_events: int = 0, **changes: Any) -> dict[str, Any]:
    base = {"type": "end", "run_id": RUN, "context_id": 0, "events": events, "lost_events": lost_events}
    return {**base, **changes}


def overflow(batch_id: int, lost_events: int, **changes: Any) -> dict[str, Any]:
    base = {"type": "overflow", "run_id": RUN, "context_id": 0, "batch_id": batch_id, "lost_events": lost_events}
    return {**base, **changes}


def base_log() -> list[dict[str, Any]]:
    return [*base_events(), end()]


def run_json(**model: Any) -> dict[str, Any]:
    """run.json of the base run, `model` changed."""
    value = metadata.blank(RUN)
    known = {"n_experts": 5, "top_k": 2, "moe_layers": [0, 1], "layers_with_output_rows_only": []}
    return {**value, "capacity": "0", "model": {**value["model"], **known, **model}}


def text_of(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


def write(folder: Path, records: list[dict[str, Any]] | str | bytes, run: dict[str, Any] | None = None) -> Path:
    """A log directory with routing.jsonl of `records` (or a text) and run.json. Returns the log's path."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "routing.jsonl"
    if isinstance(records, bytes):
        log.write_bytes(records)
    else:
        log.write_text(records if isinstance(records, str) else text_of(records))
    (folder / "run.json").write_text(json.dumps(run or run_json()))
    return log


def records_in(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]
