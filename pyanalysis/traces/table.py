"""A log as an Arrow table: one row per line, one column per field of any type of line, and `rest` for all other fields.

Nothing is lost in a table, so tools that copy lines work on tables. A row's fields are null where its type has none.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyanalysis.traces.event import PHASES, RECORDS, Field
from pyanalysis.traces.lines import split

if TYPE_CHECKING:
    from collections.abc import Iterable

_ARROW_TYPES = {
    "text": pa.string(),
    "phase": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "flag": pa.bool_(),
    "ids": pa.list_(pa.int32()),
    "weights": pa.list_(pa.float32()),
    "flags": pa.list_(pa.bool_()),
    "experts": pa.list_(pa.list_(pa.int32())),
}


def _columns() -> dict[str, pa.DataType]:
    columns = {"type": pa.string()}
    for known in RECORDS.values():
        columns.update({f.name: _ARROW_TYPES[f.kind] for f in known})
    return columns


FIELD_SCHEMA = pa.schema(list(_columns().items()))
SCHEMA = FIELD_SCHEMA.append(pa.field("rest", pa.string()))


def table_of(records: Iterable[dict[str, Any]]) -> pa.Table:
    """The table of valid records (lines.check_record), in order."""
    rows = []
    for record in records:
        known, rest = split(record)
        rows.append({**known, "rest": json.dumps(rest, separators=(",", ":")) if rest else None})
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def with_no_cache(events: pa.Table) -> pa.Table:
    """`events`, which has the columns up to router_weights, with those of a log without a cache."""
    n = events.num_rows
    nothing = pa.array(np.zeros(n + 1, dtype=np.int32))
    columns = {name: events[name] for name in events.column_names}
    for name in ("cache_hit", "admitted", "evicted"):
        columns[name] = pa.ListArray.from_arrays(nothing, pa.array([], SCHEMA.field(name).type.value_type))
    columns["copy_bytes"] = pa.array(np.zeros(n, dtype=np.int64))
    return pa.table([columns.get(f.name, pa.nulls(n, f.type)) for f in SCHEMA], schema=SCHEMA)


def records_of(table: pa.Table) -> list[dict[str, Any]]:
    """The records of a table's rows. Float32 weights come as the shortest decimal number that is the same float32."""
    columns = {name: table[name].to_pylist() for name in table.column_names if name != "router_weights"}
    columns["router_weights"] = _shortest(table["router_weights"])
    rest = columns.pop("rest")
    result = []
    for row, kind in enumerate(columns["type"]):
        record: dict[str, Any] = {"type": kind}
        for known in RECORDS.get(kind, ()):
            value = columns[known.name][row]
            if value is not None or (known.required and known.nullable):
                record[known.name] = value
        if rest[row] is not None:
            record.update(json.loads(rest[row]))
        result.append(record)
    return result


def _shortest(weights: pa.ChunkedArray) -> list[list[float] | None]:
    column = weights.combine_chunks()
    texts = pc.cast(column.flatten(), pa.string()).to_pylist()
    ends = np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy())
    rows = zip(column.is_valid().to_pylist(), ends.tolist(), [0, *ends.tolist()], strict=False)
    return [[float(text) for text in texts[begin:end]] if valid else None for valid, end, begin in rows]


def is_valid(table: pa.Table) -> bool:
    """Whether every row is a valid line, decided on whole columns: what lines.check_record says of each.

    Answers False where it cannot tell (a type of line that this version does not know).
    """
    kinds = table["type"]
    if kinds.null_count:
        return False
    present = pc.unique(kinds).to_pylist()
    if not set(present) <= RECORDS.keys():
        return False
    return all(
        _rows_are_valid(kind, table if len(present) == 1 else table.filter(pc.equal(kinds, kind))) for kind in present
    )


def _rows_are_valid(kind: str, rows: pa.Table) -> bool:
    known = {f.name: f for f in RECORDS[kind]}
    for name in FIELD_SCHEMA.names[1:]:
        column = rows[name].combine_chunks()
        if name not in known:
            if column.null_count != len(column):
                return False
        elif not _column_is_valid(known[name], column):
            return False
    if kind == "event":
        return _lengths_agree(rows)
    if kind == "residency":
        changes = pc.and_(pc.is_valid(rows["added"]), pc.is_valid(rows["removed"]))
        return bool(pc.all(pc.or_(pc.is_valid(rows["full"]), changes)).as_py())
    return True


def _column_is_valid(known: Field, column: pa.Array) -> bool:
    if column.null_count and not known.nullable and known.required:
        return False
    if len(column) == column.null_count:
        return True
    if known.kind in ("ids", "weights", "flags", "experts"):
        return _items_are_valid(known, column.flatten())
    if known.kind in ("int32", "int64"):
        return bool(pc.min(column).as_py() >= known.minimum)
    if known.kind in ("text", "phase"):
        values = pc.unique(column).to_pylist()
        return all(v in PHASES if known.kind == "phase" else v != "" for v in values)
    return True


def _items_are_valid(known: Field, items: pa.Array) -> bool:
    if items.null_count:
        return False
    if len(items) == 0 or known.kind == "flags":
        return True
    if known.kind == "weights":
        return bool(np.isfinite(items.to_numpy(zero_copy_only=False)).all())
    if known.kind == "experts":
        lengths = pc.list_value_length(items).to_numpy()
        items = items.flatten()
        if items.null_count or not np.isin(lengths, (2, 3)).all():
            return False
        families = items.to_numpy()[(np.cumsum(lengths) - 1)[lengths == 3]]  # noqa: PLR2004 - [layer, expert, family]
        if (families == 0).any():
            return False
    return bool(pc.min(items).as_py() >= 0)


def _lengths_agree(events: pa.Table) -> bool:
    k = pc.list_value_length(events["expert_ids"])
    weights = pc.list_value_length(events["router_weights"])
    hits = pc.list_value_length(events["cache_hit"])
    if pc.min(k).as_py() == 0:
        return False
    if pc.all(pc.equal(weights, k)).as_py() is False:
        return False
    return bool(pc.all(pc.or_(pc.equal(hits, 0), pc.equal(hits, k))).as_py())


# --- text -----------------------------------------------------------------------------------------------------------


def json_lines(table: pa.Table) -> bytes:
    """The rows as JSON Lines, fields in the order of event.RECORDS. Events are put together column by column."""
    is_plain = pc.and_(pc.equal(table["type"], "event"), pc.is_null(table["rest"])).to_numpy()
    if is_plain.all():
        return _joined(_event_lines(table)) if table.num_rows else b""
    lines = np.empty(table.num_rows, dtype=object)
    if is_plain.any():
        lines[is_plain] = _event_lines(table.filter(pa.array(is_plain))).to_numpy(zero_copy_only=False)
    lines[~is_plain] = [
        json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"
        for record in records_of(table.filter(pa.array(~is_plain)))
    ]
    return "".join(lines).encode()


def _joined(lines: pa.Array) -> bytes:
    one_list = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    text: bytes = pc.binary_join(one_list, "")[0].as_buffer().to_pybytes()
    return text


def _event_lines(events: pa.Table) -> pa.Array:
    parts: list[Any] = [pa.scalar('{"type":"event"')]
    for known in RECORDS["event"]:
        text = _json_text(known, events[known.name].combine_chunks())
        name = f',"{known.name}":'
        if known.required:
            parts += [pa.scalar(name), text]
        else:
            parts.append(pc.fill_null(pc.binary_join_element_wise(pa.scalar(name), text, ""), ""))
    return pc.binary_join_element_wise(*parts, pa.scalar("}\n"), pa.scalar(""))


def _json_text(known: Field, column: pa.Array) -> pa.Array:
    """The JSON of each value; null stays null where the field may be absent, and is "null" elsewhere."""
    if known.kind in ("text", "phase"):
        coded = column.dictionary_encode()
        text = pa.array([json.dumps(v) for v in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)
    elif known.kind == "weights":
        items = pc.cast(column.flatten(), pa.string())
        text = _list_text(column, pc.if_else(pc.equal(items, "-0"), "-0.0", items))  # JSON's -0 is the integer 0
    elif known.kind in ("ids", "flags"):
        text = _list_text(column, pc.cast(column.flatten(), pa.string()))
    elif known.kind == "experts":
        experts = column.flatten()
        text = _list_text(column, _list_text(experts, pc.cast(experts.flatten(), pa.string())))
    else:
        text = pc.cast(column, pa.string())
    return pc.fill_null(text, "null") if known.required else text


def _list_text(column: pa.Array, items: pa.Array) -> pa.Array:
    """The lists of `column` as JSON; `items` are the texts of its items, flattened."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    text = pc.binary_join_element_wise("[", joined, "]", "")
    return pc.if_else(pc.is_valid(column), text, pa.scalar(None, pa.string()))
