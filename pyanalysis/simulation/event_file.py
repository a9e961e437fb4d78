"""`--events FILE`: what a simulation decided at each event, as JSON Lines or Parquet (traces/EVENTS.md)."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ggml_moecache.errors import ConfigError
from pyanalysis.traces.event import PHASES
from pyanalysis.traces.staging import Staged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from pyanalysis.simulation.result import EventLog, SimulationResult

    Array = np.ndarray[Any, np.dtype[Any]]

_EXPERT = pa.struct([("layer", pa.int32()), ("family", pa.string()), ("expert", pa.int32())])
_COPY = pa.struct(
    [
        *((field.name, field.type) for field in _EXPERT),
        ("evicted", _EXPERT),
        ("copy_enqueued_ns", pa.float64()),
        ("copy_ready_ns", pa.float64()),
        ("ready_before_next_token", pa.bool_()),
    ]
)
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("trace", "policy", "capacity")),
        ("event", pa.int64()),
        ("request_id", pa.int64()),
        ("token_index", pa.int64()),
        ("layer_id", pa.int32()),
        ("family", pa.string()),
        ("phase", pa.string()),
        ("expert_ids", pa.list_(pa.int32())),
        ("cache_hit", pa.list_(pa.bool_())),
        ("admitted", pa.list_(_COPY)),
    ]
)
_EVENTS_AT_ONCE = 1 << 16


def tables(result: SimulationResult) -> Iterator[pa.Table]:
    """The decisions of a result simulated with events=True, SCHEMA, 65,536 events at once.

    A row with event -1 has what was placed before the first event, if anything was.
    """
    log = result.events
    assert log is not None  # noqa: S101 - the caller asked for them
    n = len(log.row)
    first = 0 if len(log.admitted_event) == 0 or log.admitted_event[0] >= 0 else -1
    for begin in range(first, n, _EVENTS_AT_ONCE):
        yield _rows(result, log, begin, min(begin + _EVENTS_AT_ONCE, n))


def _rows(result: SimulationResult, log: EventLog, begin: int, end: int) -> pa.Table:
    index = np.arange(begin, end)
    known = index >= 0
    own = slice(max(begin, 0), end)
    offsets = log.offsets[own.start : end + 1]
    items = slice(int(offsets[0]), int(offsets[-1]))
    lists = np.concatenate([np.zeros(int(not known.all()), np.int64), offsets - offsets[0]]).astype(np.int32)
    families = pa.array(log.families, pa.string())
    columns: dict[str, Any] = {
        **{name: pa.repeat(getattr(result, name), len(index)) for name in ("trace", "policy", "capacity")},
        "event": index,
        "request_id": _with_null(log.request[own], known),
        "token_index": _with_null(log.token[own].astype(np.int64), known),
        "layer_id": _with_null(log.layer[own], known),
        "family": families.take(_with_null(log.family[own], known)),
        "phase": pa.array(PHASES, pa.string()).take(_with_null(log.phase[own], known)),
        "expert_ids": pa.ListArray.from_arrays(lists, pa.array(log.ids[items], pa.int32())),
        "cache_hit": pa.ListArray.from_arrays(lists, pa.array(log.hit[items], pa.bool_())),
        "admitted": _admitted(log, families, begin, end),
    }
    return pa.table(columns, schema=SCHEMA)


def _with_null(values: Array, known: Array) -> pa.Array:
    """`values` of the known rows; the row before the first event has none."""
    column = np.zeros(len(known), dtype=values.dtype)
    column[known] = values
    return pa.array(column, mask=~known)


def _admitted(log: EventLog, families: pa.Array, begin: int, end: int) -> pa.Array:
    places = np.searchsorted(log.admitted_event, np.arange(begin, end + 1))
    part = slice(int(places[0]), int(places[-1]))
    evicts = log.evicted_expert[part] >= 0
    ready = log.copy_ready[part]
    evicted = pa.StructArray.from_arrays(
        [
            pa.array(log.evicted_layer[part], pa.int32()),
            families.take(pa.array(np.maximum(log.evicted_family[part], 0))),
            pa.array(log.evicted_expert[part], pa.int32()),
        ],
        fields=list(_EXPERT),
        mask=pa.array(~evicts),
    )
    copies = pa.StructArray.from_arrays(
        [
            pa.array(log.admitted_layer[part], pa.int32()),
            families.take(pa.array(log.admitted_family[part])),
            pa.array(log.admitted_expert[part], pa.int32()),
            evicted,
            pa.array(log.copy_enqueued_ns[part], from_pandas=True),
            pa.array(log.copy_ready_ns[part], from_pandas=True),
            pa.array(ready == 1, mask=ready < 0),
        ],
        fields=list(_COPY),
    )
    return pa.ListArray.from_arrays((places - places[0]).astype(np.int32), copies)


class EventFile:
    """The file in the making: `add` each result, then `finish` or `discard`. It appears whole or not at all.

    Raises ConfigError for another suffix than .jsonl and .parquet, TraceError if the file exists or cannot be written.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        if path.suffix not in (".jsonl", ".parquet"):
            raise ConfigError(f"--events needs a file with the suffix .jsonl or .parquet. Got '{path}' instead.")
        self._staged = Staged(path, force=force)
        self._parquet = (
            pq.ParquetWriter(self._staged.path, SCHEMA, compression="zstd") if path.suffix != ".jsonl" else None
        )
        self._lines: BinaryIO | None = None if self._parquet else self._staged.path.open("wb")

    def add(self, result: SimulationResult) -> None:
        for table in tables(result):
            with self._staged.writing():
                if self._parquet:
                    self._parquet.write_table(table)
                elif self._lines:
                    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in table.to_pylist())
                    self._lines.write(text.encode())

    def _close(self) -> None:
        for file in (self._parquet, self._lines):
            if file:
                file.close()

    def finish(self) -> None:
        with self._staged.writing():
            self._close()
        self._staged.commit()

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # the disk is full: nothing of the file is wanted
            self._close()
        self._staged.discard()
